"""Keys as arrays that sort and compare exactly.

A key of one column of integers, times or floating-point numbers becomes integers. Any other key becomes bytes that are
equal exactly if the keys are equal; if the bytes are longer than `MAX_INLINE_BYTES`, their SHA-256 digest is used.

When two values are equal, for keys and for merges alike: exactly when the same value is stored.

Numbers, strings, binary values and times are equal if their values are. Floating-point numbers are compared by
their bits, as Java's `Double.equals` does: 0.0 and -0.0 differ, because they are stored and hashed differently, and
every NaN equals every other NaN whatever its bits. Null equals null only. Lists and structs are equal if all that
they contain is: a null list is not an empty one, a null struct is not a struct of nulls.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kind

from odf_common.errors import InvalidInput

# Raised whenever other values are equal, or keys have other bytes: kept indexes are then rebuilt.
VERSION: Final = 1
Mask = npt.NDArray[np.bool_]
# By width in bits: the integer type of that width, and the bits of infinity, above which are NaNs.
_FLOATS: Final = {
    16: (pa.int16(), 0x7C00),
    32: (pa.int32(), 0x7F80_0000),
    64: (pa.int64(), 0x7FF0_0000_0000_0000),
}


def comparable(values: pa.Array) -> pa.Array:
    """Return flat values in a form that Arrow and numpy compare and sort as this module defines; nulls stay null.

    Floating-point numbers become integers in the same order, -0.0 before 0.0 and NaN last. A UUID becomes the bytes
    that are stored. Values of other types are returned as they are.
    """
    if isinstance(values, pa.ExtensionArray):
        return comparable(values.storage)
    if not kind.is_floating(values.type):
        return values
    integer, infinity = _FLOATS[values.type.bit_width]
    greatest = np.iinfo(integer.to_pandas_dtype()).max
    bits = values.view(integer).fill_null(greatest).to_numpy()
    greatest = bits.dtype.type(greatest)
    is_nan = (bits & greatest) > infinity
    # As bits, negative numbers grow with their magnitude: reverse their order.
    ordered = np.where(is_nan, greatest, bits ^ np.where(bits < 0, greatest, bits.dtype.type(0)))
    return pa.array(ordered, integer, mask=values.is_null().to_numpy(zero_copy_only=False))


def equal(left: pa.Array, right: pa.Array) -> Mask:
    """Return for each row whether two columns of one type and length have equal values."""
    type_ = left.type
    is_flat = not (kind.is_nested(type_) or kind.is_null(type_))
    if is_flat and left.null_count == right.null_count == 0:
        return _equal_values(left, right)
    left_valid, right_valid = _valid(left), _valid(right)
    both = left_valid & right_valid
    if kind.is_null(type_):
        inner = both
    elif kind.is_struct(type_):
        inner = both.copy()
        for number in range(type_.num_fields):
            inner &= equal(left.field(number), right.field(number))
    elif kind.is_list(type_) or kind.is_large_list(type_) or kind.is_fixed_size_list(type_):
        inner = _equal_lists(left, right, both)
    else:
        equals = pc.equal(comparable(left), comparable(right)).fill_null(False)  # noqa: FBT003 - the value of nulls
        inner = equals.to_numpy(zero_copy_only=False)
    is_equal: Mask = (both & inner) | ~(left_valid | right_valid)
    return is_equal


def _equal_values(left: pa.Array, right: pa.Array) -> Mask:
    """Return for each row whether two flat columns without nulls have equal values."""
    if not kind.is_floating(left.type):
        same: Mask = pc.equal(comparable(left), comparable(right)).to_numpy(zero_copy_only=False)
        return same
    integer, infinity = _FLOATS[left.type.bit_width]
    bits, others = left.view(integer).to_numpy(), right.view(integer).to_numpy()
    same = bits == others
    # Other bits are the same value only if both are NaN.
    rest = np.flatnonzero(~same)
    greatest = bits.dtype.type(np.iinfo(bits.dtype).max)
    same[rest] = ((bits[rest] & greatest) > infinity) & ((others[rest] & greatest) > infinity)
    return same


def _equal_lists(left: pa.Array, right: pa.Array, both: Mask) -> Mask:
    is_equal = both.copy()
    lengths = pc.list_value_length(left).fill_null(-1).to_numpy().astype(np.int64)
    is_equal &= lengths == pc.list_value_length(right).fill_null(-1).to_numpy()
    rows = np.flatnonzero(is_equal)
    places = pa.array(rows)
    differ = ~equal(left.take(places).flatten(), right.take(places).flatten())
    before = np.concatenate(([0], np.cumsum(differ)))
    ends = np.cumsum(lengths[rows])
    is_equal[rows] = before[ends] == before[ends - lengths[rows]]
    return is_equal


def _valid(values: pa.Array) -> Mask:
    mask: Mask = values.is_valid().to_numpy(zero_copy_only=False)
    return mask


MAX_INLINE_BYTES: Final = 64  # of a key that is stored without hashing
Keys = npt.NDArray[np.generic]
_END: Final = 1  # ends each key, since numpy ignores trailing zero bytes
_RAW: Final = 1
_DIGEST: Final = 2


def key_array(table: pa.Table, columns: Sequence[str]) -> Keys:
    """Return one key per record; keys are equal exactly if all key columns are.

    Raises `InvalidInput` for a missing column or null.
    """
    missing = [name for name in columns if name not in table.column_names]
    if missing:
        raise InvalidInput(where=f"column {missing[0]}", text="is a primary key and is missing")
    key = [comparable(table.column(name).combine_chunks()) for name in columns]
    for name, column in zip(columns, key, strict=True):
        if column.null_count:
            raise InvalidInput(where=f"column {name}", text="is a primary key and must not be null")
    if len(key) == 1 and (numbers := _whole_numbers(key[0])) is not None:
        return numbers
    return _sortable(_as_bytes(dict(zip(columns, key, strict=True))))


def with_keys(table: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Return the records that have a value in every key column; no records if a column is missing."""
    if any(name not in table.column_names for name in columns):
        return table.slice(0, 0)
    for name in columns:
        if table.column(name).null_count:
            table = table.filter(table.column(name).is_valid())
    return table


