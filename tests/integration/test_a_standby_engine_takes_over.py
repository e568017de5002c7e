"""With `ODF_ENGINE_SPARE=1` a second engine is warm: one whose process dies is replaced without a start of Spark."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from odf_testing.embedded import EmbeddedNode

from odf_engine_spark.server.standby import processor_time

pytestmark = pytest.mark.soak


@pytest.fixture
def node(tmp_path: Path) -> Iterator[EmbeddedNode]:
    node = EmbeddedNode(tmp_path / "home", {"ODF_ENGINE_SPARE": "1", "ODF_ENGINE_SPARE_AFTER_MS": "0"})
    node.up()
    yield node
    node.down()


def workers(keeper: int | None) -> list[int]:
    """Return the engines of a keeper, the oldest first."""
    children = Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()
    return [int(pid) for pid in children if b"--worker" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def is_warm(pid: int) -> bool:
    """Return whether an engine has started, and computes nothing."""
    before = processor_time(pid)
    time.sleep(2)
    return 2 < before <= processor_time(pid) < before + 0.2


def test_a_query_is_answered_by_the_standby_after_the_engine_was_killed(node: EmbeddedNode) -> None:
    question = "sql -c 'SELECT 1 + 1 AS n' --output json"
    assert node.run(question) == [{"n": 2}]
    keeper = node.pid("engine-spark")
    node.eventually(lambda: len(workers(keeper)) == 2 and is_warm(workers(keeper)[1]))
    first, standby = workers(keeper)
    os.kill(first, signal.SIGKILL)
    node.eventually(lambda: node.attempt(question).returncode == 0)
    assert node.pid("engine-spark") == keeper, "the supervisor has not started another engine"
    assert workers(keeper)[0] == standby
    node.eventually(lambda: len(workers(keeper)) == 2)
