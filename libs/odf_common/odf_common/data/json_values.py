"""Values and records as JSON, as commands print them and the server returns them."""

import base64
import math
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, date, datetime, time, timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from odf_common.metadata.scalars import NANOS, Timestamp

if TYPE_CHECKING:
    import pyarrow as pa

SECONDS_OF_DAY: Final = 86_400
# Raised for years past 9999, time zones unknown to this machine, invalid UTF-8, duplicate field names.
_NO_PYTHON_VALUE: Final = (ArithmeticError, LookupError, NotImplementedError, OSError, TypeError, ValueError)


def plain(value: object) -> Any:  # noqa: ANN401 - JSON
    """Return a JSON value: times as RFC 3339 in UTC, decimals and non-finite numbers as text, bytes as base64."""
    match value:
        case Mapping():
            return {str(key): plain(item) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [plain(item) for item in value]
        case Enum():
            return plain(value.value)
        case _:
            return _scalar(value)


def _scalar(value: object) -> Any:  # noqa: ANN401 - JSON
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case datetime():
            return str(Timestamp.from_datetime(value if value.tzinfo else value.replace(tzinfo=UTC)))
        case date() | time():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case bytes():
            return base64.b64encode(value).decode()
        case _:
            # Decimals, paths and our own types.
            return str(value)


def record_rows(table: "pa.Table") -> Iterator[Mapping[str, object]]:
    """Iterate over records as mappings, in order.

    A value without a Python equivalent becomes a string; if it is a time, the string contains its number and type.
    """
    table = table.rename_columns(distinct(table.column_names))
    is_direct = not any(_has_nanoseconds(kind) for kind in table.schema.types)
    for batch in table.to_batches(max_chunksize=10_000):
        try:
            rows = batch.to_pylist() if is_direct else None
        except _NO_PYTHON_VALUE:
            rows = None
        if rows is not None:
            yield from rows
        else:
            columns = [[_python_value(value) for value in column] for column in batch.columns]
            yield from (dict(zip(batch.schema.names, row, strict=True)) for row in zip(*columns, strict=True))


def distinct(names: Iterable[str]) -> list[str]:
    """Return the names made unique, because a query may return two columns with the same name."""
    result: list[str] = []
    for name in names:
        number, other = 2, name
        while other in result:
            other, number = f"{name}_{number}", number + 1
        result.append(other)
    return result


def _python_value(value: "pa.Scalar") -> object:
    """Return the Python equivalent of a value, or a string if there is none."""
    try:
        return value.as_py() if not value.is_valid or not _has_nanoseconds(value.type) else _in_parts(value)
    except _NO_PYTHON_VALUE:
        return _in_parts(value)


def _in_parts(value: "pa.Scalar") -> object:
    import pyarrow.types as kind  # noqa: PLC0415 - a command that prints no records starts without it

    if kind.is_struct(value.type):
        names = [field.name for field in value.type]
        parts = [_python_value(value[number]) for number in range(len(names))]
        pairs = list(zip(names, parts, strict=True))
        return dict(pairs) if len(set(names)) == len(names) else pairs
    if kind.is_map(value.type):
        return [(_python_value(item[0]), _python_value(item[1])) for item in value.values]
    if kind.is_nested(value.type) and hasattr(value, "values"):
        return [_python_value(item) for item in value.values]
    if hasattr(value, "as_buffer"):  # a string that is not UTF-8
        return value.as_buffer().to_pybytes().decode(errors="backslashreplace")
    inner = getattr(value, "value", None)
    if hasattr(inner, "as_py"):  # of a dictionary, union, run or extension
        return _python_value(inner)
    if isinstance(inner, int) and _has_nanoseconds(value.type):
        return _exact(inner, value.type)
    return f"{inner} {value.type}"


def _exact(nanos: int, kind: "pa.DataType") -> object:
    """Return a value in nanoseconds without rounding; Python's own types have only microseconds."""
    if str(kind).startswith("timestamp"):
        return Timestamp(nanos)
    if str(kind).startswith("duration"):
        return nanos / NANOS
    seconds, rest = divmod(nanos, NANOS)
    if not 0 <= seconds < SECONDS_OF_DAY:
        return f"{nanos} {kind}"
    text = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return f"{text}.{rest:09d}" if rest else text


def _has_nanoseconds(kind: "pa.DataType") -> bool:
    """Return whether the type, or a type nested in it, has nanoseconds as its unit."""
    return any(mark in str(kind) for mark in ("timestamp[ns", "time64[ns", "duration[ns"))
