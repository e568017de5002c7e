"""Hostile clients of the Smart Transfer Protocol, in raw frames over sockets: each gets a code, others are served."""

import json
import random
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from itertools import pairwise
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from odf_testing.profiles import examples
from odf_testing.recorded_transfers import Pool, all_recorded, lines_of
from odf_testing.sync_node import SyncNode

from odf_common.hashing.multihash import Multihash
from odf_sync.http import serve_pull, serve_push, smart_routes
from odf_sync.smart.message_json import encode
from odf_sync.smart.messages import VERSION, DatasetVisibility, PushRequest, TransferPlan

from .raw_client import BINARY, CITIES, CLOSE, PING, PONG, TEXT, Client, frame

HEAD: Final = "f16205b32358ba1169824af9f5f71d362beb5f58932cfca42013f210e16672a94399f"
OTHER_HEAD: Final = f"f1620{'0' * 64}"
CONTINUATION: Final = 0
TOO_LARGE: Final = 1009
PROTOCOL_ERROR: Final = 1002
FAULT: Final = 1011
PULL: Final = json.dumps({"begin_after": None, "stop_at": None, "force_update_if_diverged": False}).encode()


@contextmanager
def connected(base: str, action: str = "pull", version: str = str(VERSION)) -> Iterator[Client]:
    client = Client(base, action, version)
    try:
        yield client
    finally:
        client.socket.close()


def require_served(base: str) -> None:
    """Another client opens an exchange, and gets a response."""
    with connected(base) as client:
        assert client.status == 101
        client.send(TEXT, PULL)
        opcode, payload = client.receive()
        assert opcode == TEXT
        assert "transfer_plan" in json.loads(payload)["Ok"]


@pytest.fixture(scope="module")
def pool() -> Pool:
    return all_recorded()


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory, pool: Pool) -> Iterator[str]:
    node = SyncNode(tmp_path_factory.mktemp("node"))
    node.hold(CITIES, Multihash.parse(HEAD), pool)
    with node.served() as url:
        yield url


@pytest.mark.parametrize("action", ["pull", "push"])
@pytest.mark.parametrize(
    ("sent", "code"),
    [
        pytest.param(frame(TEXT, b"garbage"), FAULT, id="no JSON"),
        pytest.param(frame(TEXT, b"[" * 100_000), FAULT, id="deep JSON"),
        pytest.param(frame(TEXT, b'{"object_files": []}'), FAULT, id="wrong order"),
        pytest.param(frame(BINARY, b"{}"), FAULT, id="binary"),
        pytest.param(frame(TEXT, b"\xff\xfe"), 1007, id="no UTF-8"),
        pytest.param(frame(3, b""), PROTOCOL_ERROR, id="unknown opcode"),
        pytest.param(frame(TEXT | 64, b"x"), PROTOCOL_ERROR, id="compressed"),
        pytest.param(frame(CONTINUATION, b"x"), PROTOCOL_ERROR, id="continues nothing"),
        pytest.param(
            frame(TEXT, b"{", is_last=False) + frame(TEXT, b"}"), PROTOCOL_ERROR, id="two messages mixed"
        ),
        pytest.param(frame(PING, b"x" * 126), PROTOCOL_ERROR, id="long ping"),
        pytest.param(frame(PING, b"x", is_last=False), PROTOCOL_ERROR, id="fragmented ping"),
        pytest.param(frame(TEXT, b"", length=1 << 40), TOO_LARGE, id="huge"),
        pytest.param(frame(TEXT, b"", length=(1 << 63) + 1), TOO_LARGE, id="huger than huge"),
        pytest.param(frame(TEXT, b"x", is_last=False) * 70_000, PROTOCOL_ERROR, id="endless fragments"),
        pytest.param(frame(CLOSE, b"x"), PROTOCOL_ERROR, id="close without a code"),
        pytest.param(frame(CLOSE, b"\0\1"), PROTOCOL_ERROR, id="close with no code of the protocol"),
    ],
)
def test_an_unexpected_message_ends_with_a_code(base: str, action: str, sent: bytes, code: int) -> None:
    with connected(base, action) as client:
        client.socket.sendall(sent)
        assert client.close_code() == code
    require_served(base)


