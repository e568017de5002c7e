"""The input of arrow-digest: the canonical types of columns, and their bytes.

Types are compared in canonical form: a dictionary column counts as its values, an extension type as its storage. The
bytes are computed by Arrow and NumPy kernels, never value by value. A fixed-width column without nulls is hashed as its
own buffer. All variable-width types (strings, binary, lists) use the same operation: rows of bytes, each preceded by an
8-byte count (wire-facts §4.3–4.4).
"""

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.types as kind
from numpy.typing import NDArray

from odf_common.errors import InvalidInput

_INT: Final = 1
_FLOAT: Final = 2
_BINARY: Final = 3
_TEXT: Final = 4
_BOOL: Final = 5
_DECIMAL: Final = 6
_DATE: Final = 7
_TIME: Final = 8
_TIMESTAMP: Final = 9
_LIST: Final = 11
_UNITS: Final = {"s": 0, "ms": 1, "us": 2, "ns": 3}


class UnhashableType(InvalidInput):
    """Records that have a column of this type have no logical hash."""

    ADVICE = "convert the column to numbers, strings, binary, dates, times, lists of those, or structs"

    column: str
    type: str


def canonical(type_: pa.DataType) -> pa.DataType:
    """Return the canonical form of a type: the type whose values are hashed."""
    if isinstance(type_, pa.BaseExtensionType):
        return canonical(type_.storage_type)
    return canonical(type_.value_type) if kind.is_dictionary(type_) else type_


def is_list(type_: pa.DataType) -> bool:
    """Return whether values of this type are hashed as an item count and items."""
    return bool(kind.is_list(type_) or kind.is_large_list(type_) or kind.is_fixed_size_list(type_))


def is_bytes(type_: pa.DataType) -> bool:
    """Return whether values of this type are hashed as a length and bytes: strings and binary of all layouts."""
    return _is_text(type_) or _is_binary(type_)


def type_seed(type_: pa.DataType, column: str) -> bytes:
    """Return the bytes that are hashed before the values of a column; raises `UnhashableType`."""
    type_ = canonical(type_)
    if is_list(type_):
        return struct.pack("<H", _LIST) + type_seed(type_.value_type, column)
    for seed in (_number_seed, _plain_seed, _time_seed):
        if (digest := seed(type_)) is not None:
            return digest
    raise UnhashableType(column=column, type=str(type_))


def _number_seed(type_: pa.DataType) -> bytes | None:
    if kind.is_integer(type_):
        return struct.pack("<HBQ", _INT, kind.is_signed_integer(type_), type_.bit_width)
    if kind.is_floating(type_):
        return struct.pack("<HQ", _FLOAT, type_.bit_width)
    if kind.is_decimal(type_):
        return struct.pack("<HQQq", _DECIMAL, type_.bit_width, type_.precision, type_.scale)
    return None


def _plain_seed(type_: pa.DataType) -> bytes | None:
    if _is_text(type_):
        return struct.pack("<H", _TEXT)
    if _is_binary(type_):
        return struct.pack("<H", _BINARY)
    return struct.pack("<H", _BOOL) if kind.is_boolean(type_) else None


def _time_seed(type_: pa.DataType) -> bytes | None:
    if kind.is_date(type_):
        return struct.pack("<HQH", _DATE, type_.bit_width, 1 if kind.is_date64(type_) else 0)
    if kind.is_time(type_):
        return struct.pack("<HQH", _TIME, type_.bit_width, _UNITS[type_.unit])
    if kind.is_timestamp(type_):
        zone = b"\0" if type_.tz is None else frame(type_.tz)
        return struct.pack("<HH", _TIMESTAMP, _UNITS[type_.unit]) + zone
    return None


def frame(text: str) -> bytes:
    """Return the UTF-8 bytes of a text, preceded by their length in 8 bytes."""
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _is_text(type_: pa.DataType) -> bool:
    return bool(kind.is_string(type_) or kind.is_large_string(type_) or kind.is_string_view(type_))


