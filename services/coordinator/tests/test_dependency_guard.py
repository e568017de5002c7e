"""The dependency graph stays free of cycles and keeps its inputs, whatever other processes do concurrently."""

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from odf_testing.coordinator import Coordinator

from odf_common.chain.build_blocks import build_blocks
from odf_common.errors import ChainRuleViolated, InvalidInput, NotFound, OdfError, Refused
from odf_common.identity.dataset_refs import DatasetId
from odf_common.identity.keys import generate
from odf_common.metadata.events import (
    DatasetKind,
    Seed,
    SetInfo,
    SetTransform,
    SqlQueryStep,
    TransformInput,
    TransformSql,
)
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.store import CatalogEntry, Lock, ObjectKind
from odf_coordinator.catalog.datasets import hold_inputs
from odf_coordinator.commit.committer import Committed, Refusal

CIRCLE = "itself or derived from it"


@pytest.fixture
def cities(node: Coordinator, root: str, derivative: str) -> Coordinator:
    """Have `cities`, and `first` and `second`, which read it."""
    node.add(root, derivative.replace("cities.copy", "first"), derivative.replace("cities.copy", "second"))
    return node


def reading(dataset: DatasetId) -> SetTransform:
    query = SqlQueryStep(query="SELECT event_time, city FROM other")
    return SetTransform(
        inputs=(TransformInput(dataset_ref=str(dataset), alias="other"),),
        transform=TransformSql(engine="spark", queries=(query,)),
    )


def a_copy(
    node: Coordinator, reads: Callable[[DatasetId], DatasetId]
) -> tuple[DatasetId, Callable[[], object]]:
    """Return the id of a foreign derivative, whose blocks are stored, and a function that imports it as `copy`.

    Nothing checks its chain when it is made: it is a stranger's.
    """
    dataset = generate().dataset_id
    seed = Seed(dataset_id=dataset, dataset_kind=DatasetKind.Derivative)
    system_time = Timestamp.from_ms(1)
    blocks, state = build_blocks(None, (seed, reading(reads(dataset))), system_time=system_time, version=3)
    for block in blocks:
        node.blobs.put(dataset, ObjectKind.BLOCK, block.hash, block.raw)
    return dataset, lambda: node.importer.import_chain(
        dataset, expected_head=None, new_head=state.head, alias="copy"
    )


def test_a_chain_that_reads_itself_breaks_a_rule(cities: Coordinator) -> None:
    with pytest.raises(ChainRuleViolated, match="input of its own transform"):
        a_copy(cities, lambda dataset: dataset)


def test_a_copy_that_closes_a_cycle_is_not_imported(cities: Coordinator) -> None:
    first = cities.find("first").id
    dataset, importing = a_copy(cities, lambda _: first)
    cities.propose(cities.find("first"), (reading(dataset),))

    outcome = importing()

    assert isinstance(outcome, Refusal)
    assert CIRCLE in outcome.text
    assert cities.refs.head(dataset) is None
    assert cities.catalog.by_id(dataset) is None


def test_of_two_copies_that_read_each_other_the_one_that_is_named_first_is_kept(
    cities: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = generate().dataset_id
    dataset, importing = a_copy(cities, lambda _: other)
    move = cities.refs.compare_and_set

    def overtaken(moved: DatasetId, **rest: Any) -> None:
        """Name the other copy after this one's head has moved and before it gets its name."""
        move(moved, **rest)
        entry = CatalogEntry(alias="other", dataset_id=other)
        seed = Seed(dataset_id=other, dataset_kind=DatasetKind.Derivative)
        blocks, state = build_blocks(
            None, (seed, reading(dataset)), system_time=Timestamp.from_ms(1), version=3
        )
        for block in blocks:
            cities.blobs.put(other, ObjectKind.BLOCK, block.hash, block.raw)
        move(other, expected=None, new=state.head)
        cities.catalog.add(entry)

    monkeypatch.setattr(cities.refs, "compare_and_set", overtaken)
    outcome = importing()

    assert isinstance(outcome, Refusal)
    assert CIRCLE in outcome.text
    assert cities.catalog.by_id(dataset) is None
    assert cities.refs.head(dataset) is None
    assert cities.find("other").inputs() == (dataset,)


def test_a_copy_without_a_cycle_is_imported(cities: Coordinator) -> None:
    first = cities.find("first").id
    _, importing = a_copy(cities, lambda _: first)
    assert isinstance(importing(), Committed)
    assert [one.alias for one in cities.datasets.dependants(first)] == ["copy"]


def test_a_reset_closes_no_cycle(cities: Coordinator) -> None:
    before = cities.editor.commit_event("first", reading(cities.find("second").id)).state.head
    now = cities.editor.commit_event("first", reading(cities.find("cities").id)).state.head
    cities.editor.commit_event("second", reading(cities.find("first").id))

    with pytest.raises(InvalidInput, match=CIRCLE):
        cities.editor.reset("first", before)

    assert cities.find("first").state.head == now


def test_an_existing_cycle_does_not_prevent_pulls(cities: Coordinator) -> None:
    first, second = cities.find("first"), cities.find("second")
    cities.propose(first, (reading(second.id),))
    cities.propose(second, (reading(first.id),))
    steps = cities.puller.pull([], is_all=True, is_recursive=False, is_wanted=lambda: False)
    assert {step.alias for step in steps} == {"cities", "first", "second"}


def test_a_dataset_that_reads_itself_blocks_no_other(cities: Coordinator) -> None:
    state = cities.find("first").state
    itself = reading(state.dataset_id)
    cities.states.remember(replace(state, definitions=replace(state.definitions, transform=itself)))
    assert cities.find("first").inputs() == (state.dataset_id,)

    cities.names.delete("first")

    assert cities.catalog.by_alias("first") is None


class Expired:
    """Locks that have each expired when the next process asks, as if their holders were suspended."""

    def acquire(self, dataset: DatasetId, ttl_ms: int) -> Lock | None:
        del dataset, ttl_ms
        return None


def both(first: Callable[[], object], second: Callable[[], object]) -> list[OdfError]:
    """Start both, the second a little later, and return the errors."""
    errors: list[OdfError] = []

    def run(action: Callable[[], object]) -> None:
        try:
            action()
        except OdfError as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(action,), daemon=True) for action in (first, second)]
    for thread in threads:
        thread.start()
        time.sleep(0.1)
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    return errors


