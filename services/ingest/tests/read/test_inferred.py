"""Inferred columns: no value of an accepted record is lost; one of Csv is printed as it was written."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import date, time
from decimal import Decimal
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from odf_common.errors import InvalidInput
from odf_common.metadata.events import ReadStep, ReadStepCsv, ReadStepJson, ReadStepNdGeoJson, ReadStepNdJson
from odf_ingest.read import infer_batch, infer_records, read_batch, read_inferred, suspects
from odf_ingest.read.csv_format.csv_parse import why_text
from odf_ingest.read.isolate_bad_records import isolate_bad_records
from odf_ingest.read.json_formats.inferred import MAX_NESTING
from odf_ingest.read.message_buffer import MessageBuffer
from odf_ingest.read.types.type_names import type_name

STEPS: list[ReadStep] = [ReadStepNdJson(), ReadStepJson()]

LEAVES = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["x", "y"])
INNER = st.recursive(
    LEAVES,
    lambda some: st.lists(some, max_size=3) | st.dictionaries(st.sampled_from("pq"), some),
    max_leaves=5,
)
RECORDS = st.lists(st.dictionaries(st.sampled_from("abc"), INNER, max_size=3), min_size=1, max_size=8)


def taken(
    step: ReadStep, values: Sequence[bytes], known: pa.Schema | None = None
) -> dict[int, dict[str, Any]]:
    """Return the accepted records by their places."""
    schema = infer_records(step, values, known)
    outcome = isolate_bad_records(
        MessageBuffer.pack(values),
        partial(read_inferred, step, schema=schema),
        partial(suspects, step, schema=schema),
    )
    rows = [] if outcome.table is None else outcome.table.to_pylist()
    return dict(zip(np.asarray(outcome.kept).tolist(), rows, strict=True))


def values_in(value: object) -> object:
    """Return a value without its empty parts: nulls in objects, and empty arrays and objects."""
    if isinstance(value, dict):
        found = {name: values_in(inner) for name, inner in value.items()}
        return {name: inner for name, inner in found.items() if inner is not None} or None
    if isinstance(value, list):
        inner = [values_in(one) for one in value]
        return inner if any(one is not None for one in inner) else None
    return value


@given(before=RECORDS, records=RECORDS)
@pytest.mark.parametrize("step", STEPS)
def test_no_value_of_an_accepted_message_is_lost(
    step: ReadStep, before: list[dict[str, Any]], records: list[dict[str, Any]]
) -> None:
    known = infer_records(step, [json.dumps(record).encode() for record in before], None)
    found = taken(step, [json.dumps(record).encode() for record in records], known)
    assert {place: values_in(row) for place, row in found.items()} == {
        place: values_in(records[place]) for place in found
    }


WRAPPINGS = ["{}", '{{"x":{}}}', "[{}]", '[{{"x":[{}]}}]']


@pytest.mark.parametrize("wrapped", WRAPPINGS)
@pytest.mark.parametrize(
    ("numbers", "scale"),
    [
        (["0.5", "12345678901234567890"], 1),
        (["9007199254740993", "0.25"], 2),
        (["1234567890123456.78", "2"], 2),
        (["-12345678901234567.5"], 1),
        (["1e-3", "9007199254740993.0", "1.50", "0.00000"], 3),
        (["12345678901234567890123", "1"], 0),
        (["1", "-18446744073709551616"], 0),
    ],
)
def test_numbers_that_a_double_or_bigint_lacks_are_decimals(
    wrapped: str, numbers: Sequence[str], scale: int
) -> None:
    for step in STEPS:
        values = [f'{{"v":{wrapped.format(number)}}}'.encode() for number in numbers]
        found = [json.dumps(row["v"], default=str) for row in taken(step, values).values()]
        rounded = [f"{Decimal(number):.{scale}f}" for number in numbers]
        assert found == [json.dumps(json.loads(wrapped.format(f'"{one}"'))) for one in rounded]


@pytest.mark.parametrize(
    "numbers",
    [
        ["0.5", "9007199254740992", "18446744073709551616"],
        ["12345678901234567168", "0.1000000000000000055", "0.10000000000000001"],
        ["1e300", "1234567890123456789e3", "1e999999999999999999999"],
        ["1e9999999", "9007199254740993"],
        ["1e-9999999", "9007199254740993"],
    ],
)
def test_numbers_that_a_double_has_or_that_have_long_fractions_are_doubles(numbers: Sequence[str]) -> None:
    values = [f'{{"v":{number}}}'.encode() for number in numbers]
    assert infer_records(ReadStepNdJson(), values, None).field("v").type == pa.float64()


@pytest.mark.parametrize("step", [*STEPS, ReadStepNdGeoJson()])
@pytest.mark.parametrize("wrapped", WRAPPINGS)
@pytest.mark.parametrize("number", ["9007199254740993", "-12345678901234567890", "12345678901234567.5"])
def test_a_number_that_an_inferred_double_would_round_refuses_its_row(
    step: ReadStep, wrapped: str, number: str
) -> None:
    def record(value: str) -> bytes:
        text = f'{{"v":{wrapped.format(value)}}}'
        feature = f'{{"type":"Feature","geometry":null,"properties":{text}}}'
        return (feature if isinstance(step, ReadStepNdGeoJson) else text).encode()

    known = infer_records(step, [record("0.5")], None)
    values = [record("0.5"), record(number), record("9007199254740992")]
    assert taken(step, values, known).keys() == {0, 2}
    with pytest.raises(InvalidInput, match=rf"column v.*: {number} .* DOUBLE.* declare DOUBLE .* or DECIMAL"):
        read_inferred(step, [record(number)], known)


def test_a_row_of_a_file_whose_number_no_type_has_is_named() -> None:
    body = b'{"v":1e300}\n{"v":9007199254740993}\n'
    step = ReadStepNdJson()
    with pytest.raises(InvalidInput, match=r"line 2.* column v: 9007199254740993 would be 9007199254740992"):
        read_batch(step, body, infer_batch(step, body, None))


def test_a_declared_double_takes_the_number_nearest_to_an_integer() -> None:
    step = ReadStepNdJson(ddl_schema=("v DOUBLE",))
    table = read_batch(step, b'{"v":9007199254740993}', pa.schema([("v", pa.float64())]))
    assert table.to_pylist() == [{"v": 9007199254740992.0}]


@pytest.mark.parametrize("wrapped", ["{}", '{{"x":{}}}', "[{}]", '[{{"x":[{}]}}]'])
def test_an_integer_too_long_for_a_column_does_not_turn_others_into_doubles(wrapped: str) -> None:
    numbers = (
        "9007199254740993",
        "9" * 39,
    )  # the first does not fit a double, the second no type
    found = taken(ReadStepNdJson(), [f'{{"v":{wrapped.format(number)}}}'.encode() for number in numbers])
    assert found == {0: {"v": json.loads(wrapped.format(numbers[0]))}}


@pytest.mark.parametrize("step", STEPS)
def test_arrays_and_objects_without_values_have_no_vote(step: ReadStep) -> None:
    some = [b'{"v":[]}', b'{"v":[{}]}', b'{"v":{}}', b'{"v":[[]]}', b'{"v":[1]}', b'{"v":{"x":1}}']
    assert infer_records(step, some, None) == pa.schema([("v", pa.list_(pa.field("element", pa.int64())))])
    assert taken(step, some) == {0: {"v": []}, 4: {"v": [1]}}


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(
    "value",
    [b'{"\\ud800":1,"a":2}', b'{"a":2,"o":{"\\udfff":1}}', b'{"a":2,"l":[{"\\udfff":1}]}'],
)
def test_a_column_whose_name_is_not_valid_text_is_refused_not_dropped(step: ReadStep, value: bytes) -> None:
    assert taken(step, [value, b'{"a":1}', b'{"\\ud83d\\ude00":3}']) == {
        1: {"a": 1, "😀": None},
        2: {"a": None, "😀": 3},
    }
    with pytest.raises(InvalidInput, match="half a surrogate pair"):
        read_batch(step, value, infer_batch(step, value, None))


@pytest.mark.parametrize("step", STEPS)
def test_a_string_that_spells_out_half_a_surrogate_pair_is_kept(step: ReadStep) -> None:
    value = b'{"a":"\\\\ud800","l":[{"b":1}]}'
    table = read_batch(step, value, infer_batch(step, value, None))
    assert table.to_pylist() == [json.loads(value)] == [{"a": "\\ud800", "l": [{"b": 1}]}]


@pytest.mark.parametrize("wrapped", ["{}", '{{"x":{}}}', "[{}]"])
@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["1", "-2", '"x"'], pa.int64()),
        (["2.5", "1", '"x"'], pa.float64()),
        (["1", "2.5", '"x"'], pa.float64()),
        (["1", "1e3", '"x"'], pa.float64()),
        (["1", '"x"'], pa.int64()),
        (['"x"', "1"], pa.string()),
        (["1", '"x"', "true", "false"], pa.bool_()),
        (["null", "null", '"x"', "1"], pa.string()),
        (["1", '"2020-01-01T00:00:00Z"', '"2020-01-02T00:00:00Z"'], pa.timestamp("ms", "UTC")),
        (["1", '"2020-01-01T00:00:00Z"', '"soon"'], pa.string()),
    ],
)
def test_a_column_of_records_that_disagree_has_the_kind_of_most_values_or_the_first(
    wrapped: str, values: Sequence[str], expected: pa.DataType
) -> None:
    schema = infer_records(ReadStepNdJson(), [f'{{"v":{wrapped.format(v)}}}'.encode() for v in values], None)
    of_column = schema.field("v").type
    assert (of_column if wrapped == "{}" else of_column.field(0).type) == expected


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("wrong", [b"[]", b'[{"b":1},{"c":1}]', b"junk", b"\xff"])
def test_columns_are_inferred_from_the_messages_after_an_invalid_one(step: ReadStep, wrong: bytes) -> None:
    assert infer_records(step, [b'{"a":1}', wrong, b'{"z":1}'], None).names == ["a", "z"]


def test_columns_are_inferred_from_what_the_encoding_has() -> None:
    values = ['{"city":"Köln"}'.encode("latin-1"), b'{"id":1}']
    assert infer_records(ReadStepNdJson(encoding="latin-1"), values, None).names == ["city", "id"]
    assert infer_records(ReadStepNdJson(encoding="ascii"), values, None).names == ["id"]


def nested(levels: int) -> bytes:
    return b'{"a":' * levels + b"1" + b"}" * levels


@pytest.mark.parametrize("step", STEPS)
def test_only_a_message_that_is_nested_too_deeply_is_refused(step: ReadStep) -> None:
    flat = b'{"b":"' + b"[" * 99 + b'","c":[' + b",".join([b'{"d":1}'] * 99) + b"]}"
    values = [b'{"a":{}}', nested(MAX_NESTING + 1), flat, nested(MAX_NESTING), nested(5000)]
    assert taken(step, values).keys() == {0, 2, 3}
    assert infer_batch(step, nested(MAX_NESTING), None) is not None
    with pytest.raises(InvalidInput, match="is nested more than 32 levels deep"):
        infer_batch(step, nested(MAX_NESTING + 1), None)


@pytest.mark.parametrize("step", STEPS)
def test_a_batch_has_the_known_columns_before_its_own(step: ReadStep) -> None:
    known = pa.schema([("b", pa.string()), ("a", pa.float64())])
    assert infer_batch(step, b'{"c":true,"a":1}', known) == known.append(pa.field("c", pa.bool_()))


def test_records_in_documents_are_kept_next_to_a_bad_one() -> None:
    values = [b'{"x":{"a":1}}', b'{"x":1}', b'{"x":{"a":2}}']
    assert taken(ReadStepJson(sub_path="x"), values) == {0: {"a": 1}, 2: {"a": 2}}


STEP = ReadStepCsv(header=True, infer_schema=True)
STRING, INT, DOUBLE = pa.string(), pa.int64(), pa.float64()
CELLS = st.one_of(
    st.sampled_from(
        [
            "0",
            "-0",
            "0.0",
            "-0.0",
            "-0.00",
            "NaN",
            "inf",
            "1E5",
            "1e-05",
            "1e16",
            "+1",
            " 1",
            "1.",
            ".5",
            "0x1F",
        ]
    ),
    st.integers(-(10**20), 10**20).map(str),
    st.floats().map(repr),
    st.decimals(-(10**20), 10**20, places=2).map(str),
    st.from_regex(r"[-+]?[0-9]{1,4}(\.[0-9]{0,3})?([eE][0-9]{1,2})?", fullmatch=True),
    st.sampled_from(["true", "12:30", "12:30:00", "2020-01-01", "2020-01-01 10", "n/a"]),
)


def inferred(*texts: str) -> tuple[pa.DataType, list[object]]:
    content = "\n".join(("c", *texts)).encode() + b"\n"
    table = read_batch(STEP, content, infer_batch(STEP, content, None))
    return table.schema.field("c").type, table.column("c").to_pylist()


@given(texts=st.lists(CELLS, min_size=1, max_size=4))
@example(texts=["00501", "10001"])
@example(texts=["1.10", "2.25", "10.00"])
@example(texts=["0.1", "1234567890123456"])
@example(texts=["99999999999999999999.25"])
def test_a_value_without_a_declared_type_prints_as_it_was_written(texts: list[str]) -> None:
    type_, values = inferred(*texts)
    if pa.types.is_timestamp(type_):
        assert texts == [text for text in texts if text.startswith("2020-01-01 ")]
    else:
        shown = [value.isoformat() if isinstance(value, date | time) else str(value) for value in values]
        if type_ == pa.bool_():
            shown, texts = [text.lower() for text in shown], [text.lower() for text in texts]
        for one, text in zip(shown, texts, strict=True):
            assert one == text or (type_ == DOUBLE and one == f"{text}.0")


@pytest.mark.parametrize(
    ("texts", "type_"),
    [
        ("1 -20 0", INT),
        ("00501 10001", STRING),
        ("0306406152 1", STRING),
        ("1E5 2E5", STRING),
        ("+4712345678", STRING),
        ("-0", STRING),
        ("12345678901234567890", STRING),
        ("2.5 -0.1 100.0 1e-05", DOUBLE),
        ("1 2.5", DOUBLE),
        ("-0 2.5", STRING),
        ("9007199254740993 2.5", STRING),
        ("1.10 1.9", STRING),
        ("1.10 2.25", pa.decimal128(18, 2)),
        ("1234567890123456789.25", pa.decimal128(38, 2)),
        ("0.1 1234567890123456", DOUBLE),
        ("NaN 1.5", STRING),
        ("inf", STRING),
        ("0012e07", STRING),
        ("true False", pa.bool_()),
        ("true 1", STRING),
        ("2020-01-31", pa.date32()),
        ("2020-01-31T10:30:00+02:00 2020-01-31T10:30Z", pa.timestamp("ms", "UTC")),
        ("2020-01-31 2020-01-31T10:30", STRING),
        ("10:30:00", pa.time32("ms")),
        ("10:30", STRING),
    ],
)
def test_a_column_has_the_type_that_prints_all_of_its_values(texts: str, type_: pa.DataType) -> None:
    assert inferred(*texts.split())[0] == type_


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        ("1 00501", "'00501' would become 501; if it holds numbers, declare it as BIGINT"),
        ("2.5 1 1.10", "'1.10' would become 1.1; if it holds numbers, declare it as DOUBLE"),
        ("1E5", "'1E5' would become 100000.0; if it holds numbers, declare it as DOUBLE"),
        (
            "123456789012345678901 1",
            "'123456789012345678901' is too large for BIGINT; if it holds numbers, declare it as DECIMAL(38, 0)",
        ),
        (
            "1 n/a 2 n/a",
            "'n/a' in 2 of 4 rows is no number; if it stands for null, `--read-option nullValue=n/a` makes the others numbers",
        ),
        ("1.10 1.9 -", None),  # text also without it
        ("1 n/a -", None),
        ("1 2", None),
        ("a b", None),
    ],
)
def test_a_column_that_is_nearly_of_numbers_has_a_reason_to_be_text(texts: str, reason: str | None) -> None:
    assert why_text(pa.chunked_array([[*texts.split(), None]]).slice(0, len(texts.split()))) == reason


@pytest.mark.parametrize(
    ("first", "later", "type_"),
    [
        ("501", "00501", "BIGINT"),
        ("501", "-07", "BIGINT"),
        ("47", "+47", "BIGINT"),
        ("1000", "1E3", "BIGINT"),
        ("1.5", "007.5", "DOUBLE"),
        ("1.5", "+1.5", "DOUBLE"),
        ("1.5", "9007199254740993", "DOUBLE"),
        ("1.5", "-12345678901234567890", "DOUBLE"),
        ("1.5", "0.1000000000000000055", "DOUBLE"),
        ("1.50", "01.50", "DECIMAL(18, 2)"),
    ],
)
def test_a_later_text_that_an_inferred_number_would_change_refuses_its_row(
    first: str, later: str, type_: str
) -> None:
    base = infer_batch(STEP, f"id,code\nA,{first}\n".encode(), None)
    assert base is not None
    assert type_name(base.field("code").type) == type_
    body = f"id,code\nA,{first}\nB,{later}\n".encode()
    schema = infer_batch(STEP, body, base)
    why = rf"column code: '{re.escape(later)}' is not as {re.escape(type_)} prints .* declare {re.escape(type_)} .* or STRING"
    with pytest.raises(InvalidInput, match=rf"line 3: {why}"):
        read_batch(STEP, body, schema)
    values = [b"id,code\nA," + first.encode(), b"id,code\nB," + later.encode()]
    outcome = isolate_bad_records(
        values,
        lambda some: read_inferred(STEP, some, infer_records(STEP, values, base)),
        lambda some: suspects(STEP, some, infer_records(STEP, values, base)),
    )
    assert outcome.kept.tolist() == [0]
    assert [*outcome.bad] == [1]
    assert re.match(why, outcome.bad[1])


@pytest.mark.parametrize("later", ["0", "-1", "0.5", "", "1039.0", "0.30000000000000004", "9007199254740992"])
def test_a_later_text_of_an_inferred_number_may_have_zeros_elsewhere(later: str) -> None:
    base = pa.schema([("id", STRING), ("n", DOUBLE if later.startswith("0.") else INT)])
    table = read_batch(STEP, f"id,n\n+47 07 1e3,{later}\n".encode(), base)
    assert table.column("n").to_pylist() == [float(later) if later else None]


@pytest.mark.parametrize(
    ("first", "later", "value"),
    [
        ("1.5", "1.50", 1.5),
        ("1.5", ".5", 0.5),
        ("1.5", " 5", 5.0),
        ("1.5", "1e3", 1000.0),
        ("1.50", "2", Decimal(2)),
    ],
)
def test_a_later_text_of_the_same_number_is_taken(first: str, later: str, value: object) -> None:
    body = f"id,n\nA,{later}\n".encode()
    base = infer_batch(STEP, f"id,n\nA,{first}\n".encode(), None)
    assert read_batch(STEP, body, infer_batch(STEP, body, base)).column("n").to_pylist() == [value]


def test_a_declared_number_may_have_zeros_before_it() -> None:
    step = replace(STEP, ddl_schema=("n BIGINT",))
    assert read_batch(step, b"n\n007\n+8\n1e3\n", pa.schema([("n", INT)])).column("n").to_pylist() == [
        7,
        8,
        1000,
    ]
