"""`make bench`: every number beside its limit, or a peer, measured in the same run.

Machines differ and are shared, so ratios say more than numbers: each case measures, turn by turn with our own work,
what bounds it from below (hashing alone, parsing alone, the disk's fsyncs alone) or what others do (a loop that
copies the same topic into a Delta table and hashes nothing), and says what is wanted of the ratio or the value. A
case is a module here with a `run`; those that measure a node get one that is warm, the others run alone before it
starts; each runs in a process of its own. `--only` names some. The table is printed, `benchmarks/results.json` has
the same; a case that fails is shown with its error, and the exit status is then 1. A missed target is no failure.
"""

import argparse
import contextlib
import importlib
import json
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from node_under_test import BenchedNode, running_node
from rich.console import Console
from rich.table import Table
from rows import Row, row_of

from odf_common.testing.embedded import EmbeddedNode

ALONE: Final[tuple[str, ...]] = ("hashing", "chain", "engine")
WITH_NODE: Final[tuple[str, ...]] = ("ingest_topic", "ingest_file", "small_commits", "integrity", "appends")
RESULTS: Final = Path(__file__).with_name("results.json")
OUT: Final = Console()
ERR: Final = Console(stderr=True)

Failures = dict[str, str]


def main() -> int:
    """Run the cases, print and write what came of them."""
    wanted = _wanted()
    rows: dict[str, list[Row]] = {}
    failures: Failures = {}
    for name in (one for one in ALONE if one in wanted):
        _measure(name, None, rows, failures)
    with_node = [one for one in WITH_NODE if one in wanted]
    if with_node:
        with tempfile.TemporaryDirectory(prefix="odf-bench-") as home:
            _with_node(Path(home), with_node, rows, failures)
    OUT.print(_table(rows))
    for name, text in failures.items():
        ERR.print(f"[red]{name} failed[/]", highlight=False)
        ERR.print(text, markup=False, highlight=False)
    _write(rows, failures, is_all=wanted == {*ALONE, *WITH_NODE})
    return 1 if failures else 0


def _wanted() -> set[str]:
    parser = argparse.ArgumentParser(description="Measure, and print the numbers beside their limits.")
    names = (*ALONE, *WITH_NODE)
    parser.add_argument(
        "--only", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names)
    )
    return set(parser.parse_args().only)


def _with_node(home: Path, names: Sequence[str], rows: dict[str, list[Row]], failures: Failures) -> None:
    with contextlib.ExitStack() as stack:
        try:
            with _told("starting a node"):
                stack.enter_context(running_node(home))
        except Exception:  # noqa: BLE001 - every case that needs it has failed
            failures |= dict.fromkeys(names, traceback.format_exc())
            return
        for name in names:
            _measure(name, home, rows, failures)


def _measure(name: str, home: Path | None, rows: dict[str, list[Row]], failures: Failures) -> None:
    spawn = multiprocessing.get_context("spawn")
    try:
        with _told(name), ProcessPoolExecutor(1, mp_context=spawn) as pool:
            rows[name] = pool.submit(_run_case, name, home).result()
    except Exception as error:  # noqa: BLE001 - the other cases go on, and the exit status tells
        failures[name] = "".join(traceback.format_exception(error))


def _run_case(name: str, home: Path | None) -> list[Row]:
    """Run a case in this process, which does nothing else."""
    case = importlib.import_module(name)
    found = case.run() if home is None else case.run(BenchedNode(EmbeddedNode(home)))
    return [one if isinstance(one, Row) else row_of(one) for one in found]


@contextlib.contextmanager
def _told(what: str) -> Iterator[None]:
    begun = time.monotonic()
    with ERR.status(what):
        yield
    ERR.print(f"{what}: {time.monotonic() - begun:.0f} s", highlight=False)


def _table(rows: dict[str, list[Row]]) -> Table:
    table = Table(title=f"{os.cpu_count()} cores, {datetime.now(UTC):%Y-%m-%d}")
    for column in ("case", "value", "unit", "beside", "its value", "ratio", "target", "reached"):
        table.add_column(column, justify="right" if column in ("value", "its value", "ratio") else "left")
    for found in rows.values():
        for row in found:
            table.add_row(*_cells(row))
        table.add_section()
    return table


def _cells(row: Row) -> tuple[str, ...]:
    reached = {True: "[green]yes[/]", False: "[red]no[/]", None: ""}[row.reached]
    target = "" if row.target is None else str(row.target)
    return (
        row.case,
        _number(row.value),
        row.unit,
        row.peer,
        _number(row.against),
        _number(row.ratio),
        target,
        reached,
    )


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _write(rows: dict[str, list[Row]], failures: Failures, *, is_all: bool) -> None:
    """Write results; a run of some cases keeps what was known of the others."""
    known = json.loads(RESULTS.read_text())["cases"] if RESULTS.exists() and not is_all else {}
    moment = f"{datetime.now(UTC):%Y-%m-%dT%H:%MZ}"
    new = {
        name: {"date": moment, "cores": os.cpu_count(), "rows": [row.plain() for row in found]}
        for name, found in rows.items()
    }
    failed = {name: {"date": moment, "cores": os.cpu_count(), "failed": True} for name in failures}
    cases = known | new | failed
    ordered = {name: cases[name] for name in (*ALONE, *WITH_NODE) if name in cases}
    RESULTS.write_text(json.dumps({"cases": ordered}, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    sys.exit(main())
