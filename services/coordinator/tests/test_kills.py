"""Datasets are added, renamed, deleted and imported whole or not at all, whichever write their process is killed at."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from odf_testing.coordinator import Coordinator, FakeTopics
from odf_testing.killer import Killed, Killer

from odf_common.adapters.local import durable
from odf_common.adapters.local.catalog import LocalCatalog
from odf_common.adapters.local.process_files import Staging
from odf_common.errors import NotFound, OdfError, Refused
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import DatasetId
from odf_common.ports.store import CatalogEntry, ObjectKind
from odf_coordinator.commit.committer import Committed, Outcome, require_committed
from odf_coordinator.lifecycle import GRACE_SECONDS

Act = Callable[[Coordinator], object]
TWO_SOURCES = "    - kind: AddPushSource\n      sourceName: second\n      read: {kind: NdJson}\n      merge: {kind: Append}\n"


@pytest.fixture
def killer(monkeypatch: pytest.MonkeyPatch) -> Killer:
    killer = Killer(monkeypatch)
    for change in ("create_push_topic", "delete_topic"):
        monkeypatch.setattr(FakeTopics, change, killer.counted(getattr(FakeTopics, change)))
    return killer


@dataclass
class World:
    """A home whose process is killed, and the state that the next process finds."""

    killer: Killer
    home: Path
    topics: frozenset[str] = frozenset()
    tries: int = 0

    def process(self, home: Path, topics: FakeTopics) -> Coordinator:
        return Coordinator(home=home, topics=topics, is_durable=True)

    def prepared(self, act: Act) -> None:
        """Prepare a home as `act` leaves it."""
        topics = FakeTopics()
        act(self.process(self.home, topics))
        self.topics = frozenset(topics.names)

    def killed_at_each_write(self, act: Act) -> Iterator[Coordinator]:
        """Yield, for each write of `act`, a new process over what a kill at that write leaves; last, over the whole."""
        is_done = False
        while not is_done:
            home = self.home.with_name(f"killed-at-{self.tries}")
            if self.home.exists():
                shutil.copytree(self.home, home)
            topics = FakeTopics()
            topics.names = dict.fromkeys(self.topics, 1)
            is_done = self._is_survived(self.process(home, topics), act)
            self.tries += 1
            yield self.process(home, topics)

    def _is_survived(self, process: Coordinator, act: Act) -> bool:
        try:
            with self.killer.after(self.tries):
                act(process)
        except Killed:
            return False
        return True


@pytest.fixture
def world(killer: Killer, tmp_path: Path) -> World:
    return World(killer=killer, home=tmp_path / "home")


def require_nothing_left_over(node: Coordinator) -> dict[str, CatalogEntry]:
    """Have leftovers collected, and return the names: each of one dataset, which has its folder, key and topics."""
    node.collector.collect()
    entries = {entry.alias: entry for entry in node.catalog.entries()}
    ids = {entry.dataset_id for entry in entries.values()}
    assert len(ids) == len(entries), "a dataset has two names"
    assert set(node.blobs.datasets()) == ids
    assert {file.name for file in node.home.glob("keys/[!.]*")} == {one.folder for one in ids}
    assert set(node.topics.names) == {
        topic for entry in entries.values() for topic in entry.push_topics.values()
    }
    assert list(node.home.glob("claims/*")) == []
    assert list(node.home.glob("datasets/.*")) == []
    assert {known.alias for known in node.datasets.all()} == set(entries)
    return entries


def test_an_addition_is_whole_or_nothing_and_may_be_repeated(world: World, root: str) -> None:
    world.prepared(lambda node: node.add(root))
    towns = root.replace("name: cities", "name: towns") + TWO_SOURCES
    for node in world.killed_at_each_write(lambda node: node.add(towns)):
        assert require_nothing_left_over(node).keys() in ({"cities"}, {"cities", "towns"})
        node.add(towns)
        assert len(require_nothing_left_over(node)["towns"].push_topics) == 2
    assert world.tries > 20


def test_an_addition_may_be_repeated_before_what_is_left_is_collected(world: World, root: str) -> None:
    for node in world.killed_at_each_write(lambda node: node.add(root)):
        node.add(root)
        assert require_nothing_left_over(node).keys() == {"cities"}


def test_a_rename_is_one_step_and_may_be_repeated(world: World, root: str) -> None:
    world.prepared(lambda node: node.add(root.replace("name: cities", "name: Cities")))
    for node in world.killed_at_each_write(lambda node: node.names.rename("cities", "Towns")):
        (before,) = node.catalog.entries()
        assert before.alias in ("Cities", "Towns")
        node.names.rename("cities", "Towns")
        node.catalog.repair_names()
        assert require_nothing_left_over(node) == {
            "Towns": CatalogEntry(
                alias="Towns",
                dataset_id=before.dataset_id,
                push_topics={"default": "odf.push.cities.default"},
            )
        }
        alias = node.home / "datasets" / before.dataset_id.folder / "info" / "alias"
        assert alias.read_text() == "Towns"
    assert world.tries > 5


def test_a_killed_rename_leaves_the_old_name_to_others(world: World, root: str) -> None:
    world.prepared(lambda node: node.add(root))
    for node in world.killed_at_each_write(lambda node: node.names.rename("cities", "towns")):
        (entry,) = node.catalog.entries()
        other = {"cities": "towns", "towns": "cities"}[entry.alias]
        node.add(root.replace("name: cities", f"name: {other}"))
        assert require_nothing_left_over(node).keys() == {"cities", "towns"}


def test_a_deletion_is_whole_or_nothing_and_may_be_repeated(world: World, root: str) -> None:
    world.prepared(lambda node: (node.add(root), node.push("cities", "Oslo")))
    for node in world.killed_at_each_write(lambda node: node.names.delete("cities")):
        names = require_nothing_left_over(node).keys()
        assert names in (set(), {"cities"})
        if names:
            assert node.find("cities").state.last_offset == 0
            node.names.delete("cities")
            assert require_nothing_left_over(node) == {}
    assert world.tries > 10


def test_a_deletion_may_be_repeated_before_what_is_left_is_collected(world: World, root: str) -> None:
    world.prepared(lambda node: node.add(root))
    for node in world.killed_at_each_write(lambda node: node.names.delete("cities")):
        try:
            node.names.delete("cities")
        except NotFound:  # it had finished
            assert list(node.home.glob("claims/*")) == []
        assert require_nothing_left_over(node) == {}


def test_a_name_is_free_once_its_dataset_is_deleted(world: World, root: str) -> None:
    world.prepared(lambda node: node.add(root))
    for node in world.killed_at_each_write(lambda node: node.names.delete("cities")):
        before = node.catalog.by_alias("cities")
        node.add(root)
        known = node.find("cities")
        assert (before is None) != (known.entry == before)
        assert known.entry.push_topics["default"] in node.topics.names
        assert require_nothing_left_over(node).keys() == {"cities"}


def test_a_source_that_is_added_has_its_topic_or_there_is_neither(world: World, root: str) -> None:
    world.prepared(lambda node: node.add(root))
    more = root + TWO_SOURCES
    for node in world.killed_at_each_write(lambda node: node.add(more, replace=True)):
        node.collector.collect()
        known = node.find("cities")
        assert known.state.push_sources.keys() <= known.entry.push_topics.keys()
        node.add(more, replace=True)
        assert require_nothing_left_over(node)["cities"].push_topics == {
            "default": "odf.push.cities.default",
            "second": "odf.push.cities.second",
        }
        assert node.find("cities").state.push_sources.keys() == {"default", "second"}


def test_an_import_is_whole_or_nothing_and_may_be_repeated(world: World, root: str, tmp_path: Path) -> None:
    elsewhere = Coordinator(home=tmp_path / "elsewhere", is_durable=True)
    elsewhere.add(root)
    known = elsewhere.push("cities", "Oslo")

    def bring(node: Coordinator) -> Outcome:
        copy_objects(elsewhere, node, known.id)
        return imported(node, known.id, known.state.head)

    for node in world.killed_at_each_write(lambda node: require_committed(known.id, bring(node))):
        named = node.catalog.by_id(known.id)
        if named is not None:
            assert node.find("cities").state == known.state
        assert isinstance(bring(node), Committed)
        node.collector.collect()
        assert node.find("cities").state == known.state
        assert list(node.home.glob("claims/*")) == []


def copy_objects(source: Coordinator, target: Coordinator, dataset: DatasetId) -> None:
    """Have objects as sync's download leaves them."""
    for kind in (ObjectKind.DATA, ObjectKind.BLOCK):
        for name in source.blobs.names(dataset, kind):
            target.blobs.put(dataset, kind, name, source.blobs.read(dataset, kind, name))


