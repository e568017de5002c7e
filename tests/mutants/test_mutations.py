"""The tool changes what it says and nothing else, draws the same sample for a seed, and keeps its list of equivalents."""

import subprocess
import sys
from pathlib import Path

import pytest
from coverage import CoverageData
from tests.mutants.mutations import UNGUARDED, mutants
from tests.mutants.nearest import nearest_tests
from tests.mutants.run import ROOT, environment_of, equivalents, is_noticed, sample
from tests.mutants.targets import LEFT_OUT, SUITES, targets

MODULE = '''"""Nothing here: 1 + 1."""

LIMIT = 1 + 1


def total(values: list[int], most: int = 3) -> int | None:
    """Return 1."""
    if not values or len(values) > most:
        raise ValueError(f"more than {most + 1}")
    for value in values:
        log.info("value", value=value + 1)
        if value is None:
            continue
        note(value)
        most -= value
    return min(values) + 1
'''
CHANGES = {
    ("not values or len(values) > most", "False"),
    ("not values or len(values) > most", "True"),
    ("not values", "values"),
    ("or", "and"),
    (">", ">="),
    ('raise ValueError(f"more than {most + 1}")', "pass"),
    ("value is None", "False"),
    ("value is None", "True"),
    ("is", "is not"),
    ("continue", "break"),
    ("note(value)", "pass"),
    ("-=", "+="),
    ("min(values) + 1", "None"),
    ("min", "max"),
    ("+", "-"),
    ("1", "2"),
}


@pytest.fixture
def module(tmp_path: Path) -> Path:
    file = tmp_path / "module.py"
    file.write_text(MODULE)
    return file


def test_functions_are_changed_and_not_their_types_defaults_texts_and_logs(module: Path) -> None:
    found = mutants(module.parent, module.name)
    assert {(one.before, one.after) for one in found} == CHANGES
    assert len(found) == len(CHANGES)
    assert {one.function for one in found} == {"total"}


def test_each_mutant_differs_from_the_module_in_one_place(module: Path) -> None:
    for one in mutants(module.parent, module.name):
        source = one.source(MODULE)
        assert source != MODULE
        assert source.removeprefix(MODULE[: one.start] + one.after) == MODULE[one.start + len(one.before) :]
        compile(source, "mutant", "exec")


