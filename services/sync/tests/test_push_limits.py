"""A push unpacks no more than it announced, and what it announced is counted before it comes."""

import asyncio
import http.client
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext
from io import BytesIO
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import urlsplit

import pytest
from odf_testing.builders import AChain, a_chain, a_dataset, a_hash, a_seed
from odf_testing.measured_server import Server, measured
from odf_testing.sync_node import SyncNode

from odf_common.errors import InvalidInput, Unavailable
from odf_common.hashing.multihash import Multihash, physical_hash_of
from odf_common.metadata.events import SetInfo
from odf_sync.http import serve_push
from odf_sync.http.serve_push import held_bytes
from odf_sync.smart import channel
from odf_sync.smart import messages as msg
from odf_sync.smart.archive import ARCHIVED_BLOCK_LIMIT, PUSHED_BYTES_LIMIT, write_archive
from odf_sync.smart.channel import Channel, LargeMessages, expect_in_pace
from odf_sync.smart.connection import Connection, connect, received_blocks
from odf_sync.smart.exchange import PUSH, TransferRefused
from odf_sync.transfer import local_copy
from odf_sync.transfer.accept_push import Acceptance, PushedChain

MIB: Final = 1024**2
AT_A_TIME: Final = 16  # of one account, as many as are allowed
MORE_MEMORY: Final = 300 * MIB  # for all of them
ZEROS: Final = bytes(15 * MIB)  # which compress to a thousandth
Blocks = list[tuple[Multihash, bytes]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    script = Path(__file__).with_name("large_message_node.py")
    arguments = tmp_path_factory.mktemp("home"), channel.LARGE_MESSAGES_BYTES, 60, 64 * MIB, 1000
    with measured(script, *arguments) as server:
        yield server


def first_block(name: str = "new") -> tuple[Multihash, bytes]:
    block = a_chain(a_seed(dataset=a_dataset(name))).blocks[0]
    return block.hash, block.raw


def packed(blocks: Blocks) -> bytes:
    write_archive(blocks, out := BytesIO())
    return out.getvalue()


def plan_of(blocks: Blocks) -> msg.TransferPlan:
    return msg.TransferPlan(num_blocks=len(blocks), bytes_in_raw_blocks=sum(len(raw) for _, raw in blocks))


@contextmanager
def announced(url: str, name: str, plan: msg.TransferPlan) -> Iterator[Connection]:
    with connect(f"{url}/{name}/push", PUSH, {}) as connection:
        connection.send(
            msg.PushRequest(
                transfer_plan=plan,
                force_update_if_diverged=False,
                visibility_for_created_dataset=msg.DatasetVisibility.PUBLIC,
            )
        )
        connection.expect(msg.PushAccepted)
        yield connection


def send(connection: Connection, plan: msg.TransferPlan, archive: bytes) -> None:
    connection.send(msg.NewBlocks(new_blocks=msg.BlocksBatch(num_blocks=plan.num_blocks, payload=archive)))
    connection.expect(msg.BlocksAccepted)


def test_pushes_that_announce_little_and_send_bombs_take_neither_memory_nor_disk(server: Server) -> None:
    blocks = [first_block(), *((a_hash(str(number)), ZEROS) for number in range(30))]
    archive, plan = packed(blocks), msg.TransferPlan(num_blocks=len(blocks), bytes_in_raw_blocks=1000)
    assert len(archive) < MIB

    def push(number: int) -> str:
        with announced(server.url, f"bomb-{number}", plan) as connection:
            barrier.wait(60)
            with pytest.raises(TransferRefused) as refused:
                send(connection, plan, archive)
        return str(refused.value)

    barrier = threading.Barrier(AT_A_TIME)
    before = server.forget_peak()
    with ThreadPoolExecutor(AT_A_TIME) as pool, watched_disk(server) as most_disk:
        reasons = set(pool.map(push, range(AT_A_TIME)))
    (reason,) = reasons
    assert f"at least {len(blocks[0][1]) + len(ZEROS)} bytes of blocks, but at most 1000 announced" in reason
    assert server.peak() - before < MORE_MEMORY
    assert most_disk() < MIB


def test_pushes_of_large_chains_share_the_memory_and_the_disk_of_an_account(server: Server) -> None:
    """All of a caller announce what they send; most have to wait for others, which is how the disk is bounded."""
    blocks = [first_block(), *((a_hash(str(number)), ZEROS) for number in range(8))]
    archive, plan = packed(blocks), plan_of(blocks)

    def push(number: int) -> None:
        with announced(server.url, f"large-{number}", plan) as connection:
            send(connection, plan, archive)
            opened.append(number)
            while len(opened) < at_a_time:  # all that have room are open at the same time
                connection.poll(0.05)

    at_a_time, opened = serve_push.MAX_HELD_BYTES // 2 // held_bytes(plan), list[int]()
    assert 1 < at_a_time < AT_A_TIME
    before = server.forget_peak()
    with ThreadPoolExecutor(AT_A_TIME) as pool, watched_disk(server) as most_disk:
        list(pool.map(push, range(AT_A_TIME)))
    assert len(opened) == AT_A_TIME
    assert server.peak() - before < MORE_MEMORY
    assert plan.bytes_in_raw_blocks <= most_disk() <= serve_push.MAX_HELD_BYTES // 2


def test_many_blocks_without_bytes_take_little_memory_each(server: Server) -> None:
    blocks = [first_block(), *((a_hash(str(number)), b"") for number in range(40_000))]
    archive, plan = packed(blocks), plan_of(blocks)
    before = server.forget_peak()
    with announced(server.url, "many", plan) as connection:
        name = physical_hash_of(archive)
        upload(server, f"/many/archives/{name}", archive, 200)
        batch = msg.BlocksBatch(num_blocks=plan.num_blocks, payload=b"", archive=name)
        connection.send(msg.NewBlocks(new_blocks=batch))
        connection.expect(msg.BlocksAccepted)
    assert server.peak() - before < 512 * len(blocks)


@contextmanager
def watched_disk(server: Server) -> Iterator[Callable[[], int]]:
    """Yield a function that returns the most that the server's unnamed files have had."""
    seen, ended = [0], threading.Event()

    def watch() -> None:
        while not ended.wait(0.02):
            seen.append(server.unnamed_bytes())

    with ThreadPoolExecutor(1) as pool:
        watching = pool.submit(watch)
        try:
            yield lambda: max(seen)
        finally:
            ended.set()
            watching.result()


def upload(server: Server, path: str, content: bytes, status: int) -> None:
    with closing(http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=120)) as client:
        client.request("PUT", path, content)
        assert client.getresponse().status == status


