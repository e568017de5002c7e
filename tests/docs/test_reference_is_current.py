"""docs/reference equals the output of docs/generate.py."""

from functools import cache

from docs import generate

from odf_common.adapters.grpc.server import STATUSES

pages = cache(generate.pages)  # not at import, since each process that runs tests imports them all


def test_each_page_is_current() -> None:
    old = [name for name, text in pages().items() if (generate.REFERENCE / name).read_text("utf-8") != text]
    assert old == [], "run `make docs`"


def test_every_command_has_a_section() -> None:
    assert "\n## odf verify\n" in pages()["cli.md"]
    assert "\n### odf source resume\n" in pages()["cli.md"]


def test_errors_and_metrics_of_every_service_are_found() -> None:
    assert "| `HeadMoved` | `Conflict` | every |" in pages()["errors.md"]
    assert "| `DatasetBusy` | `Unavailable` | coordinator |" in pages()["errors.md"]
    assert "| `odf_ingest_lag` | gauge | `dataset`, `source` | ingest |" in pages()["metrics.md"]


def test_every_error_belongs_to_a_family() -> None:
    rows = [line.split(" | ") for line in pages()["errors.md"].splitlines() if " | `OdfError` | " in line]
    families = {str(family.__name__) for family, _ in STATUSES} | {"InternalError", "Signal", "RemoteError"}
    answers = {
        "LoginRefused",
        "PushRefused",
        "HttpRefusal",
        "ResourceProblem",
    }  # to HTTP requests: they have the response's status
    assert {row[0].strip("|` ") for row in rows} - families - answers == set()
