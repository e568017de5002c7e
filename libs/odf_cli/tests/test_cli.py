import base64
import json
import resource
import subprocess
import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import click
import pyarrow as pa
import pytest

from odf_cli import main as cli
from odf_cli.output import print_object, print_rows
from odf_cli.suggestions import CommandGroup
from odf_common.data.json_values import plain
from odf_common.errors import InvalidInput, OdfError, Unavailable, VerificationFailed

ODF = Path(sys.executable).with_name("odf")


def test_help_names_the_commands_and_gives_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert "odf up --detach" in shown
    assert all(f"\n  {name} " in shown for name in ("up", "down", "status", "config"))


def test_every_command_has_help_with_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    names = cli.odf.list_commands(click.Context(cli.odf))
    assert names
    for name in names:
        assert cli.main([name, "--help"]) == 0
        assert "Example" in capsys.readouterr().out, name


def test_help_imports_no_sdk() -> None:
    code = (
        "import sys; from odf_cli.main import main; main(['--help']);"
        "print([n for n in ('grpc','pyarrow','confluent_kafka','rich','yaml') if n in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert done.stderr.decode().strip() == "[]"


def test_records_are_read_without_numpy() -> None:
    code = (
        "import base64, sys; from odf_cli.rows import arrow_table, print_records; "
        "print_records(arrow_table([base64.b64decode(sys.stdin.read())]), 'json'); sys.exit('numpy' in sys.modules)"
    )
    table = pa.table({"at": pa.array([1], pa.timestamp("ns", "UTC")), "of": [[1.5]], "raw": [b"a"]})
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, table.schema) as writer:
        writer.write_table(table)
    sent = base64.b64encode(stream.getvalue()).decode()
    command = [sys.executable, "-c", code]
    shown = subprocess.run(command, input=sent, capture_output=True, text=True, check=True).stdout
    assert json.loads(shown) == [{"at": "1970-01-01T00:00:00.000000001Z", "of": [1.5], "raw": "YQ=="}]


@pytest.mark.parametrize("module", ["odf_common.errors", "click", "odf_cli.commands.list", "grpc"])
def test_ctrl_c_during_an_import_is_130_and_no_traceback(module: str) -> None:
    code = f"""
import os, signal, sys
class Interrupting:
    def find_spec(self, name, *_):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background it is ignored
sys.meta_path.insert(0, Interrupting())
sys.argv = ["odf", "list"]
from odf_cli.entrypoint import main
sys.exit(main())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert (done.returncode, done.stderr, done.stdout) == (130, b"\naborted\n", b"")


def test_ctrl_c_shows_no_traceback_of_a_background_thread() -> None:
    code = """
import os, signal, threading, time
signal.signal(signal.SIGINT, signal.default_int_handler)
from odf_cli.exit_codes import importing
with importing():
    pass
def fail():
    thread = threading.Thread(target=lambda: 1 / 0, daemon=True)
    thread.start()
    thread.join()
fail()
print(flush=True)
try:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(60)
except KeyboardInterrupt:
    fail()
    print("ended")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout == "\nended\n"
    assert done.stderr.count("ZeroDivisionError") == 1  # the one before Ctrl-C


@pytest.mark.parametrize(
    "error", [RuntimeError("cannot release un-acquired lock"), Unavailable(what="ingest", why="canceled")]
)
def test_an_error_caused_by_ctrl_c_exits_with_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        try:
            raise KeyboardInterrupt
        finally:
            raise error

    monkeypatch.setattr(cli.odf, "main", interrupted)
    assert cli.main(["list"]) == 130
    assert capsys.readouterr().err == "aborted\n"


def test_help_is_quick() -> None:
    # CPU time: what else the machine does is not counted.
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    for _ in range(3):
        subprocess.run([str(ODF), "--help"], capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 3 * 0.25


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("odf 0.")


@pytest.mark.parametrize("arguments", [["bakery"], ["status", "--bakery"], ["status", "--output", "xml"]])
def test_misuse_is_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments) == 2
    assert "Usage" in capsys.readouterr().err


def test_a_destination_without_its_option_is_proposed_with_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["push", "orders", "file:///srv/orders"]) == 2
    assert "the destination is an option: --to file:///srv/orders" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "proposed"),
    [
        (["lst"], "list"),
        (["inspect", "shema"], "schema"),
        (["source", "resum"], "resume"),
        (["query"], "sql"),
        (["export"], "odf push DATASET --to file:///FOLDER, or odf sql QUERY --output json"),
        (["ls"], "list"),
    ],
)
def test_a_misspelled_command_proposes_the_nearest(
    arguments: list[str], proposed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) == 2
    wrong = arguments[-1]
    assert f"No such command {wrong!r}. Did you mean {proposed}?\n" in capsys.readouterr().err


