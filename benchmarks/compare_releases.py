"""Two releases on one machine, in turns: `python benchmarks/compare_releases.py OLD_CHECKOUT`.

Both checkouts need what `make testsetup` installs. Each release runs in a process of its own, with its own node and
engine; the turns of a pair follow each other, and every other pair begins with the other release, so that noise and
drift affect both equally. The first turn of each release is not counted: it starts and warms everything.

The result is the median of the pairs' ratios, new to old, and an interval for the true median: between the order
statistics that have it between them with a probability of at least 95 % (binomial; with fewer than six pairs no
interval is that sure, and the extremes are printed with their probability).
"""

import argparse
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from math import comb
from pathlib import Path
from statistics import median
from typing import Final

from rich.console import Console
from rich.table import Table

CASES: Final = ("ingest_topic", "ingest_file", "small_commits", "transactions")
WORKER: Final = Path(__file__).with_name("release_worker.py")
NEW: Final = Path(__file__).parent.parent
CONFIDENCE: Final = 0.95
STOPPING_SECONDS: Final = 120


class Worker:
    """The process of a release."""

    def __init__(self, process: "subprocess.Popen[str]", checkout: Path) -> None:
        """Use a running process."""
        self._process = process
        self._checkout = checkout

    def measure(self, case: str) -> dict[str, float]:
        """Return the seconds of each measurement of a case. Raises `RuntimeError` if it fails."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{case}\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline() or '{"error": "the process has ended"}')
        if "error" in answer:
            raise RuntimeError(f"{case} failed in {self._checkout}: {answer['error']}")
        seconds: dict[str, float] = answer["seconds"]
        return seconds


@contextmanager
def running_worker(checkout: Path) -> Iterator[Worker]:
    """Start a release's process, and end it with its node."""
    command = [str(checkout / ".venv/bin/python"), str(WORKER), str(checkout)]
    with subprocess.Popen(
        command, cwd=checkout, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield Worker(process, checkout)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(STOPPING_SECONDS)


def main() -> int:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("old", type=Path, help="a checkout of the other release, with its .venv")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--only", nargs="+", choices=CASES, default=CASES, metavar="CASE")
    arguments = parser.parse_args()
    ratios: dict[str, list[float]] = defaultdict(list)
    times: dict[str, list[tuple[float, float]]] = defaultdict(list)
    with ExitStack() as stack:
        old, new = (
            stack.enter_context(running_worker(checkout.resolve())) for checkout in (arguments.old, NEW)
        )
        for case in arguments.only:
            for number in range(arguments.pairs + 1):
                order = (old, new) if number % 2 else (new, old)
                measured = {worker: worker.measure(case) for worker in order}
                if number == 0:
                    continue
                for name, seconds in measured[new].items():
                    times[name].append((measured[old][name], seconds))
                    ratios[name].append(seconds / measured[old][name])
                    print(f"{name}: {ratios[name][-1]:.3f}", file=sys.stderr)
    Console(width=None if sys.stdout.isatty() else 120).print(_table(times, ratios))
    return 0


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the narrowest pair of order statistics that has the median between it surely enough, and how surely."""
    ordered, count = sorted(values), len(values)
    for rank in range((count - 1) // 2, -1, -1):
        outside = 2 * sum(comb(count, number) for number in range(rank + 1)) / 2**count
        if 1 - outside >= CONFIDENCE:
            return ordered[rank], ordered[-1 - rank], 1 - outside
    return ordered[0], ordered[-1], max(0.0, 1 - 2 / 2**count)


def _table(times: dict[str, list[tuple[float, float]]], ratios: dict[str, list[float]]) -> Table:
    table = Table("case", "pairs", "old, ms", "new, ms", "new / old", "interval of the median", "probability")
    for name, values in ratios.items():
        old, new = (median(seconds) * 1000 for seconds in zip(*times[name], strict=True))
        low, high, probability = interval(values)
        table.add_row(
            name,
            str(len(values)),
            f"{old:,.1f}",
            f"{new:,.1f}",
            f"{median(values):.3f}",
            f"{low:.3f} to {high:.3f}",
            f"{probability:.1%}",
        )
    return table


if __name__ == "__main__":
    sys.exit(main())
