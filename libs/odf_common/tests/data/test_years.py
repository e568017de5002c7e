"""Times and dates outside of the years 1 to 9999 are refused, wherever they are in a column."""

import pyarrow as pa
import pytest

from odf_common.data.time_format import require_known_years
from odf_common.errors import InvalidInput

FIRST, LAST = -719_162, 2_932_896  # days since the epoch: 0001-01-01 and 9999-12-31
DAY_MS = 86_400_000


def column(type_: pa.DataType, number: int) -> pa.Array:
    """A value of the type that has the number as its date or time, at whatever depth, next to a null."""
    if pa.types.is_struct(type_):
        (inner,) = type_.fields
        return pa.StructArray.from_arrays([column(inner.type, number)], fields=[inner])
    if pa.types.is_list(type_):
        return pa.ListArray.from_arrays(pa.array([0, 2, 2], pa.int32()), column(type_.value_type, number))
    storage = pa.int32() if pa.types.is_date32(type_) else pa.int64()
    return pa.array([number, None], storage).cast(type_)


@pytest.mark.parametrize(
    ("type_", "place"),
    [
        (pa.date32(), "c"),
        (pa.struct([("d", pa.date32())]), "c.d"),
        (pa.list_(pa.date32()), "c[]"),
        (pa.list_(pa.struct([("d", pa.date32())])), "c[].d"),
        (pa.struct([("l", pa.list_(pa.date32()))]), "c.l[]"),
    ],
    ids=str,
)
def test_dates_may_be_those_of_the_first_to_the_last_year_at_any_depth(
    type_: pa.DataType, place: str
) -> None:
    for day in (FIRST, 0, LAST):
        require_known_years(pa.chunked_array([column(type_, day)]), "column c")
    for day, text in ((FIRST - 1, "0000-12-31"), (LAST + 1, "10000-01-01")):
        with pytest.raises(InvalidInput, match="outside of the years 0001 to 9999") as refused:
            require_known_years(pa.chunked_array([column(type_, day)]), "column c")
        assert str(refused.value).startswith(f"column {place}: ")
        assert text in str(refused.value)


@pytest.mark.parametrize(
    ("type_", "per_day"),
    [
        (pa.date64(), DAY_MS),
        (pa.timestamp("s", "UTC"), DAY_MS // 1000),
        (pa.timestamp("ms", "UTC"), DAY_MS),
        (pa.timestamp("us"), DAY_MS * 1000),
    ],
    ids=str,
)
def test_the_last_tick_of_the_last_year_is_accepted_and_the_next_is_not(
    type_: pa.DataType, per_day: int
) -> None:
    step = per_day if pa.types.is_date64(type_) else 1
    for number in (FIRST * per_day, (LAST + 1) * per_day - step):
        require_known_years(pa.chunked_array([column(type_, number)]), "column c")
    for number in (FIRST * per_day - step, (LAST + 1) * per_day):
        with pytest.raises(InvalidInput, match="outside of the years"):
            require_known_years(pa.chunked_array([column(type_, number)]), "column c")
