"""Pulls and pushes at a time, and pulls that replace a chain."""

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from odf_testing.builders import a_chain, a_dataset, a_seed
from odf_testing.memory_store import hold
from odf_testing.sync_node import SyncNode

from odf_common.errors import AlreadyExists, InvalidInput, NotFound
from odf_common.hashing.multihash import Multihash
from odf_common.metadata.events import SetInfo
from odf_common.ports.store import ObjectKind
from odf_common.proto.odf.node.v1 import sync_pb2 as pb
from odf_sync import grpc_servicer
from odf_sync.grpc_servicer import Servicer
from odf_sync.http import smart_routes
from odf_sync.smart.messages import DownloadsRequest, MetadataRequest, PullRequest
from odf_sync.transfer.local_copy import Step
from odf_sync.transfer.remote_chain import ChainsDiverged, LocalAhead

from .raw_client import Client

ORDERS, CITIES = a_dataset("orders"), a_dataset("cities")

PLACES = 3


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SyncNode:
    monkeypatch.setattr(smart_routes, "EXCHANGES_OF_CALLER", PLACES)
    node = SyncNode(tmp_path)
    node.add_cities(["Oslo"])
    return node


@contextmanager
def pulling(base: str, count: int) -> Iterator[list[Client]]:
    """Yield clients that have the blocks, in the order in which they have waited since."""
    with ExitStack() as stack:
        clients = []
        for _ in range(count):
            client = Client(base, path="/cities/pull")
            stack.enter_context(closing(client.socket))
            assert client.status == 101
            for message in (PullRequest(force_update_if_diverged=False), MetadataRequest()):
                client.ask(message)
            clients.append(client)
        yield clients


def next_status(base: str, action: str = "pull") -> int:
    client = Client(base, path=f"/cities/{action}")
    client.socket.close()
    return client.status


def test_pulls_keep_their_places_and_free_them_at_their_end(node: SyncNode) -> None:
    with node.served() as base:
        with pulling(base, PLACES) as clients:
            assert next_status(base) == 503
            assert next_status(base, "push") == 101, "readers leave room for those who may write"
            for client in clients:
                assert b"object_transfer_strategies" in client.ask(DownloadsRequest(object_files=()))
        deadline = time.monotonic() + 20
        while next_status(base) == 503:
            assert time.monotonic() < deadline
            time.sleep(0.1)


def test_all_callers_together_have_a_limit(node: SyncNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smart_routes, "EXCHANGES", PLACES - 1)
    with node.served() as base, pulling(base, PLACES - 1):
        assert next_status(base) == 503


def test_pushes_keep_their_places(node: SyncNode) -> None:
    with node.served() as base, ExitStack() as stack:
        pushes = [Client(base, path="/cities/push") for _ in range(PLACES)]
        for client in pushes:
            stack.enter_context(closing(client.socket))
        assert [client.status for client in pushes] == [101] * PLACES
        assert next_status(base, "push") == 503


@pytest.fixture
def forked(tmp_path: Path) -> SyncNode:
    """Have `cities`, whose reference `theirs` is one block behind its head."""
    made = SyncNode(tmp_path / "home")
    chain = a_chain(a_seed(), SetInfo(description="first"), SetInfo(description="second"))
    dataset = chain.state.dataset_id
    hold(made.datasets, "cities", chain)
    made.refs.compare_and_set(dataset, expected=None, new=chain.blocks[1].hash, ref="theirs")
    return made


def elsewhere(forked: SyncNode, folder: Path, ref: str) -> str:
    """Return the URL of a folder that has the blocks of `cities`, its head where our reference is."""
    (entry,) = forked.catalog.entries()
    for kind in ("blocks", "refs"):
        (folder / kind).mkdir(parents=True)
    for name in forked.blobs.names(entry.dataset_id, ObjectKind.BLOCK):
        block = forked.blobs.read(entry.dataset_id, ObjectKind.BLOCK, name)
        (folder / "blocks" / str(name)).write_bytes(block)
    (folder / "refs" / "head").write_text(str(forked.refs.head(entry.dataset_id, ref)))
    return folder.as_uri()


def last(forked: SyncNode, url: str, alias: str) -> Step:
    return forked.pull(url, alias)[-1]