def _is_binary(type_: pa.DataType) -> bool:
    return bool(
        kind.is_binary(type_)
        or kind.is_large_binary(type_)
        or kind.is_fixed_size_binary(type_)
        or kind.is_binary_view(type_)
    )


Bytes = NDArray[np.uint8]
Offsets = NDArray[np.int64] | NDArray[np.int32]
Mask = NDArray[np.bool_]

BLOCK_ROWS: Final = 1 << 17  # few enough to fit the processor's caches, enough to make each call worthwhile
BLOCK_BYTES: Final = 1 << 26
_HEADER: Final = 8  # bytes
_GAP: Final = bytes(_HEADER)
_NARROW: Final = 1 << 31  # bytes that 32-bit offsets can address
_SMALL: Final = 255


@dataclass(frozen=True, slots=True)
class EncodedRows:
    """Rows as contiguous bytes; `offsets` returns the start of each row, and the end of the last one."""

    data: Bytes
    offsets: Callable[[], Offsets]


def plain(array: pa.Array) -> pa.Array:
    """Return the array without dictionaries, extension types and views, so that `encoded_blocks` accepts it."""
    if isinstance(array, pa.ExtensionArray):
        return plain(array.storage)
    if kind.is_dictionary(array.type):
        return plain(array.dictionary_decode())
    if kind.is_string_view(array.type) or kind.is_binary_view(array.type):
        return array.cast(pa.large_binary())
    return array


def validity(array: pa.Array) -> Mask | None:
    """Return the mask of the values that are not null; None if there are no nulls."""
    if array.null_count == 0:
        return None
    if kind.is_null(array.type):
        return np.zeros(len(array), np.bool_)
    return _bits(array.buffers()[0], array.offset, len(array))


def zero_nulls(array: pa.Array) -> pa.Array:
    """Return a plain array in which nulls are zeros, or empty for types of variable width."""
    own, type_ = validity(array), array.type
    if own is None:
        return array
    if kind.is_boolean(type_):
        return array.fill_null(False)  # noqa: FBT003 - the value of the slots
    if kind.is_fixed_size_binary(type_) or _is_raw(type_):
        width = _width(type_)
        zeroed = np.where(own[:, None], _raw(array, width).reshape(-1, width), np.uint8(0))
        return pa.Array.from_buffers(type_, len(array), [None, pa.py_buffer(zeroed)])
    return array.take(pa.array(np.arange(len(array))))


def encoded_blocks(array: pa.Array, valid: Mask | None) -> Iterator[Bytes]:
    """Yield the bytes of all rows in order; a block of bytes is valid until the next one is requested.

    `valid` is used as the null mask instead of the array's own mask.
    """
    if valid is None and _is_raw(array.type):
        yield _raw(array, _width(array.type))
        return
    scratch = np.empty((BLOCK_ROWS + 1) * _width(array.type), np.uint8) if _is_raw(array.type) else None
    for start, stop in _blocks(array):
        part = None if valid is None else valid[start:stop]
        yield encode(array.slice(start, stop - start), part, scratch).data


def encode(array: pa.Array, valid: Mask | None, scratch: Bytes | None = None) -> EncodedRows:
    """Encode the rows of a plain array; a row for which `valid` is False becomes a single zero byte.

    The array's own null mask is ignored; nulls that `valid` does not exclude were set to zero by `zero_nulls`.
    """
    rows, type_ = len(array), array.type
    if kind.is_boolean(type_):
        return _one_byte(_bits(array.buffers()[1], array.offset, rows) + np.uint8(1), valid)
    if kind.is_fixed_size_binary(type_):
        width = type_.byte_width
        starts = _steps(rows + 1, width)
        return _prefix(_raw(array, width), starts, None, valid)
    if is_bytes(type_):
        return _encode_bytes(array, valid)
    if is_list(type_):
        return _encode_lists(array, valid)
    width = _width(type_)
    if width == 1:
        return _one_byte(_raw(array, 1), valid)
    return _encode_fixed(_raw(array, width), width, valid, scratch)


