"""Of chains that another service has stored, only complete continuations of ours are imported."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from odf_testing import story
from odf_testing.builders import (
    AChain,
    a_block,
    a_chain,
    a_dataset,
    a_push_source,
    a_seed,
    a_time,
    a_transform,
)
from odf_testing.coordinator import Coordinator, forced, forget, imported, refused, stored
from odf_testing.redis import MemoryLocks

from odf_common.chain.state import ChainState
from odf_common.codec.flatbuffers import (
    block_hash,
    decode_block,
    encode_block,
)
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import HEAD, DatasetId
from odf_common.identity.keys import generate
from odf_common.metadata.events import DatasetKind, SetInfo
from odf_common.ports.store import CatalogEntry, ObjectKind, require_entry
from odf_coordinator.catalog.datasets import DatasetHandle
from odf_coordinator.commit.committer import Committed, Overtaken, Refusal


@pytest.fixture
def locks() -> MemoryLocks:
    return MemoryLocks(lambda: 0.0)


@pytest.fixture
def node(tmp_path: Path, locks: MemoryLocks) -> Coordinator:
    return Coordinator(home=tmp_path, locks=locks)


@pytest.fixture
def cities(node: Coordinator, root: str) -> DatasetHandle:
    node.add(root)
    return node.push("cities", "Oslo")


def test_what_continues_the_head_is_imported(node: Coordinator, cities: DatasetHandle) -> None:
    after = stored(node, cities.state, SetInfo(description="one"), SetInfo(description="two"))

    outcome = imported(node, cities.id, cities.state.head, after.head)

    assert outcome == Committed(state=after)
    assert node.find("cities").state == after
    assert imported(node, cities.id, cities.state.head, after.head) == Committed(state=after, already=True)


def test_a_fork_of_our_chain_is_not_imported(node: Coordinator, cities: DatasetHandle) -> None:
    fork = stored(node, cities.state, SetInfo(description="theirs"))
    ours = node.propose(cities, [SetInfo(description="ours")])
    assert isinstance(ours, Committed)
    now = node.find("cities")

    why = refused(node, now, imported(node, cities.id, now.state.head, fork.head))

    assert f"is not in the chain of {fork.head}" in why
    moved = imported(node, cities.id, cities.state.head, fork.head)
    assert moved == Overtaken(expected=cities.state.head, head=now.state.head)
    assert node.find("cities").state == now.state


def test_nothing_is_imported_onto_a_head_whose_block_is_missing(
    node: Coordinator, cities: DatasetHandle
) -> None:
    after = stored(node, cities.state, SetInfo(description="one"))
    node.blobs.remove(cities.id, ObjectKind.BLOCK, [cities.state.head])

    outcome = imported(node, cities.id, cities.state.head, after.head)

    assert isinstance(outcome, Refusal)
    assert node.refs.head(cities.id) == cities.state.head


def test_a_reference_that_has_already_moved_is_answered_with_its_block(
    node: Coordinator, cities: DatasetHandle
) -> None:
    staged, other = (stored(node, cities.state, SetInfo(description=text)) for text in ("one", "two"))
    node.refs.compare_and_set(cities.id, expected=None, new=staged.head, ref="candidate")

    outcome = node.importer.import_chain(
        cities.id, expected_head=None, new_head=other.head, alias="", ref="candidate"
    )

    assert outcome == Overtaken(expected=None, head=staged.head)
    assert node.refs.head(cities.id, "candidate") == staged.head


def test_an_import_does_not_move_the_head_back(node: Coordinator, cities: DatasetHandle) -> None:
    now = node.push("cities", "Rome", minute=1)

    why = refused(node, now, imported(node, cities.id, now.state.head, cities.state.head))

    assert f"is not in the chain of {cities.state.head}" in why


def test_a_chain_whose_head_is_not_stored_is_not_imported(node: Coordinator, cities: DatasetHandle) -> None:
    unknown = block_hash(b"unknown")

    assert "is missing" in refused(node, cities, imported(node, cities.id, cities.state.head, unknown))


@pytest.mark.parametrize("is_new", [True, False])
@pytest.mark.parametrize("loss", ["removed", "cut"])
def test_a_chain_without_its_objects_is_not_imported(
    node: Coordinator, cities: DatasetHandle, is_new: bool, loss: str
) -> None:
    before = {*node.blobs.names(cities.id, ObjectKind.DATA)}
    after = stored(node, cities.state, *node.ingest_events(cities, ["Rome"], 1))
    (name,) = {*node.blobs.names(cities.id, ObjectKind.DATA)} - before
    node.blobs.remove(cities.id, ObjectKind.DATA, [name])
    if loss == "cut":
        node.blobs.put(cities.id, ObjectKind.DATA, name, b"cut")
    if is_new:
        forget(node, cities)

    outcome = imported(
        node, cities.id, None if is_new else cities.state.head, after.head, "copy" if is_new else ""
    )

    assert isinstance(outcome, Refusal)
    assert outcome.code == "ObjectMissing"
    assert node.refs.head(cities.id) == (None if is_new else cities.state.head)
    assert node.catalog.by_alias("copy") is None


def test_a_chain_of_another_dataset_is_not_imported(node: Coordinator) -> None:
    chain = a_chain(a_seed(dataset=a_dataset("theirs")), a_push_source())
    ours = a_dataset("ours")
    for block in chain.blocks:
        node.blobs.put(ours, ObjectKind.BLOCK, block.hash, block.raw)

    outcome = imported(node, ours, None, chain.state.head, "copy")

    assert isinstance(outcome, Refusal)
    assert f"the chain belongs to {a_dataset('theirs')}, not to {ours}" in outcome.text
    assert node.refs.head(ours) is None
    assert node.catalog.by_alias("copy") is None


def test_a_chain_that_breaks_a_rule_is_not_imported(node: Coordinator, cities: DatasetHandle) -> None:
    late = encode_block(a_block(cities.state, SetInfo(description="x"), system_time=a_time(-(10**9))), 3)
    node.blobs.put(cities.id, ObjectKind.BLOCK, block_hash(late), late)

    outcome = imported(node, cities.id, cities.state.head, block_hash(late))

    assert "system_time_never_decreases" in refused(node, cities, outcome)


def test_a_new_dataset_needs_a_distinct_name(node: Coordinator, cities: DatasetHandle, root: str) -> None:
    forget(node, cities)
    outcome = imported(node, cities.id, None, cities.state.head)
    assert isinstance(outcome, Refusal)
    assert "needs a name" in outcome.text

    node.add(root)
    taken = imported(node, cities.id, None, cities.state.head, "Cities")
    assert isinstance(taken, Refusal)
    assert taken.code == "AlreadyExists"
    assert node.refs.head(cities.id) is None


def test_each_creation_of_a_dataset_is_another_incarnation(node: Coordinator, cities: DatasetHandle) -> None:
    seen = {cities.entry.incarnation}
    for creation in ("", "c0ffee"):
        forget(node, cities)
        for _ in range(2):  # the command is delivered again
            node.importer.import_chain(
                cities.id, expected_head=None, new_head=cities.state.head, alias="copy", creation=creation
            )
            seen.add(require_entry(node.catalog, "copy").incarnation)
        cities = replace(cities, entry=require_entry(node.catalog, "copy"))
    assert len(seen) == 3
    assert cities.entry.creation == "c0ffee"


def test_a_new_dataset_is_announced_once_it_has_its_name(node: Coordinator, cities: DatasetHandle) -> None:
    forget(node, cities)
    named: list[str] = []

    def listen(state: ChainState) -> None:
        entry = node.catalog.by_id(state.dataset_id)
        named.append("" if entry is None else entry.alias)

    node.committer.listen(listen)
    imported(node, cities.id, None, cities.state.head, "copy")

    assert named[-1] == "copy"


def test_a_new_dataset_continues_nothing(node: Coordinator, cities: DatasetHandle) -> None:
    after = stored(node, cities.state, SetInfo(description="x"))
    forget(node, cities)

    outcome = imported(node, cities.id, cities.state.head, after.head, "copy")

    assert outcome == Overtaken(expected=cities.state.head, head=None)
    assert node.catalog.by_alias("copy") is None


def test_a_dataset_without_a_head_gets_no_other_reference(node: Coordinator, cities: DatasetHandle) -> None:
    forget(node, cities)

    outcome = node.importer.import_chain(
        cities.id, expected_head=None, new_head=cities.state.head, alias="", ref="candidate"
    )

    assert isinstance(outcome, Refusal)
    assert "has no head, so it cannot have a reference candidate" in outcome.text
    assert node.refs.head(cities.id, "candidate") is None


def test_a_name_is_taken_under_the_catalogs_lock_after_the_head_has_moved(
    node: Coordinator, cities: DatasetHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget(node, cities)
    seen: list[tuple[Multihash | None, bool]] = []
    catalog = node.catalog
    add, locked, holders = catalog.add, catalog.lock, list[None]()

    @contextmanager
    def held() -> Iterator[None]:
        with locked():
            holders.append(None)
            yield
            holders.pop()

    def noted(entry: CatalogEntry) -> None:
        seen.append((node.refs.head(cities.id), bool(holders)))
        add(entry)

    monkeypatch.setattr(catalog, "add", noted)
    monkeypatch.setattr(catalog, "lock", held)
    imported(node, cities.id, None, cities.state.head, "copy")

    assert seen == [(cities.state.head, True)]


def test_an_import_that_was_killed_before_its_name_was_taken_is_repeated(
    node: Coordinator, cities: DatasetHandle
) -> None:
    node.keys.remove(cities.id)
    node.catalog.remove(cities.alias)

    outcome = imported(node, cities.id, None, cities.state.head, "copy")

    assert outcome == Committed(state=cities.state)
    assert node.find("copy").state == cities.state


def held_while_moving(node: Coordinator, locks: MemoryLocks, act: Callable[[], object]) -> list[bool]:
    """Return for each move of a reference whether its dataset was locked then."""
    was_held: list[bool] = []
    move = node.refs.compare_and_set

    def noted(dataset: DatasetId, *, expected: Multihash | None, new: Multihash, ref: str = HEAD) -> None:
        was_held.append(dataset in locks.held)
        move(dataset, expected=expected, new=new, ref=ref)

    node.refs.compare_and_set = noted  # type: ignore[method-assign]
    act()
    assert locks.held == {}
    return was_held


def test_a_dataset_is_locked_while_its_references_move_and_free_afterwards(
    node: Coordinator, cities: DatasetHandle, locks: MemoryLocks
) -> None:
    after = stored(node, cities.state, SetInfo(description="x"))

    def act() -> None:
        node.references.set("cities@next", "", None)
        imported(node, cities.id, cities.state.head, after.head)
        node.propose(node.find("cities"), [SetInfo(description="y")])

    assert held_while_moving(node, locks, act) == [True] * 3


def test_a_dataset_is_free_after_a_refusal_too(
    node: Coordinator, cities: DatasetHandle, locks: MemoryLocks
) -> None:
    def act() -> None:
        assert isinstance(node.propose(cities, []), Refusal)
        imported(node, cities.id, cities.state.head, block_hash(b"unknown"))

    assert held_while_moving(node, locks, act) == []


def test_a_seed_of_another_dataset_is_not_committed(node: Coordinator) -> None:
    key = generate()
    node.keys.save(key)

    outcome = node.committer.commit(
        key.dataset_id,
        expected_head=None,
        events=[a_seed(dataset=a_dataset("other"))],
        system_time=node.clock.now(),
    )

    assert isinstance(outcome, Refusal)
    assert f"the seed of {key.dataset_id} names {a_dataset('other')}" in outcome.text
    assert node.refs.head(key.dataset_id) is None


def test_listeners_are_notified_of_a_moved_head_and_never_of_a_reference(
    node: Coordinator, cities: DatasetHandle
) -> None:
    heard: list[tuple[Multihash, Multihash | None]] = []
    node.committer.listen(lambda state: heard.append((state.head, node.refs.head(cities.id))))

    node.references.set("cities@next", "", None)
    node.editor.commit_event("cities@next", SetInfo(description="staged"))
    assert heard == []
    assert node.find("cities").state == cities.state

    after = node.push("cities", "Rome", minute=1).state.head
    assert heard == [(after, after)]


def test_a_forced_import_replaces_a_diverged_chain_and_keeps_its_blocks(
    node: Coordinator, cities: DatasetHandle
) -> None:
    ours = stored(node, cities.state, SetInfo(description="ours"))
    theirs = stored(node, cities.state, SetInfo(description="theirs"), SetInfo(description="two"))
    imported(node, cities.id, cities.state.head, ours.head)

    assert "is not in the chain" in str(imported(node, cities.id, ours.head, theirs.head))
    assert forced(node, cities, theirs.head) == Committed(state=theirs)

    assert node.find("cities").state == theirs
    assert node.blobs.has(cities.id, ObjectKind.BLOCK, ours.head)


def test_only_objects_of_blocks_that_are_new_to_the_chain_are_looked_for(
    node: Coordinator, cities: DatasetHandle
) -> None:
    node.blobs.remove(cities.id, ObjectKind.DATA, [*node.blobs.names(cities.id, ObjectKind.DATA)])
    theirs = stored(node, cities.state, SetInfo(description="theirs"))

    assert forced(node, cities, theirs.head) == Committed(state=theirs)


def test_a_forced_import_may_move_the_head_back(node: Coordinator, cities: DatasetHandle) -> None:
    ahead = stored(node, cities.state, SetInfo(description="ahead"))
    imported(node, cities.id, cities.state.head, ahead.head)

    assert forced(node, cities, cities.state.head) == Committed(state=cities.state)


def test_a_forced_import_that_was_overtaken_changes_nothing(node: Coordinator, cities: DatasetHandle) -> None:
    ours = stored(node, cities.state, SetInfo(description="ours"))
    theirs = stored(node, cities.state, SetInfo(description="theirs"))
    imported(node, cities.id, cities.state.head, ours.head)

    outcome = node.importer.import_chain(
        cities.id, expected_head=cities.state.head, new_head=theirs.head, alias="", is_forced=True
    )

    assert outcome == Overtaken(expected=cities.state.head, head=ours.head)
    assert node.refs.head(cities.id) == ours.head


def test_a_forced_import_of_a_damaged_chain_is_refused(node: Coordinator, cities: DatasetHandle) -> None:
    theirs = stored(node, cities.state, SetInfo(description="theirs"), SetInfo(description="two"))
    before = decode_block(node.blobs.read(cities.id, ObjectKind.BLOCK, theirs.head)).block.prev_block_hash
    assert before is not None
    node.blobs.remove(cities.id, ObjectKind.BLOCK, [before])

    why = refused(node, cities, forced(node, cities, theirs.head))

    assert f"block {before}, sequence number 4, is missing" in why


def test_what_a_chain_reads_that_has_begun_anew_is_in_use(node: Coordinator, cities: DatasetHandle) -> None:
    node.add(yaml.safe_dump(story.root("towns", ["event_time TIMESTAMP"])))
    towns = node.find("towns").id
    assert not node.datasets.dependants(towns), "cities is known to be a root"
    node.keys.remove(cities.id)
    chain = AChain().add(a_seed(DatasetKind.Derivative, cities.id), a_transform(towns))
    for block in chain.blocks:
        node.blobs.put(cities.id, ObjectKind.BLOCK, block.hash, block.raw)

    assert isinstance(forced(node, cities, chain.state.head), Committed)

    assert [reader.id for reader in node.datasets.dependants(towns)] == [cities.id]