def imported(node: Coordinator, dataset: DatasetId, head: Multihash, alias: str = "cities") -> Outcome:
    return node.importer.import_chain(dataset, expected_head=None, new_head=head, alias=alias)


def test_objects_of_a_refused_copy_stay_for_the_next_attempt(world: World, root: str, tmp_path: Path) -> None:
    elsewhere = Coordinator(home=tmp_path / "elsewhere", is_durable=True)
    elsewhere.add(root)
    known = elsewhere.push("cities", "Oslo")
    node = world.process(world.home, FakeTopics())
    node.add(root)
    copy_objects(elsewhere, node, known.id)

    assert not isinstance(imported(node, known.id, known.state.head), Committed)
    assert node.refs.head(known.id) is None
    assert isinstance(imported(node, known.id, known.state.head, "towns"), Committed)


def test_a_download_in_progress_is_kept_and_an_old_one_is_collected(world: World, root: str) -> None:
    node = world.process(world.home, FakeTopics())
    node.add(root)
    stray = DatasetId.of_key(bytes(32))
    node.blobs.put(stray, ObjectKind.BLOCK, node.find("cities").state.head, b"")
    written = node.home.joinpath("datasets", stray.folder, "blocks").stat().st_mtime

    node.now = written + GRACE_SECONDS - 1
    node.collector.collect()
    assert stray in set(node.blobs.datasets())

    node.now = written + GRACE_SECONDS + 1
    node.collector.collect()
    assert set(node.blobs.datasets()) == {node.find("cities").id}


