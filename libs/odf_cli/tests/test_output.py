import datetime as dt
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click
import pyarrow as pa
import pytest
from rich.cells import cell_len

from odf_cli.commands import rejected
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
from odf_cli.table_layout import Layout, column, cut, fields_of, laid_out
from odf_common.data.json_values import plain, record_rows
from odf_common.proto.odf.node.v1.ingest_pb2 import RejectedPart

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


FAR = 1 << 40


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([1, FAR >> 10], pa.date32()), [dt.date(1970, 1, 2), "1073741824 date32[day]"]),
        (pa.array([FAR], pa.timestamp("s")), [f"{FAR} timestamp[s]"]),
        (pa.array([1], pa.timestamp("s", "Nowhere/Else")), ["1 timestamp[s, tz=Nowhere/Else]"]),
        (pa.array([FAR * FAR >> 20], pa.duration("s")), [f"{FAR * FAR >> 20} duration[s]"]),
        (
            pa.array([[1, 1 << 30], None], pa.list_(pa.date32())),
            [[dt.date(1970, 1, 2), "1073741824 date32[day]"], None],
        ),
        (pa.array([{"a": 1 << 30}], pa.struct([("a", pa.date32())])), [{"a": "1073741824 date32[day]"}]),
    ],
)
def test_times_that_python_has_no_value_for_are_shown_as_numbers(
    column: pa.Array, expected: list[object]
) -> None:
    rows = list(record_rows(pa.table({"number": range(len(column)), "time": column})))
    assert [row["time"] for row in rows] == expected
    assert [row["number"] for row in rows] == list(range(len(column)))
    plain(rows)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (b"1,a", "1,a"),
        ("1,Tromsø".encode(), "1,Tromsø"),
        (b"PAR1\0\0", "(binary, 6 bytes)"),
        (b"\xff\xfe1", "(binary, 3 bytes)"),
    ],
)
def test_a_binary_value_is_shown_by_its_size(value: bytes, shown: str) -> None:
    message = RejectedPart.Message(value=value, size=len(value))
    assert rejected._one_line(rejected._row(message)) == shown


Cells = Mapping[str, Sequence[Any]]
HASH = f"f1620{'0123456789abcdef' * 4}"
TIMES = ["2013-01-01T05:00:00Z", "2013-01-01T05:00:00.123Z"]


def table(cells: Cells, width: int | None, *extra: str) -> Layout:
    columns = [
        column(name, [str(one) for one in held], is_numeric=isinstance(held[0], int))
        for name, held in cells.items()
    ]
    found = laid_out(columns, width, extra)
    assert width is None or all(cell_len(line) <= width for line in found.lines)
    return found


def test_a_table_that_fits_is_printed_unchanged() -> None:
    found = table({"alias": ["a.b", "c"], "records": [1, 1000]}, 80)
    assert found == Layout(lines=("alias  records", "─────  ───────", "a.b          1", "c         1000"))


def test_names_are_cut_and_times_and_numbers_are_not() -> None:
    cells: Cells = {
        "block": [7, 123456],
        "systemTime": TIMES,
        "event": ["AddData", "Seed"],
        "hash": [HASH, HASH],
    }
    found = table(cells, 80)
    assert found.is_cut
    assert "123456  2013-01-01T05:00:00.123Z  Seed" in found.lines[-1]
    assert "…" in found.lines[-1]
    assert found.lines[-1].endswith(HASH[-8:])
    assert table(cells, None).lines[-1].endswith(HASH)


def test_columns_that_may_go_are_left_out_before_names_become_illegible() -> None:
    cells: Cells = {"alias": ["n" * 40], "watermark": TIMES[:1], "blocks": [17], "updated": TIMES[1:]}
    found = table(cells, 50, "blocks", "updated")
    assert found.left_out == ("updated",)
    assert table(cells, 44, "blocks", "updated").left_out == ("blocks", "updated")


def test_many_columns_are_printed_in_parts_with_the_first_in_each() -> None:
    cells = {f"a_rather_long_name_{n}": [n, n] for n in range(23)}
    found = table({"offset": [1, 2], "event_time": TIMES, **cells}, 80)
    text = "\n".join(found.lines)
    assert found.parts > 1
    assert text.count("offset") == found.parts
    assert all(name in text for name in cells)
    assert all(time in text for time in TIMES)
    assert not found.is_cut


def test_one_long_value_does_not_take_the_space_of_others() -> None:
    found = table({"offset": [1], "text": ["x" * 5000], "city": ["Oslo"]}, 40)
    assert "Oslo" in found.lines[-1]
    assert found.is_cut


def test_headers_wider_than_the_terminal_are_cut_too() -> None:
    found = table({"k": [1, 2], "h" * 200: [1, 2], "t": ["x", "y"]}, 40)
    assert "hhh…hhh" in "".join(found.lines)


def test_wide_characters_keep_columns_straight() -> None:
    found = table({"city": ["東京都千代田区霞が関", "Oslo"], "n": [1, 2]}, 18)
    assert {cell_len(line) for line in found.lines[2:]} == {18}


@pytest.mark.parametrize("text", ["a\nb", "a\x1b[31mb", "a\rb", "a\x00b"])
def test_control_characters_have_no_effect_on_the_terminal(text: str) -> None:
    shown = "".join(table({"t": [text]}, 80).lines)
    assert shown.isprintable()


def test_fields_break_between_words_and_hashes_stay_whole() -> None:
    pairs = {
        "head": HASH,
        "a_name_that_is_long": HASH,
        "problem": "it has read block " + "what it said " * 12,
    }
    lines = fields_of(pairs, 80)
    assert all(len(line) <= 80 for line in lines)
    assert sum(HASH in line for line in lines) == 2
    assert " ".join(line.strip() for line in lines).split().count("what") == 12
    assert fields_of({"a": "x y\nz"}, None) == ("a  x y", "   z")


def test_names_and_hashes_lose_their_middle_and_words_their_end() -> None:
    assert cut("com.example.flights.by-airport", 20) == "com.example.f…irport"
    assert cut(HASH, 25) == f"{HASH[:16]}…{HASH[-8:]}"
    assert cell_len(cut("東京都千代田区霞が関", 15)) <= 15


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (12, "all went…"),
        (14, "all went well…"),
        (15, "all went well…"),
        (18, "all went well, as…"),
        (19, "all went well, as…"),
        (27, "all went well, as it…"),
        (9, "all went…"),
        (6, "all w…"),
    ],
)
def test_sentences_lose_whole_words_if_enough_is_left(width: int, shown: str) -> None:
    text = "all went well, as it should"
    assert cut(text + "!", width) == shown
    assert cut('{"event_time":"2020-01-01T00:00:00Z" }', 20) == '{"event_time":"2020…'
    assert cut("東京都 千代田区霞が関", 8) == "東京都…"
    assert cut("a b東京都千代田区霞が関", 9) == "a b東京…"


def test_columns_with_long_headers_are_printed_one_line_per_field_if_that_is_shorter() -> None:
    cells = {f"a_header_that_is_far_longer_than_any_of_its_values_{n}": [n, n] for n in range(22)}
    found = table({"offset": [1, 2], **cells}, 80)
    assert (found.parts, len(found.lines)) == (0, 2 * 23 + 1)
