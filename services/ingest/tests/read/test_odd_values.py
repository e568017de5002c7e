"""Odd values in each type and format: exact, or rejected for a reason; and never a matter of their neighbours."""

import json
import math
from codecs import BOM_UTF8
from collections.abc import Callable, Sequence
from datetime import date
from decimal import Decimal
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odf_common.data.ddl import ddl_to_schema
from odf_common.errors import InvalidInput
from odf_common.metadata.steps import ReadStep, ReadStepCsv, ReadStepJson, ReadStepNdJson
from odf_ingest.read import infer_records, read_batch, read_inferred, read_records, suspects
from odf_ingest.read.csv_format.csv_records import grammar_of
from odf_ingest.read.isolate_bad_records import isolate_bad_records

JSON_STEPS: Final = [ReadStepNdJson(), ReadStepJson()]
STEPS: Final = [*JSON_STEPS, ReadStepCsv()]
NUMBERS: Final = [
    "0",
    "-0",
    "-0.0",
    "1039.0",
    "1039.5",
    "1e3",
    "1.5e1",
    "-1E+2",
    "1e400",
    "-1e400",
    "1e-400",
    "1e400000000",
    "1e99999999999999999999",
    "1e-99999999999999999999",
    "3e38",
    "1e39",
    "9007199254740993",
    "9007199254740993.0",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551615.0",
    "12345678901234567890.123456789",
    "99999999999999999999999999999999999999",
    "999999999999999999999999999999999999999",
    "0.00000000000000000000000000000000000001",
    "1" * 5000,
    "NaN",
    "Infinity",
    "-Infinity",
]
TEXTS: Final = [
    "",
    "x",
    "1",
    "true",
    "ä\U0001f600",
    "a\x00b",
    'say "1.0, 2e3"',
    "comma, semicolon; 'quote'",
    "two\nlines",
    "0001-01-01",
    "9999-12-31",
    "10000-01-01",
    "0000-01-01",
    "2020-02-30",
    "0001-01-01T00:00:00Z",
    "0001-01-01T00:00:00+05:00",
    "9999-12-31T23:59:59.999999Z",
    "9999-12-31T23:59:59-05:00",
    "0000-12-31T23:00:00Z",
    "2020-01-01 00:00:00",
    "2020-01-01T00:00:00.123456789+01:30",
    "2016-12-31T23:59:60Z",
    "123e4567-e89b-12d3-a456-426614174000",
    "12:34:56.789",
    "24:00",
]
TYPES: Final = [
    "BOOLEAN",
    "TINYINT",
    "INT",
    "BIGINT",
    "BIGINT UNSIGNED",
    "FLOAT",
    "DOUBLE",
    "DECIMAL(38, 9)",
    "DECIMAL(50, 2)",
    "STRING",
    "BINARY",
    "DATE",
    "TIME",
    "TIMESTAMP(3)",
    "TIMESTAMP(6)",
    "TIMESTAMP(9)",
    "UUID",
]
NESTED: Final = ["BIGINT[]", "STRUCT<a: INT, b: TIMESTAMP(3)>", "DOUBLE[]", "STRUCT<f: FLOAT>"]
JSON_VALUES: Final = [
    *NUMBERS,
    *(json.dumps(text) for text in TEXTS),
    "null",
    "true",
    "[]",
    "{}",
    "[1.0]",
    "[1e400]",
    '{"a":1.0}',
    '{"f":1e39}',
    '{"b":"9999-12-31T23:59:59-05:00"}',
    '{"a":1,"a":2}',
    '"\\ud800"',
    '"\\u0000"',
    "nan",
    "01",
    "[1,]",
]
JSON_MESSAGES: Final = [
    *(f'{{"c":{value}}}'.encode() for value in JSON_VALUES),
    b"{}",
    b"",
    b"null",
    b"[1]",
    b'{"other":1}',
    b'{"c":null,"other":"\xff"}',
    b'{"c":1}{"c":2}',
    b'{"c":1}\n{"c":2}',
    b'{\n"c":\n1}',
    b'{"c":1}\x00}',
    b'{"c":1,"\xff":2}',
    b'{"c":1,"\\ud800":2}',
    b'{"c":1}null{"c":2}',
    b'{"c":1,"c":1}',
    b'{"other":1,"other":2,"c":1.0}',
    b'\xef\xbb\xbf{"c":1}',
    b'{"c":' + b"[" * 50_000 + b"]" * 50_000 + b"}",
]
CSV_FIELDS: Final = [
    *NUMBERS,
    *(f'"{text}"'.replace("\x00", "") for text in TEXTS if '"' not in text),
    "",
    '""',
    '"never closed',
    'a "literal" quote',
    '5" pipe',
    '"tail"x',
    " 1 ",
    "+1",
    "inf",
    "nan",
    '"a\r\nb"',
    "a\rb",
    "\x00",
]
CSV_MESSAGES: Final = [
    *(f"{n},{field}".encode() for n, field in enumerate(CSV_FIELDS)),
    b"",
    b"\n",
    b"1",
    b"1,2,3",
    b"1,\xff",
    b'"1,\n"2,3',
    b"\xef\xbb\xbf1,x",
    b"\xef\xbb\xbf\xef\xbb\xbf1,x",
    b"1,a\n2,b",
]


