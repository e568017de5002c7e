"""Any Arrow value is printed, as a table, JSON and YAML: no committed value fails a command that shows it."""

import json
from decimal import Decimal

import pyarrow as pa
import pytest
import yaml
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from odf_testing.profiles import examples

from odf_cli.rows import print_records
from odf_common.data.json_values import record_rows

UNITS = ("s", "ms", "us", "ns")
FIXED = [
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.float16(), pa.float32(), pa.float64(), pa.date32(), pa.date64()),
    *(pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")),
    *(pa.duration(unit) for unit in UNITS),
    *(
        pa.timestamp(unit, zone)
        for unit in UNITS
        for zone in (None, "UTC", "+02:00", "Europe/Oslo", "Europe", "No/where", "+99:99", "../../x")
    ),
    *(pa.decimal128(38, 3), pa.decimal256(76, -5), pa.decimal128(5, 2)),
    *(pa.binary(3), pa.month_day_nano_interval()),
]
VARIABLE = [pa.string(), pa.binary()]
ODD = (
    b"\x00" * 32,
    b"\xff" * 32,
    (b"\xff" * 7 + b"\x7f") * 4,
    (b"\x00" * 7 + b"\x80") * 4,
    b"\x1b]0;title\x07\x9b31m" * 3,
)


@st.composite
def columns(draw: st.DrawFn) -> pa.Array:
    raw = draw(st.sampled_from(ODD) | st.binary(min_size=32, max_size=32))
    if draw(st.booleans()):
        kind = draw(st.sampled_from(FIXED))
        column = pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(raw)])
    else:
        length = draw(st.integers(0, 32))
        offsets = (0).to_bytes(4, "little") + length.to_bytes(4, "little")
        kind = draw(st.sampled_from(VARIABLE))
        column = pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(offsets), pa.py_buffer(raw)])
    try:
        return _inside(column, draw(st.sampled_from(SHAPES)))
    except pa.ArrowInvalid:  # half a day in date64: not even Arrow builds it
        reject()


SHAPES = ("plain", "list", "large list", "fixed list", "struct", "twins", "map", "run", "dictionary", "union")


def _inside(column: pa.Array, shape: str) -> pa.Array:
    """Return an array of one value that contains the value of a column."""
    offsets = pa.array([0, 1], pa.int32())
    match shape:
        case "list":
            return pa.ListArray.from_arrays(offsets, column)
        case "large list":
            return pa.LargeListArray.from_arrays(offsets.cast(pa.int64()), column)
        case "fixed list":
            return pa.FixedSizeListArray.from_arrays(column, 1)
        case "struct":
            return pa.StructArray.from_arrays([column], ["a"])
        case "twins":
            return pa.StructArray.from_arrays([column, column], ["a", "a"])
        case "map":
            return pa.MapArray.from_arrays(offsets, pa.array(["a"]), column)
        case "run":
            return pa.RunEndEncodedArray.from_arrays(pa.array([1], pa.int32()), column)
        case "dictionary":
            return pa.DictionaryArray.from_arrays(pa.array([0], pa.int8()), column)
        case "union":
            return pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [column])
        case _:
            return column


@settings(max_examples=examples(600))
@given(columns(), st.sampled_from(["table", "json", "yaml"]))
def test_every_value_is_shown(column: pa.Array, output: str) -> None:
    print_records(pa.table({"number": [1], "op": [0], "value": column}), output)


@pytest.mark.parametrize("kind", FIXED, ids=str)
def test_odd_values_of_every_type_are_shown_as_json_and_yaml(
    kind: pa.DataType, capsys: pytest.CaptureFixture[str]
) -> None:
    for raw in ODD:
        table = pa.table({"value": pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(raw)])})
        print_records(table, "json")
        (row,) = json.loads(capsys.readouterr().out, parse_constant=_refuse)
        print_records(table, "yaml")
        assert len(yaml.safe_load(capsys.readouterr().out)) == 1
        assert list(row) == ["value"]


def _refuse(text: str) -> object:
    raise ValueError(f"{text} is not JSON")


def test_no_control_character_reaches_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    table = pa.table({"value": ["\x1b]0;title\x07", "\x9b31mred", "a\r\nb\x7f"]})
    for output in ("table", "json", "yaml"):
        print_records(table, output)
        shown = capsys.readouterr().out
        assert not set(shown) & set("\x1b\x9b\x07\r\x7f"), output
        if output == "json":
            assert [row["value"] for row in json.loads(shown)] == table["value"].to_pylist()


def test_nanoseconds_are_shown_whole() -> None:
    table = pa.table(
        {
            "at": pa.array([1], pa.timestamp("ns", "UTC")),
            "time": pa.array([1], pa.time64("ns")),
            "in": pa.array([[1]], pa.list_(pa.timestamp("ns"))),
        }
    )
    (row,) = record_rows(table)
    text = "1970-01-01T00:00:00.000000001Z"
    assert (str(row["at"]), row["time"]) == (text, "00:00:00.000000001")
    assert [str(one) for one in row["in"]] == [text]  # type: ignore[attr-defined]


def test_columns_of_one_name_are_all_shown(capsys: pytest.CaptureFixture[str]) -> None:
    table = pa.Table.from_arrays([pa.array([1]), pa.array([Decimal("2.50")])], names=["a", "a"])
    print_records(table, "json")
    assert json.loads(capsys.readouterr().out) == [{"a": 1, "a_2": "2.50"}]
    print_records(table, "table")
    assert "a_2" in capsys.readouterr().out


def test_text_that_is_not_utf_8_is_shown_with_escapes() -> None:
    offsets = bytes(4) + (3).to_bytes(4, "little")
    column = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(offsets), pa.py_buffer(b"a\xffb")])
    (row,) = record_rows(pa.table({"value": column}))
    assert row["value"] == "a\\xffb"
