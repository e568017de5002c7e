"""Columns of Csv without declared types: a value is printed as it was written."""

import re
from dataclasses import replace
from datetime import date, time
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from odf_common.errors import InvalidInput
from odf_common.metadata.steps import ReadStepCsv
from odf_ingest.read import infer_batch, infer_records, read_batch, read_inferred, suspects
from odf_ingest.read.csv_format.csv_parse import why_text
from odf_ingest.read.isolate_bad_records import isolate_bad_records
from odf_ingest.read.types.type_names import type_name

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
