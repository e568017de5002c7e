"""Pulling a long chain from another node, without and with 20 ms of delay, and one new block of a chain of any length.

Server, network and client are processes of this machine; the client's coordinator is in its process, and stores are
files. The network is a TCP proxy that holds all bytes back for half the delay in each direction. The peer clones the
same files by git, which neither decodes blocks nor reads slices, and syncs no file to the disk.
"""

import multiprocessing
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Final, cast

import pyarrow as pa
from odf_testing.builders import AChain, a_chain, a_seed, a_time
from odf_testing.coordinator import Coordinator
from odf_testing.http import running
from rows import Row, Target, held_against

from odf_common.adapters.local import LocalBlobStore, LocalCatalog, LocalRefStore
from odf_common.chain.build_blocks import build_blocks
from odf_common.codec.bus import Body, Envelope, envelope
from odf_common.data.schema_evolution import schema_to_event
from odf_common.data.slices import write_slice
from odf_common.data.stored_types import TIMESTAMP
from odf_common.identity.did import DatasetId
from odf_common.metadata.events import AddData, DataSlice, KnownEvent, OffsetInterval, SetInfo
from odf_common.ports.store import CatalogEntry
from odf_common.service.environment import Environment
from odf_common.service.request_reply import Replies
from odf_common.service.settings import Settings
from odf_coordinator.api.bus_handlers import Commands
from odf_sync.http.authorization import Authorizer
from odf_sync.http.dataset_routes import SimpleProtocol
from odf_sync.http.endpoints import application
from odf_sync.transfer.pull import pull

BLOCKS: Final = 10_000
OBJECTS: Final = 100
ROWS: Final = 159_000  # of a slice: 1.5 MiB of random numbers
CHAINS: Final = (1_000, 100_000)
DELAY: Final = 0.02  # seconds there and back
NAME: Final = "notes"
SECONDS_AT_MOST: Final = Target(judged="value", sense="≤", bound=60)
AS_FAST: Final = Target(judged="ratio", sense="≤", bound=1.5)


def run() -> list[Row]:
    """Return the rows; takes some minutes."""
    with tempfile.TemporaryDirectory(prefix="odf-bench-") as folder:
        return [*_whole_chain(Path(folder)), *_one_new_block(Path(folder))]


def _whole_chain(folder: Path) -> Iterator[Row]:
    there = folder / "there"
    dataset = _written(there, _chain(there, blocks=BLOCKS, objects=OBJECTS))
    case = f"pull {BLOCKS:,} blocks, {OBJECTS:,} objects of 1.5 MiB"
    with _served(there) as port, _git(there / "datasets" / dataset.folder) as git:
        for delay in (0.0, DELAY):
            with _delayed(port, delay) as ours, _delayed(git, delay) as theirs:
                value = _timed(lambda: Client(folder / "here").pull(ours))
                peer = _timed(lambda: _clone(theirs, folder / "clone"))
            for copy in ("here", "clone"):
                shutil.rmtree(folder / copy)
            yield held_against(
                f"{case}, {delay * 1000:g} ms", value, "s", peer=("git clone", peer), target=SECONDS_AT_MOST
            )
    shutil.rmtree(there)


def _one_new_block(folder: Path) -> Iterator[Row]:
    took: dict[int, float] = {}
    for length in CHAINS:
        there, here = folder / f"there-{length}", folder / f"here-{length}"
        chain = _chain(there, blocks=length, objects=0)
        dataset = _written(there, chain)
        shutil.copytree(there, here, copy_function=os.link)
        head = here / "datasets" / dataset.folder / "refs" / "head"
        head.unlink()
        head.write_text(str(chain.blocks[-2].hash))
        client = Client(here)
        client.coordinator.states.current(dataset)
        with _served(there) as port, _delayed(port, DELAY) as delayed:
            took[length] = _timed(lambda: client.pull(delayed))  # noqa: B023
    short, long = CHAINS
    yield held_against(
        f"pull one new block of {long:,}, {DELAY * 1000:g} ms",
        took[long] * 1000,
        "ms",
        peer=(f"one of {short:,}", took[short] * 1000),
        target=AS_FAST,
    )
    yield held_against(
        f"pull one new block of {long:,}, in round trips of {DELAY * 1000:g} ms",
        took[long] / DELAY,
        "round trips",
        peer=("connect, head, pack", 3.0),
    )