TOKENS: Final = [
    b"null",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b'"',
    b"'",
    b";",
    b"\\",
    b"\n",
    b"\r",
    b"\t",
    b"\0",
    b"-",
    b".0",
    b"e3",
    b"9" * 20,
    b'"c"',
    b"\xff",
    b"\xed\xa0\x80",
    b"\xef\xbb\xbf",
]
OPTIONS: Final = [
    {},
    {"quote": "'", "separator": ";", "escape": "\\"},
    {"escape": '"', "null_value": "NA"},
    {"quote": ""},
]


def odd_messages(step: ReadStep) -> st.SearchStrategy[bytes]:
    """Messages of the list, some of them with a token in the wrong place."""
    some = st.sampled_from(messages_of(step))
    broken = st.builds(
        lambda message, at, token: message[:at] + token + message[at:],
        some.filter(lambda message: len(message) < 200),
        st.integers(0, 40),
        st.sampled_from(TOKENS),
    )
    return st.one_of(some, broken)


def messages_of(step: ReadStep) -> list[bytes]:
    return CSV_MESSAGES if isinstance(step, ReadStepCsv) else JSON_MESSAGES


def rows_and_reasons(
    read: Callable[[Sequence[bytes]], pa.Table], faults: Any, some: Sequence[bytes]
) -> list[Any]:
    """Return for each value its record, by the bytes that it has, or the reason why it is none."""
    sifted = isolate_bad_records(some, read, faults, chunk=8)
    found: list[Any] = [None] * len(some)
    for place, reason in sifted.bad.items():
        found[place] = reason
    rows = [] if sifted.table is None else sifted.table.to_batches()
    shown = [
        tuple(column.slice(row, 1).to_string() for column in one.columns)
        for one in rows
        for row in range(len(one))
    ]
    for place, row in zip(sifted.kept.tolist(), shown, strict=True):
        found[place] = row
    return found


def declared(step: ReadStep, type_: str) -> pa.Schema:
    return ddl_to_schema(["n BIGINT", f"c {type_}"] if isinstance(step, ReadStepCsv) else [f"c {type_}"])


@given(data=st.data())
@pytest.mark.parametrize("step", [*JSON_STEPS, *(ReadStepCsv(**some) for some in OPTIONS)])  # type: ignore[arg-type]
def test_what_a_message_becomes_does_not_depend_on_those_next_to_it(
    step: ReadStep, data: st.DataObject
) -> None:
    types = TYPES if isinstance(step, ReadStepCsv) else [*TYPES, *NESTED]
    schema = declared(step, data.draw(st.sampled_from(types)))
    some = data.draw(st.lists(odd_messages(step), min_size=2, max_size=12))

    def read(values: Sequence[bytes]) -> pa.Table:
        return read_records(step, values, schema)

    def faults(values: Sequence[bytes]) -> Any:
        return suspects(step, values, schema)

    alone = [rows_and_reasons(read, lambda _: {}, [one])[0] for one in some]
    assert rows_and_reasons(read, faults, some) == alone


