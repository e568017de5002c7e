"""The tests nearest to a function: of those that run it, the ones that run little outside of its module.

Coverage's contexts say which test runs which lines.

They are recorded once for each package in `.mutants/`, which git ignores. A record knows functions by their names, so it
stays useful while lines move; delete it when tests have moved.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from coverage import CoverageData
from tests.mutants.mutations import mutants
from tests.mutants.targets import SUITES, package_of, targets

RECORDS: Final = ".mutants"
MAX_TESTS: Final = 40  # for a function; further ones rarely notice what these do not


def nearest_tests(root: Path, path: str, function: str, *, record: "Recorder | None" = None) -> Sequence[str]:
    """Return tests that run a function, the nearest first; records those of its package if that has not been done."""
    package = package_of(path)
    file = root / RECORDS / f"{Path(package).name}.json"
    if not file.exists():
        file.parent.mkdir(exist_ok=True)
        data = (record or run_suite)(root, package, file.with_suffix(".coverage"))
        file.write_text(json.dumps(_tests_by_function(root, package, data), indent=1))
    recorded: dict[str, list[str]] = json.loads(file.read_text()).get(path, {})
    return [test for test in recorded.get(function, ()) if (root / test.partition("::")[0]).exists()]


Recorder = Callable[[Path, str, Path], CoverageData]


def run_suite(root: Path, package: str, file: Path) -> CoverageData:
    """Run the tests of a package, and return which test ran which lines; tests that fail are not left out."""
    print(f"recording which tests run what in {package}: some minutes, once", file=sys.stderr)
    options = (
        "-q",
        "-n",
        "2",
        "--dist",
        "loadfile",
        "--cov",
        package,
        "--cov-context",
        "test",
        "--cov-report=",
    )
    command = (sys.executable, "-m", "pytest", *options, "--cov-fail-under=0", *SUITES[package])
    subprocess.run(
        command, cwd=root, env={**os.environ, "COVERAGE_FILE": str(file)}, stdout=sys.stderr, check=False
    )
    data = CoverageData(str(file))
    data.read()
    return data


def _tests_by_function(root: Path, package: str, data: CoverageData) -> dict[str, dict[str, list[str]]]:
    """Return the tests of each function that has mutants, by the path of its module."""
    by_line = {
        path: {line: set(map(_test, contexts)) - {""} for line, contexts in lines.items()}
        for path in targets(root)
        if package in path
        for lines in (data.contexts_by_lineno(str(root / path)),)
    }
    inside = {
        path: Counter(test for tests in lines.values() for test in tests) for path, lines in by_line.items()
    }
    everywhere = sum(inside.values(), Counter())
    found: dict[str, dict[str, list[str]]] = {}
    for path, lines in by_line.items():
        tests: dict[str, set[str]] = {}
        for mutant in mutants(root, path):
            tests.setdefault(mutant.function, set()).update(lines.get(mutant.line, ()))
        shares = {test: count / everywhere[test] for test, count in inside[path].items()}
        found[path] = {
            name: sorted(some, key=lambda test: (-shares[test], test))[:MAX_TESTS]
            for name, some in tests.items()
        }
    return found


def _test(context: str) -> str:
    """Return the test of a context, without its phase and its parameters; empty outside of tests."""
    return context.partition("|")[0].partition("[")[0]
