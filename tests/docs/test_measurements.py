"""Numbers in documents are generated from benchmarks/results.json, and the commands that measure them exist."""

import json
import re
from pathlib import Path
from typing import Any

from docs.generate import PARTS, REFERENCE, RESULTS, ROOT, part_peaks

from odf_common.embedded.doctor_checks import MEMORY_ADVISED

DOCUMENTS = (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"))
COMMAND = re.compile(r"(?:run\.py )?--only ((?:[a-z_]+ ?)+)")
SCRIPT = re.compile(r"\bbenchmarks/([a-z_]+)\.py")
QUOTED = re.compile(
    r"[0-9.]+ (?:times that of Spark|records/s|µs/record|MB/s)|[0-9] ms with\b|half the time|[0-9] pushes per second",
    re.IGNORECASE,
)


def test_every_case_has_a_section_with_its_command() -> None:
    page = (REFERENCE / "measurements.md").read_text("utf-8")
    measured = [name for name, case in _cases().items() if not case.get("failed")]
    assert measured
    assert [name for name in measured if f"`python benchmarks/run.py --only {name}`" not in page] == []


def test_every_case_says_where_it_ran_and_what_memory_it_took() -> None:
    wanted = ("date", "commit", "processor", "java", "python", "memory_mb")
    measured = {name: case for name, case in _cases().items() if not case.get("failed")}
    assert {name for name, case in measured.items() if not all(case.get(field) for field in wanted)} == set()


def test_every_limit_or_peer_has_a_label() -> None:
    rows = [(name, row) for name, case in _cases().items() for row in case.get("rows", ())]
    assert [
        (name, row["case"]) for name, row in rows if row["limit_or_peer"] is not None and not row["peer"]
    ] == []


def test_every_benchmark_that_a_document_names_exists() -> None:
    named = {name for file in DOCUMENTS for name in _named(file)}
    assert "transaction_profile" in named
    assert [name for name in named if not (ROOT / "benchmarks" / f"{name}.py").is_file()] == []


def test_no_other_document_quotes_what_a_benchmark_measures() -> None:
    others = [file for file in DOCUMENTS if file.name != "measurements.md"]
    assert [file.name for file in others if QUOTED.search(file.read_text("utf-8"))] == []


def test_the_advised_memory_is_enough_for_the_peaks_of_all_parts() -> None:
    peaks = part_peaks(_cases())
    assert tuple(peaks) == PARTS
    assert sum(peak for peak, _ in peaks.values()) * 1_000_000 <= MEMORY_ADVISED


def _cases() -> dict[str, dict[str, Any]]:
    cases: dict[str, dict[str, Any]] = json.loads(RESULTS.read_text("utf-8"))["cases"]
    return cases


def _named(file: Path) -> set[str]:
    text = file.read_text("utf-8")
    by_command = {name for names in COMMAND.findall(text) for name in names.split()}
    return by_command | set(SCRIPT.findall(text))