def _encode_bytes(array: pa.Array, valid: Mask | None) -> EncodedRows:
    wide = kind.is_large_binary(array.type) or kind.is_large_string(array.type)
    offsets = _offsets(array.buffers()[1], array.offset, len(array), wide=wide)
    return _prefix(_all_bytes(array.buffers()[2]), offsets, None, valid)


def _encode_lists(array: pa.Array, valid: Mask | None) -> EncodedRows:
    rows = len(array)
    if kind.is_fixed_size_list(array.type):
        size = array.type.list_size
        offsets = _steps(rows + 1, size)
        items = plain(array.values.slice(array.offset * size, rows * size))
    else:
        offsets = _offsets(array.buffers()[1], array.offset, rows, wide=kind.is_large_list(array.type))
        items = plain(array.values.slice(offsets[0], offsets[-1] - offsets[0]))
        offsets = offsets - offsets[0]
    encoded = encode(items, validity(items))
    return _prefix(encoded.data, encoded.offsets()[offsets], np.diff(offsets), valid)


def _one_byte(values: Bytes, valid: Mask | None) -> EncodedRows:
    values = values if valid is None else values * valid
    return EncodedRows(values, lambda: np.arange(len(values) + 1, dtype=np.int64))


def _encode_fixed(raw: Bytes, width: int, valid: Mask | None, scratch: Bytes | None) -> EncodedRows:
    """Encode rows of fixed width: copy the valid values into zeros, so that each null is a zero byte."""
    if valid is None:
        return EncodedRows(raw, lambda: np.arange(0, len(raw) + 1, width, dtype=np.int64))
    item = f"<u{width}" if width in {2, 4, 8} else f"V{width}"
    places = np.flatnonzero(valid)
    values = raw.view(item)[places]
    places += _steps(len(places), width - 1)
    size = len(valid) + len(places) * (width - 1)
    out = np.empty(size + width, np.uint8) if scratch is None else scratch[: size + width]
    out.fill(0)
    _anywhere(out, item)[places] = values
    return EncodedRows(out[:size], lambda: _cumulative(np.where(valid, np.int64(width), np.int64(1))))


def _prefix(data: Bytes, offsets: Offsets, counts: Offsets | None, valid: Mask | None) -> EncodedRows:
    """Put a count in 8 bytes before each row, by default its length in bytes; null rows become a single zero byte."""
    lengths = np.diff(offsets)
    counts = lengths if counts is None else counts
    if valid is None:
        out = _with_gaps(data, offsets)
        starts = offsets + _steps(len(offsets), _HEADER)
        starts -= offsets[0]
        places = starts[:-1]
    else:
        out = _with_gaps_and_nulls(data, offsets, valid)
        starts = _cumulative(np.where(valid, lengths + np.int64(_HEADER), np.int64(1)))
        places, counts = starts[:-1][valid], counts[valid]
    _write_counts(out, places, counts)
    return EncodedRows(out, lambda: starts)


def _with_gaps(data: Bytes, offsets: Offsets) -> Bytes:
    """Return the rows with a gap of 8 zero bytes before each one."""
    import pyarrow.compute as pc  # noqa: PLC0415 - slow to load, and only needed to hash strings

    led = np.empty(len(offsets) + 1, offsets.dtype)
    led[0], led[1:] = offsets[0], offsets
    rows = _rows(data, led, None)
    gap = pa.scalar(_GAP, rows.type)
    joined = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, len(rows)], pa.int32()), rows), gap)
    return _writable(joined.buffers()[2], int(offsets[-1] - offsets[0]) + _HEADER * (len(offsets) - 1))


def _with_gaps_and_nulls(data: Bytes, offsets: Offsets, valid: Mask) -> Bytes:
    import pyarrow.compute as pc  # noqa: PLC0415 - as above

    rows = _rows(data, offsets, pa.py_buffer(np.packbits(valid, bitorder="little")))
    filled = pc.coalesce(pc.binary_replace_slice(rows, 0, 0, _GAP), pa.scalar(b"\0", rows.type))
    ends = _offsets(filled.buffers()[1], filled.offset, len(filled), wide=kind.is_large_binary(rows.type))
    return _writable(filled.buffers()[2], int(ends[-1]))


