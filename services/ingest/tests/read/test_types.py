"""Types of the specification's DDL table without literals in text formats, at any depth, from every such format."""

import datetime as dt
import json
import time
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest

from odf_common.data.ddl import ddl_to_schema
from odf_common.errors import InvalidInput
from odf_common.metadata.events import ReadStep, ReadStepCsv, ReadStepJson, ReadStepNdJson
from odf_ingest.prepare.plan import declared_schema
from odf_ingest.read import read_batch, read_records
from odf_ingest.read.json_formats.json_lines import parse_objects
from odf_ingest.read.types.columns import unconvertible
from odf_ingest.read.types.conversions import first_refused
from odf_ingest.read.types.kinds import TimeFormats, ValueKind
from odf_ingest.read.types.type_names import type_name
from odf_ingest.read.types.uuids import to_uuids

ID = "123e4567-e89b-12d3-a456-426614174000"
TIMESTAMP = dt.datetime(2020, 1, 1, 0, 0, 0, 123_000, dt.UTC)
FLAT = [
    ("UUID", ID, UUID(ID)),
    ("UUID", ID.upper(), UUID(ID)),
    ("TIME", "12:34:56.7891", dt.time(12, 34, 56, 789_000)),
    ("TIME(0)", "12:34", dt.time(12, 34)),
    ("TIME(6)", "23:59:59.999999999999", dt.time(23, 59, 59, 999_999)),
    ("DECIMAL(50, 2)", "1.25", Decimal("1.25")),
    ("DATE", "0868-01-01", dt.date(868, 1, 1)),
]
NESTED = [
    ("UUID[]", [ID, None], [UUID(ID), None]),
    ("TIME[]", ["12:34"], [dt.time(12, 34)]),
    ("DATE[]", ["2020-01-02"], [dt.date(2020, 1, 2)]),
    ("TIMESTAMP[]", ["2020-01-01T02:00:00.123+02:00"], [TIMESTAMP]),
    ("DATE[][]", [["2020-01-02"], None, []], [[dt.date(2020, 1, 2)], None, []]),
    (
        "STRUCT<u: UUID, t: TIME, l: ARRAY<DATE>, s: STRUCT<d: DATE>>",
        {"u": ID, "t": "01:02", "l": ["2020-01-02"], "s": {"d": "2020-01-03"}},
        {"u": UUID(ID), "t": dt.time(1, 2), "l": [dt.date(2020, 1, 2)], "s": {"d": dt.date(2020, 1, 3)}},
    ),
]


def schema_of(type_: str) -> pa.Schema:
    return ddl_to_schema([f"c {type_}"])


@pytest.mark.parametrize("step", [ReadStepNdJson(), ReadStepJson()])
@pytest.mark.parametrize(("type_", "given", "expected"), [*FLAT, *NESTED])
def test_json_has_them_as_strings(step: ReadStep, type_: str, given: object, expected: object) -> None:
    values = [json.dumps({"c": one}).encode() for one in (given, None, given)]
    schema = schema_of(type_)
    for table in (
        read_records(step, values, schema),
        read_batch(
            step, (b"[%s]" if isinstance(step, ReadStepJson) else b"%s") % _join(step, values), schema
        ),
    ):
        assert table.schema.equals(schema)
        table.validate(full=True)
        assert table.column("c").to_pylist() == [expected, None, expected]


def _join(step: ReadStep, values: list[bytes]) -> bytes:
    return (b"," if isinstance(step, ReadStepJson) else b"\n").join(values)


@pytest.mark.parametrize(("type_", "given", "expected"), FLAT)
def test_csv_has_them_as_strings(type_: str, given: str, expected: object) -> None:
    schema = ddl_to_schema(["n INT", f"c {type_}"])
    values = [f"1,{given}".encode(), b"2,", f"3,{given}".encode()]
    for table in (
        read_records(ReadStepCsv(), values, schema),
        read_batch(ReadStepCsv(), b"\n".join(values), schema),
    ):
        assert table.column("c").to_pylist() == [expected, None, expected]


@pytest.mark.parametrize(
    ("type_", "value", "text"),
    [
        ("UUID", ID.replace("-", ""), "is not a UUID"),
        ("UUID", f"{ID}0", "is not a UUID"),
        ("UUID", "", "is not a UUID"),
        ("TIME", "24:00", "is not a time of day"),
        ("TIME", "12:34:60", "is not a time of day"),
        ("TIME", "12:34Z", "is not a time of day"),
        ("UUID[]", ["x"], "'x' is not a UUID"),
        ("DATE[]", ["2020-02-30"], "2020-02-30"),
        ("TIMESTAMP[]", ["soon"], "soon"),
    ],
)
def test_other_strings_are_refused_by_column_and_value(type_: str, value: Any, text: str) -> None:
    lines = b"%s\n%s" % (json.dumps({"c": None}).encode(), json.dumps({"c": value}).encode())
    with pytest.raises(InvalidInput, match=rf"^line 2: column c(\[\])?: .*{text}"):
        read_batch(ReadStepNdJson(), lines, schema_of(type_))


