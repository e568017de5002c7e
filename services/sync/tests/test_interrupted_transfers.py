"""Transfers between two nodes whose connections are cut at any byte: they resume, and hardly a byte is sent twice.

The stream is divided into parts, and in each a cut is drawn anew in each run: few in the usual one, 50 in `make soak`.
"""

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pytest
from odf_testing.cutting_proxy import CuttingProxy, cutting_proxy, drawn_cut
from odf_testing.sync_node import SyncNode, open_exchanges
from urllib3 import Retry

from odf_common.errors import Conflict, OdfError, Unavailable
from odf_common.metadata.events import SetInfo
from odf_coordinator.commit.committer import require_committed
from odf_sync.repositories import http_dataset
from odf_sync.transfer import push_source

OBJECTS, OBJECT_BYTES, BLOCKS, BLOCK_BYTES = 3, 300_000, 150, 700
TWICE: Final = 0.02  # of all bytes, may be sent twice
HANDSHAKES: Final = 8 * 1024  # requests and answers of another attempt, without objects and blocks
ATTEMPTS: Final = 4
USUAL, SOAK = 2, 50  # parts of the stream, each with a cut of its own
EARLY_AND_LATE: Final = ((0, 100), (199, 200))  # before the first object, and among the last messages
PARTS: Final = [
    *EARLY_AND_LATE,
    *((part, USUAL) for part in range(USUAL)),
    *(pytest.param((part, SOAK), marks=pytest.mark.soak) for part in range(SOAK)),
]
SOURCE: Final = random.Random(15)
QUICK: Final = Retry(2, redirect=0, backoff_factor=0.01, allowed_methods=None)
Transfer = Callable[[SyncNode, SyncNode, str], object]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_dataset, "READ_RETRY", QUICK)
    monkeypatch.setattr(push_source, "UPLOAD_RETRY", QUICK)
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture(autouse=True, scope="module")
def _exchanges() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        open_exchanges(patch)
        yield


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> SyncNode:
    """A node with a dataset of a MiB that cannot be compressed: a few large slices, many blocks."""
    node = SyncNode(tmp_path_factory.mktemp("here"))
    node.add_cities()
    for minute in range(OBJECTS):
        cities = (SOURCE.randbytes(32).hex() for _ in range(OBJECT_BYTES // 32))
        node.coordinator.push("cities", *cities, minute=minute)
    known = node.coordinator.find("cities")
    infos = [SetInfo(description=SOURCE.randbytes(BLOCK_BYTES // 2).hex()) for _ in range(BLOCKS)]
    require_committed(known.id, node.coordinator.propose(known, infos))
    return node


def pull(here: SyncNode, there: SyncNode, url: str) -> object:
    del here
    return there.pull(f"{url}/cities", "cities")


def pull_by_smart(here: SyncNode, there: SyncNode, url: str) -> object:
    del here
    return there.pull(f"odf+{url}/cities", "cities")


def push(here: SyncNode, there: SyncNode, url: str) -> object:
    del there
    return here.push("cities", f"odf+{url}/cities")


@contextmanager
def proxied(transfer: Transfer, here: SyncNode, there: SyncNode) -> Iterator[CuttingProxy]:
    """Serve the responding node behind a proxy."""
    with (there if transfer is push else here).served() as base, cutting_proxy(base) as proxy:
        yield proxy


def completed(transfer: Transfer, here: SyncNode, there: SyncNode, proxy: CuttingProxy) -> int:
    """Repeat a transfer until it is done; return the bytes sent in its direction."""
    for _ in range(ATTEMPTS):
        try:
            transfer(here, there, proxy.url)
        except (Unavailable, Conflict):
            assert there.head("cities") in (None, here.head("cities"))
            proxy.restore()
        else:
            assert there.content("cities") == here.content("cities")
            return proxy.to_server if transfer is push else proxy.to_client
    raise AssertionError("it never succeeds")


@pytest.fixture(scope="module", params=[pull, pull_by_smart, push], ids=lambda one: one.__name__)
def whole(
    request: pytest.FixtureRequest, here: SyncNode, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Transfer, int, int]:
    """Return a transfer, the bytes that it sends undisturbed, and those in both directions."""
    transfer: Transfer = request.param
    there = SyncNode(tmp_path_factory.mktemp("whole"))
    with proxied(transfer, here, there) as proxy:
        return transfer, completed(transfer, here, there, proxy), proxy.total


@pytest.mark.parametrize("stays_down", [True, False], ids=["until the next attempt", "only once"])
@pytest.mark.parametrize("part", PARTS, ids=lambda part: f"{part[0]} of {part[1]}")
def test_an_interrupted_transfer_resumes_and_sends_hardly_a_byte_twice(
    whole: tuple[Transfer, int, int],
    here: SyncNode,
    tmp_path: Path,
    part: tuple[int, int],
    *,
    stays_down: bool,
) -> None:
    """The better of two attempts counts: a cut loses what a server that got no processor has not read yet."""
    transfer, length, total = whole
    most = length * (1 + TWICE) + HANDSHAKES
    sent: list[int] = []
    for attempt in range(2):
        there = SyncNode(tmp_path / str(attempt))
        with proxied(transfer, here, there) as proxy:
            proxy.cut_after(drawn_cut(*part, total), stays_down=stays_down)
            sent.append(completed(transfer, here, there, proxy))
        if sent[-1] <= most:
            return
    assert min(sent) <= most


def test_a_transfer_that_is_interrupted_repeatedly_is_completed(
    whole: tuple[Transfer, int, int], here: SyncNode, tmp_path: Path
) -> None:
    transfer, length, total = whole
    there = SyncNode(tmp_path)
    cuts = 5
    with proxied(transfer, here, there) as proxy:
        for _ in range(cuts):
            proxy.cut_after(total // cuts)
            with suppress(OdfError):
                transfer(here, there, proxy.url)
            proxy.restore()
        sent = completed(transfer, here, there, proxy)
    assert sent <= length * (1 + TWICE) + cuts * HANDSHAKES


def test_partial_files_are_removed_after_completion(here: SyncNode, tmp_path: Path) -> None:
    there = SyncNode(tmp_path)
    for transfer in (push, pull):
        with proxied(transfer, here, there) as proxy:
            proxy.cut_after(500_000)
            completed(transfer, here, there, proxy)
    for folder in ("uploads", "downloads"):
        assert not [file for file in tmp_path.glob(f"{folder}/*") if file.stat().st_size]
