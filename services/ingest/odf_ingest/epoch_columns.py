"""Columns of numbers in a sample that are times, by their magnitude and their names."""

import re
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kind

from odf_common.data.time_format import EPOCHS, epoch_digits, likely_epoch

_NAME: Final = re.compile(r"(?i:time|date|stamp|epoch|created|^at$|^ts$)|_at$|_ts$|[a-z]At$|[a-z]Ts$")
_UNITS: Final = {0: "ms", 3: "ms", 6: "us", 9: "ns"}  # of a TIMESTAMP, by decimals of a second
_FRACTION_UNIT: Final = "us"  # of seconds with fractions, such as those of Python's time()


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochTimes:
    """A sample whose numbers since 1970 are timestamps."""

    table: pa.Table
    timestamp_format: str | None
    remarks: tuple[str, ...]


def with_epoch_times(table: pa.Table, timestamp_format: str | None) -> EpochTimes:
    """Return the sample with timestamps instead of numbers that are times by magnitude and name.

    The format of timestamps is one for all columns: it is `timestamp_format`, or that of the first such column if the
    sample has no other times. Other columns of likely times have remarks.
    """
    likely = {column.name: _format_of(table.column(column.name)) for column in table.schema}
    named = [name for name, format_ in likely.items() if format_ is not None and _NAME.search(name)]
    if timestamp_format is None and named and not any(kind.is_timestamp(one) for one in table.schema.types):
        timestamp_format = likely[named[0]]
    remarks = []
    digits = epoch_digits(timestamp_format)
    for index, (name, format_) in enumerate(likely.items()):
        if format_ is None:
            continue
        if digits is not None and epoch_digits(format_) == digits and name in named:
            table = table.set_column(index, *_as_times(name, table.column(name), digits))
            remarks.append(
                f"column {name} has numbers since 1970, which timestampFormat {format_} reads as times"
            )
        elif name in named:
            function = f"timestamp_{format_.removeprefix('epoch').lower()}"
            remarks.append(
                f"column {name} seems to be an epoch time ({format_}), but one timestampFormat holds for all columns: "
                f"`preprocess` can convert it by {function}({name})"
            )
        elif format_ != "epochSeconds":  # as many numbers of ten digits are
            remarks.append(
                f"column {name} could be an epoch time: `timestampFormat: {format_}` reads it as TIMESTAMP"
            )
    return EpochTimes(table=table, timestamp_format=timestamp_format, remarks=tuple(remarks))


def _format_of(values: pa.ChunkedArray) -> str | None:
    """Return the format in which all numbers are times of this century."""
    is_whole = kind.is_integer(values.type)
    if values.null_count == len(values) or not (is_whole or kind.is_floating(values.type)):
        return None
    bounds = pc.min_max(values).as_py()
    least, most = likely_epoch(bounds["min"]), likely_epoch(bounds["max"])
    return least if least == most and (is_whole or least == "epochSeconds") else None


def _as_times(name: str, values: pa.ChunkedArray, digits: int) -> tuple[pa.Field, pa.ChunkedArray]:
    if kind.is_floating(values.type):
        unit, values = _FRACTION_UNIT, pc.round(pc.multiply(values, 10 ** EPOCHS["epochMicros"]))
        digits = EPOCHS["epochMicros"]
    else:
        unit = _UNITS[digits]
        values = pc.multiply_checked(values.cast(pa.int64()), 1000) if digits == 0 else values
    type_ = pa.timestamp(unit, "UTC")
    return pa.field(name, type_), values.cast(pa.int64()).cast(type_)