@pytest.mark.parametrize("action", ["pull", "push"])
def test_only_a_get_is_upgraded(base: str, action: str) -> None:
    client = Client(base, action, method="HEAD")
    client.socket.close()
    assert client.status == 405


@pytest.mark.parametrize("version", ["1", "+1", "01", " 1", "1 ", "\t1\t", "0" * 5000 + "1"])
def test_this_version_may_be_written_in_any_form_of_an_integer(base: str, version: str) -> None:
    with connected(base, version=version) as client:
        assert client.status == 101


@pytest.mark.parametrize("version", ["2", "0", "-1", "-0", "+2", "002", str(2**31 - 1), str(-(2**31))])
def test_another_version_is_refused_as_one(base: str, version: str) -> None:
    with connected(base, version=version) as client:
        assert (client.status, client.is_json) == (400, True)


@pytest.mark.parametrize(
    "version",
    [
        "",
        "one",
        "+",
        "--1",
        "+ 1",
        "1 1",
        "1.0",
        "1_0",
        "0x1",
        "1,1",
        "\xb9",
        str(2**31),
        str(-(2**31) - 1),
        "9" * 5000,
    ],
)
def test_a_version_that_is_not_an_integer_of_32_bits_is_invalid(base: str, version: str) -> None:
    with connected(base, version=version) as client:
        assert (client.status, client.is_json) == (400, False)


@settings(max_examples=examples(30))
@given(
    parts=st.lists(st.binary(min_size=1, max_size=200), min_size=1, max_size=5),
    action=st.sampled_from(["pull", "push"]),
)
def test_any_bytes_end_an_exchange_or_leave_it_waiting(base: str, parts: list[bytes], action: str) -> None:
    with connected(base, action) as client:
        with suppress(OSError):  # it may be ended by an early part
            for part in parts:
                client.socket.sendall(part)
            client.socket.shutdown(socket.SHUT_WR)
        code = client.close_code()
        assert code == 0 or 1000 <= code <= 1011
    require_served(base)


OTHER_STOP: Final = json.dumps(json.loads(PULL) | {"stop_at": OTHER_HEAD}).encode()
OTHER_CLAIM: Final = encode(
    PushRequest(
        current_head=Multihash.parse(OTHER_HEAD),
        transfer_plan=TransferPlan(num_blocks=1),
        force_update_if_diverged=False,
        visibility_for_created_dataset=DatasetVisibility.PRIVATE,
    )
).encode()
REFUSALS: Final = (("pull", OTHER_STOP, "Internal"), ("push", OTHER_CLAIM, "InvalidHead"))


def reason_after_refusal(base: str, refusal: tuple[str, bytes, str], sent: bytes) -> str:
    """Return why the server closes an exchange that it has refused, once a client has sent something more."""
    action, asked, kind = refusal
    with connected(base, action) as client:
        client.send(TEXT, asked)
        opcode, payload = client.receive()
        assert (opcode, list(json.loads(payload)["Err"])) == (TEXT, [kind])
        client.socket.settimeout(5)  # before the server would close by itself
        client.socket.sendall(sent)
        opcode, payload = client.receive()
    assert (opcode, int.from_bytes(payload[:2])) == (CLOSE, FAULT)
    fault = json.loads(payload[2:])["Err"]["Internal"]
    assert fault["phase"] == {action.title(): "MetadataRequest"}
    return str(fault["error_message"])


@pytest.mark.parametrize("refusal", REFUSALS)
@pytest.mark.parametrize("sent", [b"{}", b'{"new_blocks": 1}', b"garbage"])
def test_a_message_after_a_refusal_ends_the_exchange_at_once(
    base: str, refusal: tuple[str, bytes, str], sent: bytes
) -> None:
    reason = reason_after_refusal(base, refusal, frame(TEXT, sent))
    assert reason == f"the exchange has ended: {refusal[2]}"
    assert "binary frames" in reason_after_refusal(base, refusal, frame(BINARY, sent))