@pytest.mark.parametrize(("type_", "value"), [("UUID", "x"), ("TIME", "x"), ("DECIMAL(50, 2)", "x")])
def test_csv_names_the_line_too(type_: str, value: str) -> None:
    with pytest.raises(InvalidInput, match=r"^line 2: column c: "):
        read_batch(ReadStepCsv(), f"1,\n2,{value}".encode(), ddl_to_schema(["n INT", f"c {type_}"]))


def test_csv_with_nested_columns_is_refused_before_anything_is_read() -> None:
    with pytest.raises(InvalidInput, match="column c: Csv has no values of type"):
        declared_schema(ReadStepCsv(ddl_schema=("n INT", "c INT[]")))
    with pytest.raises(InvalidInput, match="list"):
        read_batch(ReadStepCsv(), b"1", schema_of("INT[]"))


def test_uuids_are_taken_from_their_place_in_a_column() -> None:
    texts = pa.array(["x", ID, None, ID.upper()])
    assert to_uuids(texts.slice(1)).to_pylist() == [UUID(ID), None, UUID(ID)]
    assert to_uuids(texts.slice(4)).to_pylist() == []
    assert to_uuids(pa.nulls(2, pa.string())).to_pylist() == [None, None]


@pytest.mark.parametrize("type_", ["STRUCT<a: INT NOT NULL>", "STRUCT<d: DATE, a: INT NOT NULL>"])
def test_a_struct_with_required_parts_may_be_null_itself(type_: str) -> None:
    schema = schema_of(type_)
    table = read_records(ReadStepNdJson(), [b'{"c":null}', b'{"c":{"a":1}}', b'{"c":null,"x":1}'], schema)
    assert table.schema.equals(schema)
    first, second, third = table.column("c").to_pylist()
    assert (first, second["a"], third) == (None, 1, None)


@pytest.mark.parametrize(
    ("type_", "value", "part"),
    [
        ("STRUCT<a: INT NOT NULL>", b"{}", "a"),
        ("STRUCT<a: INT NOT NULL>", b'{"a":null}', "a"),
        ("ARRAY<INT NOT NULL>", b"[1,null]", "element"),
        ("ARRAY<STRUCT<d: DATE NOT NULL>>", b'[{"d":null}]', "d"),
    ],
)
def test_a_required_field_is_required_if_its_struct_is_not_null(type_: str, value: bytes, part: str) -> None:
    with pytest.raises(InvalidInput, match=rf"column c(\[\])?: its field {part} is required and is null"):
        read_records(ReadStepNdJson(), [b'{"c":%s}' % value], schema_of(type_))


@pytest.mark.parametrize(
    ("type_", "name"),
    [
        (pa.decimal128(10, 2), "DECIMAL(10, 2)"),
        (pa.list_(pa.timestamp("us", "UTC")), "ARRAY<TIMESTAMP(6)>"),
        (pa.struct([pa.field("a b", pa.int32(), nullable=False)]), "STRUCT<`a b`: INT NOT NULL>"),
        (pa.duration("s"), "duration[s]"),
        (pa.list_(pa.duration("s")), "list<item: duration[s]>"),
    ],
)
def test_messages_name_a_type_as_it_is_declared_or_as_arrow_does(type_: pa.DataType, name: str) -> None:
    assert type_name(type_) == name


@pytest.mark.parametrize("count", range(1, 9))
def test_the_first_value_that_cannot_be_converted_is_found_at_any_place(count: int) -> None:
    def convert(texts: pa.Array) -> pa.Array:
        return texts.cast(pa.int64())

    for first in range(count):
        texts = ["1"] * first + ["x"] + ["1", "y"] * (count - first)
        assert first_refused(pa.array(texts), convert) == first
        assert first_refused(pa.array(texts[: first + 1]), convert) == first


