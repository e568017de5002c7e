"""`odf logs` over the files of a home."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from odf_cli import main as cli
from odf_cli.commands import node as node_commands


def entry(number: int, **facts: object) -> str:
    return json.dumps({"timestamp": f"2026-03-01T10:00:{number:02}Z", "event": f"step {number}", **facts})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a home's logs: of ingest with 30 lines, of kafka with text."""
    monkeypatch.setenv("ODF_HOME", str(tmp_path))
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "ingest.log").write_text("".join(entry(number, level="info") + "\n" for number in range(30)))
    (folder / "kafka.log").write_text("INFO started\n  at a.stack.frame\nINFO ready\n")
    (folder / "kafka.log.1").write_text("older\n")
    return folder


@pytest.mark.usefixtures("folder")
def test_the_last_lines_of_each_part_are_readable(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["logs", "-n", "2"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "ingest: 10:00:28 step 28", "ingest: 10:00:29 step 29", "kafka: INFO started", "kafka: INFO ready",
    ]  # fmt: skip


def test_lines_are_whole_however_long_they_are(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    long = entry(59, level="error", why="ö" * 900)
    with (folder / "ingest.log").open("a") as file:
        file.write(long + "\n" + '{"event": "half')
    assert cli.main(["logs", "ingest", "-n", "1", "--raw"]) == 0
    assert capsys.readouterr().out.splitlines() == [f"ingest: {long}"]
    assert cli.main(["logs", "ingest", "-n", "1"]) == 0
    assert capsys.readouterr().out.splitlines() == [f"ingest: 10:00:59 error: step 59 why={'ö' * 900}"]


@pytest.mark.usefixtures("folder")
def test_an_unknown_part_is_refused_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["logs", "ingset"]) == 1
    assert "a log of 'ingset' (did you mean ingest?) does not exist" in capsys.readouterr().err


def test_a_home_without_logs_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ODF_HOME", str(tmp_path))
    assert cli.main(["logs"]) == 1
    assert str(tmp_path) in capsys.readouterr().err


def test_new_lines_are_followed_once_they_have_ended_even_in_an_emptied_log(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = folder / "ingest.log"

    def changes() -> Iterator[None]:
        with file.open("a") as log:
            log.write("begun ")
        yield
        with file.open("a") as log:
            log.write("and ended\n")
        yield
        file.write_text("emptied\n")
        yield

    steps = changes()

    def sleep(_seconds: float) -> None:
        try:
            next(steps)
        except StopIteration:
            raise KeyboardInterrupt from None

    monkeypatch.setattr(time, "sleep", sleep)
    assert cli.main(["logs", "ingest", "-n", "0", "--follow"]) == 130
    assert capsys.readouterr().out.splitlines() == ["ingest: begun and ended", "ingest: emptied"]


@pytest.mark.parametrize("options", [[], ["--raw"]])
def test_characters_that_act_on_a_terminal_are_escaped(
    folder: Path, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "ingest.log").write_text("a\x1b[31m \u202eb\n" + entry(1, why="\x1b[31m") + "\n")
    assert cli.main(["logs", "ingest", *options]) == 0
    shown = capsys.readouterr().out
    assert not {"\x1b", "\u202e"} & set(shown)
    assert "\\u202e" in shown


@pytest.mark.usefixtures("folder")
def test_a_shell_completes_parts() -> None:
    (parameter, *_) = node_commands.logs_command.params
    items = parameter.shell_complete(click.Context(node_commands.logs_command), "ka")
    assert [item.value for item in items] == ["kafka"]
