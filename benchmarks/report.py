"""The results of the cases, as a table and as `results.json`."""

import json
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from code_shape import shapes_of
from rich.table import Table
from rows import Row

CPUINFO = Path("/proc/cpuinfo")
# Changed by a run, or by `make docs` after it: numbers of a tree with other changes could not be reproduced.
RESULTS = ("benchmarks/results.json", "docs/reference/measurements.md")
NUMBERS = ("value", "its value", "ratio")
COLUMNS = ("case", "value", "unit", "compared with", "its value", "ratio", "target", "reached")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a case: its rows, or the error it failed with; `waiting` is the load by others.

    That is the number of processes that ran or were runnable just before the case began. `memory` is each process's
    peak in MB.
    """

    rows: Sequence[Row] = ()
    error: str | None = None
    waiting: float = 0.0
    memory: Mapping[str, float] = field(default_factory=dict)


def table_of(outcomes: Mapping[str, Outcome], cores: int) -> Table:
    """Return all rows as a table, with a section per case."""
    table = Table(title=f"{cores} cores, {datetime.now(UTC):%Y-%m-%d}")
    for column in COLUMNS:
        table.add_column(column, justify="right" if column in NUMBERS else "left")
    for outcome in outcomes.values():
        for row in outcome.rows:
            table.add_row(*_cells(row))
        table.add_section()
    return table


def memory_of(outcomes: Mapping[str, Outcome]) -> Table:
    """Return the peak memory of each process of each case as a table."""
    table = Table(title="peak memory, MB")
    for column in ("case", "process", "MB"):
        table.add_column(column, justify="right" if column == "MB" else "left")
    for name, outcome in outcomes.items():
        for process, peak in sorted(outcome.memory.items()):
            table.add_row(name, process, _number(peak))
    return table


def write(outcomes: Mapping[str, Outcome], file: Path, *, cores: int, names: Sequence[str]) -> None:
    """Write results; those of cases that were not run stay unchanged. `names` gives the order."""
    results = json.loads(file.read_text()) if file.exists() else {"cases": {}}
    where = _where(cores)
    new = {name: {**where, "code": shapes_of(name), **_plain(outcome)} for name, outcome in outcomes.items()}
    cases = results["cases"] | new
    results["cases"] = {name: cases[name] for name in names if name in cases}
    file.write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n")


def write_releases(ratios: Mapping[str, Mapping[str, float]], file: Path, *, old: Path, cores: int) -> None:
    """Write how long this release took for each measurement, as a ratio to the release in the folder `old`.

    Measurements that were not made stay unchanged.
    """
    results = json.loads(file.read_text())
    where = {**_where(cores), "old_commit": _said("git", "-C", str(old), "rev-parse", "--short=8", "HEAD")}
    new = {name: {**where, **numbers} for name, numbers in ratios.items()}
    results["releases"] = results.get("releases", {}) | new
    file.write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n")


def changed_file() -> str:
    """Return a changed file of the tree, other than a former run's results; empty if the tree is that of a commit."""
    excluded = [f":(top,exclude){file}" for file in RESULTS]
    return _said("git", "status", "--porcelain", "--untracked-files=no", "--", ":/", *excluded)


def _where(cores: int) -> dict[str, object]:
    """Return what a number depends on: date, cores, commit, processor, Java and Python."""
    models = [
        line.partition(":")[2].strip() for line in CPUINFO.read_text().splitlines() if "model name" in line
    ]
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%dT%H:%MZ}",
        "cores": cores,
        "commit": _said("git", "rev-parse", "--short=8", "HEAD"),
        "processor": models[0] if models else platform.machine(),
        "java": _said("java", "--version"),
        "python": platform.python_version(),
    }


def _said(*command: str) -> str:
    """Return the first line that a command prints, or that there is none."""
    try:
        said = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return said.stdout.partition("\n")[0]


def _plain(outcome: Outcome) -> dict[str, object]:
    if outcome.error is not None:
        return {"failed": True}
    memory = dict(sorted(outcome.memory.items()))
    return {"waiting": outcome.waiting, "memory_mb": memory, "rows": [row.plain() for row in outcome.rows]}


def _cells(row: Row) -> tuple[str, ...]:
    reached = {True: "[green]yes[/]", False: "[red]no[/]", None: ""}[row.reached]
    target = "" if row.target is None else str(row.target)
    numbers = (_number(row.value), row.unit, row.peer, _number(row.against), _number(row.ratio))
    return (row.case, *numbers, target, reached)


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
