"""Pulling a long chain from another node, without and with 20 ms of delay.

Server, network and client are processes of this machine; the client's coordinator is in its process, and stores are
files. The peers copy the same files: git clones them, rclone reads them by http.
"""

import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

from bare_copy import held_against_bare_copies
from long_chains import Client, chain_in, written
from odf_testing.http import running
from odf_testing.memory_store import in_files
from rows import Row, Target, held_against
from transfer_peers import (
    DELAY,
    clone,
    commit_all,
    delayed_by,
    has_rclone,
    process_of,
    rclone_pull,
    served_by_git,
    served_by_rclone,
    timed,
)

from odf_sync.http.authorization import Authorizer
from odf_sync.http.endpoints import application
from odf_sync.http.simple_protocol import SimpleProtocol

BLOCKS: Final = 10_000
OBJECTS: Final = 1_000
AS_RCLONE: Final = Target(judged="ratio", sense="≤", bound=1.2)


def run() -> list[Row]:
    """Return the rows; takes twenty minutes, and 12 GB of disk."""
    with tempfile.TemporaryDirectory(prefix="odf-bench-") as folder:
        return list(_whole_chain(Path(folder)))


def _whole_chain(folder: Path) -> Iterator[Row]:
    there = folder / "there"
    dataset = written(there, chain_in(there, blocks=BLOCKS, objects=OBJECTS))
    files, repository = there / "datasets" / dataset.folder, folder / "repository"
    shutil.copytree(files, repository, copy_function=os.link)
    commit_all(repository)
    for delay in (0.0, DELAY):
        case = f"pull {BLOCKS:,} blocks, {OBJECTS:,} objects of 1.5 MiB, {delay * 1000:g} ms"
        value = _pulled(there, folder / "here", delay)
        trusted = _pulled(there, folder / "here", delay, trusts_records=True)
        if not delay:
            yield from held_against_bare_copies(case, value, files / "data", folder / "copy")
        if has_rclone():
            with served_by_rclone(files, "http") as port, delayed_by(port, delay) as theirs:
                peer = timed(lambda: rclone_pull(theirs, folder / "copy"))
            shutil.rmtree(folder / "copy")
            for what, ours in ((case, value), (f"{case}, records trusted", trusted)):
                yield held_against(what, ours, "s", peer=("rclone copy, http", peer), target=AS_RCLONE)
        with served_by_git(repository) as port, delayed_by(port, delay) as theirs:
            peer = timed(lambda: clone(theirs, folder / "clone"))
        shutil.rmtree(folder / "clone")
        yield held_against(case, value, "s", peer=("git clone", peer))
    shutil.rmtree(there)
    shutil.rmtree(repository)


def _pulled(there: Path, here: Path, delay: float, *, trusts_records: bool = False) -> float:
    """Return the seconds that a pull into a new home takes; the home is removed."""
    with served(there) as port, delayed_by(port, delay) as delayed:
        took = timed(lambda: Client(here).pull(delayed, trusts_records=trusts_records))
    shutil.rmtree(here)
    return took


@contextmanager
def served(home: Path) -> Iterator[int]:
    """Serve a home in another process; yield the port."""
    with process_of(_serve, home) as port:
        yield port


def _serve(ready: Connection, home: Path) -> None:
    datasets = in_files(home)
    authorizer = Authorizer(catalog=datasets.catalog, local_writers="off")
    with running(application(authorizer, SimpleProtocol(datasets, home).endpoints())) as url:
        ready.send(int(url.rpartition(":")[2]))
        threading.Event().wait()
