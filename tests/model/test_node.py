"""The whole node against a simple model: after any operations, kills, pauses and races, nothing is lost, doubled or orphaned.

Processes are simulated in one process (`odf_testing.actors`), over real files and a Kafka in memory. An operation
runs whole, is killed before its n-th write, or is stopped there while others act. After each step the state is checked
against what it may be; `settled` completes all operations, and then the state has to be exactly the expected one.

The usual run stops and kills at every third write, `make soak` at every one. `HYPOTHESIS_PROFILE=explore python -m
pytest tests/model` tries many more operations.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from odf_testing.killer import first_write
from odf_testing.profiles import examples, is_repeatable
from tests.model.node import Node, Operation
from tests.model.observed_node import RUN, Fate

from odf_ingest.source_settings import BadRecords


@pytest.mark.hypothesis
def test_nothing_is_lost_doubled_or_orphaned() -> None:
    run_state_machine_as_test(
        Node,
        settings=settings(
            max_examples=examples(40),
            stateful_step_count=16 if is_repeatable() else 20,
            # Shrinking takes minutes.
            phases=(Phase.explicit, Phase.generate) if is_repeatable() else settings().phases,
            suppress_health_check=list(HealthCheck),
        ),
    )


@dataclass(frozen=True)
class Step:
    """A rule of the machine other than an operation."""

    rule: str
    arguments: dict[str, Any]


# Former failures, and cases that are rarely drawn; each ends with `settled`.
REPLAYS: Final[tuple[tuple[str, tuple[Operation | Step, ...]], ...]] = (
    # A command to accept a topic as it is was once taken for an empty state: every row was retracted.
    (
        "snapshot",
        (
            ("push", 0, 1),
            ("read", 8),
            Step("replace_topic", {"pick": 0, "is_lost": False}),
            ("publish", 0, 2),
        ),
    ),
    ("snapshot", (("push", 0, 2), ("resume", 0, "keep"))),
    ("c", (Step("replace_topic", {"pick": 0, "is_lost": False}), ("publish", 0, 3), ("read", 8))),
    # The new topic ends where the old one was read to: only its id shows that it is a different one.
    ("c", (Step("replace_topic", {"pick": 0, "is_lost": False}), ("publish", 0, 1), ("read", 8))),
    (
        "several",
        (Step("replace_topic", {"pick": 0, "is_lost": True}), ("publish", 0, 3), ("resume", 0, "latest")),
    ),
    # A file that changes nothing is remembered, too.
    ("ledger", (("push", 0, 3), ("push", 0, 3), ("push", 0, 3), ("push", 0, 3), ("repeat", 0, 0))),
    ("upsert", (("push", 0, 3), ("push", 0, 3), ("repeat", 0, 0), ("push", 0, 3), ("repeat", 0, 1))),
    # Two bad messages, each of which stops the source.
    ("c", (("set", 0, BadRecords.STOP), *[("publish", 0, 3)] * 7, ("read", 12), ("skip", 0), ("read", 12))),
    (
        "upsert",
        (*[("publish", 0, 3)] * 5, ("read", 12), ("reset", 0, 3), ("delete", 0), ("add", "a", "upsert")),
    ),
)


@pytest.mark.parametrize(("shape", "steps"), REPLAYS)
def test_steps_are_replayed(shape: str, steps: tuple[Operation | Step, ...]) -> None:
    with begun(shape) as node:
        for step in steps:
            if isinstance(step, Step):
                getattr(node, step.rule)(**step.arguments)
            else:
                node.perform(step, RUN)
            node.observe()


RACES: Final[tuple[tuple[str, Operation, Operation], ...]] = (
    ("b.c", ("add", "a.b", "c"), ("add", "A.b", "c")),
    ("b.c", ("add", "x", "b.c"), ("add", "x.b", "c")),  # topics that would be called the same
    ("b.c", ("delete", 0), ("push", 0, 2)),
    # Once left a folder without a name; once ended in a `FileNotFoundError`.
    ("b.c", ("push", 0, 2), ("delete", 0)),
    ("upsert", ("push", 0, 2), ("push", 0, 1)),
    ("ledger", ("push", 0, 2), ("push", 0, 3)),
    ("b.c", ("push", 0, 2), ("reset", 0, 1)),
    ("b.c", ("read", 8), ("delete", 0)),
    ("mixed", ("read", 8), ("reset", 0, 1)),
    ("b.c", ("rename", 0, "x"), ("delete", 0)),
    ("b.c", ("rename", 0, "x"), ("add", "x", "c")),
    ("b.c", ("reset", 0, 1), ("push", 0, 1)),
    ("b.c", ("extend", 0, "c"), ("delete", 0)),
)


@pytest.mark.parametrize(
    ("shape", "operation", "other", "stride"),
    [
        *((*race, 3) for race in RACES[::2]),  # each takes seconds
        *(pytest.param(*race, 1, marks=pytest.mark.soak) for race in RACES),
    ],
)
def test_an_operation_is_stopped_before_its_writes_while_another_runs(
    shape: str, operation: Operation, other: Operation, stride: int
) -> None:
    is_stopped, stops, writes = True, 0, first_write(stride, shape, operation, other)
    while is_stopped:
        with begun(shape) as node:
            node.perform(operation, Fate("pause", writes))
            is_stopped = node.paused is not None
            node.perform(other, RUN)
            if is_stopped:
                node.finish_paused()
            node.push_again(RUN)
        writes, stops = writes + stride, stops + is_stopped
    assert stops


@pytest.mark.parametrize("stride", [3, pytest.param(1, marks=pytest.mark.soak)])
@pytest.mark.parametrize("operation", [("push", 0, 2), ("read", 8), ("reset", 0, 1)])
def test_an_operation_is_killed_before_its_writes_and_repeated(operation: Operation, stride: int) -> None:
    for writes in range(first_write(stride, operation), 16, stride):
        with begun() as node:
            node.perform(operation, Fate("kill", writes))
            node.push_again(RUN)
            node.perform(operation, RUN)


@contextmanager
def begun(shape: str = "b.c") -> Iterator[Node]:
    """Yield a node with one dataset and pending messages, and check all of it afterwards."""
    node = Node()
    try:
        node.begin(shape=shape, count=1)
        node.publish(0, 2, RUN)
        yield node
        node.observe()
    except BaseException:
        node.end()
        raise
    node.teardown()
