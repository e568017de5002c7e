"""Output on a terminal of 80 columns and into a pipe."""

import datetime as dt
import json
import sys

import click
import pyarrow as pa
import pytest

from odf_cli.output import (
    Declined,
    confirm,
    output_option,
    print_bytes,
    print_object,
    print_rows,
    shorten_rows,
)
from odf_cli.rows import print_records

RECORDS = 3
NAMES = [f"scheduled_departure_{number}_local" for number in range(19)]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Be a terminal of 80 columns with colours."""
    del capsys  # first, since it puts a stream in the place of stdout
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda _: True)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)


def flights(ops: list[int]) -> pa.Table:
    """Return records of 23 columns."""
    time = pa.array([dt.datetime(2013, 1, 1, 5, tzinfo=dt.UTC)] * len(ops), pa.timestamp("ms", "UTC"))
    system = {
        "offset": pa.array(range(len(ops)), pa.uint64()),
        "op": pa.array(ops, pa.uint8()),
        "system_time": time,
        "event_time": time,
    }
    return pa.table({**system, **{name: ["some words"] * len(ops) for name in NAMES}})


@pytest.mark.usefixtures("terminal")
def test_records_of_23_columns_are_all_shown_on_80(capsys: pytest.CaptureFixture[str]) -> None:
    print_records(flights([0, 1, 3]), "table")
    shown = capsys.readouterr()
    assert all(len(line) <= 80 for line in shown.out.splitlines())
    assert all(name in shown.out for name in ("event_time", *NAMES))
    assert shown.out.count("2013-01-01T05:00:00Z") == RECORDS
    assert shown.out.count("2013-01-01T05:00:00.000Z") == RECORDS
    assert shown.out.count("some words") == len(NAMES) * RECORDS
    assert [mark for mark in ("+A", "-R", "-C", "+C") if mark in shown.out] == ["+A", "-R", "+C"]
    assert shown.err.startswith("(23 columns are split into ")


@pytest.mark.usefixtures("terminal")
def test_one_record_of_many_columns_is_printed_one_line_per_field(capsys: pytest.CaptureFixture[str]) -> None:
    print_records(flights([2]), "table")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(NAMES) + 4
    assert lines[1].split() == ["op", "-C"]


def test_a_pipe_gets_one_line_per_record_and_json_the_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    print_records(flights([0, 3]), "table")
    assert len(capsys.readouterr().out.splitlines()) == 2 + 2
    print_records(flights([0, 3]), "json")
    assert [row["op"] for row in json.loads(capsys.readouterr().out)] == [0, 3]


def test_a_count_that_is_called_op_is_a_number(capsys: pytest.CaptureFixture[str]) -> None:
    print_records(pa.table({"op": [1]}), "table")
    assert capsys.readouterr().out.splitlines()[-1].strip() == "1"


@pytest.mark.usefixtures("terminal")
def test_wide_cuts_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    @click.command()
    @output_option
    def command(output: str) -> None:
        print_rows([{"a": "x" * 100, "b": "y" * 100}], output)

    command(["--wide"], standalone_mode=False)
    assert "x" * 100 + "  " + "y" * 100 in capsys.readouterr().out
    command([], standalone_mode=False)
    shown = capsys.readouterr()
    assert all(len(line) <= 80 for line in shown.out.splitlines())
    assert shown.err == "(… marks truncated text; --wide shows all)\n"


@pytest.mark.usefixtures("terminal")
def test_verdicts_have_colours_on_a_terminal_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"dataset": "a", "verdict": "valid"}, {"dataset": "b", "verdict": "invalid"}]
    print_rows(rows, "table")
    shown = capsys.readouterr().out
    assert click.style("valid", fg="green") in shown
    assert click.style("invalid", fg="red") in shown
    print_rows([{"source": "default", "state": "reading"}], "table")
    assert click.style("reading", fg="green") in capsys.readouterr().out
    monkeypatch.setenv("NO_COLOR", "1")
    print_rows(rows, "table")
    assert "\x1b" not in capsys.readouterr().out


@pytest.mark.usefixtures("terminal")
def test_columns_that_are_left_out_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    row = {
        "alias": "a" * 40,
        "records": 1,
        "problem": "p" * 60,
        "blocks": 1,
        "updated": "2013-01-01T05:00:00Z",
    }
    print_rows([row, row], "table", extra=("blocks", "updated"))
    assert "left out: blocks; … marks truncated text" in capsys.readouterr().err


def test_no_at_a_prompt_changes_nothing_and_is_not_an_abort(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("click.termui.visible_prompt_func", lambda _: "n")
    with pytest.raises(Declined) as declined:
        confirm("Delete it?")
    declined.value.show()
    assert declined.value.exit_code == 1
    assert capsys.readouterr().err.endswith("nothing was changed\n")


def test_a_prompt_without_a_terminal_is_misuse(monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(_: str) -> str:
        raise EOFError

    monkeypatch.setattr("click.termui.visible_prompt_func", closed)
    with pytest.raises(click.UsageError, match="--yes"):
        confirm("Delete it?")


def test_one_object_is_printed_one_line_per_field(capsys: pytest.CaptureFixture[str]) -> None:
    print_object({"home": "/h", "kafka": None}, "table")
    assert capsys.readouterr().out == "home   /h\nkafka\n"


def test_numbers_that_json_does_not_have_are_shown_alike_inside_and_outside_of_lists(
    capsys: pytest.CaptureFixture[str],
) -> None:
    numbers = pa.array([[float("nan"), 1.5, float("-inf"), None]])
    table = pa.table({"one": [float("nan")], "list": numbers, "text": [["nan"]]})
    print_records(table, "table")
    assert capsys.readouterr().out.splitlines()[-1] == 'nan  [nan, 1.5, -inf, null]  ["nan"]'
    print_records(table, "json")
    (row,) = json.loads(capsys.readouterr().out)
    assert row == {"one": "nan", "list": ["nan", 1.5, "-inf", None], "text": ["nan"]}


def test_bytes_reach_a_pipe_as_they_are_and_a_terminal_as_text(
    capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    print_bytes(b"a\xff\x1b[0m")
    assert capsysbinary.readouterr().out == b"a\xff\x1b[0m\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    print_bytes(b"a\xff\x1b[0m")
    assert capsysbinary.readouterr().out == b"a\\xff\\x1b[0m\n"


@pytest.mark.parametrize(
    ("column", "times", "shown"),
    [
        ("system_time", ("04:36:22Z",), ("04:36:22.000Z",)),
        ("at", ("04:36:22Z", "04:36:22.013Z", None), ("04:36:22.000Z", "04:36:22.013Z", "")),
        ("at", ("04:36:22Z", "04:36:23Z"), ("04:36:22Z", "04:36:23Z")),
        ("at", ("04:36:22Z", "04:36:22.000001Z"), ("04:36:22.000000Z", "04:36:22.000001Z")),
        ("at", ("04:36:22Z, about", "04:36:22.013Z"), ("04:36:22Z, about", "04:36:22.013Z")),
    ],
)
def test_times_of_a_column_have_one_shape(
    capsys: pytest.CaptureFixture[str], column: str, times: tuple[str | None, ...], shown: tuple[str, ...]
) -> None:
    day = "2026-11-29T"
    print_rows([{column: None if time is None else day + time} for time in times], "table")
    assert [line.strip() for line in capsys.readouterr().out.splitlines()[2:]] == [
        day + time if time else "" for time in shown
    ]


def test_a_pipe_gets_whole_texts(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"reason": "so " * 100 + "it ends"}]
    print_rows(shorten_rows(rows, "reason"), "table")
    assert "it ends" in capsys.readouterr().out


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize("length", [10, 500])
def test_a_column_that_is_to_stay_whole_is_wrapped_instead_of_truncated(
    capsys: pytest.CaptureFixture[str], length: int
) -> None:
    words = [f"w{number}" for number in range(length)]
    print_rows([{"at": "0/1", "value": "v" * 60, "reason": " ".join(words)}], "table", whole=("reason",))
    shown = capsys.readouterr().out
    assert [word for word in shown.split() if word in words] == words
    assert all(len(line) <= 80 for line in shown.splitlines())
