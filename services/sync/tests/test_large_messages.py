"""Blocks received or sent in one message need little memory, for all callers together."""

import asyncio
import http.client
import random
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from io import BytesIO
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import pytest
from odf_testing.builders import a_chain, a_dataset, a_hash, a_seed
from odf_testing.measured_server import Server, measured

from odf_common.hashing.multihash import physical_hash_of
from odf_sync.smart import channel
from odf_sync.smart import messages as msg
from odf_sync.smart.archive import BLOCKS_BYTES_LIMIT, read_archive, write_archive
from odf_sync.smart.channel import (
    MAX_MESSAGE_BYTES,
    SMALL_BYTES,
    LargeMessages,
    PeerClosed,
    message_bytes,
    seconds_for,
)
from odf_sync.smart.connection import MAX_RECEIVED_MESSAGE_BYTES, Connection, connect
from odf_sync.smart.exchange import PULL, PUSH, TransferRefused
from odf_sync.smart.message_json import encode, numbers

from .raw_client import TEXT, Client, frame

pytestmark = pytest.mark.waits

MIB: Final = 1024**2
BUSY_SECONDS: Final = 120.0  # in which a busy machine answers
RAW_BYTES: Final = 4 * MIB  # of the blocks of a push; its message has some 15 MiB
PUSHES: Final = 4
MOST: Final = 20 * MIB  # one message at a time
LIST_BYTES: Final = MIB
MESSAGE_TOO_BIG: Final = 1009
GRACE_SECONDS: Final = 3.0  # a busy machine needs one to encode a message
PAUSES: Final = 8  # of a quarter of that
LISTED: Final = 10_000  # objects of a long list, which has some 1.5 MiB, and its answer 3 MiB
MANY: Final = 2 * LISTED
PULLS: Final = 6
PULL_BYTES: Final = 35 * MIB  # of the message of a pull


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("home"), grace_seconds=60, listed=MANY) as server:
        yield server


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("home"), grace_seconds=GRACE_SECONDS, listed=LISTED) as server:
        yield server


@contextmanager
def running(home: Path, *, grace_seconds: float, listed: int) -> Iterator[Server]:
    script = Path(__file__).with_name("large_message_node.py")
    with measured(script, home, MOST, grace_seconds, LIST_BYTES, listed) as server:
        yield server


def a_request(plan: msg.TransferPlan) -> msg.PushRequest:
    return msg.PushRequest(
        transfer_plan=plan,
        force_update_if_diverged=False,
        visibility_for_created_dataset=msg.DatasetVisibility.PUBLIC,
    )


def blocks_of_a_push(raw_bytes: int = RAW_BYTES, count: int = 1) -> tuple[msg.TransferPlan, bytes]:
    """Return plan and archive of a chain's first block, and of `count` others, whose bytes do not compress."""
    first = a_chain(a_seed(dataset=a_dataset("new"))).blocks[0]
    numbers = random.Random(15)
    contents = [numbers.randbytes(raw_bytes) for _ in range(count)]
    out = BytesIO()
    write_archive([(first.hash, first.raw), *((physical_hash_of(one), one) for one in contents)], out)
    size = len(first.raw) + count * raw_bytes
    return msg.TransferPlan(num_blocks=1 + count, bytes_in_raw_blocks=size), out.getvalue()


def send_blocks(connection: Connection, archive: bytes) -> None:
    connection.send(msg.NewBlocks(new_blocks=msg.BlocksBatch(num_blocks=2, payload=archive)))
    connection.expect(msg.BlocksAccepted)


def test_pushes_of_many_callers_wait_for_each_other_and_are_held_in_files(server: Server) -> None:
    plan, archive = blocks_of_a_push()

    def push(number: int) -> None:
        with connect(f"{server.url}/new-{number}/push", PUSH, {}) as connection:
            connection.send(a_request(plan))
            connection.expect(msg.PushAccepted)
            send_blocks(connection, archive)
            arrived.append(number)
            while len(arrived) < PUSHES:  # all are open at the same time
                connection.poll(0.01)

    arrived: list[int] = []
    before = server.forget_peak()
    with ThreadPoolExecutor(PUSHES) as pool:
        list(pool.map(push, range(PUSHES)))
    assert sorted(arrived) == [*range(PUSHES)]
    # One message needs some 45 MiB: twice as text, and its archive. Four would need more than 135 MiB.
    assert server.peak() - before < 92 * MIB


