"""Values at their limits are exact or refused, and each option of a read step is followed exactly."""

import csv
import io
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odf_common.data.ddl import ddl_to_schema
from odf_common.data.read_options import require_options
from odf_common.errors import InvalidInput
from odf_common.metadata.events import ReadStep, ReadStepCsv, ReadStepJson, ReadStepNdJson
from odf_ingest.read import infer_batch, read_batch, read_file, read_records, suspects
from odf_ingest.read.isolate_bad_records import isolate_bad_records
from odf_ingest.read.message_buffer import MessageBuffer

from .odd_values import JSON_STEPS, STEPS, declared


def message(step: ReadStep, value: str) -> bytes:
    return f"1,{value}".encode() if isinstance(step, ReadStepCsv) else f'{{"c":{value}}}'.encode()


def value_of(step: ReadStep, type_: str, value: str) -> Any:
    step = replace(step, ddl_schema=(f"c {type_}",))
    return read_records(step, [message(step, value)], declared(step, type_)).column("c")[0].as_py()


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(
    ("type_", "written", "expected"),
    [
        ("BIGINT", "1039.0", 1039),
        ("BIGINT", "1e3", 1000),
        ("BIGINT", "1.5E+1", 15),
        ("BIGINT", "-0.0", 0),
        ("BIGINT UNSIGNED", "-0.0", 0),
        ("BIGINT", "9007199254740993.00", 9007199254740993),
        ("BIGINT", "9223372036854775807.0", 2**63 - 1),
        ("BIGINT UNSIGNED", "18446744073709551615.0", 2**64 - 1),
        ("TINYINT", "1.27e2", 127),
        ("DECIMAL(38, 9)", "12345678901234567890.123456789", Decimal("12345678901234567890.123456789")),
        ("DECIMAL(38, 9)", "1e3", Decimal(1000)),
        ("DECIMAL(10, 2)", "1.000", Decimal(1)),
        ("DECIMAL(10, 2)", "-0.000e-30", Decimal(0)),
        ("DECIMAL(10, 2)", "12345678.90", Decimal("12345678.9")),
        (
            "DECIMAL(50, 2)",
            "123456789012345678901234567890123456789012345678.01",
            Decimal("123456789012345678901234567890123456789012345678.01"),
        ),
        ("DOUBLE", "12345678901234567890.123456789", 12345678901234567890.123456789),
        ("DOUBLE", "5e-324", 5e-324),
    ],
)
def test_numbers_are_exact(step: ReadStep, type_: str, written: str, expected: object) -> None:
    assert value_of(step, type_, written) == expected
    assert math.copysign(1, value_of(step, "DOUBLE", "-0.0")) == -1


@pytest.mark.parametrize("step", JSON_STEPS)
@pytest.mark.parametrize("type_", ["DOUBLE", "FLOAT", "STRUCT<x: DOUBLE>", "DOUBLE[]"])
@pytest.mark.parametrize("token", ["NaN", "Infinity", "-Infinity"])
def test_what_is_not_json_is_refused_by_column(step: ReadStep, type_: str, token: str) -> None:
    written = {"S": f'{{"x":{token}}}', "[": f"[{token}]"}.get("[" if "[" in type_ else type_[0], token)
    with pytest.raises(InvalidInput, match=rf"^column c.*: {token} is not JSON"):
        value_of(step, type_, written)