def test_a_pull_without_news_into_a_reference_reports_its_block(forked: SyncNode, tmp_path: Path) -> None:
    (entry,) = forked.catalog.entries()
    url = elsewhere(forked, tmp_path / "cities", "theirs")
    staged, head = forked.refs.head(entry.dataset_id, "theirs"), forked.refs.head(entry.dataset_id)

    assert last(forked, url, "cities@theirs") == Step(alias="cities", state="up-to-date", head=staged)
    for alias in ("cities", ""):
        with pytest.raises(LocalAhead, match="the local chain is ahead"):
            last(forked, url, alias)
    assert forked.refs.head(entry.dataset_id) == head


@pytest.mark.parametrize(
    "name", ["cities@theirs", "cities@", "ci ties", "..", "cities%2F..%2Fx", "did:odf:x"]
)
def test_a_url_chooses_neither_a_reference_nor_an_odd_name(
    forked: SyncNode, tmp_path: Path, name: str
) -> None:
    with pytest.raises(InvalidInput, match="choose one with --as"):
        last(forked, f"https://example.org/{name}", "")
    with pytest.raises(InvalidInput, match="is not a reference"):
        last(forked, elsewhere(forked, tmp_path / "x", "head"), "ci ties")


def test_a_reference_requires_a_head(forked: SyncNode, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="towns"):
        last(forked, elsewhere(forked, tmp_path / "x", "head"), "towns@theirs")


class Caller:
    """The context of a call."""

    def __init__(self) -> None:
        self.has_gone = threading.Event()

    def is_active(self) -> bool:
        return not self.has_gone.is_set()