def test_a_push_of_more_blocks_than_a_message_could_have_uncompressed_is_held_in_a_file(
    server: Server,
) -> None:
    first = a_chain(a_seed(dataset=a_dataset("long"))).blocks[0]
    blocks = [(first.hash, first.raw)]
    blocks += [
        (a_hash(str(number)), bytes([number]) * 16 * MIB)
        for number in range(BLOCKS_BYTES_LIMIT // MIB // 16 + 1)
    ]
    out = BytesIO()
    write_archive(blocks, out)
    plan = msg.TransferPlan(num_blocks=len(blocks), bytes_in_raw_blocks=sum(len(raw) for _, raw in blocks))
    before = server.forget_peak()
    with connect(f"{server.url}/long/push", PUSH, {}) as connection:
        connection.send(a_request(plan))
        connection.expect(msg.PushAccepted)
        connection.send(
            msg.NewBlocks(new_blocks=msg.BlocksBatch(num_blocks=len(blocks), payload=out.getvalue()))
        )
        connection.expect(msg.BlocksAccepted)
    assert server.peak() - before < 50 * MIB


def test_a_client_that_sends_more_than_it_has_announced_is_disconnected(server: Server) -> None:
    _, archive = blocks_of_a_push()
    before = server.forget_peak()
    with connect(f"{server.url}/liar/push", PUSH, {}) as connection:
        connection.send(a_request(msg.TransferPlan(num_blocks=2, bytes_in_raw_blocks=100)))
        connection.expect(msg.PushAccepted)
        with pytest.raises(PeerClosed):
            send_blocks(connection, archive * 2)
    assert server.peak() - before < 40 * MIB


def test_blocks_that_do_not_fit_into_a_message_are_taken_as_an_archive_only(server: Server) -> None:
    plan, archive = blocks_of_a_push(raw_bytes=10 * MIB, count=2)
    assert len(numbers(archive)) > MAX_MESSAGE_BYTES
    with accepted_push(server, "long-message") as sock:
        sock.sendall(frame_header(MAX_MESSAGE_BYTES + 1))
        assert int.from_bytes(sock.recv(1000)[2:4]) == MESSAGE_TOO_BIG
    before = server.forget_peak()
    with connect(f"{server.url}/uploaded/push", PUSH, {}) as connection:
        connection.send(a_request(plan))
        connection.expect(msg.PushAccepted)
        name = physical_hash_of(archive)
        with closing(http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=BUSY_SECONDS)) as upload:
            upload.request("PUT", f"/uploaded/archives/{name}", archive)
            assert upload.getresponse().status == 200
        batch = msg.BlocksBatch(num_blocks=plan.num_blocks, payload=b"", archive=name)
        connection.send(msg.NewBlocks(new_blocks=batch))
        connection.expect(msg.BlocksAccepted)
    assert server.peak() - before < 40 * MIB


@contextmanager
def pushed_block(server: Server, name: str) -> Iterator[Connection]:
    """Yield the connection of a client whose block has been accepted, and which lists its objects next."""
    first = a_chain(a_seed(dataset=a_dataset(name))).blocks[0]
    out = BytesIO()
    write_archive([(first.hash, first.raw)], out)
    with connect(f"{server.url}/{name}/push", PUSH, {}) as connection:
        connection.send(a_request(msg.TransferPlan(num_blocks=1, bytes_in_raw_blocks=len(first.raw))))
        connection.expect(msg.PushAccepted)
        connection.send(msg.NewBlocks(new_blocks=msg.BlocksBatch(num_blocks=1, payload=out.getvalue())))
        connection.expect(msg.BlocksAccepted)
        yield connection


