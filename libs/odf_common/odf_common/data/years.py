"""The range of times and dates: the years 1 to 9999 in UTC, which every reader of a dataset supports.

Arrow and Parquet allow more; an offset from UTC can exceed the range: 9999-12-31T23:00:00-05:00.
"""

from bisect import bisect_left
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kind

from odf_common.data.stored_types import PER_SECOND
from odf_common.errors import InvalidInput
from odf_common.metadata.scalars import NANOS, Timestamp

_FIRST_DAY: Final = -719_162  # 0001-01-01, in days since the epoch
_LAST_DAY: Final = 2_932_896  # 9999-12-31
_DAY_SECONDS: Final = 86_400


def require_known_years(column: pa.ChunkedArray, where: str) -> None:
    """Raise `InvalidInput` with place and value if a time is outside of the years 1 to 9999."""
    if _may_exceed(column.type):
        _require_known(column.combine_chunks() if kind.is_nested(column.type) else column, where)


def first_unknown_year(table: pa.Table) -> tuple[int, InvalidInput] | None:
    """Return the first row of a column with a time outside of the years 1 to 9999, and the error that names both."""
    for name, column in zip(table.column_names, table.columns, strict=True):
        error = _unknown_year(column, name)
        if error is not None:
            # By halves, since a value within a list does not know its row.
            return bisect_left(range(len(column)), 1, key=partial(_has_unknown, column)), error
    return None


def _has_unknown(column: pa.ChunkedArray, last: int) -> bool:
    """Return whether a row up to `last` has a time outside of these years."""
    return _unknown_year(column.slice(0, last + 1), "") is not None


def _unknown_year(column: pa.ChunkedArray, name: str) -> InvalidInput | None:
    try:
        require_known_years(column, f"column {name}")
    except InvalidInput as error:
        return error
    return None


def _may_exceed(type_: pa.DataType) -> bool:
    if kind.is_struct(type_):
        return any(_may_exceed(inner.type) for inner in type_.fields)
    if kind.is_list(type_) or kind.is_large_list(type_) or kind.is_fixed_size_list(type_):
        return _may_exceed(type_.value_type)
    if kind.is_map(type_):
        return _may_exceed(type_.key_type) or _may_exceed(type_.item_type)
    return bool(kind.is_date(type_) or (kind.is_timestamp(type_) and type_.unit != "ns"))


def _require_known(values: pa.Array | pa.ChunkedArray, where: str) -> None:
    type_ = values.type
    if not _may_exceed(type_):
        return
    if kind.is_struct(type_):
        for inner, part in zip(type_.fields, values.flatten(), strict=True):
            _require_known(part, f"{where}.{inner.name}")
    elif kind.is_map(type_):
        entry = pa.struct([("key", type_.key_type), ("value", type_.item_type)])
        _require_known(values.cast(pa.list_(entry)), where)
    elif kind.is_nested(type_):
        _require_known(values.flatten(), f"{where}[]")
    else:
        _require_within(values, where)


def _require_within(values: pa.Array | pa.ChunkedArray, where: str) -> None:
    per_day = _per_day(values.type)
    first, last = _FIRST_DAY * per_day, (_LAST_DAY + 1) * per_day - 1
    numbers = values.cast(pa.int32() if kind.is_date32(values.type) else pa.int64())
    bounds = pc.min_max(numbers).as_py()
    if bounds["min"] is None or (bounds["min"] >= first and bounds["max"] <= last):
        return
    is_out = pc.or_(pc.less(numbers, first), pc.greater(numbers, last))
    ns = numbers.filter(is_out)[0].as_py() * (_DAY_SECONDS * NANOS // per_day)
    text = str(Timestamp(ns))  # Arrow writes no date for those that are far out
    value = text.partition("T")[0] if kind.is_date(values.type) else text
    raise InvalidInput(where=where, text=f"{value} is outside of the years 0001 to 9999 in UTC")


def _per_day(type_: pa.DataType) -> int:
    if kind.is_date32(type_):
        return 1
    return 86_400_000 if kind.is_date64(type_) else _DAY_SECONDS * PER_SECOND[type_.unit]