class Pulls:
    """Pulls that run until they are released."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.may_end = threading.Event()
        self.changed = threading.Condition()

    def __call__(self, *arguments: Any, **_: object) -> Iterator[Step]:
        with self.changed:
            self.begun.append(arguments[3])
            self.changed.notify_all()
        assert self.may_end.wait(10)
        yield Step(alias="a", state="updated")

    def wait_for(self, count: int) -> bool:
        with self.changed:
            return self.changed.wait_for(lambda: len(self.begun) == count, 10)


@pytest.fixture
def pulls(monkeypatch: pytest.MonkeyPatch) -> Pulls:
    made = Pulls()
    monkeypatch.setattr(grpc_servicer, "pull", made)
    monkeypatch.setattr(grpc_servicer, "CALLER_CHECK_SECONDS", 0.01)
    return made


@pytest.fixture
def servicer() -> Servicer:
    unused = cast("Any", None)
    return Servicer(
        datasets=unused,
        settings=unused,
        replies=unused,
        logins=cast("Any", Logins()),
        privacy=unused,
        search=unused,
    )


class Logins:
    def token(self, _: str) -> None:
        return None


def start_pull(servicer: Servicer, alias: str, caller: Caller) -> threading.Thread:
    request = pb.SyncPullRequest(url="http://localhost/a", alias=alias)
    thread = threading.Thread(target=lambda: list(servicer.Pull(request, cast("Any", caller))), daemon=True)
    thread.start()
    return thread


def test_pulls_by_one_name_run_one_after_the_other(servicer: Servicer, pulls: Pulls) -> None:
    first = start_pull(servicer, "cities", Caller())
    assert pulls.wait_for(1)
    second = start_pull(servicer, "Cities", Caller())
    other = start_pull(servicer, "towns", Caller())
    assert pulls.wait_for(2)
    assert pulls.begun == ["cities", "towns"]
    pulls.may_end.set()
    assert pulls.wait_for(3)
    for one in (first, second, other):
        one.join(10)
    assert len(servicer._busy) == 0


def test_a_caller_who_has_gone_does_not_wait(servicer: Servicer, pulls: Pulls) -> None:
    first = start_pull(servicer, "cities", Caller())
    assert pulls.wait_for(1)
    caller = Caller()
    second = start_pull(servicer, "cities", caller)
    caller.has_gone.set()
    second.join(10)
    assert not second.is_alive()
    assert pulls.begun == ["cities"]
    pulls.may_end.set()
    first.join(10)


@pytest.fixture
def source(tmp_path: Path) -> SyncNode:
    node = SyncNode(tmp_path / "source")
    node.add_cities(["Kyiv", "Osaka"], ["Quito"])
    return node


@pytest.fixture
def copy(tmp_path: Path) -> SyncNode:
    return SyncNode(tmp_path / "copy")


@pytest.fixture(params=["odf+http", "http", "file"])
def url(request: pytest.FixtureRequest, source: SyncNode, tmp_path: Path) -> Iterator[str]:
    """Return the location of the dataset of `source`: its server, by either protocol, or a folder it is pushed to."""
    with ExitStack() as stack:
        if request.param == "file":
            yield (tmp_path / "shared" / "cities").as_uri()
        else:
            base = stack.enter_context(source.served())
            yield f"{'odf+' if request.param == 'odf+http' else ''}{base}/cities"


def publish(source: SyncNode, url: str) -> None:
    if url.startswith("file:"):
        source.push("cities", url, is_forced=True)


def head_of(node: SyncNode) -> Multihash:
    head = node.head("cities")
    assert head is not None
    return head


def rewind(node: SyncNode, block: Multihash) -> None:
    entry = node.catalog.by_alias("cities")
    assert entry is not None
    node.refs.compare_and_set(entry.dataset_id, expected=node.head("cities"), new=block)


def diverge(source: SyncNode, copy: SyncNode, url: str) -> Multihash:
    """Copy the dataset, and have its source replace its last block by two others; return the common block."""
    common = head_of(source)
    source.coordinator.push("cities", "Oslo", minute=9)
    publish(source, url)
    copy.pull(url, "cities")
    rewind(source, common)
    source.coordinator.push("cities", "Bern", minute=10)
    source.coordinator.push("cities", "Rome", minute=11)
    publish(source, url)
    return common


def test_a_diverged_copy_is_replaced_by_force_only(source: SyncNode, copy: SyncNode, url: str) -> None:
    common = diverge(source, copy, url)
    before = head_of(copy)
    with pytest.raises(ChainsDiverged) as refused:
        copy.pull(url, "cities")
    assert refused.value.common_block == str(common)
    assert "--force" in refused.value.advice()
    assert head_of(copy) == before

    *steps, last = copy.pull(url, "cities", is_forced=True)
    assert (last.state, last.head, last.replaced) == ("updated", head_of(source), before)
    (warning,) = [step for step in steps if step.state == "replacing"]
    assert warning.replaced == before
    assert [step.state for step in steps].index("replacing") < [step.state for step in steps].index(
        "committing"
    )
    assert (last.new_blocks, last.new_records) == (2, 2)
    assert head_of(copy) == head_of(source)
    assert source.content("cities").keys() <= copy.content("cities").keys()
    again = copy.pull(url, "cities", is_forced=True)[-1]
    assert (again.state, again.replaced) == ("up-to-date", None)


def test_force_changes_nothing_about_a_copy_that_has_not_diverged(
    source: SyncNode, copy: SyncNode, url: str
) -> None:
    publish(source, url)
    assert copy.pull(url, "cities", is_forced=True)[-1].replaced is None
    source.coordinator.push("cities", "Oslo", minute=9)
    publish(source, url)
    *_, last = copy.pull(url, "cities", is_forced=True)
    assert (last.state, last.new_blocks, last.replaced) == ("updated", 1, None)


def test_blocks_that_were_taken_back_there_are_dropped_here_by_force_only(
    source: SyncNode, copy: SyncNode, url: str
) -> None:
    publish(source, url)
    copy.pull(url, "cities")
    common = head_of(source)
    source.coordinator.push("cities", "Oslo", minute=9)
    publish(source, url)
    copy.pull(url, "cities")
    ahead = head_of(copy)
    rewind(source, common)
    publish(source, url)
    with pytest.raises(LocalAhead, match="is ahead: it has 1 block more than that at") as refused:
        copy.pull(url, "cities")
    assert "odf pull URL --force" in refused.value.advice()
    assert head_of(copy) == ahead
    *_, last = copy.pull(url, "cities", is_forced=True)
    assert (last.state, last.head, last.replaced) == ("updated", common, ahead)
    assert (last.new_blocks, last.new_records) == (0, 0)
    assert head_of(copy) == common
    assert copy.pull(url, "cities")[-1].state == "up-to-date"


def test_another_dataset_does_not_replace_a_copy(source: SyncNode, copy: SyncNode, tmp_path: Path) -> None:
    url = (tmp_path / "shared" / "cities").as_uri()
    source.push("cities", url)
    copy.pull(url, "cities")
    other = SyncNode(tmp_path / "other")
    other.add_cities()
    elsewhere = (tmp_path / "elsewhere" / "cities").as_uri()
    other.push("cities", elsewhere)
    before = head_of(copy)
    with pytest.raises(AlreadyExists, match="another dataset named cities"):
        copy.pull(elsewhere, "cities", is_forced=True)
    assert head_of(copy) == before