@pytest.mark.parametrize("token", ["NaN", "Infinity", "-Infinity"])
def test_rows_with_what_is_not_json_are_refused_among_others(token: str, tmp_path: Path) -> None:
    file = tmp_path / "rows"
    file.write_text(f'{{"c": 1.5}}\n{{"c": null, "other": 1}}\n{{"c": {token}}}\n')
    step = ReadStepNdJson(ddl_schema=("c DOUBLE",))
    for schema in (pa.schema([("c", pa.float64())]), None):
        with pytest.raises(
            InvalidInput, match=rf"^line 3: column c: {token} is not JSON \(RFC 8259\): write null"
        ):
            read_file(step, file, schema)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(
    ("type_", "most", "more"),
    [
        ("DECIMAL(10, 2)", "-99999999.99", ["100000000", "-123456789", "1e8", "9999999999"]),
        ("DECIMAL(38, 9)", f"{'9' * 29}.{'9' * 9}", ["1" + "0" * 29, "9" * 30, "9" * 31, "9" * 38]),
        ("DECIMAL(50, 20)", "9" * 30, ["9" * 31, "9" * 50]),
        ("DECIMAL(76, 38)", f"{'9' * 38}.{'9' * 38}", ["9" * 39, "1e40", "9" * 76]),
    ],
)
def test_a_decimal_with_too_many_digits_before_the_point_is_refused_among_others(
    step: ReadStep, type_: str, most: str, more: Sequence[str]
) -> None:
    schema = declared(step, type_)
    values = [message(step, value) for value in (most, *more, "0.00")]
    outcome = isolate_bad_records(
        MessageBuffer.pack(values),
        lambda some: read_records(step, some, schema),
        lambda some: suspects(step, some, schema),
    )
    assert outcome.bad.keys() == set(range(1, len(values) - 1))
    assert outcome.table is not None
    outcome.table.validate(full=True)
    assert outcome.table.column("c").to_pylist() == [Decimal(most), 0]


@pytest.mark.parametrize("wanted", [pa.decimal128(10, 2), pa.decimal256(50, 2)])
def test_nested_decimals_are_exact_too(wanted: pa.DataType) -> None:
    schema = pa.schema([("c", pa.struct([("d", wanted)])), ("l", pa.list_(wanted))])
    good, most = b'{"c":{"d":7},"l":["1.25"]}', "9" * (wanted.precision - 1)
    rows = [{"c": {"d": Decimal(7)}, "l": [Decimal("1.25")]}] * 2
    assert read_records(ReadStepNdJson(), [good, good], schema).to_pylist() == rows
    for bad in (f'{{"c":{{"d":{most}}}}}', f'{{"l":[{most}]}}'):
        with pytest.raises(InvalidInput, match="is not a value of DECIMAL"):
            read_records(ReadStepNdJson(), [good, bad.encode()], schema)


@pytest.mark.parametrize("type_", ["TINYINT", "BIGINT", "BIGINT UNSIGNED", "DOUBLE", "DECIMAL(10, 2)"])
@pytest.mark.parametrize("written", ["0x10", "0xFF", "-0X1", " 0x1 "])
def test_hexadecimal_digits_are_not_a_number_in_csv(type_: str, written: str) -> None:
    with pytest.raises(InvalidInput, match=r"^column c: '.*' is not a value of"):
        value_of(ReadStepCsv(), type_, written)
    assert value_of(ReadStepCsv(), "STRING", written) == written


def test_numbers_next_to_hexadecimal_strings_are_read() -> None:
    schema = pa.schema([("address", pa.string()), ("n", pa.int8())])
    table = read_batch(ReadStepCsv(), b"0xFF,1\n0x1,-2.0\n", schema)
    assert table.to_pylist() == [{"address": "0xFF", "n": 1}, {"address": "0x1", "n": -2}]
    columns = infer_batch(ReadStepCsv(header=True, infer_schema=True), b"address,n\n0xFF,1\n0x1,2\n", None)
    assert columns == pa.schema([("address", pa.string()), ("n", pa.int64())])


@pytest.mark.parametrize("text", ["1.5", " 1.5", "1.5 ", " 1.5 "])
@pytest.mark.parametrize("digits", [10, 50])
def test_white_space_around_decimals_of_csv_does_not_matter(text: str, digits: int) -> None:
    assert value_of(ReadStepCsv(), f"DECIMAL({digits}, 2)", text) == Decimal("1.5")


