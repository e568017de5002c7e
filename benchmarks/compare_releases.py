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
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from math import comb
from pathlib import Path
from statistics import median
from typing import Final

from report import changed_file, write_releases
from rich.console import Console
from rich.table import Table

CASES: Final = ("ingest_topic", "ingest_file", "small_commits", "transactions")
WORKER: Final = Path(__file__).with_name("release_worker.py")
NEW: Final = Path(__file__).parent.parent
RESULTS: Final = Path(__file__).with_name("results.json")
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
    parser.add_argument(
        "--write", action="store_true", help="also write the ratios to benchmarks/results.json"
    )
    arguments = parser.parse_args()
    if arguments.write and (changed := changed_file()):
        parser.error(f"{changed}: commit first: numbers of a changed tree cannot be reproduced")
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
    measured_cases = {name: _numbers(times[name], values) for name, values in ratios.items()}
    Console(width=None if sys.stdout.isatty() else 120).print(_table(measured_cases))
    if arguments.write:
        write_releases(measured_cases, RESULTS, old=arguments.old, cores=os.cpu_count() or 1)
    return 0


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the narrowest pair of order statistics that has the median between it surely enough, and how surely."""
    ordered, count = sorted(values), len(values)
    for rank in range((count - 1) // 2, -1, -1):
        outside = 2 * sum(comb(count, number) for number in range(rank + 1)) / 2**count
        if 1 - outside >= CONFIDENCE:
            return ordered[rank], ordered[-1 - rank], 1 - outside
    return ordered[0], ordered[-1], max(0.0, 1 - 2 / 2**count)


def _numbers(times: Sequence[tuple[float, float]], ratios: Sequence[float]) -> dict[str, float]:
    """Return a measurement: medians of both releases in ms, of the ratios, and its interval."""
    old, new = (round(median(seconds) * 1000, 1) for seconds in zip(*times, strict=True))
    low, high, probability = interval(ratios)
    numbers = {"ratio": median(ratios), "low": low, "high": high, "probability": probability}
    return {
        "pairs": len(ratios),
        "old_ms": old,
        "new_ms": new,
        **{k: round(v, 3) for k, v in numbers.items()},
    }


def _table(measured: Mapping[str, Mapping[str, float]]) -> Table:
    table = Table("case", "pairs", "old, ms", "new, ms", "new / old", "interval of the median", "probability")
    for name, numbers in measured.items():
        table.add_row(
            name,
            str(numbers["pairs"]),
            f"{numbers['old_ms']:,.1f}",
            f"{numbers['new_ms']:,.1f}",
            f"{numbers['ratio']:.3f}",
            f"{numbers['low']:.3f} to {numbers['high']:.3f}",
            f"{numbers['probability']:.1%}",
        )
    return table


if __name__ == "__main__":
    sys.exit(main())