def test_an_archive_is_no_longer_than_its_plan_allows(server: Server) -> None:
    blocks = [first_block()]
    plan, archive = plan_of(blocks), packed(blocks)
    with announced(server.url, "archived", plan):
        longest = channel.archive_bytes(plan)
        content = archive + bytes(longest - len(archive) + 1)
        upload(server, f"/archived/archives/{physical_hash_of(content)}", content, 413)


def test_an_archive_that_is_refused_is_removed(tmp_path: Path) -> None:
    node, blocks = SyncNode(tmp_path), [first_block()]
    archive, plan = packed(blocks), msg.TransferPlan(num_blocks=1, bytes_in_raw_blocks=1)
    name = physical_hash_of(archive)
    with node.served() as url, announced(url, "refused", plan) as connection:
        upload(Server(url, 0), f"/refused/archives/{name}", archive, 200)
        assert len([*(tmp_path / "uploads").iterdir()]) == 1
        connection.send(msg.NewBlocks(new_blocks=msg.BlocksBatch(num_blocks=1, payload=b"", archive=name)))
        with pytest.raises(TransferRefused, match="at most 1 announced"):
            connection.expect(msg.BlocksAccepted)
        assert [*(tmp_path / "uploads").iterdir()] == []


@pytest.mark.parametrize(
    ("plan", "counted"),
    [
        (msg.TransferPlan(num_blocks=1, bytes_in_raw_blocks=PUSHED_BYTES_LIMIT + 1), PUSHED_BYTES_LIMIT + 1),
        (msg.TransferPlan(num_blocks=2**64 - 1, bytes_in_raw_blocks=1), 1024 * (2**64 - 1)),
    ],
)
def test_a_push_that_announces_too_much_is_refused_before_it_sends_anything(
    tmp_path: Path, plan: msg.TransferPlan, counted: int
) -> None:
    with (
        SyncNode(tmp_path).served() as url,
        pytest.raises(TransferRefused, match=f"{plan.num_blocks} blocks of {plan.bytes_in_raw_blocks} bytes"),
        announced(url, "huge", plan),
    ):
        pass
    assert counted > PUSHED_BYTES_LIMIT