@pytest.mark.parametrize("refusal", REFUSALS)
def test_a_client_that_only_waits_after_a_refusal_is_closed_with_a_true_reason(
    base: str, refusal: tuple[str, bytes, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smart_routes, "FAULT_SECONDS", 0.2)
    assert reason_after_refusal(base, refusal, b"") == f"no close after the refusal {refusal[2]}"


def test_a_client_that_sends_a_byte_at_a_time_or_nothing_is_disconnected(
    base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (serve_pull, serve_push):
        monkeypatch.setattr(module, "PROMPT_SECONDS", 0.5)
    with connected(base) as slow, connected(base, "push") as silent:
        slow.socket.settimeout(0.05)
        ended = None
        for byte in frame(TEXT, PULL):
            slow.socket.sendall(bytes([byte]))
            require_served(base)
            try:
                ended = slow.close_code()
                break
            except TimeoutError:
                continue
        assert ended == FAULT
        assert silent.close_code() == FAULT


def test_one_caller_cannot_take_all_exchanges(base: str) -> None:
    places = smart_routes.EXCHANGES_OF_CALLER
    with ExitStack() as opened:
        found = [opened.enter_context(connected(base)) for _ in range(200)]
        assert [one.status for one in found] == [101] * places + [503] * (200 - places)
        pushes = [opened.enter_context(connected(base, "push")) for _ in range(places + 1)]
        assert [one.status for one in pushes] == [101] * places + [503], "they have places of their own"
    wait_until_served(base)


def test_half_closed_connections_leave_nothing_behind(base: str) -> None:
    for _ in range(smart_routes.EXCHANGES_OF_CALLER + 5):
        with connected(base) as client:
            assert client.status == 101
            client.socket.shutdown(socket.SHUT_WR)
            assert client.close_code() in {0, 1000, 1006, FAULT}


def wait_until_served(base: str) -> None:
    deadline = time.monotonic() + 20
    while True:
        with connected(base) as client:
            if client.status == 101:
                break
        assert time.monotonic() < deadline
        time.sleep(0.02)
    require_served(base)


def recorded(case: str) -> tuple[str, list[str]]:
    """Return the path of a recorded exchange, and what its client sent."""
    lines = [line for line in lines_of(case) if line["from"] == "client"]
    path = next(line["path"] for line in lines if line["kind"] == "ws-open")
    return path, [line["body"] for line in lines if line["kind"] == "ws-text"]


EXCHANGES: Final = {
    case: recorded(case) for case in ("smart-pull-two-object-rounds", "smart-push-truncated-rounds")
}
OTHERS: Final[tuple[Any, ...]] = (
    None,
    True,
    0,
    -1,
    1.5,
    2**32,
    2**64,
    10**400,
    "",
    "f1620",
    "x" * 10_000,
    [],
    {},
    [[]],
    {"": {}},
)
AGAIN: Final = "again"  # ends the name of a field that is there twice; then it is removed


def containers(plain: Any) -> list[Any]:
    """Return the objects and lists of a message that have something in them; of numbers in a list, the list."""
    inner = plain.values() if isinstance(plain, dict) else plain if isinstance(plain, list) else ()
    found = [one for value in inner if isinstance(value, dict | list) for one in containers(value)]
    return [plain, *found] if plain else found


def mutated(text: str, source: random.Random) -> str:
    """Return a message with one fault; most are JSON still."""
    plain = json.loads(text)
    places = containers(plain) or [plain]
    place = source.choice(places)
    key = source.choice(list(place) if isinstance(place, dict) else range(len(place))) if place else None
    match source.choice(["removed", "retyped", "retyped", "twice", "unknown", "order", "cut", "character"]):
        case "removed" if place:
            del place[key]
        case "retyped" if place:
            place[key] = source.choice(OTHERS)
        case "twice" if isinstance(place, dict) and place:
            place[f"{key}{AGAIN}"] = source.choice([*OTHERS, place[key]])
        case "order" if isinstance(place, dict):
            for name in source.sample(list(place), len(place)):
                place[name] = place.pop(name)
        case "order":
            source.shuffle(place)
        case "cut":
            return text[: source.randrange(len(text))]
        case "character":
            at = source.randrange(len(text))
            return text[:at] + chr(source.randrange(128)) + text[at + 1 :]
        case _:
            (place if isinstance(place, dict) else plain)["unknown"] = source.choice(OTHERS)
    return json.dumps(plain, separators=(",", ":")).replace(f'{AGAIN}"', '"')


def in_frames(text: str, source: random.Random) -> bytes:
    """Return a message in frames with masks, and with pings between them."""
    payload, sent = text.encode(), b""
    cuts = sorted(source.randrange(len(payload) + 1) for _ in range(source.choice([0, 0, 1, 3])))
    for number, (start, end) in enumerate(pairwise([0, *cuts, len(payload)])):
        opcode, is_last = CONTINUATION if number else TEXT, number == len(cuts)
        sent += frame(opcode, payload[start:end], is_last=is_last, mask=source.randbytes(4))
        sent += frame(PING, b"", mask=source.randbytes(4)) if source.random() < 0.1 else b""
    return sent


def answers_until_close(client: Client) -> tuple[list[bytes], int, bytes]:
    """Return the messages of a server, and code and reason of its end; raises `EOFError` if it has none."""
    texts: list[bytes] = []
    while True:
        opcode, payload = client.receive()
        if opcode == CLOSE:
            return texts, int.from_bytes(payload[:2]), payload[2:]
        if opcode != PONG:
            assert opcode == TEXT
            texts.append(payload)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, pool: Pool) -> SyncNode:
    node = SyncNode(tmp_path_factory.mktemp("fuzzed"))
    node.hold(CITIES, Multihash.parse(HEAD), pool)
    return node


@pytest.fixture(scope="module")
def fuzzed(node: SyncNode) -> Iterator[str]:
    with node.served() as url:
        yield url


def held(node: SyncNode) -> set[str]:
    """Return what a node has: its files, but for the locks that a process keeps, datasets and head."""
    files = {str(path) for path in node.settings.home.rglob("*") if path.is_file() and path.suffix != ".lock"}
    return files | {entry.alias for entry in node.catalog.entries()} | {str(node.head(CITIES))}


@pytest.mark.parametrize(
    ("case", "position"),
    [(case, position) for case, (_, texts) in EXCHANGES.items() for position in range(len(texts))],
)
@settings(max_examples=examples(40))
@given(seed=st.integers(0, 2**32 - 1))
def test_a_faulty_message_at_any_step_is_answered_or_ends_the_exchange_with_a_reason(
    fuzzed: str, node: SyncNode, case: str, position: int, seed: int
) -> None:
    """A client sends a recorded exchange, but for its objects, with one message changed or replaced by another one."""
    source = random.Random(seed)  # hypothesis prints the seed of an exchange that fails
    path, texts = EXCHANGES[case]
    before = held(node)
    is_replaced = source.random() < 0.2
    faulty = source.choice([*texts, ""]) if is_replaced else mutated(texts[position], source)
    sent = b"".join(in_frames(text, source) for text in [*texts[:position], faulty, *texts[position + 1 :]])
    client = Client(fuzzed, path=path)
    with closing(client.socket):
        assert client.status == 101
        client.socket.sendall(sent + frame(CLOSE, struct.pack(">H", 1000)))
        answers, code, reason = answers_until_close(client)
    assert all(isinstance(json.loads(answer), dict) for answer in answers)
    assert len(answers) >= min(position, 1)
    assert code in {1000, FAULT}, (code, reason)
    if code == FAULT:
        assert {"phase", "error_message"} == set(json.loads(reason)["Err"]["Internal"])
    require_served(fuzzed)
    assert held(node) == before


@pytest.mark.parametrize(
    ("case", "code", "count"),
    [("smart-pull-two-object-rounds", 1000, 5), ("smart-push-truncated-rounds", FAULT, 4)],
)
def test_an_exchange_without_faults_reaches_its_last_step(
    fuzzed: str, case: str, code: int, count: int
) -> None:
    path, texts = EXCHANGES[case]
    client = Client(fuzzed, path=path)
    with closing(client.socket):
        client.socket.sendall(
            b"".join(frame(TEXT, text.encode()) for text in texts) + frame(CLOSE, struct.pack(">H", 1000))
        )
        answers, found, reason = answers_until_close(client)
    assert (len(answers), found) == (count, code), (answers, reason)
    assert code == 1000 or b"not sent" in reason
