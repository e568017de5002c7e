"""Which share of small changes to the code no unit test notices: `make mutants`.

A sample of mutants is drawn with a seed, as many from each module as it has its share of all; for each one the tests
nearest to its function run (`nearest`). Survivors that do what the code does are listed with their reasons in `equivalent.json`.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.mutants.mutations import Mutant, mutants
from tests.mutants.nearest import nearest_tests
from tests.mutants.targets import targets

ROOT: Final = Path(__file__).parents[2]
EQUIVALENT: Final = Path(__file__).with_name("equivalent.json")
IN_EACH_PROCESS: Final = Path(__file__).with_name("in_each_process")
COUNT: Final = 60
JOBS: Final = 2
TEST_SECONDS: Final = 60  # a test that takes longer has noticed: a loop may have no end
# A process that runs for longer has noticed, too: a thread of it may wait for ever.
SUITE_SECONDS: Final = 900
MOST: Final = 0.1  # of the sample may survive


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A mutant of the sample, and its number among those of its module."""

    mutant: Mutant
    number: int


def equivalents() -> Mapping[str, str]:
    """Return the reasons why mutants that survive are not faults, by their names."""
    return {one["mutant"]: one["reason"] for one in json.loads(EQUIVALENT.read_text())}


def sample(root: Path, count: int, seed: int, only: str = "") -> list[Chosen]:
    """Return `count` mutants that compile and are not known as equivalent, the same for the same seed and code.

    Each has its place in the order by itself, so a change of one module draws no other sample of the rest.
    """
    known = equivalents()
    every = [
        Chosen(mutant=mutant, number=number)
        for path in targets(root)
        if only in path
        for number, mutant in enumerate(mutants(root, path))
        if mutant.name not in known
    ]
    every.sort(key=lambda one: hashlib.sha256(f"{seed} {one.mutant.name} {one.number}".encode()).digest())
    chosen: list[Chosen] = []
    for one in every:
        if len(chosen) == count:
            break
        if _compiles(one.mutant.source((root / one.mutant.path).read_text())):
            chosen.append(one)
    return chosen


def _compiles(text: str) -> bool:
    try:
        compile(text, "mutant", "exec", dont_inherit=True)
    except SyntaxError:
        return False
    return True


def environment_of(mutant: str) -> Mapping[str, str]:
    """Return the environment in which all Python processes import a mutant of a module (`path:number`)."""
    return {**os.environ, "ODF_MUTANT": mutant, "PYTHONPATH": f"{IN_EACH_PROCESS}:{ROOT}"}


def is_noticed(tests: Sequence[str], mutant: str = "") -> bool:
    """Return whether one of the tests fails, with a mutant of a module (`path:number`) or without."""
    options = [
        "-x",
        "-q",
        "-p",
        "no:cacheprovider",
        "--timeout",
        str(TEST_SECONDS),
    ]
    command = [sys.executable, "-m", "pytest", *options, *tests]
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=environment_of(mutant) if mutant else None,
            capture_output=True,
            text=True,
            check=False,
            timeout=SUITE_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return True
    if done.returncode > 2 and not mutant:
        raise SystemExit(done.stdout + done.stderr)
    return done.returncode != 0


def report(one: Chosen, tests: Sequence[str]) -> bool:
    """Run the tests of a mutant, print the result, and return whether it survived."""
    began = time.monotonic()
    is_alive = not tests or not is_noticed(tests, f"{one.mutant.path}:{one.number}")
    word = "SURVIVED" if is_alive else "caught"
    print(f"{word:9}{time.monotonic() - began:4.0f} s  line {one.mutant.line}  {one.mutant.name}", flush=True)
    return is_alive


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if at most `MOST` of the sample survive."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=JOBS)
    parser.add_argument("--only", default="", help="part of the paths of the modules to mutate")
    given = parser.parse_args(arguments)
    chosen = sample(ROOT, given.count, given.seed, given.only)
    suites = [nearest_tests(ROOT, one.mutant.path, one.mutant.function) for one in chosen]
    with ThreadPoolExecutor(given.jobs) as pool:
        different = sorted({tuple(tests) for tests in suites if tests})
        for tests, is_red in zip(different, pool.map(is_noticed, different), strict=True):
            if is_red:
                print(f"fails without any mutant: {' '.join(tests)}", file=sys.stderr)
                return 2
        survived = sum(pool.map(report, chosen, suites))
    share = survived / max(len(chosen), 1)
    print(
        f"{survived} of {len(chosen)} mutants survived: {share:.0%} (seed {given.seed}; at most {MOST:.0%})"
    )
    return int(share > MOST)


if __name__ == "__main__":
    sys.exit(main())