def test_a_block_that_no_command_makes_is_refused(tmp_path: Path) -> None:
    blocks = [first_block(), (a_hash("long"), bytes(ARCHIVED_BLOCK_LIMIT + 1))]
    plan = plan_of(blocks)
    with SyncNode(tmp_path).served() as url, announced(url, "long", plan) as connection:
        why = f"a block of {ARCHIVED_BLOCK_LIMIT + 1} bytes; at most {ARCHIVED_BLOCK_LIMIT}"
        with pytest.raises(TransferRefused, match=why):
            send(connection, plan, packed(blocks))


def test_a_first_block_that_is_too_long_for_a_seed_is_none(tmp_path: Path) -> None:
    blocks = [(a_hash("long"), bytes(serve_push.MAX_SEED_BYTES + 1))]
    plan = plan_of(blocks)
    with SyncNode(tmp_path).served() as url, announced(url, "seed", plan) as connection:
        send(connection, plan, packed(blocks))
        connection.send(msg.UploadsRequest(object_files=(), is_truncated=False))
        with pytest.raises(TransferRefused, match="the first block is not a Seed"):
            connection.expect(msg.UploadsReply)


def test_blocks_of_a_pull_are_no_more_than_planned() -> None:
    class Answers:
        def send(self, *_: object) -> None:
            pass

        def expect(self, _: object) -> msg.MetadataReply:
            return msg.MetadataReply(
                blocks=msg.BlocksBatch(num_blocks=1, payload=packed([(a_hash("a"), ZEROS)]))
            )

    with pytest.raises(InvalidInput, match=f"at least {len(ZEROS)} bytes of blocks, but at most 1000"):
        received_blocks(cast("Any", Answers()), msg.TransferPlan(num_blocks=1, bytes_in_raw_blocks=1000))
    with pytest.raises(InvalidInput, match="which count as"):
        received_blocks(cast("Any", Answers()), msg.TransferPlan(num_blocks=2**30, bytes_in_raw_blocks=1000))


def large_chain(name: str) -> AChain:
    return a_chain(a_seed(dataset=a_dataset(name)), *(SetInfo(description=char * MIB) for char in "abc"))


def test_a_chain_of_large_blocks_is_pushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_copy, "STORED_BYTES", MIB)
    chain, there = large_chain("large"), SyncNode(tmp_path)
    blocks = [(one.hash, one.raw) for one in chain.blocks]
    with there.served() as url, announced(url, "large", plan_of(blocks)) as connection:
        send(connection, plan_of(blocks), packed(blocks))
        connection.send(msg.UploadsRequest(object_files=(), is_truncated=False))
        connection.expect(msg.UploadsReply)
        connection.send(msg.UploadsComplete())
        connection.send(msg.CompleteRequest())
        connection.expect(msg.PushConfirmed)
    assert there.head("large") == chain.state.head


