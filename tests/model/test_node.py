"""The whole node against a simple model: whatever is done, killed, stopped or raced, nothing is lost, doubled or orphaned.

Processes are simulated in one process (`odf_common.testing.actors`), over real files and a Kafka in memory. An operation
runs whole, is killed before its n-th write, or is stopped there while others act. After each step the state is checked
against what it may be; `settled` brings all to rest, and then it has to be exactly that.

`HYPOTHESIS_PROFILE=explore python -m pytest tests/model` looks at many more.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from tests.model.node import RUN, Fate, Node, Operation

from odf_common.testing.profiles import examples, is_repeatable


@pytest.mark.hypothesis
def test_nothing_is_lost_doubled_or_orphaned() -> None:
    run_state_machine_as_test(
        Node,
        settings=settings(
            max_examples=examples(25),
            stateful_step_count=12 if is_repeatable() else 20,
            # Shrinking takes minutes.
            phases=(Phase.explicit, Phase.generate) if is_repeatable() else settings().phases,
            suppress_health_check=list(HealthCheck),
        ),
    )


RACES: Final[tuple[tuple[Operation, Operation], ...]] = (
    (("add", "a.b", "c"), ("add", "A.b", "c")),
    (("delete", 0), ("push", 0, 2)),
    (("push", 0, 2), ("delete", 0)),  # once left a folder without a name; once ended in a `FileNotFoundError`
    (("push", 0, 2), ("push", 0, 1)),
    (("push", 0, 2), ("reset", 0, 1)),
    (("read", 8), ("delete", 0)),
    (("read", 8), ("reset", 0, 1)),
    (("rename", 0, "x"), ("delete", 0)),
    (("rename", 0, "x"), ("add", "x", "c")),
    (("reset", 0, 1), ("push", 0, 1)),
)


@pytest.mark.parametrize(("operation", "other"), RACES)
def test_an_operation_is_stopped_before_each_write_while_another_runs(
    operation: Operation, other: Operation
) -> None:
    is_stopped, writes = True, 0
    while is_stopped:
        with begun() as node:
            node.perform(operation, Fate("pause", writes))
            is_stopped = node.paused is not None
            node.perform(other, RUN)
            if is_stopped:
                node.go_on()
            node.push_again(RUN)
        writes += 1
    assert writes > 1


@pytest.mark.parametrize("operation", [("push", 0, 2), ("read", 8), ("reset", 0, 1)])
def test_an_operation_is_killed_before_each_write_and_repeated(operation: Operation) -> None:
    for writes in range(16):
        with begun() as node:
            node.perform(operation, Fate("kill", writes))
            node.push_again(RUN)
            node.perform(operation, RUN)


@contextmanager
def begun(shape: str = "b.c") -> Iterator[Node]:
    """Yield a node with one dataset and messages that wait, and look at all of it afterwards."""
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