def _rows(data: Bytes, offsets: Offsets, bitmap: pa.Buffer | None) -> pa.Array:
    """Return bytes as an array of rows, with 32-bit offsets if the result is small enough."""
    narrow = offsets.dtype == np.int32 and int(offsets[-1] - offsets[0]) + _HEADER * len(offsets) < _NARROW
    if not narrow:
        offsets = offsets.astype(np.int64, copy=False)
    type_ = pa.binary() if narrow else pa.large_binary()
    return pa.Array.from_buffers(type_, len(offsets) - 1, [bitmap, pa.py_buffer(offsets), pa.py_buffer(data)])


def _write_counts(out: Bytes, places: Offsets, counts: Offsets) -> None:
    if len(counts) == 0:
        return
    if counts.max() > _SMALL:
        _anywhere(out, "<i8")[places] = counts
    else:  # the other seven bytes are already zero
        out[places] = counts.astype(np.uint8)


def _blocks(array: pa.Array) -> Iterator[tuple[int, int]]:
    rows = BLOCK_ROWS
    while rows > 1 and array.nbytes * rows > BLOCK_BYTES * max(len(array), 1):
        rows //= 2
    for start in range(0, len(array), rows):
        yield start, min(start + rows, len(array))


def _is_raw(type_: pa.DataType) -> bool:
    return not (kind.is_boolean(type_) or is_bytes(type_) or is_list(type_))


def _width(type_: pa.DataType) -> int:
    return int(canonical(type_).bit_width) // 8


def _raw(array: pa.Array, width: int) -> Bytes:
    buffer = array.buffers()[1]
    if buffer is None:
        return np.empty(0, np.uint8)
    return np.frombuffer(buffer, np.uint8)[array.offset * width : (array.offset + len(array)) * width]


def _bits(buffer: pa.Buffer | None, offset: int, length: int) -> Mask:
    if buffer is None or length == 0:
        return np.zeros(length, np.bool_)
    first, last = offset // 8, (offset + length + 7) // 8
    bits = np.unpackbits(np.frombuffer(buffer, np.uint8)[first:last], bitorder="little")
    return bits[offset - 8 * first :][:length].view(np.bool_)


def _offsets(buffer: pa.Buffer | None, offset: int, length: int, *, wide: bool) -> Offsets:
    if buffer is None or buffer.size == 0:
        return np.zeros(length + 1, np.int64)
    return (np.frombuffer(buffer, np.int64) if wide else np.frombuffer(buffer, np.int32))[offset:][
        : length + 1
    ]


def _all_bytes(buffer: pa.Buffer | None) -> Bytes:
    return np.empty(0, np.uint8) if buffer is None else np.frombuffer(buffer, np.uint8)


def _writable(buffer: pa.Buffer, size: int) -> Bytes:
    """Return the result of a kernel as a writable array; it is copied only if Arrow does not allow writing."""
    out = np.frombuffer(buffer, np.uint8)[:size]
    return out if out.flags.writeable else out.copy()


def _anywhere(out: Bytes, item: str) -> NDArray[np.void]:
    """Return a view of the bytes in which item i starts at byte i."""
    kind_ = np.dtype(item)
    return np.ndarray((len(out) - kind_.itemsize + 1,), kind_, out, 0, (1,))


def _steps(length: int, step: int) -> Offsets:
    return (
        _block_steps(step)[:length] if length <= BLOCK_ROWS + 1 else np.arange(length, dtype=np.int64) * step
    )


@lru_cache(maxsize=8)
def _block_steps(step: int) -> Offsets:
    return np.arange(BLOCK_ROWS + 1, dtype=np.int64) * step


def _cumulative(lengths: Offsets) -> Offsets:
    out = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=out[1:])
    return out