def _whole_numbers(column: pa.Array) -> Keys | None:
    """Return a column of integers or times as integers; None for other types."""
    type_ = column.type
    if kind.is_integer(type_):
        column = column.cast(pa.uint64() if kind.is_uint64(type_) else pa.int64())
    elif kind.is_date32(type_) or kind.is_time32(type_):
        column = column.cast(pa.int32()).cast(pa.int64())
    elif (
        kind.is_timestamp(type_) or kind.is_time64(type_) or kind.is_date64(type_) or kind.is_duration(type_)
    ):
        column = column.cast(pa.int64())
    else:
        return None
    numbers: Keys = column.to_numpy(zero_copy_only=False)
    return numbers


def _as_bytes(key: Mapping[str, pa.Array]) -> pa.Array:
    """Return the concatenated bytes of all columns, variable-length ones prefixed with their length."""
    parts = []
    for name, column in key.items():
        numbers = _whole_numbers(column)
        if numbers is not None:
            parts.append(_fixed_width(numbers.astype(">i8" if numbers.dtype.kind == "i" else ">u8")))
        else:
            text = _variable(name, column)
            if len(key) > 1:
                lengths = pc.binary_length(text).to_numpy(zero_copy_only=False).astype(">i8")
                parts.append(_fixed_width(lengths))
            parts.append(text)
    empty = pa.scalar(b"", pa.large_binary())
    return parts[0] if len(parts) == 1 else pc.binary_join_element_wise(*parts, empty)


def _variable(name: str, column: pa.Array) -> pa.Array:
    if kind.is_fixed_size_binary(column.type):
        column = column.cast(pa.binary())
    if not (kind.is_binary(column.type) or kind.is_large_binary(column.type)):
        try:
            column = column.cast(pa.large_string())
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise InvalidInput(
                where=f"column {name}", text=f"{column.type} cannot be a primary key"
            ) from error
    return column.cast(pa.large_binary())


def _fixed_width(values: Keys) -> pa.Array:
    raw = np.ascontiguousarray(values)
    width = raw.dtype.itemsize
    array = pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), len(raw), [None, pa.py_buffer(raw)])
    return array.cast(pa.binary()).cast(pa.large_binary())


def _sortable(keys: pa.Array) -> Keys:
    """Return fixed-width bytes: a tag, the key or its digest, and an end mark."""
    lengths = pc.binary_length(keys).to_numpy(zero_copy_only=False).astype(np.int64)
    longest = int(lengths.max(initial=0))
    tags = np.full(len(keys), _RAW, dtype=np.uint8)
    if longest > MAX_INLINE_BYTES:
        is_long = lengths > MAX_INLINE_BYTES
        texts = keys.to_pylist()
        for index in np.flatnonzero(is_long):
            texts[index] = hashlib.sha256(texts[index]).digest()
        tags[is_long] = _DIGEST
        keys = pa.array(texts, pa.large_binary())
        lengths = pc.binary_length(keys).to_numpy(zero_copy_only=False).astype(np.int64)
        longest = int(lengths.max())
    matrix = np.zeros((len(keys), longest + 2), dtype=np.uint8)
    matrix[:, 0] = tags
    _, offsets, values = keys.buffers()
    bounds = (
        np.frombuffer(offsets, np.int64)[keys.offset : keys.offset + len(keys) + 1] if len(keys) else [0, 0]
    )
    raw = np.frombuffer(values or b"", np.uint8)[bounds[0] : bounds[-1]]
    matrix[:, 1:-1][np.arange(longest) < lengths[:, None]] = raw
    matrix[np.arange(len(keys)), lengths + 1] = _END
    return matrix.view(f"S{longest + 2}").reshape(len(keys))


def key_order(keys: Keys) -> npt.NDArray[np.int64]:
    """Return the indices that sort the keys in ascending order; equal keys keep their order."""
    if keys.dtype.kind != "S":
        return np.argsort(keys, kind="stable")
    # Sorting numbers is faster than sorting bytes: the bytes that differ, eight at a time.
    width = keys.dtype.itemsize
    matrix = np.ascontiguousarray(keys).view(np.uint8).reshape(len(keys), width)
    differing = [index for index in range(width) if bool(np.any(matrix[1:, index] != matrix[:-1, index]))]
    words = []
    for first in range(0, len(differing), 8):
        word = np.zeros((len(keys), 8), dtype=np.uint8)
        part = differing[first : first + 8]
        word[:, : len(part)] = matrix[:, part]
        words.append(word.view(">u8").reshape(len(keys)).astype(np.uint64))
    return np.lexsort(words[::-1]) if words else np.arange(len(keys))


def first_of_each(keys: Keys) -> tuple[Keys, npt.NDArray[np.int64]]:
    """Return the distinct keys, ascending, and the index of the first of each."""
    order = key_order(keys)
    ordered = keys[order]
    is_first = np.append(np.ones(min(len(keys), 1), np.bool_), ordered[1:] != ordered[:-1])
    return ordered[is_first], order[is_first]


def last_of_each(keys: Keys) -> tuple[Keys, npt.NDArray[np.int64]]:
    """Return the distinct keys, ascending, and the index of the last of each."""
    distinct, from_end = first_of_each(keys[::-1])
    return distinct, len(keys) - 1 - from_end
