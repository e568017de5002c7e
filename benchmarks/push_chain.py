"""Pushing a long chain to another node, without and with 20 ms of delay, and one new block of a chain of any length.

As in `pull_chain`; the server has a coordinator, too. The peers send the same files: git pushes them, rclone puts them
by SFTP.
"""

import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Final

from bare_copy import held_against_bare_copies
from long_chains import Client, chain_in, linked_without_newest, lowest_and_highest, written
from odf_testing.http import running
from rows import Row, Target, held_against
from transfer_peers import (
    commit_all,
    delayed_by,
    empty_repository,
    git_push,
    has_rclone,
    process_of,
    rclone_push,
    served_by_git,
    served_by_rclone,
    timed,
)

from odf_common.identity.did import DatasetId
from odf_sync.http.authorization import Authorizer
from odf_sync.http.endpoints import application
from odf_sync.http.open_pushes import OpenPushes
from odf_sync.http.simple_protocol.dataset_routes import SimpleProtocol
from odf_sync.http.smart_protocol.routes import SmartProtocol

BLOCKS: Final = 10_000
OBJECTS: Final = 1_000
CHAINS: Final = (1_000, 100_000)
DELAY: Final = 0.02  # seconds of a round trip
AS_RCLONE: Final = Target(judged="ratio", sense="≤", bound=1.2)
TRIPS: Final = ("connect", "head", "connect again", "upgrade", "exchange")
FEW_TRIPS: Final = Target(judged="value", sense="≤", bound=4)  # the work of both ends included
REPEATS: Final = 5  # of one new block
AS_FAST: Final = Target(judged="ratio", sense="≤", bound=1.5)


def run() -> list[Row]:
    """Return the rows; takes half an hour, and 12 GB of disk."""
    with tempfile.TemporaryDirectory(prefix="odf-bench-") as folder:
        return [*_whole_chain(Path(folder)), *_one_new_block(Path(folder))]


def _whole_chain(folder: Path) -> Iterator[Row]:
    here, there, repository = folder / "here", folder / "there", folder / "repository"
    dataset = written(here, chain_in(here, blocks=BLOCKS, objects=OBJECTS))
    files = here / "datasets" / dataset.folder
    shutil.copytree(files, repository, copy_function=os.link)
    commit_all(repository)
    client = Client(here)
    for delay in (0.0, DELAY):
        case = f"push {BLOCKS:,} blocks, {OBJECTS:,} objects of 1.5 MiB, {delay * 1000:g} ms"
        with _serving(there) as port, delayed_by(port, delay) as ours:
            value = timed(lambda: client.push(ours))
        shutil.rmtree(there)
        if not delay:
            yield from held_against_bare_copies(case, value, files / "data", folder / "copy")
        if has_rclone():
            there.mkdir()
            with served_by_rclone(there, "sftp") as port, delayed_by(port, delay) as theirs:
                peer = timed(lambda: rclone_push(theirs, files))
            shutil.rmtree(there)
            yield held_against(case, value, "s", peer=("rclone copy, SFTP", peer), target=AS_RCLONE)
        empty_repository(there)
        with served_by_git(there) as port, delayed_by(port, delay) as theirs:
            peer = timed(lambda: git_push(theirs, repository))
        shutil.rmtree(there)
        yield held_against(case, value, "s", peer=("git push", peer))
    shutil.rmtree(here)
    shutil.rmtree(repository)


def _one_new_block(folder: Path) -> Iterator[Row]:
    seconds = {length: _newest_pushed(folder / f"{length}", length) for length in CHAINS}
    took = {length: median(each) for length, each in seconds.items()}
    short, long = CHAINS
    yield held_against(
        f"push one new block of {long:,}, {DELAY * 1000:g} ms, median of {REPEATS}",
        took[long] * 1000,
        "ms",
        peer=(f"one of {short:,}, median of {REPEATS}", took[short] * 1000),
        target=AS_FAST,
        detail=lowest_and_highest(*seconds.values()),
    )
    yield held_against(
        f"push one new block of {long:,}, in round trips of {DELAY * 1000:g} ms",
        took[long] / DELAY,
        "round trips",
        peer=(", ".join(TRIPS), float(len(TRIPS))),
        target=FEW_TRIPS,
    )


def _newest_pushed(folder: Path, length: int) -> list[float]:
    """Return the seconds of each push of the newest block, each to a fresh copy of the home that lacks it."""
    here, there = folder / "here", folder / "there"
    chain = chain_in(here, blocks=length, objects=0)
    dataset = written(here, chain)
    client = Client(here)
    client.coordinator.states.current(dataset)
    seconds = []
    for _ in range(REPEATS):
        linked_without_newest(here, there, dataset, chain)
        with _serving(there, dataset) as port, delayed_by(port, DELAY) as delayed:
            seconds.append(timed(lambda: client.push(delayed)))
        shutil.rmtree(there)
    return seconds


@contextmanager
def _serving(home: Path, warm: DatasetId | None = None) -> Iterator[int]:
    with process_of(_serve, home, warm) as port:
        yield port


def _serve(ready: Connection, home: Path, warm: DatasetId | None) -> None:
    node = Client(home)
    if warm is not None:
        node.coordinator.states.current(warm)
    authorizer = Authorizer(catalog=node.coordinator.catalog, local_writers="loopback")
    pushes = OpenPushes()
    rooms = (
        SimpleProtocol(node.datasets, home, pushes),
        SmartProtocol(node.datasets, node.settings, node.replies, authorizer, pushes),
    )
    app = application(authorizer, tuple(endpoint for room in rooms for endpoint in room.endpoints()))
    with running(app) as url:
        ready.send(int(url.rpartition(":")[2]))
        threading.Event().wait()
