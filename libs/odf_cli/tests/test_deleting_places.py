"""`odf repo delete` and `odf logout` print what they have deleted; `odf repo add` checks the URL of a bucket."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from odf_cli import clients
from odf_cli import main as cli
from odf_common.proto.odf.node.v1.access_pb2 import LogInItem, LogOutRequest


def test_deleted_repositories_are_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ODF_HOME", str(tmp_path))
    for name in ("shop", "disk"):
        assert cli.main(["repo", "add", name, "https://data.example.org/"]) == 0
    capsys.readouterr()
    assert cli.main(["repo", "delete", "shop", "disk", "--output", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"name": "shop"}, {"name": "disk"}]
    assert cli.main(["repo", "delete", "shop", "--output", "json"]) == 1


@pytest.mark.parametrize("url", ["s3://UPPER/x", "s3://b/x", "s3+http://host:9000/", "s3://bucket//x"])
def test_a_bucket_that_cannot_exist_is_not_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], url: str
) -> None:
    monkeypatch.setenv("ODF_HOME", str(tmp_path))
    assert cli.main(["repo", "add", "shop", url]) == 1
    assert capsys.readouterr().err.startswith("error: ")
    assert cli.main(["repo", "add", "shop", "s3+http://host:9000/bucket/x/"]) == 0


def test_the_origin_of_a_deleted_login_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def log_out(request: LogOutRequest, timeout: float) -> LogInItem:
        del timeout
        return LogInItem(origin=request.url.rstrip("/"))

    @contextmanager
    def opened() -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(LogOut=log_out)

    monkeypatch.setattr(clients, "access", opened)

    assert cli.main(["logout", "https://node.example/", "--output", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"origin": "https://node.example"}