@pytest.mark.parametrize("step", JSON_STEPS)
@pytest.mark.parametrize(
    ("type_", "written", "reason"),
    [
        ("INT", "1039.5", "column c: 1039.5 is not a value of INT"),
        ("INT", '"12"', "column c: '12' is not a value of INT"),
        ("STRING", "12", "column c: 12 is not a value of STRING"),
        ("BOOLEAN", "1", "column c: 1 is not a value of BOOLEAN"),
        ("DECIMAL(10, 2)", '"1_000"', r"column c: '1_000' is not a value of DECIMAL\(10, 2\)"),
        ("DECIMAL(10, 2)", '" 1"', r"column c: ' 1' is not a value of DECIMAL\(10, 2\)"),
        ("DECIMAL(10, 2)", '"١"', r"column c: '١' is not a value of DECIMAL\(10, 2\)"),
        ("TIMESTAMP(3)", "1577836800", r"column c: 1577836800 is not a value of TIMESTAMP\(3\)"),
        ("BIGINT[]", "[1,2.5]", r"column c\[\]: 2.5 is not a value of BIGINT"),
        ("STRUCT<a: INT>", '{"a":true}', "column c.a: true is not a value of INT"),
        ("STRING", '"\\ud800"', "half a surrogate pair"),
        ("INT", '1,"c":2', "column c: is duplicated"),
    ],
)
def test_the_reason_names_column_value_and_type(
    step: ReadStep, type_: str, written: str, reason: str
) -> None:
    with pytest.raises(InvalidInput, match=reason):
        value_of(step, type_, written)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("type_", ["TIMESTAMP(3)", "TIMESTAMP(6)"])
def test_a_time_outside_of_the_representable_years_is_refused(step: ReadStep, type_: str) -> None:
    for written in ("9999-12-31T23:59:59-05:00", "0001-01-01T00:00:00+05:00", "0000-06-01T00:00:00Z"):
        with pytest.raises(InvalidInput, match=r"column c: .* outside of the years 0001 to 9999"):
            value_of(step, type_, json.dumps(written))
    for written in ("9999-12-31T23:59:59Z", "0001-01-01T00:00:00Z"):
        assert value_of(step, type_, json.dumps(written)).isoformat() == written.replace("Z", "+00:00")


@pytest.mark.parametrize("step", STEPS)
def test_a_time_that_a_format_carries_out_of_the_calendar_is_refused(step: ReadStep) -> None:
    formatted = type(step)(timestamp_format="%d %b %Y %H:%M %z")  # type: ignore[call-arg]
    with pytest.raises(InvalidInput, match="31 Dec 9999"):
        value_of(formatted, "TIMESTAMP(3)", '"31 Dec 9999 23:59 -0500"')


@pytest.mark.parametrize("step", JSON_STEPS)
@pytest.mark.parametrize("record", [b'{"a":1}', b"{}", b'{"C":1}'])
def test_a_record_none_of_whose_columns_is_known_is_refused(step: ReadStep, record: bytes) -> None:
    schema = ddl_to_schema(["c INT", "d STRING"])
    with pytest.raises(InvalidInput, match="has none of the columns c, d"):
        read_records(step, [record], schema)
    text = b'[{"c":1},%s]' if isinstance(step, ReadStepJson) else b'{"c":1}\n%s'
    with pytest.raises(InvalidInput, match=r"^line (2|1, record 2): has none of the columns"):
        read_batch(step, text % record, schema)
    assert read_records(step, [b'{"c":null}', b'{"d":"x"}'], schema).num_rows == 2


def test_a_json_document_is_split_without_changing_a_digit() -> None:
    schema = ddl_to_schema(["c DECIMAL(38, 9)"])
    step = ReadStepJson(sub_path="a.b")
    text = b'{"x":[1,{"y":2}],"a":{"n":1.0,"b":[{"c":12345678901234567890.123456789}, {"c":\n1}]},"z":null}'
    assert read_batch(step, text, schema).column("c").to_pylist() == [
        Decimal("12345678901234567890.123456789"),
        Decimal(1),
    ]
    with pytest.raises(InvalidInput, match="has no member"):
        read_batch(step, b'{"a":[]}', schema)
    with pytest.raises(InvalidInput, match="expected an array of objects"):
        read_batch(step, b'{"a":{"b":[' + b"[" * 100_000, schema)


def test_zero_fractions_in_strings_are_left_unchanged() -> None:
    schema = ddl_to_schema(["c INT", "t STRING"])
    text = r'{"c":1.0,"t":"1.0, \"2.0\", 3e1 \\"}'
    assert (
        read_records(ReadStepNdJson(), [text.encode()] * 2, schema).to_pylist()
        == [{"c": 1, "t": '1.0, "2.0", 3e1 \\'}] * 2
    )