def test_a_client_that_lists_objects_without_end_is_disconnected(server: Server) -> None:
    listed = msg.ObjectFile(object_type=msg.ObjectType.DATA_SLICE, physical_hash=a_hash("x"), size=1)

    def list_many(connection: Connection) -> None:
        many = (listed,) * (LIST_BYTES // 100)
        connection.send(msg.UploadsRequest(object_files=many, is_truncated=True))
        connection.expect(msg.UploadsReply)

    with pushed_block(server, "listed") as connection, pytest.raises(PeerClosed):
        list_many(connection)


def test_a_list_of_objects_may_be_long_after_other_long_ones(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pushed_block(server, "lists") as connection:
        for _ in range(3):
            with monkeypatch.context() as patch:
                patch.setattr(channel, "encode", lambda message: encode(message) + " " * (LIST_BYTES // 2))
                connection.send(msg.UploadsRequest(object_files=(), is_truncated=True))
            connection.expect(msg.UploadsReply)
            connection.send(msg.UploadsComplete())


@contextmanager
def accepted_push(server: Server, name: str) -> Iterator[socket.socket]:
    """Yield the connection of a client whose plan, of all that the node receives at a time, has been accepted."""
    with upgraded(server, f"/{name}/push") as sock:
        text = encode(a_request(msg.TransferPlan(num_blocks=2, bytes_in_raw_blocks=MOST))).encode()
        sock.sendall(frame_header(len(text)) + text)
        assert b'{"Ok":{}}' in sock.recv(1000)
        yield sock


@contextmanager
def upgraded_pull(server: Server) -> Iterator[socket.socket]:
    """Yield the connection of a client that has all blocks, and lists objects next."""
    with upgraded(server, "/towns/pull") as sock:
        for message in (msg.PullRequest(force_update_if_diverged=False), msg.MetadataRequest()):
            text = encode(message).encode()
            sock.sendall(frame_header(len(text)) + text)
            assert sock.recv(10_000)
        yield sock


def upgraded(server: Server, path: str) -> closing[socket.socket]:
    """Return the connection of a client whose request was upgraded."""
    client = Client(server.url, path=path)
    assert client.status == 101
    client.socket.settimeout(BUSY_SECONDS)
    return closing(client.socket)


def frame_header(length: int) -> bytes:
    """Return the header of a client's text frame, whose mask is zero."""
    return frame(TEXT, b"", length=length)


def test_a_client_that_sends_no_blocks_soon_makes_room_for_others(impatient: Server) -> None:
    plan, archive = blocks_of_a_push()
    with accepted_push(impatient, "silent") as silent:
        with connect(f"{impatient.url}/waiting/push", PUSH, {}) as connection:
            connection.send(a_request(plan))
            connection.expect(msg.PushAccepted)
            send_blocks(connection, archive)
        assert b"no byte for" in silent.recv(1000)


def test_a_client_that_sends_blocks_slowly_is_awaited(impatient: Server) -> None:
    with accepted_push(impatient, "slow") as slow:
        slow.sendall(frame_header(MIB))
        slow.settimeout(GRACE_SECONDS / 4)
        for _ in range(PAUSES):
            with pytest.raises(TimeoutError):
                slow.recv(1000)
            slow.sendall(b" " * 32 * 1024)
        slow.settimeout(60)
        assert b"no byte for" in slow.recv(1000)


@pytest.mark.parametrize("size", [1, 15 * 1024])
def test_a_client_that_sends_too_slowly_on_average_is_not_awaited(impatient: Server, size: int) -> None:
    with accepted_push(impatient, "dripping") as slow:
        slow.sendall(frame_header(MIB))
        slow.settimeout(GRACE_SECONDS / 4)
        until = time.monotonic() + 6 * GRACE_SECONDS
        while time.monotonic() < until:
            slow.sendall(b" " * size)
            with suppress(TimeoutError):
                assert b"no byte for" in slow.recv(1000)
                return
    pytest.fail("it still waits")


def test_a_client_that_uploads_its_archive_slowly_is_awaited(impatient: Server) -> None:
    plan, archive = blocks_of_a_push()
    name = physical_hash_of(archive)
    with connect(f"{impatient.url}/archived/push", PUSH, {}) as connection:
        connection.send(a_request(plan))
        connection.expect(msg.PushAccepted)
        with closing(
            http.client.HTTPConnection(urlsplit(impatient.url).netloc, timeout=BUSY_SECONDS)
        ) as upload:
            upload.putrequest("PUT", f"/archived/archives/{name}")
            upload.putheader("Content-Length", str(len(archive)))
            upload.endheaders()
            step = len(archive) // PAUSES + 1
            for start in range(0, len(archive), step):
                time.sleep(GRACE_SECONDS / 4)
                upload.send(archive[start : start + step])
            assert upload.getresponse().status == 200
        connection.send(msg.NewBlocks(new_blocks=msg.BlocksBatch(num_blocks=2, payload=b"", archive=name)))
        connection.expect(msg.BlocksAccepted)


def test_a_pull_needs_little_memory_whatever_the_chain(server: Server) -> None:
    before = server.forget_peak()
    with connect(f"{server.url}/cities/pull", PULL, {}) as connection:
        connection.send(msg.PullRequest(force_update_if_diverged=False))
        plan = connection.expect(msg.PullAccepted).transfer_plan
        connection.send(msg.MetadataRequest(), message_bytes(plan, MAX_RECEIVED_MESSAGE_BYTES))
        batch = connection.expect(msg.MetadataReply).blocks
    blocks = dict(read_archive(BytesIO(batch.payload), count=plan.num_blocks))
    assert all(physical_hash_of(raw) == name for name, raw in blocks.items())
    assert len(batch.payload) * 3.5 > PULL_BYTES
    assert server.peak() - before < 35 * MIB  # of which a run of 256 blocks has 13


@contextmanager
def pulled_blocks(server: Server) -> Iterator[Connection]:
    """Yield the connection of a client that has all blocks, and lists objects next."""
    with connect(f"{server.url}/towns/pull", PULL, {}) as connection:
        connection.send(msg.PullRequest(force_update_if_diverged=False))
        connection.expect(msg.PullAccepted)
        connection.send(msg.MetadataRequest())
        connection.expect(msg.MetadataReply)
        yield connection


def a_list(count: int) -> msg.DownloadsRequest:
    listed = msg.ObjectFile(object_type=msg.ObjectType.DATA_SLICE, physical_hash=a_hash("x"), size=1)
    return msg.DownloadsRequest(object_files=(listed,) * count)


def test_long_lists_of_many_pulls_wait_for_each_other_and_are_answered_in_parts(server: Server) -> None:
    text = encode(a_list(MANY)).encode()

    def pull(_: int) -> int:
        client = Client(server.url, path="/towns/pull")
        client.socket.settimeout(BUSY_SECONDS)
        with closing(client.socket):
            for message in (msg.PullRequest(force_update_if_diverged=False), msg.MetadataRequest()):
                client.ask(message)
            client.send(TEXT, text)
            answer = bytearray()
            while not answer.endswith(b"]}"):
                answer += client.receive()[1]
            return answer.count(b'"download_from"')

    before = server.forget_peak()
    with ThreadPoolExecutor(PULLS) as pool:
        assert list(pool.map(pull, range(PULLS))) == [MANY] * PULLS
    # One list, twice as text and once as objects; 1 MiB of each of the others. All at a time need twice as much.
    assert server.peak() - before < 38 * MIB


def test_a_pull_that_lists_more_objects_than_the_chain_refers_to_is_refused(impatient: Server) -> None:
    for lists in ((LISTED // 4,) * 5, (LISTED, 1)):
        with pulled_blocks(impatient) as connection:
            for count in lists[:-1]:
                connection.send(a_list(count))
                assert len(connection.expect(msg.DownloadsReply).object_transfer_strategies) == count
            connection.send(a_list(lists[-1]))
            with pytest.raises(TransferRefused, match="more objects than the chain refers to"):
                connection.expect(msg.DownloadsReply)


def test_a_client_whose_long_list_is_refused_may_close_at_once(impatient: Server) -> None:
    text = encode(a_list(LISTED)).encode()
    with upgraded_pull(impatient) as sock:
        sock.sendall(frame_header(len(text)) + text)
        received = b""
        while not received.endswith(b"]}"):
            received = received[-1:] + sock.recv(MIB)
        sock.sendall(frame_header(2 * MIB) + b" " * (MIB + 1))
        assert b"more objects than the chain refers to" in sock.recv(1000)
        sock.sendall(b" " * (MIB - 1) + bytes([0x88, 0x80]) + bytes(4))
        sock.settimeout(5)  # the server waits longer for a close frame
        assert sock.recv(1000) == b""


def test_a_long_list_of_which_nothing_more_comes_makes_room_for_others(impatient: Server) -> None:
    with pulled_blocks(impatient) as waiting, upgraded_pull(impatient) as silent:
        silent.sendall(frame_header(8 * MIB) + b" " * (MIB + MIB // 4))
        time.sleep(1.5)  # until its list is received
        waiting.send(a_list(LISTED))
        assert len(waiting.expect(msg.DownloadsReply).object_transfer_strategies) == LISTED
        assert b"no byte for" in silent.recv(1000)


def test_the_memory_limit_of_a_message_follows_from_its_plan() -> None:
    assert message_bytes(msg.TransferPlan()) == SMALL_BYTES
    assert message_bytes(msg.TransferPlan(num_blocks=2**64 - 1)) == MAX_MESSAGE_BYTES
    plan, archive = blocks_of_a_push()
    assert len(numbers(archive)) < message_bytes(plan)
    assert seconds_for(64 * 1024 * 1000) == 1060


def test_a_caller_receives_half_of_the_total_limit() -> None:
    async def has_room(large: LargeMessages, size: int, caller: str) -> bool:
        try:
            async with large.receiving(size, caller):
                return True
        except TransferRefused:
            return False

    async def receive() -> list[bool]:
        large = LargeMessages(most=100, wait_seconds=0.001, small=4)
        async with large.receiving(30, "ann"):
            found = [await has_room(large, size, "ann") for size in (20, 21)]
            found += [await has_room(large, size, "bob") for size in (50, 51)]
            async with large.receiving(20, "ann"), large.receiving(50, "bob"):
                found += [await has_room(large, size, "carl") for size in (4, 5)]
        assert not large._shares._counts, "callers without messages take no memory"
        return found

    assert asyncio.run(receive()) == [True, False] * 3
