"""Coordinators over a bucket: no fork, nothing lost, nothing half-written."""

import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from odf_testing.chains import StoredChain, read_chain
from odf_testing.coordinator import Coordinator, FakeTopics
from odf_testing.killer import Killed, Killer
from odf_testing.minioserver import MinioServer, serving_s3

from odf_common.adapters.local.catalog import LocalCatalog
from odf_common.adapters.s3.bucket import Bucket
from odf_common.adapters.s3.bucket_stores import S3RefStore
from odf_common.adapters.s3.location import S3Location
from odf_common.adapters.system_clock import SystemClock
from odf_common.ports.clock import Clock
from odf_coordinator.commit.committer import Committed

SLICES = 6
MAX_TRIES = 200


@dataclass
class BucketCoordinator(Coordinator):
    """A coordinator with a separate home, whose objects and references are in a bucket."""

    server: MinioServer = field(kw_only=True)
    place: S3Location = field(kw_only=True)
    clock: Clock = field(default_factory=SystemClock)

    def _open_stores(self) -> None:
        self.blobs = self.server.store(self.place, self.home)
        self.refs = S3RefStore(self.server.bucket(self.place))
        self.catalog = LocalCatalog(self.home)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MinioServer]:
    with serving_s3(tmp_path_factory.mktemp("minio")) as server:
        yield server


@pytest.fixture
def node(server: MinioServer, tmp_path: Path, root: str) -> BucketCoordinator:
    """A node with a root of one slice."""
    node = BucketCoordinator(home=tmp_path / "home", server=server, place=server.new_bucket("team"))
    node.add(root)
    node.push("cities", "Oslo", minute=1)
    return node


def stored(node: BucketCoordinator, folder: Path) -> StoredChain:
    """Return the dataset's chain as stored in the bucket, validated."""
    (entry,) = node.catalog.entries()
    prefix = replace(node.place, prefix=f"{node.place.prefix}/{entry.dataset_id.folder}")
    shutil.rmtree(folder, ignore_errors=True)
    for key, content in node.server.objects(prefix).items():
        (folder / key).parent.mkdir(parents=True, exist_ok=True)
        (folder / key).write_bytes(content)
    return read_chain(folder)


def commit_each(node: BucketCoordinator, cities: list[str], meeting: threading.Barrier) -> int:
    """Commit one slice for each, first when the other node is about to; return how often that was faster."""
    losses = 0
    for city in cities:
        for tries in range(MAX_TRIES):
            known = node.find("cities")
            events = node.ingest_events(known, [city], minute=1)
            if tries == 0:
                meeting.wait()
            if isinstance(node.propose(known, events), Committed):
                break
            losses += 1
        else:
            raise AssertionError(f"{city} was not committed")
    return losses


def test_two_nodes_that_commit_to_one_dataset_neither_fork_it_nor_lose_a_commit(
    node: BucketCoordinator, tmp_path: Path
) -> None:
    shutil.copytree(node.home, tmp_path / "other", ignore=shutil.ignore_patterns("cache", "scratch"))
    other = BucketCoordinator(home=tmp_path / "other", server=node.server, place=node.place)
    cities = [[f"{who}-{number}" for number in range(SLICES)] for who in ("one", "other")]
    meeting = threading.Barrier(2, timeout=60)
    with ThreadPoolExecutor(2) as pool:
        losses = sum(pool.map(commit_each, (node, other), cities, (meeting, meeting)))
    chain = stored(node, tmp_path / "chain")
    assert sorted(chain.column("city")) == sorted(["Oslo", *cities[0], *cities[1]])
    assert {node.find("cities").state.head, other.find("cities").state.head} == {chain.head}
    assert losses >= SLICES


@dataclass
class World:
    """A node whose process is killed at each write, and the state that the next process finds."""

    killer: Killer
    node: BucketCoordinator
    tries: int = 0

    def killed_at_each_write(self, act: Callable[[Coordinator], object]) -> Iterator[BucketCoordinator]:
        is_done = False
        while not is_done:
            copy = self._copy()
            try:
                with self.killer.after(self.tries):
                    act(copy)
                is_done = True
            except Killed:
                is_done = False
            self.tries += 1
            yield replace(copy)  # another process

    def _copy(self) -> BucketCoordinator:
        home, place = self.node.home.with_name(f"home-{self.tries}"), self.node.server.new_bucket("team")
        shutil.copytree(self.node.home, home, ignore=shutil.ignore_patterns("scratch"))
        for key, content in self.node.server.objects(self.node.place).items():
            self.node.server.bucket(place).put(key, content)
        topics = FakeTopics()
        topics.names = dict.fromkeys(self.node.topics.names, 1)
        return BucketCoordinator(home=home, server=self.node.server, place=place, topics=topics)


@pytest.fixture
def world(node: BucketCoordinator, monkeypatch: pytest.MonkeyPatch) -> World:
    killer = Killer(monkeypatch)
    for change in ("put", "remove"):
        monkeypatch.setattr(Bucket, change, killer.counted(getattr(Bucket, change)))
    return World(killer=killer, node=node)


def test_a_commit_is_whole_or_nothing_and_may_be_repeated(world: World, tmp_path: Path) -> None:
    outcomes = set()
    for node in world.killed_at_each_write(lambda node: node.push("cities", "Rome", minute=2)):
        cities = stored(node, tmp_path / "chain").column("city")
        outcomes.add(len(cities))
        if "Rome" not in cities:
            node.push("cities", "Rome", minute=2)
        assert stored(node, tmp_path / "chain").column("city") == ["Oslo", "Rome"]
    assert outcomes == {1, 2}
    assert world.tries > 10


def test_a_deletion_is_whole_or_nothing_and_is_finished_by_the_next_process(world: World) -> None:
    for node in world.killed_at_each_write(lambda node: node.names.delete("cities")):
        if list(node.catalog.entries()):
            assert [known.alias for known in node.datasets.all()] == ["cities"]
            continue
        node.collector.collect()
        assert node.server.objects(node.place) == {}
        assert list(node.home.glob("claims/*")) == []
    assert world.tries > 10
