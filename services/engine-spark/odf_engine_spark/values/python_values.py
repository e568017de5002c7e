"""Conversion of columns to lists of Python values, which compare as in Spark, and back.

Integers, timestamps and unscaled decimals are `int`. Floats are `int` where they are compared
(`equality_codes.float_order`), and `float` where they are added. Strings are `str`, binary values `bytes`, nulls
`None`. Structs and lists are tuples with two items per part: whether it is present, and its value. So a null sorts
before all values, and is never compared. Within them, -0.0 is converted to 0.0, as equal parts must not decide the
order.
"""

from collections.abc import Sequence
from itertools import chain, pairwise
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.types as kind

from odf_common.errors import InvalidQuery
from odf_engine_spark.values.equality_codes import float_order, floats, in_one_piece, normalize_keys

Plain = int | float | str | bytes | tuple["Plain", ...] | None
_WORD_BITS: Final = 64
_HALF: Final = (1 << _WORD_BITS) - 1
_LARGEST: Final = np.iinfo(np.int64).max


def comparable(column: pa.ChunkedArray | pa.Array) -> list[Plain]:
    """Return values that compare as in Spark; raises `InvalidQuery` for types without an order."""
    values = in_one_piece(column)
    type_ = values.type
    if kind.is_string(type_) or kind.is_binary(type_):
        # Code points order as the bytes of UTF-8 do.
        return list(values.to_numpy(zero_copy_only=False).tolist())
    if kind.is_decimal128(type_):
        return _unscaled_integers(values)
    if kind.is_null(type_):
        return [None] * len(values)
    if kind.is_struct(type_) or kind.is_list(type_):
        return _nested(values)
    if kind.is_floating(type_):
        values = float_order(values)
    return _whole(_as_int64(values, type_))


def doubles(column: pa.ChunkedArray) -> list[Plain]:
    """Return the values of a column as doubles."""
    values = in_one_piece(column).cast(pa.float64(), safe=False)
    return _whole(values)


def presence(column: pa.ChunkedArray) -> list[Plain]:
    """Return 1 for each value, and None for each null."""
    return [1 if is_valid else None for is_valid in np.asarray(in_one_piece(column).is_valid()).tolist()]


def column_of(values: Sequence[Plain], type_: pa.DataType) -> pa.Array:
    """Return a column of a type with these values; the inverse of `comparable`."""
    if kind.is_decimal128(type_):
        return _decimals(values, type_)
    if kind.is_floating(type_):
        return floats(pa.array(values, pa.int64()), type_)
    if kind.is_struct(type_):
        return _structs(values, type_)
    if kind.is_list(type_):
        return _lists(values, type_)
    if kind.is_boolean(type_):
        return pa.array(values, pa.int8()).cast(pa.bool_())
    if kind.is_temporal(type_):
        width = pa.int32() if type_.bit_width == 32 else pa.int64()
        return pa.array(values, width).view(type_)
    return pa.array(values, type_)


def _as_int64(values: pa.Array, type_: pa.DataType) -> pa.Array:
    if kind.is_temporal(type_) and not kind.is_interval(type_):
        values = values.view(pa.int32() if type_.bit_width == 32 else pa.int64())
    try:
        return values.cast(pa.int64())
    except pa.ArrowException as error:
        raise InvalidQuery(text=f"{type_} cannot be aggregated: aggregate its parts") from error


def _nested(values: pa.Array) -> list[Plain]:
    if kind.is_struct(values.type):
        parts = [_pairs(part) for part in values.flatten()]
        result: list[Plain] = [tuple(chain(*row)) for row in zip(*parts, strict=True)] or [()] * len(values)
    else:
        pairs, edges = _pairs(values.values), values.offsets.to_pylist()
        result = [tuple(chain(*pairs[start:end])) for start, end in pairwise(edges)]
    for index in np.flatnonzero(np.asarray(values.is_null())).tolist():
        result[index] = None
    return result


def _pairs(values: pa.Array) -> list[tuple[Plain, Plain]]:
    return [(value is not None, value) for value in comparable(normalize_keys(values))]


def _structs(values: Sequence[Plain], type_: pa.DataType) -> pa.Array:
    rows = [value if isinstance(value, tuple) else None for value in values]
    parts = [
        column_of([None if row is None else row[2 * index + 1] for row in rows], field.type)
        for index, field in enumerate(type_.fields)
    ]
    is_null = pa.array([row is None for row in rows], pa.bool_())
    return pa.StructArray.from_arrays(parts, fields=list(type_.fields), mask=is_null)


def _lists(values: Sequence[Plain], type_: pa.DataType) -> pa.Array:
    rows = [value[1::2] if isinstance(value, tuple) else () for value in values]
    edges = np.cumsum([0, *(len(row) for row in rows)], dtype=np.int32)
    is_null = pa.array([value is None for value in values], pa.bool_())
    flat = column_of([value for row in rows for value in row], type_.value_type)
    return pa.ListArray.from_arrays(pa.array(edges), flat, type=type_, mask=is_null)


def _whole(values: pa.Array) -> list[Plain]:
    plain: list[Plain] = values.fill_null(0).to_numpy().tolist()
    if values.null_count:
        for index in np.flatnonzero(np.asarray(values.is_null())).tolist():
            plain[index] = None
    return plain


def _unscaled_integers(values: pa.Array) -> list[Plain]:
    words = np.frombuffer(values.buffers()[1], np.int64)[2 * values.offset :][: 2 * len(values)].reshape(
        -1, 2
    )
    low, high = words[:, 0], words[:, 1]
    is_null = np.asarray(values.is_null())
    wide = (high != low >> 63) & ~is_null
    plain: list[Plain] = low.tolist()
    for index in np.flatnonzero(wide).tolist():
        plain[index] = (int(high[index]) << _WORD_BITS) | (int(low[index]) & _HALF)
    for index in np.flatnonzero(is_null).tolist():
        plain[index] = None
    return plain


def _decimals(values: Sequence[Plain], type_: pa.DataType) -> pa.Array:
    whole = [value if isinstance(value, int) else 0 for value in values]
    packed = b"".join(value.to_bytes(16, "little", signed=True) for value in whole)
    validity = pa.array([value is not None for value in values], pa.bool_())
    mask = None if all(value is not None for value in values) else validity.buffers()[1]
    return pa.Array.from_buffers(type_, len(values), [mask, pa.py_buffer(packed)])
