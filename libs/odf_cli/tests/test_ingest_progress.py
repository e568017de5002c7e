import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from odf_cli.commands import ingest
from odf_cli.commands.ingest import MIB


class Bars:
    """Records the bars that are shown: description, total and progress in MiB."""

    def __init__(self) -> None:
        self.shown: dict[int, list[object]] = {}

    def add_task(self, description: str, total: int | None) -> int:
        self.shown[len(self.shown)] = [description, total, None]
        return len(self.shown) - 1

    def remove_task(self, task: int) -> None:
        self.shown[task].append("removed")

    def update(self, task: int, completed: int) -> None:
        self.shown[task][2] = completed


def test_standard_input_has_a_bar_without_a_total_once_it_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    bars = Bars()

    @contextmanager
    def progress() -> Iterator[Bars]:
        yield bars

    monkeypatch.setattr(ingest, "progress", progress)
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    with ingest._show_progress("-") as show:
        show("copying", 15 * MIB)
        assert bars.shown == {}
        show("copying", 17 * MIB)
        show("committing", 0)
    assert bars.shown == {
        0: ["standard input: copying", None, 17, "removed"],
        1: ["standard input: committing", None, 0],
    }


def test_a_small_standard_input_has_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    with ingest._show_progress("-") as show:
        show("copying", 1)
        show("committing", 0)