TEXTS = pa.schema([("a", pa.string()), ("b", pa.string())])
CELLS = st.text(st.sampled_from('ab1 \\",;|\t\n'))


def values(text: bytes, **options: Any) -> list[tuple[object, ...]]:
    """Return the rows of a Csv text, read as a file and line by line."""
    step = ReadStepCsv(**options)
    rows = [tuple(row.values()) for row in read_batch(step, text, TEXTS).to_pylist()]
    if not options.get("header"):
        lines = read_records(step, text.splitlines(), TEXTS).to_pylist()
        assert [tuple(row.values()) for row in lines] == rows
    return rows


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        (rb'"a""b","\\"', {}, ('a"b', r"\\")),
        (rb'"\\files, 1","C:\old\"', {}, (r"\\files, 1", "C:\\old\\")),
        (rb'"a\"b",c', {"escape": "\\"}, ('a"b', "c")),
        (rb'"a""b",c', {"escape": "\\"}, ('a"b', "c")),
        (rb'"a\\",c', {"escape": "\\"}, ("a\\", "c")),
        (rb'"a\\\"b","c\d"', {"escape": "\\"}, ('a\\"b', "c\\d")),
        (rb'"\"",""""', {"escape": "\\"}, ('"', '"')),
        (rb"C:\dir\,a\b", {"escape": "\\"}, ("C:\\dir\\", "a\\b")),
        (rb'x"\"y","q"', {"escape": "\\"}, (r'x"\"y"', "q")),
        (rb'"C:\dir\",b', {"escape": ""}, ("C:\\dir\\", "b")),
        (rb'"C:\dir\",b', {"escape": '"'}, ("C:\\dir\\", "b")),
        (rb'"a^"b",^^', {"escape": "^"}, ('a"b', "^^")),
        (rb"'a\'b';'c'", {"quote": "'", "separator": ";", "escape": "\\"}, ("a'b", "c")),
        (b'"a,b"', {"quote": ""}, ('"a', 'b"')),
        (b'5" pipe,"', {"quote": ""}, ('5" pipe', '"')),
        (rb"a\,b", {"separator": "\\"}, ("a", ",b")),
        (b"a\tb", {"separator": "\t"}, ("a", "b")),
    ],
)
def test_quotes_and_escapes(text: bytes, options: dict[str, str], expected: tuple[str, str]) -> None:
    assert values(text, **options) == [expected]
    assert values(b"p,q\n".replace(b",", options.get("separator", ",").encode()) + text, **options)[1:] == [
        expected
    ]


@given(rows=st.lists(st.tuples(CELLS, CELLS), min_size=1))
@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_what_a_writer_of_rfc_4180_wrote_is_read_back(separator: str, rows: list[tuple[str, str]]) -> None:
    text = io.StringIO()
    csv.writer(text, delimiter=separator, lineterminator="\r\n").writerows(rows)
    table = read_batch(ReadStepCsv(separator=separator, null_value="NULL"), text.getvalue().encode(), TEXTS)
    assert [tuple(row.values()) for row in table.to_pylist()] == rows


def test_an_escape_before_a_newline_and_a_separator_inside_quotes() -> None:
    step = ReadStepCsv(escape="\\")
    table = read_batch(step, b'"a\\\nb","c\\,d"\n"\\"\n,\\"",e\n', TEXTS)
    assert table.to_pylist() == [{"a": "a\\\nb", "b": "c\\,d"}, {"a": '"\n,"', "b": "e"}]


def test_only_the_null_value_is_null() -> None:
    assert values(b"NA,x\n") == [("NA", "x")]
    assert values(b',""\n') == [(None, "")]
    assert values(b'NA,"NA"\n"",\n', null_value="NA") == [(None, None), ("", "")]


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("latin-1", "Zürich,é\n".encode("latin-1")),
        ("windows-1252", "€5,“x”\n".encode("cp1252")),
        ("utf-16", "Zürich,北京\n".encode("utf-16")),
        ("shift_jis", "東京,x\n".encode("shift_jis")),
        ("UTF-8", "Zürich,é\n".encode()),
    ],
)
def test_the_encoding_is_followed(encoding: str, text: bytes) -> None:
    expected = tuple(text.decode(encoding).strip().split(","))
    assert read_batch(ReadStepCsv(encoding=encoding), text, TEXTS).to_pylist() == [
        dict(zip("ab", expected, strict=True))
    ]


