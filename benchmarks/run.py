"""`make bench`: every number compared with its limit, or with a peer, measured in the same run.

Machines differ and are shared, so ratios are more meaningful than values. Each case measures, interleaved with our own
work, a lower limit (hashing alone, parsing alone, the disk's fsyncs alone) or a peer (a loop that copies the same topic
into a Delta table and hashes nothing), and has a target for the ratio or the value. A case is a module here with a
`run`; those that measure a node get a warm one, the others run alone before it starts; each runs in its own process.
`--only` selects cases; the long ones and the profile run only if selected.

The number of processes that wanted a core just before a case is reported too: with more than a few, times and processor
times are long, and only ratios are meaningful. The table is printed; of a tree without changes it is stored in
`benchmarks/results.json`. A case that fails is shown with its error, and the exit status is then 1. A missed target is
no failure.
"""

import argparse
import contextlib
import importlib
import logging
import multiprocessing
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Final

import structlog
from memory import PeakMemory
from node_under_test import BenchedNode, running_node
from odf_testing.embedded import EmbeddedNode
from report import Outcome, changed_file, memory_of, table_of, write
from rich.console import Console
from rows import Plain, Row, row_of

ALONE: Final[tuple[str, ...]] = (
    "hashing",
    "chain",
    "many_datasets",
    "resources",
    "merging",
    "bucket_commits",
    "engine",
    "transactions",
    "nexmark",
)
WITH_NODE: Final[tuple[str, ...]] = (
    "ingest_topic",
    "ingest_file",
    "small_commits",
    "integrity",
    "appends",
    "poll_unchanged",
    "commands",
)
USUAL: Final = (*ALONE, *WITH_NODE)
LONG: Final = (
    "node_of_many",
    "nexmark_million",
    "transactions_long",
    "transaction_profile",
    "pull_chain",
    "push_chain",
    "one_new_block",
    "key_stores",
)  # alone too, and only when they are named
NAMES: Final = (*ALONE, *LONG, *WITH_NODE)
RESULTS: Final = Path(__file__).with_name("results.json")
CORES: Final = multiprocessing.cpu_count()
SAMPLES: Final = 10  # of the number of runnable processes
OUT: Final = Console(width=None if sys.stdout.isatty() else 190)
ERR: Final = Console(stderr=True)


def main() -> int:
    """Run the cases, print and store their results."""
    wanted = _wanted()
    outcomes = {name: _measured(name, None) for name in (*ALONE, *LONG) if name in wanted}
    outcomes |= _with_node([name for name in WITH_NODE if name in wanted])
    OUT.print(table_of(outcomes, CORES))
    OUT.print(memory_of(outcomes))
    if changed := changed_file():
        ERR.print(
            f"the results are not stored: the tree has changes that are not committed ({changed.strip()})"
        )
    else:
        write(outcomes, RESULTS, cores=CORES, names=NAMES)
    failed = {name: outcome.error for name, outcome in outcomes.items() if outcome.error is not None}
    for name, error in failed.items():
        ERR.print(f"[red]{name} failed[/]", highlight=False)
        ERR.print(error, markup=False, highlight=False)
    return 1 if failed else 0


def _wanted() -> set[str]:
    parser = argparse.ArgumentParser(
        description="Run the benchmarks, and compare the numbers with their limits."
    )
    parser.add_argument(
        "--only", nargs="+", choices=NAMES, default=USUAL, metavar="NAME", help=", ".join(NAMES)
    )
    return set(parser.parse_args().only)


def _with_node(names: Sequence[str]) -> dict[str, Outcome]:
    """Run the cases on a temporary node; if it does not start, all of them have failed."""
    outcomes: dict[str, Outcome] = {}
    if not names:
        return outcomes
    with tempfile.TemporaryDirectory(prefix="odf-bench-") as folder:
        home = Path(folder)
        try:
            with contextlib.ExitStack() as stack:
                with _announced("starting a node"):
                    stack.enter_context(running_node(home))
                for name in names:
                    outcomes[name] = _measured(name, home)
        except Exception as error:  # noqa: BLE001 - reported at the end; results so far are kept
            text = _text(error)
            outcomes = {name: outcomes.get(name, Outcome(error=text)) for name in names}
    return outcomes


def _measured(name: str, home: Path | None) -> Outcome:
    waiting = _waiting()
    spawn = multiprocessing.get_context("spawn")
    try:
        announced = _announced(f"{name} ({waiting:g} processes running before it)")
        node = None if home is None else BenchedNode(EmbeddedNode(home))
        with announced, PeakMemory(node) as memory, ProcessPoolExecutor(1, mp_context=spawn) as pool:
            rows = pool.submit(_run_case, name, home).result()
    except Exception as error:  # noqa: BLE001 - the other cases continue, and the exit status is 1
        return Outcome(error=_text(error))
    return Outcome(rows=rows, waiting=waiting, memory=memory.peaks)


def _run_case(name: str, home: Path | None) -> list[Row]:
    """Run a case in this process, which does nothing else and logs warnings only."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    run: Callable[..., list[Row | Plain]] = importlib.import_module(name).run
    results = run() if home is None else run(BenchedNode(EmbeddedNode(home)))
    return [result if isinstance(result, Row) else row_of(result) for result in results]


def _waiting() -> float:
    """Return the number of other runnable processes: the mean of several samples."""
    looks = []
    for _ in range(SAMPLES):
        time.sleep(0.1)
        looks.append(int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0]) - 1)
    return round(sum(looks) / len(looks), 1)


@contextlib.contextmanager
def _announced(what: str) -> Iterator[None]:
    begun = time.monotonic()
    with ERR.status(what):
        yield
    ERR.print(f"{what}: {time.monotonic() - begun:.0f} s", highlight=False)


def _text(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


if __name__ == "__main__":
    sys.exit(main())