@given(data=st.data())
@pytest.mark.parametrize("step", [*STEPS, ReadStepCsv(infer_schema=True), ReadStepCsv(header=True)])
def test_columns_that_are_inferred_hold_for_each_message_by_itself(
    step: ReadStep, data: st.DataObject
) -> None:
    some = data.draw(st.lists(odd_messages(step), min_size=1, max_size=12))
    if isinstance(step, ReadStepCsv) and step.header:
        some = [b"n,c\n" + one for one in some]
    schema = infer_records(step, some, None)

    def read(values: Sequence[bytes]) -> pa.Table:
        return read_inferred(step, values, schema)

    alone = [rows_and_reasons(read, lambda _: {}, [one])[0] for one in some]
    assert rows_and_reasons(read, lambda values: suspects(step, values, schema), some) == alone
    again = infer_records(step, some, schema)
    assert again.equals(schema)


@pytest.mark.parametrize("step", JSON_STEPS)
def test_where_no_column_has_a_value_a_message_is_refused_for_what_it_is_itself(step: ReadStep) -> None:
    some = [b'{"c":null}', *[b'{"c":nan}'] * 7, b'null{"c":0}', b"{}", b'{"c":1,"c":1}']
    schema = infer_records(step, some[:-1], None)
    assert len(schema) == 0
    assert rows_and_reasons(
        partial(read_inferred, step, schema=schema), partial(suspects, step, schema=schema), some
    ) == [
        "has no column with a value",
        *["is not JSON: Expecting value: line 1 column 6 (char 5)"] * 7,
        reason_alone(step, b'null{"c":0}', schema),
        "has no column with a value",
        "column c: is duplicated",
    ]


def reason_alone(step: ReadStep, one: bytes, schema: pa.Schema) -> str:
    with pytest.raises(InvalidInput) as refused:
        read_inferred(step, [one], schema)
    return str(refused.value)


@given(data=st.data())
@pytest.mark.parametrize("step", [ReadStepNdJson(), *(ReadStepCsv(**some) for some in OPTIONS)])  # type: ignore[arg-type]
def test_a_file_has_the_records_of_its_lines_or_is_refused_for_one_of_them(
    step: ReadStep, data: st.DataObject
) -> None:
    types = TYPES if isinstance(step, ReadStepCsv) else [*TYPES, *NESTED]
    schema = declared(step, data.draw(st.sampled_from(types)))
    lines = data.draw(st.lists(odd_messages(step).filter(partial(is_line, step)), min_size=1, max_size=8))
    alone = [table_or_reason(partial(read_records, step, [line], schema)) for line in lines]
    found = table_or_reason(partial(read_batch, step, b"\n".join(lines), schema))
    reasons = [f"line {number}: {one}" for number, one in enumerate(alone, 1) if isinstance(one, str)]
    if reasons:
        assert found in reasons
    else:
        assert isinstance(found, pa.Table)
        assert found.to_string() == pa.concat_tables(alone).combine_chunks().to_string()


def is_line(step: ReadStep, text: bytes) -> bool:
    """Return whether a message is one line of a file."""
    if text.strip() != text or not text or set(b"\n\r").intersection(text) or text.startswith(BOM_UTF8):
        return False
    try:
        return not isinstance(step, ReadStepCsv) or len(grammar_of(step).split(text)) == 1
    except InvalidInput:
        return False


def table_or_reason(read: Callable[[], pa.Table]) -> pa.Table | str:
    try:
        return read()
    except InvalidInput as error:
        return str(error)


