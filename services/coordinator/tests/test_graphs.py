"""Derivatives of derivatives, and graphs whose paths join again, while ingestion continues."""

import tempfile
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from hypothesis import given, settings
from hypothesis import strategies as st
from odf_testing.coordinator import Coordinator
from odf_testing.profiles import examples

from odf_common.chain.walk import iterate
from odf_common.errors import HeadMoved
from odf_common.metadata.events import ExecuteTransform
from odf_coordinator.catalog.datasets import DatasetHandle
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


def cities(node: Coordinator, ref: str) -> Counter[str]:
    return Counter(
        node.record_reader.tail(ref, 10_000)["city"].to_pylist() if node.find(ref).state.schema else ()
    )


def require_exact(node: Coordinator) -> None:
    """Each derivative has every record once per path, and every step continues where the last one ended."""
    expected = cities(node, "a")
    for name, times in TIMES.items():
        assert cities(node, name) == Counter({city: count * times for city, count in expected.items()}), name
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

    assert sum(cities(node, "a").values()) == 12 * sources
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
    assert set(cities(node, "e")) == {"Oslo", "Lima"}


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
