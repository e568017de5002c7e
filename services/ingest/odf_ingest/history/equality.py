"""When two values are equal, for keys and for merges alike: exactly when the same value is stored.

Numbers, strings, binary values and times are equal if their values are. Floating-point numbers are compared by
their bits, as Java's `Double.equals` does: 0.0 and -0.0 differ, because they are stored and hashed differently, and
every NaN equals every other NaN whatever its bits. Null equals null only. Lists and structs are equal if all that
they contain is: a null list is not an empty one, a null struct is not a struct of nulls.
"""

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kind

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
    """Return the same for two flat columns without nulls."""
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