@pytest.mark.parametrize(
    ("step", "type_"),
    [
        (step, type_)
        for step in STEPS
        for type_ in (TYPES if isinstance(step, ReadStepCsv) else [*TYPES, *NESTED])
    ],
)
def test_an_odd_message_is_a_record_or_is_rejected_for_a_reason(step: ReadStep, type_: str) -> None:
    schema = declared(step, type_)
    for message in messages_of(step):
        found = table_or_reason(partial(read_records, step, [message], schema))
        assert found
        if isinstance(found, pa.Table):
            found.validate(full=True)
            assert len(found) == 1


@pytest.mark.parametrize("step", STEPS)
def test_a_file_or_whole_batch_of_odd_values_is_read_or_refused(step: ReadStep) -> None:
    for message in messages_of(step):
        for text in (message, b"[%s]" % message, message + b"\n" + message):
            for schema in (declared(step, "DOUBLE"), declared(step, "BIGINT"), None):
                found = table_or_reason(partial(read_batch, step, text, schema))
                assert isinstance(found, pa.Table) or found


def message(step: ReadStep, value: str) -> bytes:
    return f"1,{value}".encode() if isinstance(step, ReadStepCsv) else f'{{"c":{value}}}'.encode()


def value_of(step: ReadStep, type_: str, value: str) -> Any:
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


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(
    ("type_", "written"),
    [
        ("INT", "1039.5"),
        ("INT", "1e-3"),
        ("INT", "2147483648.0"),
        ("BIGINT", "9223372036854775808"),
        ("BIGINT", "1e400000000"),
        ("BIGINT", "NaN"),
        ("BIGINT UNSIGNED", "-1.0"),
        ("DOUBLE", "1e400"),
        ("DOUBLE", "-1e400"),
        ("FLOAT", "1e39"),
        ("DECIMAL(10, 2)", "1.005"),
        ("DECIMAL(10, 2)", "1e400"),
        ("DECIMAL(38, 0)", "9" * 39),
    ],
)
def test_numbers_that_do_not_fit_are_refused_by_column(step: ReadStep, type_: str, written: str) -> None:
    with pytest.raises(InvalidInput, match=r"^column c: "):
        value_of(step, type_, written)


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
def test_a_time_outside_of_the_years_that_can_be_told_is_refused(step: ReadStep, type_: str) -> None:
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


@pytest.mark.parametrize("step", STEPS)
def test_sentinel_dates_are_kept(step: ReadStep) -> None:
    assert value_of(step, "DATE", '"0001-01-01"') == date.min
    assert value_of(step, "DATE", '"9999-12-31"') == date.max


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


def test_a_json_document_is_taken_apart_without_changing_a_digit() -> None:
    schema = ddl_to_schema(["c DECIMAL(38, 9)"])
    step = ReadStepJson(sub_path="a.b")
    text = b'{"x":[1,{"y":2}],"a":{"n":1.0,"b":[{"c":12345678901234567890.123456789}, {"c":\n1}]},"z":null}'
    assert read_batch(step, text, schema).column("c").to_pylist() == [
        Decimal("12345678901234567890.123456789"),
        Decimal(1),
    ]
    for bad in (
        b'{"a":{"b":[{"c":1}]},"a":{"b":[{"c":2}]}}',
        b'{"a":{"b":[{"c":1,"c":2}]}}',
        b'{"a":{"b":[{"c":1}]}} x',
        b'{"a":{"b":[{"c":1},]}}',
        b'{"a":{"b":[{"c":1}]}',
        b'{"a":{"b":[{"c":1}]},}',
        b'{"a":[]}',
        b'{"a":{"b":[' + b"[" * 100_000,
    ):
        with pytest.raises(InvalidInput):
            read_batch(step, bad, schema)


def test_zero_fractions_in_text_are_left_alone() -> None:
    schema = ddl_to_schema(["c INT", "t STRING"])
    text = r'{"c":1.0,"t":"1.0, \"2.0\", 3e1 \\"}'
    assert (
        read_records(ReadStepNdJson(), [text.encode()] * 2, schema).to_pylist()
        == [{"c": 1, "t": '1.0, "2.0", 3e1 \\'}] * 2
    )
