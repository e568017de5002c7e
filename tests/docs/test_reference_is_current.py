"""docs/reference is what docs/generate.py makes of the code."""

import pytest
from docs.generate import REFERENCE, pages

PAGES = pages()


@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_what_the_code_says(name: str) -> None:
    assert (REFERENCE / name).read_text("utf-8") == PAGES[name], "run `make docs`"


def test_every_command_has_a_section() -> None:
    assert "\n## odf verify\n" in PAGES["cli.md"]
    assert "\n### odf source resume\n" in PAGES["cli.md"]


def test_errors_and_metrics_of_every_service_are_found() -> None:
    assert "| `HeadMoved` | `Conflict` | every |" in PAGES["errors.md"]
    assert "| `NotOwned` | `Refused` | coordinator |" in PAGES["errors.md"]
    assert "| `odf_ingest_lag` | gauge | `dataset`, `source` | ingest |" in PAGES["metrics.md"]
