"""The decision records: each has a date, and its line in the index."""

import re
from pathlib import Path
from typing import Final

import pytest

FOLDER: Final = Path(__file__).parents[2] / "docs" / "adr"
DECISIONS: Final = sorted(FOLDER.glob("0*.md"))
BEGINNING: Final = re.compile(r"# \d{4}\. .+\n\nDate: \d{4}-\d\d-\d\d\n\n(Supersedes .+\n\n)?## Context\n")


@pytest.mark.parametrize("decision", DECISIONS, ids=lambda file: file.stem)
def test_a_decision_begins_with_its_title_and_its_date(decision: Path) -> None:
    assert BEGINNING.match(decision.read_text("utf-8"))


def test_every_decision_is_in_the_index_with_its_title() -> None:
    rows = re.findall(r"\[(\d{4})\]\((0.+\.md)\) \| (.+) \|", (FOLDER / "index.md").read_text("utf-8"))
    titles = [file.read_text("utf-8").splitlines()[0] for file in DECISIONS]
    listed = [(file, f"# {number}. {title}") for number, file, title in rows]
    assert listed == [(file.name, title) for file, title in zip(DECISIONS, titles, strict=True)]
