"""Derivatives of derivatives, and graphs whose paths join again, while ingestion continues."""

import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from odf_testing.coordinator import Coordinator
from odf_testing.profiles import examples

from odf_common.chain.build_blocks import build_blocks
from odf_common.chain.walk import iterate
from odf_common.errors import ChainRuleViolated, HeadMoved, InvalidInput, NotFound, OdfError, Refused
from odf_common.identity.dataset_refs import DatasetId
from odf_common.identity.keys import generate
from odf_common.metadata.events import (
    DatasetKind,
    ExecuteTransform,
    Seed,
    SetInfo,
    SetTransform,
    SqlQueryStep,
    TransformInput,
    TransformSql,
)
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.store import CatalogEntry, Lock, ObjectKind
from odf_coordinator.catalog.datasets import DatasetHandle, hold_inputs
from odf_coordinator.commit.committer import Committed, Refusal
from odf_coordinator.operations.rollback import DerivativeRollback

ROOT = """
kind: DatasetSnapshot
version: 1
content:
  name: a
  kind: Root
  metadata:
    - kind: AddPushSource
      sourceName: default
      read: {kind: NdJson, ddlSchema: [event_time TIMESTAMP, city STRING]}
      merge: {kind: Append}
"""
DERIVED = """
kind: DatasetSnapshot
version: 1
content:
  name: {name}
  kind: Derivative
  metadata:
    - kind: SetTransform
      inputs: [{inputs}]
      transform: {{kind: Sql, engine: spark, query: SELECT city FROM x}}
"""
READS = {"b": ("a",), "c": ("a",), "d": ("b", "c"), "e": ("d", "a")}
TIMES = {"b": 1, "c": 1, "d": 2, "e": 3}  # how often each holds a record of the root


def a_diamond(home: Path) -> Coordinator:
    """A → B, A → C, B + C → D, and D + A → E."""
    node = Coordinator(home=home)
    derived = (
        DERIVED.format(name=name, inputs=", ".join(f"{{datasetRef: {one}}}" for one in inputs))
        for name, inputs in READS.items()
    )
    node.add(ROOT, *derived)
    return node


def city_counts(node: Coordinator, ref: str) -> Counter[str]:
    return Counter(
        node.record_reader.tail(ref, 10_000)["city"].to_pylist() if node.find(ref).state.schema else ()
    )


def require_exact(node: Coordinator) -> None:
    """Each derivative has every record once per path, and every step continues where the last one ended."""
    expected = city_counts(node, "a")
    for name, times in TIMES.items():
        assert city_counts(node, name) == Counter(
            {city: count * times for city, count in expected.items()}
        ), name
        state = node.find(name).state
        for one in state.input_progress:
            head = node.datasets.states.current(one.dataset_id)
            assert head is not None
            assert one.last_offset == head.last_offset, f"{name} has read all records"
        if expected:
            assert state.watermark == node.find("a").state.watermark
    for name, inputs in READS.items():
        seen = Counter(records_seen(node, name))
        assert seen == Counter({node.find(one).id: node.find(one).state.next_offset for one in inputs}), name


def records_seen(node: Coordinator, name: str) -> Iterator[object]:
    """Iterate over an input for each of its records, as the steps of a derivative say that they saw them."""
    known = node.find(name)
    for _, decoded, _ in iterate(node.datasets.reader(known.id), known.state.head):
        event = decoded.block.event
        if isinstance(event, ExecuteTransform):
            for step in event.query_inputs:
                before = -1 if step.prev_offset is None else step.prev_offset
                last = before if step.new_offset is None else step.new_offset
                yield from [step.dataset_id] * (last - before)


