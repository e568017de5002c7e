"""Which process of a test run gets which file, so that few of them start a node and a Spark session.

pytest-xdist gives a file to whichever process is free. With four of them, four would start the integration tests' shared
node and the engine tests' session, each of which costs as much processor time as dozens of tests.
"""

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Final

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

ROOT: Final = Path(__file__).parents[3]
ENGINE: Final = "services/engine-spark/"
INTEGRATION: Final = "tests/integration/"
_WAITS: Final = re.compile(r"^pytestmark = .*\bpytest\.mark\.waits\b", re.MULTILINE)
_SHARED: Final = re.compile(r"\b(node: EmbeddedNode|story: Story)\b")  # fixtures


class FewNodes(LoadFileScheduling):  # type: ignore[misc]
    """Two processes take the files that need the shared node, one those that need a Spark session, all of them the rest.

    Each takes its own kind first. Of the rest those that mostly wait come first, so that they wait while others compute, and
    what computes fills up the end. What other processes were to take is taken from the end, when nothing else is left.
    """

    def _assign_work_unit(self, node: WorkerController) -> None:
        file = chosen(self.workqueue, self.nodes.index(node), len(self.nodes))
        self.workqueue.move_to_end(file, last=False)
        super()._assign_work_unit(node)


def chosen(waiting: Iterable[str], process: int, processes: int) -> str:
    """Return which of the waiting files the process with this number takes next; there is at least one."""
    files = list(waiting)
    homes = {file: _homes(file, processes) for file in files}
    own = (file for file in files if process in homes[file])
    anyones = [file for file in files if not homes[file]]
    waiting_ones = (file for file in anyones if mostly_waits(file))
    return next(own, None) or next(waiting_ones, None) or next(iter(anyones), None) or files[-1]


def _homes(file: str, processes: int) -> frozenset[int]:
    """Return the processes that take a file; none if any may."""
    if file.startswith(ENGINE):
        return frozenset({processes - 1})
    if file.startswith(INTEGRATION) and needs_shared_node(file):
        return frozenset(range(max(1, min(2, processes - 1))))
    return frozenset()


@cache
def needs_shared_node(file: str) -> bool:
    """Return whether tests of a file use the node that integration tests share."""
    return _SHARED.search((ROOT / file).read_text("utf-8")) is not None


@cache
def mostly_waits(file: str) -> bool:
    """Return whether a file is marked as one whose tests wait most of their time."""
    return _WAITS.search((ROOT / file).read_text("utf-8")) is not None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    """Use it for `--dist loadfile`."""
    return FewNodes(config, log) if config.getvalue("dist") == "loadfile" else None
