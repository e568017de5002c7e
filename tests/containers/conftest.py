"""Nodes in containers: the images are built once, and one node runs at a time."""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.containers.images import NoEngine, container_engine
from tests.containers.load import write_token
from tests.containers.node import Node
from tests.containers.outcome import Outcome
from tests.containers.report import table

OUTCOMES = pytest.StashKey[list[Outcome]]()


def pytest_configure(config: pytest.Config) -> None:
    """Outcomes are collected for the table at the end."""
    config.stash[OUTCOMES] = []


@pytest.fixture(scope="session")
def outcomes(pytestconfig: pytest.Config) -> list[Outcome]:
    """Outcomes of the cases so far."""
    return pytestconfig.stash[OUTCOMES]


class Nodes:
    """One node at a time, by the size of its home."""

    def __init__(self) -> None:
        """None runs."""
        self._running: tuple[int | None, Node, str] | None = None
        self._stack = ExitStack()

    def with_home(self, home_bytes: int | None) -> tuple[Node, str]:
        """Return a node with such a home, and a token that may write; another one is stopped."""
        if self._running is None or self._running[0] != home_bytes:
            self.stop()
            node = self._stack.enter_context(Node(home_bytes=home_bytes))
            self._running = (home_bytes, node, write_token(node))
        return self._running[1:]

    def stop(self) -> None:
        """None runs."""
        self._running = None
        self._stack.close()


@pytest.fixture(scope="session")
def nodes() -> Iterator[Nodes]:
    """Build the images, and yield nodes from them."""
    with ExitStack() as stack:
        try:
            engine = stack.enter_context(container_engine())
        except NoEngine as missing:
            pytest.exit(f"error: {missing}", returncode=2)
        if os.environ.get("BUILD_IMAGES", "1") == "1":
            engine.build_all()
        started = Nodes()
        stack.callback(started.stop)
        yield started


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the table, and write it to the file that `REPORT` names."""
    measured = config.stash[OUTCOMES]
    if not measured:
        return
    terminalreporter.write_line(table(measured))
    if "REPORT" in os.environ:
        Path(os.environ["REPORT"]).write_text(f"{table(measured)}\n")
