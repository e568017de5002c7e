"""`odf compare` and `odf verify` over services with configured answers."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from odf_cli import clients
from odf_cli import main as cli
from odf_common.errors import NotFound
from odf_common.proto.odf.node.v1 import coordinator_pb2 as wire
from odf_common.proto.odf.node.v1 import verifier_pb2 as verdicts


@pytest.mark.parametrize(("relation", "status"), [("equal", 0), ("ahead", 4), ("behind", 4), ("diverged", 4)])
def test_the_exit_status_distinguishes_not_equal_from_refused(
    monkeypatch: pytest.MonkeyPatch, relation: str, status: int
) -> None:
    def compared(request: wire.CompareRequest, timeout: float) -> wire.Comparison:
        if request.left == "nowhere":
            raise NotFound(what=request.left)
        return wire.Comparison(relation=relation)

    @contextmanager
    def opened() -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(Compare=compared)

    monkeypatch.setattr(clients, "coordinator", opened)
    assert cli.main(["compare", "cities", "cities@next", "-o", "json"]) == status
    assert cli.main(["compare", "nowhere", "cities"]) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("compare", "http://joe:secret@h/a", "cities"),
        ("compare", "cities", "http://joe:secret@h/a"),
        ("push", "cities", "--to", "odf+http://joe:secret@h/a"),
    ],
)
def test_no_command_shows_the_password_of_a_url(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    assert cli.main(arguments) == 1
    shown = capsys.readouterr()
    assert "credentials do not belong in a URL" in shown.err
    assert "secret" not in shown.out + shown.err


def test_verify_reads_the_url_of_a_folder_as_pull_does(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def verify(request: verdicts.VerifyRequest, timeout: float) -> Iterator[verdicts.VerifyItem]:
        asked.extend(request.refs)
        yield verdicts.VerifyItem(verdict=verdicts.Verdict(dataset="x", verdict="valid"))

    @contextmanager
    def opened() -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(Verify=verify)

    monkeypatch.setattr(clients, "verifier", opened)
    assert cli.main(["verify", "cities@next", "cit%", "file://localhost/tmp/a b", "-o", "json"]) == 0
    assert asked == ["cities@next", "cit%", "file:///tmp/a%20b"]
