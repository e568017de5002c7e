"""Times that are numbers since 1970: the same, exact timestamp from every format, or a refusal."""

from decimal import Decimal
from fractions import Fraction
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from odf_common.data.ddl import ddl_to_schema
from odf_common.data.time_format import EPOCHS
from odf_common.errors import InvalidInput
from odf_common.metadata.steps import ReadStepCsv, ReadStepJson, ReadStepNdJson
from odf_ingest.read import read_records

SCHEMA = ddl_to_schema(["at TIMESTAMP(3)", "n BIGINT"])
FIRST, LAST = -62_135_596_800, 253_402_300_799  # seconds of the years 1 to 9999
NUMBERS = st.decimals(-(10**20), 10**20, allow_nan=False, places=10) | st.builds(
    lambda seconds, places, digits: Decimal(seconds).scaleb(digits) + Decimal(places).scaleb(-9),
    st.integers(FIRST - 2, LAST + 2),
    st.integers(0, 10**9 - 1),
    st.sampled_from(list(EPOCHS.values())),
)


def milliseconds(number: Decimal, digits: int) -> int | None:
    """Return the number as milliseconds, cut; None if it has a finer fraction than nanoseconds, or another year."""
    nanoseconds = Fraction(number) * 10 ** (9 - digits)
    is_known = nanoseconds.denominator == 1 and FIRST * 10**9 <= nanoseconds < (LAST + 1) * 10**9
    return int(nanoseconds // 10**6) if is_known else None


def read(step: Any, *messages: str) -> list[int | None] | None:
    """Return the times in milliseconds; None if a message is refused."""
    try:
        table = read_records(step, [message.encode() for message in messages], SCHEMA)
    except InvalidInput:
        return None
    found: list[int | None] = table.column("at").cast(pa.int64()).to_pylist()
    return found


@given(number=NUMBERS)
@example(number=Decimal("-0.000000001"))
@example(number=Decimal("1700000000.1"))
@example(number=Decimal("1.7E+12"))
@pytest.mark.parametrize("name", EPOCHS)
def test_a_number_or_its_text_is_the_same_time_in_every_format(name: str, number: Decimal) -> None:
    expected = milliseconds(number, EPOCHS[name])
    text = str(number)
    options: Any = {"timestamp_format": name}
    json = [f'{{"at": {text}, "n": 1}}', f'{{"at": "{text}", "n": 1.0}}', '{"at": null, "n": 1}']
    outcomes = [
        read(ReadStepCsv(**options), f"{text},1"),
        read(ReadStepCsv(**options), f"{text},1", ",2"),
        *(
            read(kind(**options), *some)
            for kind in (ReadStepNdJson, ReadStepJson)
            for some in (json[:1], json[1:2], json)
        ),
    ]
    if expected is None:
        assert outcomes == [None] * len(outcomes)
    else:
        assert outcomes == [
            [expected],
            [expected, None],
            *2 * [[expected], [expected], [expected, expected, None]],
        ]


@pytest.mark.parametrize(
    "value", ['"soon"', "true", '""', '"1_0"', '"0x10"', '" 5 x"', "1e300", '"nan"', "{}", "1.12345678901"]
)
def test_what_is_no_number_is_refused_with_its_unit(value: str) -> None:
    step = ReadStepNdJson(timestamp_format="epochSeconds")
    assert read(step, f'{{"at": {value}}}') is None
    if value not in {"true", "{}"}:
        with pytest.raises(InvalidInput, match=r"^column at: .* is not a time in seconds since 1970$"):
            read_records(step, [f'{{"at": {value}}}'.encode(), b'{"at": 1}'][:1], SCHEMA)


def test_numbers_inside_objects_and_arrays_are_times_too_and_keep_the_columns_unit() -> None:
    schema = ddl_to_schema(["o STRUCT<at: TIMESTAMP(9), l: ARRAY<TIMESTAMP(0)>>"])
    step = ReadStepNdJson(timestamp_format="EPOCHMICROS")
    for text in (
        '{"o": {"at": 1.001, "l": [2000000, "3000000", null]}}',
        '{"o": {"at": 1.001, "l": [2e6, 3000000, null]}}',
    ):
        (row,) = read_records(step, [text.encode()], schema).to_pylist()
        assert row["o"]["at"].value == 1001
        assert [None if one is None else one.timestamp() for one in row["o"]["l"]] == [2, 3, None]


@pytest.mark.parametrize(("step", "message"), [(ReadStepNdJson(), '{"at": %s}'), (ReadStepCsv(), "%s,1")])
@pytest.mark.parametrize("name", EPOCHS)
def test_a_number_without_a_format_is_refused_with_the_format_to_write(
    step: Any, message: str, name: str
) -> None:
    number = 1_700_000_000 * 10 ** EPOCHS[name]
    with pytest.raises(
        InvalidInput, match=f"is not a value of TIMESTAMP.3.; with `timestampFormat: {name}` it is"
    ):
        read_records(step, [(message % number).encode()], SCHEMA)
