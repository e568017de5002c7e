"""Integer codes for the equality and order of values: equal values have equal codes, smaller values smaller codes.

As in Spark, nulls equal each other, -0.0 equals 0.0, NaN equals NaN and is greater than all other numbers, and strings
are ordered by their bytes.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kind

from odf_common.errors import InvalidQuery
from odf_engine_spark.values.operations import Numbers

_NAN: Final = float("nan")
_LARGEST: Final = np.iinfo(np.int64).max
_BITS: Final = {pa.float32(): pa.int32(), pa.float64(): pa.int64()}


def normalize_keys(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Return a column as one array in which all zeros and all NaNs have the same bits, as in Spark's grouping keys."""
    return _normalize(in_one_piece(column))


def in_one_piece(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Return a column as one array."""
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def equality_codes(columns: Sequence[pa.Array], rows: int) -> Numbers:
    """Return a code per row, from 0; rows that are bit-equal in all columns have the same code."""
    codes = np.zeros(rows, dtype=np.int64)
    for column in columns:
        codes = combine_codes(codes, _equality(column))
    return codes


def order_codes(column: pa.ChunkedArray | pa.Array, *, is_ascending: bool, nulls_first: bool) -> Numbers:
    """Return a code per row, from 0, that sorts like ORDER BY; raises `InvalidQuery` for types without an order."""
    values = normalize_keys(column)
    codes = _order(values)
    last = codes.max(initial=0)
    codes = codes if is_ascending else last - codes
    return np.asarray(np.where(np.asarray(values.is_null()), 0 if nulls_first else last + 2, codes + 1))


def combine_codes(major: Numbers, minor: Numbers) -> Numbers:
    """Return codes of pairs that are ordered by `major`, and then by `minor`."""
    if not len(major):
        return major
    sizes = int(major.max()) + 1, int(minor.max()) + 1
    if sizes[0] > _LARGEST // sizes[1]:
        major, minor = compact(major), compact(minor)
        sizes = int(major.max()) + 1, int(minor.max()) + 1
    return np.asarray(major * sizes[1] + minor)


def compact(codes: Numbers) -> Numbers:
    """Return codes with the same order that are less than twice the number of rows."""
    if not len(codes) or codes.max() < 2 * len(codes):
        return codes
    return np.asarray(np.unique(codes, return_inverse=True)[1], dtype=np.int64)


def is_among(codes: Numbers, others: Numbers) -> npt.NDArray[np.bool_]:
    """Return a mask of the codes that also occur in `others`. Memory is limited only if both are `compact`."""
    seen = np.zeros(max(codes.max(initial=0), others.max(initial=0)) + 1, dtype=bool)
    seen[others] = True
    return np.asarray(seen[codes])


def float_order(values: pa.Array) -> pa.Array:
    """Return integers with the order of these floats, with -0.0 before 0.0; `floats` is the inverse."""
    bits = values.cast(pa.float64()).view(pa.int64())
    return pc.if_else(pc.less(bits, 0), pc.bit_wise_xor(bits, _LARGEST), bits)


def floats(codes: pa.Array, type_: pa.DataType) -> pa.Array:
    """Return the floats with these codes of `float_order`."""
    bits = pc.if_else(pc.less(codes, 0), pc.bit_wise_xor(codes, _LARGEST), codes)
    return bits.view(pa.float64()).cast(type_)


def _normalize(values: pa.Array) -> pa.Array:
    if kind.is_floating(values.type):
        nan, zero = pa.scalar(_NAN, values.type), pa.scalar(0.0, values.type)
        return pc.if_else(pc.is_nan(values), nan, pc.add(values, zero))
    if kind.is_struct(values.type):
        parts = [_normalize(values.field(index)) for index in range(values.type.num_fields)]
        mask = values.is_null() if values.null_count else None
        return pa.StructArray.from_arrays(parts, fields=list(values.type.fields), mask=mask)
    if kind.is_list(values.type):
        ends = np.cumsum(np.asarray(pc.list_value_length(values).fill_null(0)), dtype=np.int32)
        mask = values.is_null() if values.null_count else None
        parts = _normalize(values.flatten())
        return pa.ListArray.from_arrays(np.append(np.int32(0), ends), parts, type=values.type, mask=mask)
    return values


def _equality(values: pa.Array) -> Numbers:
    if kind.is_null(values.type):
        return np.zeros(len(values), dtype=np.int64)
    if kind.is_struct(values.type):
        is_null = np.asarray(values.is_null().cast(pa.int64()))
        return combine_codes(is_null, equality_codes(values.flatten(), len(values)))
    if kind.is_nested(values.type):
        values = pa.array([repr(value) for value in values.to_pylist()], pa.string())
    if values.type in _BITS:
        values = values.view(_BITS[values.type])
    return np.asarray(values.dictionary_encode("encode").indices).astype(np.int64)


def _order(values: pa.Array) -> Numbers:
    """Return a code per row with the ascending order of the non-null values; within nested values, nulls come first."""
    if kind.is_struct(values.type):
        codes = np.zeros(len(values), dtype=np.int64)
        for part in values.flatten():
            codes = combine_codes(codes, order_codes(part, is_ascending=True, nulls_first=True))
        return codes
    if kind.is_list(values.type):
        parts = order_codes(values.values, is_ascending=True, nulls_first=True).tolist()
        rows = [tuple(parts[start:end]) for start, end in pairwise(values.offsets.to_pylist())]
        places = {row: code for code, row in enumerate(sorted(set(rows)))}
        return np.array([places[row] for row in rows], dtype=np.int64)
    values = float_order(values) if kind.is_floating(values.type) else values
    values = values.cast(pa.int8()) if kind.is_boolean(values.type) else values
    try:
        encoded = values.dictionary_encode("mask")
        order = np.asarray(pc.sort_indices(encoded.dictionary))
    except pa.ArrowException as error:
        raise InvalidQuery(text=f"{values.type} cannot be ordered: order by its parts") from error
    ranks = np.zeros(len(order) + 1, dtype=np.int64)
    ranks[order] = np.arange(len(order))
    return np.asarray(ranks[np.asarray(encoded.indices.fill_null(0))])