def _timed(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


class Client:
    """A node that pulls, with its coordinator."""

    def __init__(self, home: Path) -> None:
        """Keep copies in `home`."""
        self.coordinator = Coordinator(home=home, is_durable=True)
        self._commands = Commands(
            committer=self.coordinator.committer, importer=self.coordinator.importer
        ).handle
        self._env = SimpleNamespace(
            catalog=self.coordinator.catalog,
            refs=self.coordinator.refs,
            blobs=self.coordinator.blobs,
            states=self.coordinator.states,
            settings=Settings(home=home),
        )

    def pull(self, port: int) -> None:
        """Copy the dataset that is served at a port."""
        steps = pull(
            cast("Environment", self._env), cast("Replies", self), f"http://127.0.0.1:{port}/{NAME}", ""
        )
        *_, last = steps
        assert last.state == "updated", last

    def request(self, _topic: str, dataset: DatasetId, body: Body, *, timeout: float) -> Envelope | None:
        """Have the coordinator answer."""
        del timeout
        (answer,) = self._commands(envelope(dataset, body))
        return answer.envelope


def _chain(home: Path, *, blocks: int, objects: int) -> AChain:
    """Return a chain, whose slices are in `home`; those of other events come last."""
    files = home / "slices"
    files.mkdir(parents=True)
    chain = a_chain(a_seed(), schema_to_event(_table(0).schema))
    for number in range(blocks - len(chain.blocks)):
        event: KnownEvent = SetInfo(description=f"number {number}")
        if number < objects:
            event = _slice(files, chain)
        added, chain.last = build_blocks(chain.state, [event], system_time=a_time(number + 10), version=3)
        chain.blocks.extend(added)
    return chain


def _slice(files: Path, chain: AChain) -> AddData:
    start = chain.state.next_offset
    written = write_slice(_table(start), files / "slice")
    (files / "slice").rename(files / str(written.physical_hash))
    data = DataSlice(
        logical_hash=written.logical_hash,
        physical_hash=written.physical_hash,
        offset_interval=OffsetInterval(start=start, end=start + ROWS - 1),
        size=written.size,
    )
    return AddData(prev_offset=chain.state.last_offset, new_data=data)


def _table(start: int) -> pa.Table:
    numbers = pa.Array.from_buffers(pa.int64(), ROWS, [None, pa.py_buffer(os.urandom(8 * ROWS))])
    times = pa.array([1], TIMESTAMP).take(pa.array([0] * ROWS))
    columns = {
        "offset": pa.array(range(start, start + ROWS), pa.uint64()),
        "op": pa.array([0] * ROWS, pa.uint8()),
        "system_time": times,
        "event_time": times,
        "number": numbers,
    }
    return pa.table(columns)


def _written(home: Path, chain: AChain) -> DatasetId:
    """Write a chain into the home of a node, without syncing it to the disk."""
    dataset = chain.state.dataset_id
    folder = home / "datasets" / dataset.folder
    for kind in ("blocks", "refs", "checkpoints"):
        (folder / kind).mkdir(parents=True)
    (home / "slices").rename(folder / "data")
    for block in chain.blocks:
        (folder / "blocks" / str(block.hash)).write_bytes(block.raw)
    (folder / "refs" / "head").write_text(str(chain.state.head))
    LocalCatalog(home).add(CatalogEntry(alias=NAME, dataset_id=dataset))
    return dataset


@contextmanager
def _process(work: Callable[..., None], *arguments: object) -> Iterator[int]:
    """Run work in a process that sends a port when it is ready, until the block ends."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=work, args=(theirs, *arguments), daemon=True)
    process.start()
    try:
        yield ours.recv()
    finally:
        process.kill()
        process.join()


@contextmanager
def _served(home: Path) -> Iterator[int]:
    with _process(_serve, home) as port:
        yield port


def _serve(ready: Connection, home: Path) -> None:
    catalog = LocalCatalog(home)
    ports = SimpleNamespace(blobs=LocalBlobStore(home), refs=LocalRefStore(home), catalog=catalog)
    authorizer = Authorizer(catalog=catalog, local_writers="off")
    with running(application(authorizer, SimpleProtocol(cast("Environment", ports)).endpoints())) as url:
        ready.send(int(url.rpartition(":")[2]))
        threading.Event().wait()


@contextmanager
def _delayed(port: int, delay: float) -> Iterator[int]:
    """Yield a port where everything takes `delay` seconds longer, there and back."""
    if not delay:
        yield port
        return
    with _process(_proxy, port, delay / 2) as delayed:
        yield delayed


def _proxy(ready: Connection, port: int, delay: float) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        ready.send(server.getsockname()[1])
        while True:
            client, _ = server.accept()
            there = socket.create_connection(("127.0.0.1", port))
            for one in (client, there):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _pump(client, there, delay)
            _pump(there, client, delay)


def _pump(source: socket.socket, target: socket.socket, delay: float) -> None:
    waiting: SimpleQueue[tuple[float, bytes]] = SimpleQueue()

    def receive() -> None:
        data = b"-"
        while data:
            try:
                data = source.recv(1 << 20)
            except OSError:
                data = b""
            waiting.put((time.monotonic() + delay, data))

    def send() -> None:
        while True:
            due, data = waiting.get()
            time.sleep(max(0.0, due - time.monotonic()))
            with suppress(OSError):
                if data:
                    target.sendall(data)
                    continue
                target.shutdown(socket.SHUT_WR)
            return

    for work in (receive, send):
        threading.Thread(target=work, daemon=True).start()


@contextmanager
def _git(folder: Path) -> Iterator[int]:
    """Serve the files of a folder by git."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    for line in (
        "init",
        "config gc.auto 0",
        "add .",
        "-c user.name=a -c user.email=a@example.org commit -m all",
    ):
        subprocess.run(["git", *line.split()], cwd=folder, check=True, **quiet)  # type: ignore[call-overload]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    command = f"git daemon --reuseaddr --export-all --listen=127.0.0.1 --port={port} --base-path={folder}"
    process = subprocess.Popen(command.split(), **quiet)  # type: ignore[call-overload]
    try:
        while True:
            with suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.05)
        yield port
    finally:
        process.terminate()
        process.wait()


def _clone(port: int, folder: Path) -> None:
    url = f"git://127.0.0.1:{port}/"
    subprocess.run(["git", "clone", "-q", url, str(folder)], check=True, capture_output=True)