def test_a_byte_that_the_encoding_does_not_have_is_named_with_its_line() -> None:
    with pytest.raises(InvalidInput, match=r"^line 2: cannot be read as windows-1252: byte 0x81$"):
        read_batch(ReadStepCsv(encoding="windows-1252"), b"a,b\nc,\x81\n", TEXTS)
    with pytest.raises(InvalidInput, match=r"^cannot be read as ascii: byte 0xc3$"):
        read_records(ReadStepCsv(encoding="ascii"), ["é,b".encode()], TEXTS)


@pytest.mark.parametrize("name", ["rfc3339", "RFC3339", None])
def test_rfc_3339_is_the_default_format_by_name(name: str | None) -> None:
    schema = ddl_to_schema(["at TIMESTAMP(3)", "day DATE"])
    options: Any = {"timestamp_format": name, "date_format": name}
    expected = "2020-02-01 11:00:00.000Z"
    lines: list[tuple[ReadStep, bytes]] = [
        (ReadStepCsv(**options), b"2020-02-01T12:00:00+01:00,2020-02-01"),
        (ReadStepJson(**options), b'{"at": "2020-02-01T12:00:00+01:00", "day": "2020-02-01"}'),
        (ReadStepNdJson(**options), b'{"at": "2020-02-01T12:00:00+01:00", "day": "2020-02-01"}'),
    ]
    for step, line in lines:
        table = read_records(step, [line], schema)
        assert table.column("at").cast(pa.string()).to_pylist() == [expected]
        assert table.column("day").cast(pa.string()).to_pylist() == ["2020-02-01"]


@pytest.mark.parametrize(
    ("step", "where", "complaint"),
    [
        (ReadStepCsv(separator=""), "separator", "is not one ASCII character"),
        (ReadStepCsv(separator="||"), "separator", "is not one ASCII character"),
        (ReadStepCsv(separator='"'), "quote", "is also the separator"),
        (ReadStepCsv(separator=";", quote=";"), "quote", "is also the separator"),
        (ReadStepCsv(escape=","), "escape", "is also the separator"),
        (ReadStepCsv(encoding="utf-80"), "encoding", "'utf-80' is not a known encoding"),
        (ReadStepCsv(encoding="base64"), "encoding", "is not a known encoding"),
        (ReadStepJson(encoding="unicode_escape"), "encoding", "is not an encoding of text"),
        (ReadStepNdJson(encoding="a\0b"), "encoding", "is not a known encoding"),
        (ReadStepCsv(date_format="yyyy-QQ"), "dateFormat", "the letter 'Q' is not supported"),
        (ReadStepCsv(timestamp_format="%Y-%Q"), "timestampFormat", "%Q is not supported"),
        (ReadStepJson(timestamp_format="%Y %"), "timestampFormat", "% is not supported"),
        (ReadStepNdJson(date_format="%d.%d.%Y"), "dateFormat", r"occurs twice \(%d\)"),
        (ReadStepNdJson(date_format="'day'"), "dateFormat", "has no part of a date or time"),
        (ReadStepJson(sub_path="a..b"), "subPath", r"'a\.\.b' is not of the form a\.b\.c"),
        (ReadStepJson(sub_path=""), "subPath", "is not of the form"),
    ],
)
def test_an_option_that_could_never_take_effect_is_refused(
    step: ReadStep, where: str, complaint: str
) -> None:
    with pytest.raises(InvalidInput, match=complaint) as refused:
        require_options(step)
    assert refused.value.where == where


@pytest.mark.parametrize(
    "step",
    [
        ReadStepCsv(quote="", escape="", separator="\t", encoding="ISO-8859-1", null_value=""),
        ReadStepCsv(date_format="dd/MM/yyyy", timestamp_format="%F %T"),
        ReadStepCsv(encoding="utf-16"),
        ReadStepJson(encoding="utf-32"),
        ReadStepJson(sub_path="a.b c.d", timestamp_format="rfc3339"),
    ],
)
def test_an_option_that_can_take_effect_is_accepted(step: ReadStep) -> None:
    require_options(step)
