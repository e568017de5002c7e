"""Pushing a long chain to another node, without and with 20 ms of delay.

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
from typing import Final

from bare_copy import held_against_bare_copies
from long_chains import Client, chain_in, written
from odf_testing.http import running
from rows import Row, Target, held_against
from transfer_peers import (
    DELAY,
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

from odf_common.identity.dataset_refs import DatasetId
from odf_sync.http.authorization import Authorizer
from odf_sync.http.endpoints import application
from odf_sync.http.object_uploads import OpenPushes
from odf_sync.http.simple_protocol import SimpleProtocol
from odf_sync.http.smart_routes import SmartProtocol

BLOCKS: Final = 10_000
OBJECTS: Final = 1_000
AS_RCLONE: Final = Target(judged="ratio", sense="≤", bound=1.2)


def run() -> list[Row]:
    """Return the rows; takes twenty minutes, and 12 GB of disk."""
    with tempfile.TemporaryDirectory(prefix="odf-bench-") as folder:
        return list(_whole_chain(Path(folder)))


def _whole_chain(folder: Path) -> Iterator[Row]:
    here, there, repository = folder / "here", folder / "there", folder / "repository"
    dataset = written(here, chain_in(here, blocks=BLOCKS, objects=OBJECTS))
    files = here / "datasets" / dataset.folder
    shutil.copytree(files, repository, copy_function=os.link)
    commit_all(repository)
    client = Client(here)
    for delay in (0.0, DELAY):
        case = f"push {BLOCKS:,} blocks, {OBJECTS:,} objects of 1.5 MiB, {delay * 1000:g} ms"
        with served_with_coordinator(there) as port, delayed_by(port, delay) as ours:
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


@contextmanager
def served_with_coordinator(home: Path, warm: DatasetId | None = None) -> Iterator[int]:
    """Serve a home in another process, with a coordinator that has read a dataset's chain; yield the port."""
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