def test_columns_are_counted_in_bytes(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text('def f(a: str) -> bool:\n    return a == "–" or a == "x"\n')
    sources = [one.source((tmp_path / "module.py").read_text()) for one in mutants(tmp_path, "module.py")]
    assert 'def f(a: str) -> bool:\n    return a == "–" or a != "x"\n' in sources


def test_mutants_that_are_called_the_same_have_their_number(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text("def f(a: int) -> int:\n    return (a + 1) * (a + 1)\n")
    names = [one.name for one in mutants(tmp_path, "module.py") if (one.before, one.after) == ("1", "2")]
    assert names == ["module.py f: 1 -> 2", "module.py f: 1 -> 2 (2)"]


def test_coroutines_are_changed_too(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text("async def f(a: int) -> bool:\n    return a < 5\n")
    assert ("<", "<=") in {(one.before, one.after) for one in mutants(tmp_path, "module.py")}


def _changed(folder: Path, text: str) -> set[tuple[str, str]]:
    (folder / "module.py").write_text(text)
    return {(one.before, one.after) for one in mutants(folder, "module.py")}


def test_calls_that_follow_each_other_change_places(tmp_path: Path) -> None:
    text = "def f() -> None:\n    a()\n    # why\n    b()\n    log.info(1)\n    c()\n"
    swapped = ("a()\n    # why\n    b()", "b()\n    # why\n    a()")
    assert _changed(tmp_path, text) == {swapped, ("a()", "pass"), ("b()", "pass"), ("c()", "pass")}


def test_what_is_assigned_to_attributes_and_items_is_dropped_outside_of_constructors(tmp_path: Path) -> None:
    text = "def f() -> None:\n    a.x = a\n    a[b] = a\n    b = a\ndef __init__() -> None:\n    a.x = b\n"
    assert _changed(tmp_path, text) == {("a.x = a", "pass"), ("a[b] = a", "pass")}


def test_locks_and_other_contexts_that_give_no_value_are_left_out(tmp_path: Path) -> None:
    text = "def f() -> None:\n    with lock, open(a) as file:\n        x = a\n"
    assert _changed(tmp_path, text) == {("lock", UNGUARDED)}


def test_whether_zip_is_strict_stays_since_that_is_an_assertion(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(
        "def f(a: str, b: str) -> None:\n    pairs = zip(a[1:], b, strict=True)\n"
    )
    assert {(one.before, one.after) for one in mutants(tmp_path, "module.py")} == {("1", "2")}


def test_a_seed_draws_the_same_sample_and_another_one_another() -> None:
    first, again, other = (sample(ROOT, 20, seed, "coordinator") for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert len(set(first)) == 20


def test_every_pattern_fits_a_module_and_every_package_has_a_suite() -> None:
    assert {pattern for pattern in LEFT_OUT if not any(ROOT.glob(pattern))} == set()
    packages = {
        file.parent.relative_to(ROOT).as_posix() for file in ROOT.glob("services/*/odf_*/__init__.py")
    }
    assert packages <= SUITES.keys()
    assert all((ROOT / tests).is_dir() for suite in SUITES.values() for tests in suite)


def test_the_nearest_tests_run_the_function_and_little_else_and_are_recorded_once(
    tmp_path: Path,
) -> None:
    path = "services/verifier/odf_verifier/module.py"
    other = path.replace("module", "other")
    for file in (path, other, "a/test_a.py", "a/test_b.py"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    (tmp_path / path).write_text(
        "def f(a: int) -> int:\n    return a + 1\n\n\ndef g(a: int) -> int:\n    return a + 1\n"
    )
    recorded: list[str] = []

    def record(root: Path, package: str, file: Path) -> CoverageData:
        recorded.append(package)
        data = CoverageData(str(file))
        ran = {
            "a/test_a.py::test_both[x]|run": {path: [2, 6], other: [1, 2]},
            "a/test_b.py::test_f|run": {path: [2]},
            "b/test_gone.py::test_f|run": {path: [2]},
            "": {path: [1, 5]},
        }
        for context, lines in ran.items():
            data.set_context(context)
            data.add_lines({str(root / module): numbers for module, numbers in lines.items()})
        return data

    assert [nearest_tests(tmp_path, path, name, record=record) for name in ("f", "g", "h")] == [
        ["a/test_b.py::test_f", "a/test_a.py::test_both"],
        ["a/test_a.py::test_both"],
        [],
    ]
    assert recorded == ["services/verifier/odf_verifier"]


def test_what_is_listed_as_equivalent_is_still_a_mutant_and_has_a_reason() -> None:
    names = {one.name for path in targets(ROOT) for one in mutants(ROOT, path)}
    assert {name for name in equivalents() if name not in names} == set()
    assert all(equivalents().values())


@pytest.mark.parametrize("is_changed", [False, True])
def test_tests_run_over_the_changed_module_and_no_file_changes(is_changed: bool) -> None:
    path = "libs/odf_common/odf_common/chain/dependency_order.py"
    before = (ROOT / path).read_bytes()
    test = "libs/odf_common/tests/chain/test_input_divergence.py"
    assert is_noticed((test,), f"{path}:0" if is_changed else "") == is_changed
    assert (ROOT / path).read_bytes() == before


def test_processes_that_tests_start_import_the_changed_module_too() -> None:
    path = "libs/odf_common/odf_common/chain/dependency_order.py"
    code = "from odf_common.chain import dependency_order as module; print(module.__loader__.text)"
    command = [sys.executable, "-c", code]
    said = subprocess.run(
        command, env=environment_of(f"{path}:0"), capture_output=True, text=True, check=True
    )
    assert said.stdout.strip() == mutants(ROOT, path)[0].source((ROOT / path).read_text()).strip()
