"""Arrow types in arrow-digest: whether they can be hashed, and the seed of their columns (wire-facts §4.3).

Types are compared in canonical form: dictionary columns count as their values, extensions as their storage.
"""

import struct
from typing import Final

import pyarrow as pa
import pyarrow.types as kind

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
    """Records with a column of this type have no logical hash."""

    ADVICE = "convert the column to numbers, strings, binary, dates, times, lists of those, or structs"

    column: str
    type: str


def canonical(type_: pa.DataType) -> pa.DataType:
    """Return the type whose values are hashed in place of `type_`."""
    if isinstance(type_, pa.BaseExtensionType):
        return canonical(type_.storage_type)
    return canonical(type_.value_type) if kind.is_dictionary(type_) else type_


def is_list(type_: pa.DataType) -> bool:
    """Return whether values are item counts and items."""
    return bool(kind.is_list(type_) or kind.is_large_list(type_) or kind.is_fixed_size_list(type_))


def is_bytes(type_: pa.DataType) -> bool:
    """Return whether values are lengths and bytes: strings and binary of every layout."""
    return _is_text(type_) or _is_binary(type_)


def type_seed(type_: pa.DataType, column: str) -> bytes:
    """Return the bytes that a column's hasher gets before its values; raises `UnhashableType`."""
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
    """Return UTF-8 bytes after their length in 8 bytes."""
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