def test_chains_of_large_blocks_are_decoded_one_at_a_time(tmp_path: Path) -> None:
    node, decoding = SyncNode(tmp_path), threading.Lock()

    def acceptance(name: str, *, is_large: bool) -> Acceptance:
        held = decoding if is_large else nullcontext()
        blocks = large_chain(name).store
        chain = PushedChain(alias=name, head=None, blocks=blocks, is_forced=False, decoding=held)
        return Acceptance(node.datasets, chain)

    with acceptance("small", is_large=False) as small, decoding:
        small.await_checks()
        with acceptance("large", is_large=True) as large, ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(large.await_checks)
            with pytest.raises(TimeoutError):
                waiting.result(0.2)
            decoding.release()
            waiting.result(60)
            decoding.acquire()


class Saying:
    """The channel of a client; `arrived` are the bytes seen at each look, after which its message comes."""

    def __init__(self, *arrived: int) -> None:
        self._arrived = list(arrived)
        self.now = 0.0

    def bytes(self) -> int:
        return self._arrived[0]

    async def expect(self, _: object, seconds: float) -> object:
        self.now += seconds
        del self._arrived[0]
        if not self._arrived:
            return msg.CompleteRequest()
        raise TimeoutError


def seconds_awaited(monkeypatch: pytest.MonkeyPatch, *arrived: int, size: int = 0) -> float:
    async def wait() -> float:
        channel = Saying(*arrived)
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: channel.now)
        assert (
            await expect_in_pace(cast("Channel", channel), msg.CompleteRequest, channel.bytes, size)
            == msg.CompleteRequest()
        )
        return channel.now

    return asyncio.run(wait())


def test_a_push_that_sends_nothing_for_two_minutes_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    assert seconds_awaited(monkeypatch, *[7] * 12) == 120
    with pytest.raises(TimeoutError, match="no byte for 120 s"):
        seconds_awaited(monkeypatch, *[7] * 14)


def test_a_push_that_sends_a_byte_now_and_then_is_ended_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TimeoutError, match="less than 1024 a second"):
        seconds_awaited(monkeypatch, *(number // 2 for number in range(40)))
    steady = range(0, 40 * 10_240, 10_240)
    assert seconds_awaited(monkeypatch, *steady) == 400
    with pytest.raises(TimeoutError, match="no byte for 120 s"):
        seconds_awaited(monkeypatch, *steady, *[40 * 10_240] * 14)


def test_a_large_message_has_to_arrive_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    rate, size = channel.LEAST_BYTES_PER_SECOND, channel.SMALL_BYTES + 1
    slowest = [7] * 6 + [7 + 10 * rate * number for number in range(1, 5)]
    assert seconds_awaited(monkeypatch, *slowest, size=size) == 100
    for number in (6, 9):
        with pytest.raises(TimeoutError, match=f"less than {rate} a second"):
            seconds_awaited(monkeypatch, *slowest[:number], *[slowest[number - 1]] * 4, size=size)


def test_a_silent_push_makes_room_for_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = [first_block(), (a_hash("long"), ZEROS)]
    archive, plan = packed(blocks), plan_of(blocks)
    monkeypatch.setattr(channel, "SILENT_SECONDS", 1.0)
    monkeypatch.setattr(serve_push, "held_blocks", lambda: LargeMessages(held_bytes(plan), wait_seconds=60.0))
    monkeypatch.setattr("odf_sync.http.smart_routes.held_blocks", serve_push.held_blocks)
    with SyncNode(tmp_path).served() as url, announced(url, "silent", plan) as silent:
        send(silent, plan, archive)
        started = time.monotonic()
        with announced(url, "waiting", plan) as connection:
            send(connection, plan, archive)
        assert time.monotonic() - started > 0.5
        with pytest.raises((TransferRefused, Unavailable), match="no byte for"):
            silent.expect(msg.UploadsReply)
