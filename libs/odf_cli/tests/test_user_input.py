import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from odf_cli import clients
from odf_cli import main as cli
from odf_cli.user_input import absolute_url, read_limited
from odf_common.errors import InvalidInput, NotFound, Unavailable
from odf_common.proto.odf.node.v1.access_pb2 import LogInItem, LogOutRequest


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("file:///tmp/a%20b", "file:///tmp/a%20b"),
        ("file:///tmp/a b", "file:///tmp/a%20b"),
        ("file:///tmp/a%2520b", "file:///tmp/a%2520b"),
        ("file:///tmp/a#b?c", "file:///tmp/a%23b%3Fc"),
        ("file://localhost/tmp/x", "file:///tmp/x"),
        ("FILE://LocalHost/tmp/x", "file:///tmp/x"),
        ("https://example.org/a%20b", "https://example.org/a%20b"),
        ("flights@next", "flights@next"),
    ],
)
def test_a_url_means_the_same_everywhere(typed: str, meant: str) -> None:
    assert absolute_url(typed) == meant
    assert absolute_url(meant) == meant


def test_a_url_with_a_password_is_refused_without_showing_it() -> None:
    with pytest.raises(InvalidInput, match="odf login http://h`") as caught:
        absolute_url("odf+http://joe:secret@h/flights")
    assert "secret" not in str(caught.value)


def test_a_folder_may_be_named_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for typed in ("file://a%20b/c", "file://./a b/c"):
        assert absolute_url(typed) == (tmp_path / "a b" / "c").as_uri()


def test_a_file_is_read_up_to_a_limit(tmp_path: Path) -> None:
    file = tmp_path / "event.yaml"
    file.write_bytes(b"12345")
    assert read_limited(str(file), 5) == b"12345"
    with pytest.raises(InvalidInput, match=r"event\.yaml: longer than 4 bytes"):
        read_limited(str(file), 4)
    with pytest.raises(NotFound, match=r"file .*nothing does not exist"):
        read_limited(str(tmp_path / "nothing"), 4)
    with pytest.raises(Unavailable, match="Is a directory"):
        read_limited(str(tmp_path), 4)


NOON = "expected an RFC 3339 time such as 2020-01-01T12:00:00Z, got 'noon'"
COUNT = "expected an integer from 1 to 2147483647, got"
POSITION = "expected earliest, latest, keep or an offset, such as 1200 or 0:1200,1:1200, got 'soon'"
PLACE = "expected PARTITION/OFFSET or row/NUMBER, such as 0/1234, or SOURCE/0/1234, got '7'"


@pytest.fixture(autouse=True)
def no_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ODF_HOME", str(tmp_path))


@pytest.mark.parametrize(
    ("line", "name", "why"),
    [
        ("ingest orders - --event-time noon", "--event-time", NOON),
        ("pull orders --set-watermark noon", "--set-watermark", NOON),
        ("source resume orders --from soon", "--from", POSITION),
        ("rejected list orders -n -4", "-n", "expected an integer from 0 to 2147483647, got -4"),
        ("rejected list orders -n 99999999999", "-n", "to 2147483647, got 99999999999"),
        ("rejected list orders -n few", "-n", "'few' is not a valid integer"),
        ("rejected show orders 7", "LOCATION", PLACE),
        ("rejected retry orders 0/1 7", "LOCATIONS", PLACE),
        ("rejected drop orders 7", "LOCATIONS", PLACE),
        ("tail orders -n 0", "-n", f"{COUNT} 0"),
        ("tail orders -n 2147483648", "-n", f"{COUNT} 2147483648"),
        ("log orders --limit 0", "--limit", f"{COUNT} 0"),
        ("log orders --limit 99999999999999999999999", "--limit", f"{COUNT} 99999999999999999999999"),
        ("new orders --from orders.csv --input-format xls", "--input-format", "expected one of csv, "),
        ("token create ann --expires soon", "--expires", "expected 30m, 12h, 90d or never, got 'soon'"),
    ],
)
def test_a_wrong_value_is_misuse(line: str, name: str, why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(line.split()) == 2
    shown = capsys.readouterr().err.splitlines()[-1]
    assert shown.startswith("Error: Invalid value for ")
    assert name in shown
    assert why in shown


@pytest.mark.parametrize(
    "line",
    [
        "ingest orders - --event-time 2026-01-01T00:00:00Z",
        "pull orders --set-watermark 2026-01-01T00:00:00+01:00",
        *(f"source resume orders --from {start}" for start in ("earliest", "keep", "12", "0:12,1:7")),
        "source resume orders",
        "rejected list orders -n 0",
        "rejected list orders",
        "rejected retry orders 0/1 row/7",
        "tail orders -n 2147483647",
        "log orders --limit 1",
    ],
)
def test_with_a_valid_value_the_command_looks_for_the_node(
    line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(line.split()) == 1
    assert "no node is running" in capsys.readouterr().err


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
