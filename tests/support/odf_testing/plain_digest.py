"""arrow-digest implemented again, value by value, as plainly as its rules: the reference for the fast one."""

import hashlib
import struct
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.types as kind

UNITS: Final = ["s", "ms", "us", "ns"]


def digest(table: pa.Table) -> bytes:
    """Return the record digest; structs may be null, or their fields, but not both."""
    main = hashlib.sha3_256()
    leaves = []

    def walk(column: pa.Field, rows: Sequence[Any], level: int) -> None:
        name = column.name.encode()
        main.update(struct.pack("<Q", len(name)) + name + struct.pack("<Q", level))
        if kind.is_struct(column.type):
            for inner in column.type.fields:
                walk(inner, [None if row is None else row[inner.name] for row in rows], level + 1)
            return
        leaf = hashlib.sha3_256(seed(column.type))
        for row in rows:
            leaf.update(value(column.type, row))
        leaves.append(leaf)

    for column, values in zip(table.schema, table.columns, strict=True):
        walk(column, values.to_pylist(), 0)
    for leaf in leaves:
        main.update(leaf.digest())
    return main.digest()


def seed(t: pa.DataType) -> bytes:
    """Return the bytes that a column's hasher gets before its values."""
    if kind.is_dictionary(t):
        return seed(t.value_type)
    if kind.is_integer(t):
        return struct.pack("<HBQ", 1, int(kind.is_signed_integer(t)), t.bit_width)
    if kind.is_floating(t):
        return struct.pack("<HQ", 2, t.bit_width)
    if _is_text(t):
        return struct.pack("<H", 4)
    if _is_binary(t):
        return struct.pack("<H", 3)
    if kind.is_boolean(t):
        return struct.pack("<H", 5)
    if kind.is_decimal(t):
        return struct.pack("<HQQQ", 6, t.bit_width, t.precision, t.scale)
    if kind.is_date(t):
        return struct.pack("<HQH", 7, t.bit_width, 0 if kind.is_date32(t) else 1)
    if kind.is_timestamp(t):
        zone = b"\0" if t.tz is None else struct.pack("<Q", len(t.tz)) + t.tz.encode()
        return struct.pack("<HH", 9, UNITS.index(t.unit)) + zone
    assert kind.is_list(t) or kind.is_large_list(t) or kind.is_fixed_size_list(t)
    return struct.pack("<H", 11) + seed(t.value_type)


def value(t: pa.DataType, v: object) -> bytes:
    """Return the bytes of one value."""
    if v is None:
        return b"\0"
    if kind.is_dictionary(t):
        return value(t.value_type, v)
    if isinstance(v, bool):
        return b"\2" if v else b"\1"
    if isinstance(v, str):
        v = v.encode()
    if isinstance(v, bytes):
        return struct.pack("<Q", len(v)) + v
    if isinstance(v, list):
        return struct.pack("<Q", len(v)) + b"".join(value(t.value_type, item) for item in v)
    if isinstance(v, Decimal):
        return int(v.scaleb(t.scale)).to_bytes(t.bit_width // 8, "little", signed=True)
    return _raw(t, v)


def _raw(t: pa.DataType, v: object) -> bytes:
    if isinstance(v, float):
        return struct.pack("<f" if t.bit_width == 32 else "<d", v)
    number: int = v if isinstance(v, int) else pa.scalar(v, t).value
    return number.to_bytes(t.bit_width // 8, "little", signed=number < 0)


def _is_text(t: pa.DataType) -> bool:
    return bool(kind.is_string(t) or kind.is_large_string(t) or kind.is_string_view(t))


def _is_binary(t: pa.DataType) -> bool:
    narrow = kind.is_binary(t) or kind.is_fixed_size_binary(t)
    return bool(narrow or kind.is_large_binary(t) or kind.is_binary_view(t))
