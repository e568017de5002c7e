"""A value that does not fit is named: line or record, column, the value (short, printable) and the type."""

import json

import pytest

from odf_common.data.ddl import ddl_to_schema
from odf_common.errors import InvalidInput
from odf_common.metadata.steps import ReadStep, ReadStepCsv, ReadStepJson, ReadStepNdJson
from odf_ingest.read import read_batch, read_records
from odf_ingest.read.csv_format.csv_parse import misfits
from odf_ingest.read.encoding import BOM
from odf_ingest.read.json_formats.json_lines import misfits as json_misfits
from odf_ingest.read.types.kinds import TimeFormats

GOOD = {
    "i": 1,
    "d": 1.5,
    "n": "1.25",
    "t": "2020-01-01T00:00:00Z",
    "day": "2020-01-01",
    "b": True,
    "tm": "10:00",
    "u": "123e4567-e89b-12d3-a456-426614174000",
}
TYPES = {
    "i": "INT",
    "d": "DOUBLE",
    "n": "DECIMAL(5, 2)",
    "t": "TIMESTAMP(3)",
    "day": "DATE",
    "b": "BOOLEAN",
    "tm": "TIME",
    "u": "UUID",
}
SCHEMA = ddl_to_schema([f"{name} {type_}" for name, type_ in TYPES.items()])
EXPECTED = {name: f"is not a value of {type_}" for name, type_ in TYPES.items()}
EXPECTED |= {"tm": "is not a time of day, such as 23:59:59.999", "u": "is not a UUID, such as 123e4567"}
LONG = "it's \x07\x1b[31m 北京 " + "z" * 5000


def csv_line(row: dict[str, object]) -> bytes:
    values = (str(value).lower() if isinstance(value, bool) else str(value) for value in row.values())
    return ",".join(f'"{value}"' for value in values).encode()


@pytest.mark.parametrize("column", GOOD)
@pytest.mark.parametrize("bad", ["soon", LONG])
@pytest.mark.parametrize("step", [ReadStepCsv(), ReadStepNdJson(), ReadStepJson()])
def test_a_value_that_does_not_fit_is_named(step: ReadStep, column: str, bad: str) -> None:
    rows = [GOOD, GOOD, {**GOOD, column: bad}, GOOD]
    written = [csv_line(row) if isinstance(step, ReadStepCsv) else json.dumps(row).encode() for row in rows]
    file = b"[" + b",".join(written) + b"]" if isinstance(step, ReadStepJson) else b"\n".join(written)
    with pytest.raises(InvalidInput) as refused:
        read_batch(step, file, SCHEMA)
    place = "line 1, record 3" if isinstance(step, ReadStepJson) else "line 3"
    quoted = repr(bad) if len(repr(bad)) <= 80 else f"{repr(bad)[:80]}…"
    assert str(refused.value).startswith(f"{place}: column {column}: {quoted} {EXPECTED[column]}")
    with pytest.raises(InvalidInput) as alone:
        read_records(step, [written[2]], SCHEMA)
    assert f"{place}: {alone.value}" == str(refused.value)


def test_rows_of_csv_that_do_not_fit_are_found_together() -> None:
    """Trying each of them alone is slow; a boolean is the only type whose bad values are not found."""
    columns = [column for column in GOOD if column != "b"]
    schema = ddl_to_schema([f"{column} {TYPES[column]}" for column in columns])
    good = {column: GOOD[column] for column in columns}
    bad = [csv_line({**good, column: "soon"}) for column in columns]
    bad += [csv_line({**good, "more": 1}), b'"\xff"' + b",1" * (len(columns) - 1)]
    rows = [row for one in bad for row in (csv_line(good), one)]

    assert misfits(ReadStepCsv(), rows, schema) == set(range(1, len(rows), 2))