def test_rows_that_cannot_be_converted_are_found_at_once_with_their_reasons() -> None:
    schema = ddl_to_schema(["at TIMESTAMP(3)", "day DATE"])
    good = ("2020-01-01T00:00:00Z", "2020-01-01")
    rows = [good] * 100
    rows[0], rows[31], rows[99] = ("soon", good[1]), (good[0], "later"), ("never", "never")
    at, day = zip(*rows, strict=True)
    table = pa.table([pa.array(at), pa.array(day)], ["at", "day"])
    assert unconvertible(table, schema, TimeFormats()) == {
        0: "column at: 'soon' is not a value of TIMESTAMP(3); write it as 2026-01-31T23:59:59Z, or set timestampFormat",
        31: "column day: 'later' is not a value of DATE; write it as 2026-01-31, or set dateFormat",
        99: "column at: 'never' is not a value of TIMESTAMP(3); write it as 2026-01-31T23:59:59Z, or set timestampFormat",
    }


def test_many_scattered_rows_with_equal_faults_are_found_soon_and_in_order() -> None:
    bad = range(50, 300_000, 100)
    texts = np.array([f"2020-01-01T00:00:00.{number:06}Z" for number in range(300_000)], object)
    texts[bad] = ["soon", "later"] * 1_500
    column = pa.chunked_array(
        [pa.array([None], pa.string()), pa.array(texts[:1_000]), pa.array(texts[1_000:])], pa.string()
    )
    begun = time.process_time()
    found = unconvertible(pa.table([column], ["at"]), ddl_to_schema(["at TIMESTAMP(3)"]), TimeFormats())
    assert time.process_time() - begun < 5, "it was more than 15 seconds, one by one"
    assert list(found) == [row + 1 for row in bad]
    assert [why.split("'")[1] for why in found.values()] == ["soon", "later"] * 1_500


@pytest.mark.parametrize("most", [1, 2, 3, 5, None])
@pytest.mark.parametrize(
    "values", [["x", "y"], ["x", "x", "y", "x", "z"], [f"x{number}" for number in range(12)]]
)
def test_the_first_rows_that_cannot_be_converted_are_found_as_if_one_by_one(
    values: list[str], most: int | None
) -> None:
    texts = [None, "1", *(text for value in values for text in (value, "1", "1"))]
    rows = [row for row, text in enumerate(texts) if text not in (None, "1")][:most]
    found = unconvertible(
        pa.table([pa.array(texts)], ["n"]),
        ddl_to_schema(["n BIGINT"]),
        TimeFormats(strings=ValueKind.TEXT),
        most,
    )
    assert list(found) == rows
    assert [why.split("'")[1] for why in found.values()] == [texts[row] for row in rows]


@pytest.mark.parametrize("type_", [pa.date32(), pa.timestamp("ms", "UTC")], ids=str)
def test_required_elements_of_a_list_and_fields_of_a_struct_may_not_be_null(type_: pa.DataType) -> None:
    element, field = (pa.field(name, type_, nullable=False) for name in ("element", "x"))
    schema = pa.schema([("l", pa.list_(element)), ("s", pa.struct([field]))])

    def read(value: bytes) -> pa.Table:
        return parse_objects([value], schema, TimeFormats())

    assert read(b'{"l":["2020-01-01","2020-01-02"],"s":{"x":"2020-01-03"}}').schema.equals(schema)
    assert read(b'{"l":null,"s":null}').to_pylist() == [{"l": None, "s": None}]
    for wrong, name in (
        (b'{"l":["2020-01-01",null]}', "element"),
        (b'{"s":{"x":null}}', "x"),
        (b'{"s":{}}', "x"),
    ):
        with pytest.raises(InvalidInput, match=f"its field {name} is required and is null"):
            read(wrong)


@pytest.mark.parametrize("nested", ["{}", "ARRAY<{}>"])
def test_a_string_in_a_column_of_bytes_is_base64_only_if_a_binary_message_was_decoded(nested: str) -> None:
    schema = ddl_to_schema([f"c {nested.format('BINARY')}", f"t {nested.format('STRING')}"])
    value = b'{"c":"YQ==","t":"YQ=="}' if nested == "{}" else b'{"c":["YQ=="],"t":["YQ=="]}'

    def read(*, has_base64: bool) -> list[Any]:
        table = parse_objects([value], schema, TimeFormats(has_base64=has_base64))
        assert table.schema.equals(schema)
        (row,) = table.to_pylist()
        return [cell[0] if isinstance(cell, list) else cell for cell in (row["c"], row["t"])]

    assert read(has_base64=False) == [b"YQ==", "YQ=="]
    assert read(has_base64=True) == [b"a", "YQ=="]
    with pytest.raises(InvalidInput, match="is not base64"):
        parse_objects([value.replace(b"YQ==", b"Y!Q==")], schema, TimeFormats(has_base64=True))
