"""Numbers in documents are generated from benchmarks/results.json, and the commands that measure them exist."""

import json
import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

from docs.generate import PARTS, REFERENCE, RESULTS, ROOT, changed_since, code_shape, part_peaks

from odf_cli.embedded.doctor_checks import ADVISED_MEMORY_BYTES

DOCUMENTS = (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"))
COMMAND = re.compile(r"(?:run\.py )?--only ((?:[a-z_]+ ?)+)")
SCRIPT = re.compile(r"\bbenchmarks/([a-z_]+)\.py")
FIGURE = re.compile(
    r"(?<![\w.-])\d[\d.,]*\s?(?:ms|µs|us|s|seconds?|[kMG]i?B/s|µs/record)(?!\w)"
    r"|\d[\d.,]*\s(?:[kKMG]i?B|records?|rows|messages|events|blocks|commits|pushes)\s?(?:/s|per second|a second)\b"
    r"|(?:\d|two|three|four|five|ten|hundred) times (?:faster|slower|as fast|that of)|half the time",
    re.IGNORECASE,
)
# Settings, limits, examples and arithmetic: figures that no benchmark measures.
LIMITS: Mapping[str, AbstractSet[str]] = {
    "0022-slice-size-and-delay.md": {"100 ms"},
    "0025-incomplete-corrections-wait.md": {"10 seconds"},
    "0039-blocks-in-packs.md": {"20 ms", "200 s"},
    "0040-smart-transfer-protocol.md": {"32 KiB per second"},
    "0055-events-name-the-head.md": {"15 seconds"},
    "0057-audit-never-delays-requests.md": {"10 s"},
    "index.md": {"100 ms"},
    "failure-modes.md": {"5 s", "8 s", "9 s", "10 s", "30 s"},
    "notifications.md": {"5 seconds", "10 seconds", "15 seconds", "30 seconds"},
    "access.md": {"1 KiB per second", "32 KiB per second", "64 KiB per second", "10 s", "60 s"},
    "ingest.md": {"1 KiB per second", "10 s", "15 seconds", "100 ms", "90s"},
    "poll.md": {"30s"},
    "share.md": {"0 s"},
    "troubleshoot.md": {"5 s", "10 s", "15 s"},
    "wire-facts.md": {"10 s"},
}


def test_every_case_has_a_section_with_its_command() -> None:
    page = (REFERENCE / "measurements.md").read_text("utf-8")
    measured = [name for name, case in _cases().items() if not case.get("failed")]
    assert measured
    assert [name for name in measured if f"`python benchmarks/run.py --only {name}`" not in page] == []


def test_every_case_says_where_it_ran_and_what_memory_it_took() -> None:
    wanted = ("date", "commit", "processor", "java", "python", "memory_mb", "code")
    measured = {name: case for name, case in _cases().items() if not case.get("failed")}
    assert {name for name, case in measured.items() if not all(case.get(field) for field in wanted)} == set()


def test_a_benchmark_that_has_changed_since_is_named() -> None:
    file = ROOT / "benchmarks" / "rows.py"
    digest = code_shape.shape_of(file)
    assert changed_since({"code": {"rows.py": digest}}) == []
    assert changed_since({"code": {"rows.py": digest[::-1] + "0", "gone.py": digest}}) == [
        "rows.py",
        "gone.py",
    ]


def test_a_case_is_made_of_its_module_and_of_those_that_it_imports() -> None:
    assert {"push_chain.py", "long_chains.py", "transfer_peers.py"} <= code_shape.shapes_of(
        "push_chain"
    ).keys()
    assert "nexmark.py" not in code_shape.shapes_of("push_chain")


def test_a_benchmark_that_was_only_renamed_has_not_changed(tmp_path: Path) -> None:
    texts = ("LIMIT = 5\n", "import os\n\nMOST = 5\n", "LIMIT = 6\n", "LIMIT = 5 + 0\n", "LIMIT = '5'\n")
    for number, text in enumerate(texts):
        (tmp_path / f"{number}.py").write_text(text)
    first, renamed, *others = [code_shape.shape_of(tmp_path / f"{number}.py") for number in range(len(texts))]
    assert first == renamed
    assert first not in others


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
    others = [file for file in DOCUMENTS if REFERENCE not in file.parents]
    quoted = {
        file.name: found
        for file in others
        if (found := set(FIGURE.findall(file.read_text("utf-8"))) - LIMITS.get(file.name, set()))
    }
    assert quoted == {}, "link to docs/reference/measurements.md instead"


def test_figures_of_speed_are_recognized() -> None:
    claims = (
        "16 µs",
        "0.1 ms",
        "0.24 s",
        "700 MB/s",
        "6,000 records/s",
        "9 pushes per second",
        "three times faster",
    )
    assert [claim for claim in claims if not FIGURE.fullmatch(claim)] == []
    assert FIGURE.search("16 MiB of blocks, 2 steps, version 1.5") is None


def test_the_advised_memory_is_enough_for_the_peaks_of_all_parts() -> None:
    peaks = part_peaks(_cases())
    assert tuple(peaks) == PARTS
    assert sum(peak for peak, _ in peaks.values()) * 1_000_000 <= ADVISED_MEMORY_BYTES


def _cases() -> dict[str, dict[str, Any]]:
    cases: dict[str, dict[str, Any]] = json.loads(RESULTS.read_text("utf-8"))["cases"]
    return cases


def _named(file: Path) -> set[str]:
    text = file.read_text("utf-8")
    by_command = {name for names in COMMAND.findall(text) for name in names.split()}
    return by_command | set(SCRIPT.findall(text))