def test_a_command_like_no_other_is_only_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["xyz"]) == 2
    assert capsys.readouterr().err.endswith("No such command 'xyz'.\n")


def test_every_group_proposes_commands() -> None:
    context = click.Context(cli.odf)
    commands = [cli.odf.get_command(context, name) for name in cli.odf.list_commands(context)]
    groups = [command for command in commands if isinstance(command, click.Group)]
    assert groups
    assert [group.name for group in groups if not isinstance(group, CommandGroup)] == []


class Advised(OdfError):
    """It is wrong."""

    def advice(self) -> str:
        return "do this"


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (InvalidInput(text="bad"), 1, "error: bad\n"),
        (VerificationFailed(), 3, "error: Stored data does not match what the chain declares\n"),
        (Advised(), 1, "error: It is wrong\nhint: do this\n"),
        (InvalidInput(text="a\x1b[31m\x9b\r\n\tb\x00"), 1, "error: a\\x1b[31m\\x9b\\r\n\tb\\x00\n"),
        (KeyboardInterrupt(), 130, "\naborted\n"),
    ],
)
def test_errors_are_one_sentence_and_advice(
    error: BaseException,
    code: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    @click.command()
    def command() -> None:
        raise error

    monkeypatch.setattr(cli.Commands, "get_command", lambda *_: command)
    assert cli.main(["config"]) == code
    assert capsys.readouterr().err == said


def test_wrong_settings_are_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ODF_KAFKA", "nonsense")
    assert cli.main(["config"]) == 1
    assert "ODF_KAFKA" in capsys.readouterr().err


def test_config_shows_settings_as_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ODF_REDIS", "redis://:secret@h:1/0")
    assert cli.main(["config", "--output", "json"]) == 0
    rows = {row["variable"]: row["value"] for row in json.loads(capsys.readouterr().out)}
    assert rows["ODF_REDIS"] == "redis://:***@h:1/0"


def test_values_become_plain() -> None:
    assert plain(datetime(2020, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)) == "2020-01-02T03:04:05.678Z"
    assert plain(datetime(2020, 1, 2)) == "2020-01-02T00:00:00Z"  # noqa: DTZ001
    assert plain(date(2020, 1, 2)) == "2020-01-02"
    assert plain(Decimal("1.10")) == "1.10"
    assert plain(b"\x00") == "AA=="
    assert plain(float("nan")) == "nan"
    assert plain({"a": [1, None, True, 1.5, "x"]}) == {"a": [1, None, True, 1.5, "x"]}


def test_rows_are_printed_in_each_form(capsys: pytest.CaptureFixture[str]) -> None:
    rows: list[dict[str, object]] = [{"name": "a[b]", "count": 1}, {"name": "b", "count": None}]
    print_rows(rows, "json")
    assert json.loads(capsys.readouterr().out) == rows
    print_rows(rows, "yaml")
    assert capsys.readouterr().out == "- name: a[b]\n  count: 1\n- name: b\n  count: null\n"
    print_rows(rows, "table")
    assert "a[b]" in capsys.readouterr().out
    print_rows([], "json")
    assert capsys.readouterr().out == "[]\n"
    print_object({"a": 1}, "json")
    assert json.loads(capsys.readouterr().out) == {"a": 1}


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    done = subprocess.run(f"'{ODF}' config | head -1", shell=True, capture_output=True, check=True)  # noqa: S602
    assert done.stderr == b""


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_are_printed(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["completion", shell]) == 0
    assert "_ODF_COMPLETE" in capsys.readouterr().out


def test_topics_are_printed_without_kafka_and_without_secrets(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ODF_KAFKA", "127.0.0.1:1")
    monkeypatch.setenv("ODF_KAFKA_PREFIX", "team.")
    monkeypatch.setenv("ODF_KAFKA_REPLICATION_FACTOR", "3")
    assert cli.main(["topics", "--output", "json"]) == 0
    rows = {row.pop("topic"): row for row in json.loads(capsys.readouterr().out)}
    assert rows["team.odf.node.v1"] == {"partitions": 1, "replication": "3", "config": "retention.ms=-1"}
    assert all(name.startswith("team.") for name in rows)