@given(st.lists(st.integers(0, 3), max_size=14), st.booleans())
@settings(max_examples=examples(30))
def test_every_record_arrives_once_on_every_path_however_runs_and_commits_alternate(
    steps: list[int], has_watermark: bool
) -> None:
    with tempfile.TemporaryDirectory() as home:
        node = a_diamond(Path(home))
        for number, looks in enumerate(steps):
            node.push("a", f"city {number}", minute=number)
            for _ in range(looks):
                node.scheduler.work()
        if has_watermark and steps:
            node.editor.set_watermark("a", node.clock.now())
        node.work()

        require_exact(node)


def test_the_diamond_is_exact_while_several_ingest_and_several_transform(tmp_path: Path) -> None:
    node = a_diamond(tmp_path)
    sources = 3

    def ingest(source: int) -> None:
        for number in range(12):
            while True:
                try:
                    node.push("a", f"{source}.{number}", minute=number)
                except HeadMoved:
                    continue
                break

    with node.scheduler_running():
        threads = [threading.Thread(target=ingest, args=(source,), daemon=True) for source in range(sources)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    node.work()

    assert sum(city_counts(node, "a").values()) == 12 * sources
    require_exact(node)


def test_a_diamond_whose_root_is_reset_is_exact_again(tmp_path: Path) -> None:
    node = a_diamond(tmp_path)
    node.push("a", "Oslo")
    node.work()
    first = node.find("a").state.head
    node.push("a", "Rome", minute=1)
    node.work()
    node.editor.reset("a", first, is_forced=True)
    node.push("a", "Lima", minute=2)

    with node.scheduler_running():
        steps = [*node.puller.derive_again(["a"], is_recursive=False, is_wanted=lambda: True)]

    assert {one.alias for one in steps if one.state == "reset"} == set(READS)
    require_exact(node)
    assert set(city_counts(node, "e")) == {"Oslo", "Lima"}


@dataclass(frozen=True)
class LooksBetween:
    """Rolls derivatives back, and checks all of them after each one, as workers may do."""

    node: Coordinator

    def downstream(self, chosen: Iterable[DatasetHandle]) -> tuple[DatasetHandle, ...]:
        return self.node.puller.rollback.downstream(chosen)

    def roll_back(self, chosen: Iterable[DatasetHandle]) -> Iterator[DatasetHandle]:
        for known in self.node.puller.rollback.roll_back(chosen):
            self.node.work()
            yield known


def test_a_derivative_that_runs_before_its_inputs_are_rolled_back_is_rolled_back_again(
    tmp_path: Path,
) -> None:
    node = a_diamond(tmp_path)
    node.push("a", "Oslo")
    node.work()
    first = node.find("a").state.head
    node.push("a", "Rome", minute=1)
    node.work()
    node.editor.reset("a", first, is_forced=True)
    node.push("a", "Lima", minute=2)

    pulling = replace(node.puller, rollback=cast("DerivativeRollback", LooksBetween(node)))
    with node.scheduler_running():
        assert [*pulling.derive_again(["a"], is_recursive=False, is_wanted=lambda: True)]

    require_exact(node)


def test_dropped_data_of_a_whole_graph_is_rebuilt_inputs_first(tmp_path: Path) -> None:
    node = a_diamond(tmp_path)
    for number in range(3):
        node.push("a", f"city {number}", minute=number)
        node.work()
    before = {name: node.record_reader.tail(name, 99) for name in READS}
    for name in READS:
        node.dropper.drop(name)

    with node.scheduler_running():
        steps = [*node.puller.pull(["e"], is_all=False, is_recursive=True, is_wanted=lambda: True)]

    assert {one.alias for one in steps if one.state == "rebuilt"} == set(READS)
    assert {name: node.record_reader.tail(name, 99) for name in READS} == before


def test_only_direct_and_indirect_readers_of_a_dataset_are_downstream_of_it(tmp_path: Path) -> None:
    node = a_diamond(tmp_path)
    rollback = DerivativeRollback(datasets=node.datasets, creator=node.creator, keys=node.keys)

    found = rollback.downstream([node.find("b")])

    assert [one.alias for one in found] == ["b", "d", "e"]


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
