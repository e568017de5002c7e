"""The pages "Where to look" and "Services" name existing modules, and the first one names that they define."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SERVICES = (ROOT / "docs" / "services.md").read_text("utf-8")
PAGE = (ROOT / "docs" / "where-to-look.md").read_text("utf-8")
PACKAGES = {path.name: path for path in (*ROOT.glob("libs/*/odf_*"), *ROOT.glob("services/*/odf_*"))}
QUOTED = re.compile(r"`([^`]+)`")


def rows() -> Iterator[tuple[str, list[Path], list[str]]]:
    """Iterate over question, paths and names of each row."""
    for line in PAGE.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and cells[0] not in {"question", "---"}:
            question, modules, names = cells
            paths = [quoted.split("/", 1) for quoted in QUOTED.findall(modules)]
            yield question, [PACKAGES[package] / rest for package, rest in paths], QUOTED.findall(names)


def defined_in(path: Path) -> set[str]:
    """Return the names that a module defines: functions, methods, classes, constants."""
    return {
        name
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if (name := getattr(node, "name", None) or (isinstance(node, ast.Name) and node.id))
    }


@pytest.mark.parametrize(("paths", "names"), [pytest.param(*rest, id=row) for row, *rest in rows()])
def test_names_in_rows_exist(paths: list[Path], names: list[str]) -> None:
    assert paths
    assert [path for path in paths if not path.exists()] == []
    defined = set().union(*(defined_in(path) for path in paths if path.is_file()))
    assert [name for name in names if name not in defined] == []


def described_packages() -> Iterator[tuple[Path, list[str], list[str]]]:
    """Iterate over the folder of the service, what is described, and what else is named, of each row in "Services"."""
    service, is_table = Path(), False
    for line in SERVICES.splitlines():
        if line.startswith("## "):
            service = PACKAGES["odf_" + line.removeprefix("## ").replace("-", "_")]
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0] in {"package", "module"}:
            is_table = True
        elif not line.startswith("|"):
            is_table = False
        elif is_table and cells[0] != "---":
            yield service, QUOTED.findall(cells[0]), QUOTED.findall(cells[1])


@pytest.mark.parametrize(
    ("service", "described", "named"),
    [pytest.param(*row, id=f"{row[0].name}-{'-'.join(row[1])}") for row in described_packages()],
)
def test_packages_and_modules_of_services_exist(
    service: Path, described: list[str], named: list[str]
) -> None:
    children = {path.stem for path in service.iterdir()}
    assert described
    assert [name for name in described if name not in children] == []
    inside = {path.stem for name in described for path in (service / name).rglob("*")}
    others = {".".join(path.parts[-2:]) for package in PACKAGES.values() for path in package.iterdir()}
    assert [name for name in named if name not in inside | others] == []


def test_every_service_has_a_table() -> None:
    assert {service.name for service, *_ in described_packages()} == PACKAGES.keys() - {
        "odf_cli",
        "odf_common",
    }


@pytest.mark.parametrize("word", ["late", "format", "Kafka", "equal", "NaN"])
def test_a_word_that_newcomers_search_for_has_a_row(word: str) -> None:
    assert any(re.search(rf"\b{word}\b", question) for question, _, _ in rows())


def test_the_map_links_to_the_page() -> None:
    assert "docs/where-to-look.md" in (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    assert "where-to-look.md" in (ROOT / "docs" / "index.md").read_text("utf-8")
