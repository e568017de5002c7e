"""The lower limit of a transfer of objects on this machine: files that are received, hashed, written and synced.

No HTTP, no blocks, nothing is checked; as many threads as processors. With `has_records`, the records are read and
hashed, too, as a node does before it accepts a block.
"""

import hashlib
import os
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final

from rows import Row, held_against
from transfer_peers import process_of, timed

from odf_common.data.slices import hash_slice

HERE: Final = "127.0.0.1"
CHUNK_BYTES: Final = 1 << 20
SIZE_BYTES: Final = 8
NAME_BYTES: Final = 1024


def held_against_bare_copies(case: str, value: float, objects: Path, copy: Path) -> Iterator[Row]:
    """Yield rows that compare the seconds of a transfer with receiving, hashing and writing its objects alone."""
    names = [file.name for file in objects.iterdir()]
    for what, has_records in (("", False), (", its records read and hashed", True)):
        with process_of(serve_bare, objects) as port:
            peer = timed(lambda: bare_copy(port, names, copy, has_records=has_records))  # noqa: B023
        shutil.rmtree(copy)
        label = f"bare loop: same bytes received, hashed and written{what}"
        yield held_against(case, value, "s", peer=(label, peer))


def serve_bare(ready: Connection, folder: Path) -> None:
    """Send files of a folder by name, each after its size, to any number of connections."""
    with socket.create_server((HERE, 0)) as server:
        ready.send(server.getsockname()[1])
        while True:
            client, _ = server.accept()
            threading.Thread(target=_send, args=(client, folder), daemon=True).start()


def _send(client: socket.socket, folder: Path) -> None:
    while name := client.recv(NAME_BYTES):
        with (folder / name.decode()).open("rb") as file:
            client.sendall(os.fstat(file.fileno()).st_size.to_bytes(SIZE_BYTES, "big"))
            client.sendfile(file)


def bare_copy(port: int, names: list[str], target: Path, *, has_records: bool = False) -> None:
    """Copy files into a new folder; they are durable then."""
    target.mkdir()
    waiting: SimpleQueue[str] = SimpleQueue()
    for name in names:
        waiting.put(name)
    workers = os.cpu_count() or 1
    with ThreadPoolExecutor(workers) as pool:
        check: Callable[[Path], object] = hash_slice if has_records else Path.stat
        for done in [pool.submit(partial(_receive, port, waiting, target, check)) for _ in range(workers)]:
            done.result()
    handle = os.open(target, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


def _receive(port: int, waiting: SimpleQueue[str], target: Path, check: Callable[[Path], object]) -> None:
    buffer = memoryview(bytearray(CHUNK_BYTES))
    with socket.create_connection((HERE, port)) as there:
        while True:
            try:
                name = waiting.get_nowait()
            except Empty:
                return
            there.sendall(name.encode())
            left = int.from_bytes(there.recv(SIZE_BYTES, socket.MSG_WAITALL), "big")
            digest = hashlib.sha3_256()
            with (target / name).open("xb", buffering=0) as file:
                while left:
                    count = there.recv_into(buffer, min(left, CHUNK_BYTES), socket.MSG_WAITALL)
                    digest.update(buffer[:count])
                    file.write(buffer[:count])
                    left -= count
                os.fsync(file.fileno())
            assert name.endswith(digest.hexdigest()), name
            check(target / name)