def test_an_instance_that_slept_longer_than_its_lock_closes_no_cycle(cities: Coordinator) -> None:
    first, second = cities.find("first"), cities.find("second")
    slow, quick = (
        replace(cities.creator, committer=cities.new_committer(locks=Expired(), lock_ttl_ms=1))
        for _ in range(2)
    )
    commit = slow.committer.commit

    def sleepy(*place: object, **rest: object) -> object:
        time.sleep(0.5)
        return commit(*place, **rest)  # type: ignore[arg-type]

    slow.committer.commit = sleepy  # type: ignore[method-assign, assignment]

    (error,) = both(
        lambda: slow.amend(first, (reading(second.id),)), lambda: quick.amend(second, (reading(first.id),))
    )

    assert CIRCLE in str(error)
    assert cities.find("first").inputs() == (second.id,)
    assert cities.find("second").inputs() == (cities.find("cities").id,)


@pytest.mark.parametrize("begins", ["added", "committed"])
def test_a_new_input_is_not_deleted_concurrently(
    cities: Coordinator, root: str, derivative: str, begins: str
) -> None:
    """A derivative is added while the deletion is in progress, after its check for dependants."""
    cities.add(root.replace("name: cities", "name: towns"))
    towns, topics = cities.find("towns"), cities.topics
    delete_topic = topics.delete_topic

    def slowly(name: str) -> None:
        time.sleep(0.5)
        delete_topic(name)

    topics.delete_topic = slowly  # type: ignore[method-assign]
    added = (
        derivative.replace("cities.copy", "late")
        .replace("Cities", "towns")
        .replace("FROM cities", "FROM towns")
    )
    actions: dict[str, Callable[[], object]] = {
        "added": lambda: cities.add(added),
        "committed": lambda: cities.editor.commit_event("first", reading(towns.id)),
    }

    (error,) = both(lambda: cities.names.delete("towns"), actions[begins])

    assert isinstance(error, NotFound)
    assert cities.catalog.by_id(towns.id) is None
    assert {known.alias for known in cities.datasets.all()} == {"cities", "first", "second"}
    assert not cities.datasets.dependants(towns.id)
    with pytest.raises(Refused, match="cities is read by first, second"):
        cities.names.delete("cities")


def test_a_new_input_has_to_exist_unless_a_copy_reads_it(cities: Coordinator) -> None:
    entry, unknown = cities.find("first").entry, reading(generate().dataset_id)

    with pytest.raises(NotFound, match="dataset other does not exist"):
        hold_inputs(cities.datasets, entry, (unknown,), are_here=True).__enter__()

    with hold_inputs(cities.datasets, entry, (unknown,)):
        pass


def test_a_cycle_is_detected_among_other_events(cities: Coordinator) -> None:
    first = cities.find("first")
    with pytest.raises(InvalidInput, match=CIRCLE):
        hold_inputs(cities.datasets, first.entry, (SetInfo(), reading(first.id), SetInfo())).__enter__()


def test_events_that_read_nothing_wait_for_no_change_of_names(
    cities: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = cities.find("first").entry
    monkeypatch.setattr(cities.catalog, "lock", lambda: pytest.fail("it is locked"))
    with hold_inputs(cities.datasets, entry, (None, SetInfo()), are_here=True):
        pass