def test_what_had_a_name_is_never_collected(world: World, root: str) -> None:
    node = world.process(world.home, FakeTopics())
    node.add(root)
    known = node.find("cities")
    node.catalog.remove("cities")
    node.now = 1e12

    node.collector.collect()

    assert set(node.blobs.datasets()) == {known.id}


def test_an_operation_of_a_slow_process_is_not_settled(world: World, root: str) -> None:
    topics = FakeTopics()
    slow, other = world.process(world.home, topics), world.process(world.home, topics)
    create = topics.create_push_topic

    def meanwhile(name: str, partitions: int = 1) -> None:
        create(name, partitions)
        other.collector.collect()

    topics.create_push_topic = meanwhile  # type: ignore[method-assign]
    slow.add(root)
    assert require_nothing_left_over(other).keys() == {"cities"}


def test_names_that_collide_never_share_a_topic(world: World, root: str) -> None:
    """While the first is created, the second is, whose topic would be called the same."""
    topics = FakeTopics()
    first, second = world.process(world.home, topics), world.process(world.home, topics)
    dotted = root.replace("name: cities", "name: a.b").replace("sourceName: default", "sourceName: c")
    other = root.replace("name: cities", "name: a").replace("sourceName: default", "sourceName: b.c")
    create = topics.create_push_topic

    def meanwhile(name: str, partitions: int = 1) -> None:
        topics.create_push_topic = create  # type: ignore[method-assign]
        second.add(other)
        create(name, partitions)

    topics.create_push_topic = meanwhile  # type: ignore[method-assign]
    first.add(dotted)
    assert len(topics.names) == 2
    assert require_nothing_left_over(first).keys() == {"a", "a.b"}


def test_a_dataset_that_is_created_while_another_takes_its_name_leaves_nothing(
    world: World, root: str
) -> None:
    topics = FakeTopics()
    first, second = world.process(world.home, topics), world.process(world.home, topics)
    create = topics.create_push_topic

    def meanwhile(name: str, partitions: int = 1) -> None:
        topics.create_push_topic = create  # type: ignore[method-assign]
        second.add(root)
        create(name, partitions)

    topics.create_push_topic = meanwhile  # type: ignore[method-assign]
    with pytest.raises(OdfError, match="dataset cities already exists"):
        first.add(root)
    assert require_nothing_left_over(first).keys() == {"cities"}


def test_a_renamed_dataset_keeps_the_topic_of_its_old_name_to_itself(world: World, root: str) -> None:
    node = world.process(world.home, FakeTopics())
    node.add(root)
    node.names.rename("cities", "towns")
    node.add(root)
    node.names.rename("cities", "more")
    node.add(root)
    assert len(node.topics.names) == 3
    assert len(require_nothing_left_over(node)) == 3