def test_rows_of_csv_without_a_number_and_empty_rows_hide_no_others() -> None:
    schema = ddl_to_schema(["a INT", "b DOUBLE"])
    assert misfits(ReadStepCsv(), [b"1,", b",2", b",", b"x,", b"1"], schema) == {3, 4}
    alone = ddl_to_schema(["a INT"])
    assert 1 not in misfits(ReadStepCsv(), [b"", b"1", b"x"], alone)
    assert misfits(ReadStepCsv(), [b"1,2", b"3,4"], alone) == {0, 1}


@pytest.mark.parametrize("nested", ["ARRAY<INT>", "STRUCT<x INT>"])
def test_a_nested_column_is_refused_in_csv_with_its_line(nested: str) -> None:
    schema = ddl_to_schema(["a INT", f"b {nested}"])
    with pytest.raises(InvalidInput, match=r"^line 1: CSV conversion to .* is not supported$"):
        read_batch(ReadStepCsv(), b"1,2\n3,4\n", schema)
    assert misfits(ReadStepCsv(), [b"1,2", b"x,2"], schema) == {1}


def test_records_of_json_that_do_not_fit_are_found_together_with_separate_reasons() -> None:
    good = json.dumps(GOOD).encode()
    named = {
        json.dumps({**GOOD, column: "soon"}).encode(): f"column {column}: 'soon' {EXPECTED[column]}"
        for column in GOOD
    }
    named[b"{}"] = "has none of the columns"
    unnamed = [
        b"junk",
        b"[1]",
        good + good,
        good.replace(b"true", b"tru"),
        good.replace(b'"i"', b'"d"'),  # twice
        b'{"i":1,"x":' + b"[" * 40 + b"]" * 40 + b"}",
        b'{"i":1,"x":"\\ud800"}',
        b'{"i":1,"x":"\xff"}',
    ]
    rows = [row for bad in (*named, *unnamed) for row in (good, bad)] + [BOM + good]

    found = json_misfits(rows, SCHEMA, TimeFormats())

    assert found.keys() == set(range(1, len(rows) - 1, 2))
    for row, expected in enumerate(named.values()):
        assert str(found[2 * row + 1]).startswith(expected)
    assert [found[2 * row + 1] for row in range(len(named), len(named) + len(unnamed))] == [None] * len(
        unnamed
    )
    assert json_misfits(rows, None, TimeFormats()) == dict.fromkeys(range(len(rows)))


def test_a_line_with_too_many_values_is_short_and_printable() -> None:
    line = b"1,2,\x1b[31m" + b"z" * 5000
    with pytest.raises(
        InvalidInput, match=r"^line 1: has 3 values instead of 2 \(a, b\): 1,2,\\x1b\[31mz"
    ) as refused:
        read_batch(ReadStepCsv(), line, ddl_to_schema(["a INT", "b INT"]))
    assert len(str(refused.value)) < 300
    assert str(refused.value).isprintable()


@pytest.mark.parametrize(
    ("type_", "fits", "too_large"),
    [
        ("TINYINT", "-128", "-129"),
        ("INT", "2147483647", "2147483648"),
        ("INT UNSIGNED", "4294967295", "4294967296"),
        ("BIGINT", "-9223372036854775808", "9223372036854775808"),
        ("DECIMAL(4, 2)", "-99.99", "100.00"),
        ("FLOAT", "3.4e38", "3.5e38"),
    ],
)
@pytest.mark.parametrize("step", [ReadStepCsv(), ReadStepNdJson()])
def test_a_number_that_is_too_large_for_its_column_names_the_ways_that_exist(
    step: ReadStep, type_: str, fits: str, too_large: str
) -> None:
    schema = ddl_to_schema([f"n {type_}"])

    def read(value: str) -> None:
        line = f'"{value}"' if isinstance(step, ReadStepCsv) else f'{{"n": {value}}}'
        read_records(step, [line.encode()], schema)

    read(fits)
    with pytest.raises(
        InvalidInput, match=r"it is too large; a column keeps its type.* new column .* new dataset"
    ):
        read(too_large)
    with pytest.raises(InvalidInput) as other:
        read('"soon"' if isinstance(step, ReadStepNdJson) else "soon")
    assert "too large" not in str(other.value)