def test_topics_that_cannot_be_deleted_now_are_deleted_later(world: World, root: str) -> None:
    node = world.process(world.home, FakeTopics())
    node.add(root)
    node.topics.is_lost = True

    node.names.delete("cities")

    assert list(node.catalog.entries()) == []
    assert set(node.topics.names) == {"odf.push.cities.default"}
    node.topics.is_lost = False
    node.add(root)
    assert node.find("cities").entry.push_topics != {"default": "odf.push.cities.default"}
    assert require_nothing_left_over(node).keys() == {"cities"}


def test_nothing_else_waits_for_a_broker_that_does_not_answer(world: World, root: str) -> None:
    topics = FakeTopics()
    node, other = world.process(world.home, topics), world.process(world.home, topics)
    delete = topics.delete_topic

    def meanwhile(name: str) -> None:
        other.add(root.replace("name: cities", "name: more"))
        other.names.rename("towns", "cities")
        delete(name)

    node.add(root)
    node.add(root.replace("name: cities", "name: towns"))
    topics.delete_topic = meanwhile  # type: ignore[method-assign]
    node.names.delete("cities")
    topics.delete_topic = delete  # type: ignore[method-assign]
    assert require_nothing_left_over(node).keys() == {"cities", "more"}


def test_a_dataset_left_with_two_names_keeps_the_later_one(world: World, root: str) -> None:
    """As left by a rename of an earlier release that was killed between its two writes."""
    node = world.process(world.home, FakeTopics())
    node.add(root)
    first = node.find("cities").entry
    node.catalog.add(CatalogEntry(alias="towns", dataset_id=first.dataset_id, push_topics=first.push_topics))

    node.catalog.repair_names()

    assert require_nothing_left_over(node).keys() == {"towns"}


@pytest.mark.parametrize(("freed", "kept"), [("towns", "cities"), ("cities", "towns")])
def test_deleting_one_of_two_names_of_a_dataset_that_is_read_frees_that_name_only(
    world: World, root: str, derivative: str, freed: str, kept: str
) -> None:
    node = world.process(world.home, FakeTopics())
    node.add(root, derivative)
    first = node.find("cities").entry
    node.catalog.add(CatalogEntry(alias="towns", dataset_id=first.dataset_id, push_topics=first.push_topics))

    node.names.delete(freed)

    assert require_nothing_left_over(node).keys() == {kept, "cities.copy"}


def test_a_damaged_name_is_restored_from_its_datasets_records(world: World, root: str) -> None:
    node = world.process(world.home, FakeTopics())
    node.add(root)
    before = node.find("cities")
    file = node.home / "names" / "cities"
    file.write_bytes(b"")

    again = world.process(world.home, node.topics)
    assert again.find("cities") == before
    again.names.rename("cities", "towns")
    assert LocalCatalog(world.home).by_alias("towns") == again.find("towns").entry
    assert require_nothing_left_over(again).keys() == {"towns"}


def test_a_damaged_name_that_nothing_records_is_freed_and_stops_no_addition(world: World, root: str) -> None:
    node = world.process(world.home, FakeTopics())
    durable.write(node.home / "names" / "towns", b"")
    node.add(root)
    with pytest.raises(OdfError, match="names/towns"):
        node.names.rename("towns", "more")

    node.names.delete("towns")

    node.add(root.replace("name: cities", "name: towns"))
    assert require_nothing_left_over(node).keys() == {"cities", "towns"}


def test_a_dataset_whose_chain_is_damaged_is_renamed_and_deleted(world: World, root: str) -> None:
    node = world.process(world.home, FakeTopics())
    node.add(root)
    known = node.find("cities")
    (node.home / "datasets" / known.id.folder / "blocks" / str(known.state.head)).write_bytes(b"")

    again = world.process(world.home, node.topics)
    again.names.rename("cities", "towns")
    again.add(root)
    again.names.delete("towns")

    assert require_nothing_left_over(again).keys() == {"cities"}


def test_a_dataset_that_is_read_keeps_its_name(world: World, root: str, derivative: str) -> None:
    node = world.process(world.home, FakeTopics())
    node.add(root, derivative)
    with pytest.raises(Refused, match=r"cities is read by cities\.copy"):
        node.names.delete("cities")
    assert require_nothing_left_over(node).keys() == {"cities", "cities.copy"}


def test_files_handed_over_by_a_killed_command_are_removed_while_the_node_runs(tmp_path: Path) -> None:
    node = Coordinator(home=tmp_path / "home", is_durable=True)
    staging = Staging(node.home)
    with staging.holding() as staged:
        left = staging.path("of a killed command")
        left.touch()
        node.collector.collect()
        assert not left.exists()
        assert staging.path(staged.name).exists()
