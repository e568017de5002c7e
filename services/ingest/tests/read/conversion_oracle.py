"""What each value should become, computed with Python's integers and decimals, and the values to try."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal, localcontext
from typing import Any, Final
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.types as kind

from odf_ingest.read.types.kinds import ValueKind, kind_of

REFUSED: Final = "refused"
NANOS: Final[Mapping[str, int]] = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
DAY: Final = 86_400 * 10**9  # ns
FIRST, LAST = -719_162 * DAY, 2_932_897 * DAY - 1  # of the years 1 to 9999
_NUMBER: Final = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_FLOATS: Final[Mapping[int, Any]] = {16: np.float16, 32: np.float32, 64: np.float64}
_ID: Final = "123e4567-e89b-12d3-a456-426614174000"


@dataclass(frozen=True, slots=True)
class Value:
    """A value and its meaning: a decimal; for times, ns since 1970 or midnight; else itself."""

    kind: ValueKind
    type: pa.DataType
    raw: Any
    meaning: Any


@dataclass(frozen=True, slots=True)
class Times:
    """What a string means as a time of each type, in ns."""

    timestamp: int | None = None
    date: int | None = None
    time: int | None = None


TIMES: Final[Mapping[str, Times]] = {
    "1969-12-31T23:59:59.9999999Z": Times(timestamp=-100),
    "1969-12-31T23:59:59.9999Z": Times(timestamp=-100_000),
    "1955-03-01T23:59:59.999Z": Times(timestamp=-5419 * DAY - 10**6),
    "2026-01-01T02:00:00.5+02:00": Times(timestamp=1_767_225_600_500_000_000),
    "1970-01-01 00:00:01": Times(timestamp=10**9),
    "1955-03-01": Times(timestamp=-5420 * DAY, date=-5420 * DAY),
    "9999-12-31": Times(timestamp=LAST + 1 - DAY, date=LAST + 1 - DAY),
    "9999-12-31T23:00:00-05:00": Times(timestamp=LAST + 1 + 4 * 3600 * 10**9),
    "10000-01-01": Times(),
    "2026-02-30": Times(),
    "23:59:59.9999999": Times(time=DAY - 100),
    "12:34": Times(time=45_240 * 10**9),
    "24:00": Times(),
}
TEXTS: Final = ("", "soon", "true", "0x10", "1_0", _ID, _ID.replace("-", ""), "ä\U0001f600", *TIMES)
NUMBERS: Final = (
    *("0", "1", "-1", "1039.0", "1e3", "1039.5", "0.125", "19.99", "10.005", "1.500", "127", "128", "255"),
    *("1767225600", "20260101", "16777217", "9007199254740993", "9223372036854775807"),
    *(
        "18446744073709551615",
        "99999999.99",
        "99999999.990",
        "100000000",
        "1e39",
        "12345678901234567890.123456789",
    ),
)


def typed_values() -> list[Value]:
    """Return edge values of each type that Parquet and Arrow have."""
    values = [Value(ValueKind.BOOLEAN, pa.bool_(), raw, raw) for raw in (True, False)]
    for type_ in (
        pa.int8(),
        pa.int16(),
        pa.int32(),
        pa.int64(),
        pa.uint8(),
        pa.uint16(),
        pa.uint32(),
        pa.uint64(),
    ):
        signed = kind.is_signed_integer(type_)
        least = -(2 ** (type_.bit_width - 1)) if signed else 0
        most = 2 ** (type_.bit_width - signed) - 1
        some = {least, most, 0, 1, 2**24 + 1, 2**53 + 1, 2**60, 20260101, 1767225600}
        values += [Value(ValueKind.INTEGER, type_, raw, Decimal(raw)) for raw in some if least <= raw <= most]
    for bits, make in _FLOATS.items():
        some_floats = [
            0.0,
            1.0,
            -1.0,
            0.125,
            19.99,
            10.005,
            0.1 + 0.2,
            1e-9,
            1e300,
            3e9,
            2.0**63,
            float("nan"),
            float("inf"),
        ]
        with np.errstate(over="ignore"):
            numbers = [make(raw) for raw in some_floats]
        type_ = {16: pa.float16(), 32: pa.float32(), 64: pa.float64()}[bits]
        values += [Value(ValueKind.FLOAT, type_, number, number) for number in numbers]
    decimals = ("0", "1", "-19.99", "0.125", "99999999.990", "1e-9", "9007199254740993")
    for make_type in (pa.decimal32, pa.decimal64, pa.decimal128, pa.decimal256):
        most_digits = {pa.decimal32: 9, pa.decimal64: 18}.get(make_type, 38)
        for number in map(Decimal, decimals):
            scale = max(-int(number.as_tuple().exponent), 0)
            if number.adjusted() + 1 + scale <= most_digits:
                values.append(Value(ValueKind.DECIMAL, make_type(most_digits, scale), number, number))
    values += [Value(ValueKind.TEXT, pa.string(), text, text) for text in (*TEXTS, *NUMBERS)]
    for type_ in (pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())):
        values += [
            Value(ValueKind.TEXT, type_, text, text)
            for text in (_ID, "19.99", "1970-01-01 00:00:01", "12:34")
        ]
    for type_ in (pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(16), pa.binary(2)):
        blobs = (b"a\xc3", b"ab", b"0123456789abcdef")
        fitting = [
            raw for raw in blobs if not kind.is_fixed_size_binary(type_) or len(raw) == type_.byte_width
        ]
        values += [Value(ValueKind.BINARY, type_, raw, raw) for raw in fitting]
    values.append(Value(ValueKind.UUID, pa.uuid(), UUID(_ID).bytes, UUID(_ID).bytes))
    return [*values, *_typed_times()]


def _typed_times() -> list[Value]:
    days = (FIRST // DAY - 1, FIRST // DAY, -1, 0, LAST // DAY, LAST // DAY + 1)
    values = [Value(ValueKind.DATE, pa.date32(), day, day * DAY) for day in days]
    values += [Value(ValueKind.DATE, pa.date64(), ms, ms * 10**6) for ms in (-86_400_000, 0, 86_400_000)]
    for unit, nanos in NANOS.items():
        time_type = pa.time32(unit) if unit in {"s", "ms"} else pa.time64(unit)
        values += [Value(ValueKind.TIME, time_type, raw, raw * nanos) for raw in (0, 1, DAY // nanos - 1)]
        for zone in (None, "UTC", "Europe/Berlin"):
            type_ = pa.timestamp(unit, zone)
            some = {
                -1,
                0,
                1,
                DAY // nanos,
                -DAY // nanos - 1,
                1_767_225_600 * 10**9 // nanos + 1,
                2**62,
                -(2**63),
            }
            if unit != "ns":
                some |= {FIRST // nanos, FIRST // nanos - 1, (LAST + 1) // nanos}
            values += [Value(ValueKind.TIMESTAMP, type_, raw, raw * nanos) for raw in some]
    return values


def expected(value: Value, target: pa.DataType, *, refuses_finer: bool = False) -> Any:
    """Return the meaning of the value in the declared type, or `REFUSED`."""
    declared, meaning, source = kind_of(target), value.meaning, value.kind
    if declared is ValueKind.BOOLEAN:
        if source is ValueKind.BOOLEAN:
            return meaning
        return (
            {"true": True, "1": True, "0": False}.get(meaning, REFUSED)
            if source is ValueKind.TEXT
            else REFUSED
        )
    if declared in {ValueKind.INTEGER, ValueKind.FLOAT, ValueKind.DECIMAL}:
        return _number(value, target)
    if declared is ValueKind.TEXT:
        return _text(value)
    if declared is ValueKind.BINARY:
        raw = meaning.encode() if source in {ValueKind.TEXT, ValueKind.STRING} else meaning
        fits = (
            not kind.is_fixed_size_binary(target) or len(raw) == target.byte_width
            if isinstance(raw, bytes)
            else False
        )
        return (
            raw
            if source in {ValueKind.TEXT, ValueKind.STRING, ValueKind.BINARY, ValueKind.UUID} and fits
            else REFUSED
        )
    if declared is ValueKind.UUID:
        is_text = source in {ValueKind.TEXT, ValueKind.STRING} and re.fullmatch(
            r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", meaning
        )
        is_bytes = source is ValueKind.UUID or (source is ValueKind.BINARY and len(meaning) == 16)
        return UUID(meaning).bytes if is_text else meaning if is_bytes else REFUSED
    return REFUSED if kind.is_nested(target) else _time(value, target, refuses_finer=refuses_finer)


def _text(value: Value) -> Any:
    if value.kind in {ValueKind.TEXT, ValueKind.STRING, ValueKind.ARRAY, ValueKind.OBJECT}:
        return value.meaning
    if value.kind is ValueKind.INTEGER:
        return str(value.raw)
    try:
        return value.meaning.decode() if value.kind is ValueKind.BINARY else REFUSED
    except UnicodeDecodeError:
        return REFUSED


def _number(value: Value, target: pa.DataType) -> Any:
    declared, source, meaning = kind_of(target), value.kind, value.meaning
    sources = {ValueKind.TEXT, ValueKind.NUMBER, ValueKind.INTEGER, ValueKind.FLOAT, ValueKind.DECIMAL}
    if source not in (sources | {ValueKind.STRING} if declared is ValueKind.DECIMAL else sources):
        return REFUSED
    if isinstance(meaning, str):
        if _NUMBER.fullmatch(meaning) is None:
            return REFUSED
        meaning = Decimal(meaning)
    if declared is ValueKind.FLOAT:
        return _float(source, meaning, target)
    if source is ValueKind.FLOAT:
        if not np.isfinite(meaning):
            return REFUSED
        # Digits of half floats are those of the float that they are.
        digits = str(float(meaning)) if meaning.dtype == np.float16 else str(meaning)
        meaning = Decimal(digits) if declared is ValueKind.DECIMAL else Decimal(float(meaning))
    with localcontext(prec=200):
        if declared is ValueKind.DECIMAL:
            unscaled = meaning.scaleb(target.scale)
            return meaning if unscaled == int(unscaled) and abs(unscaled) < 10**target.precision else REFUSED
        signed = kind.is_signed_integer(target)
        least = -(2 ** (target.bit_width - 1)) if signed else 0
        is_whole = meaning == int(meaning) and least <= meaning < 2 ** (target.bit_width - signed)
        return meaning if is_whole else REFUSED


def _float(source: ValueKind, meaning: Any, target: pa.DataType) -> Any:
    make = _FLOATS[target.bit_width]
    with np.errstate(over="ignore"):
        number: Any = make(float(meaning))
    if source is ValueKind.FLOAT:
        return number if np.isnan(meaning) or float(number) == float(meaning) else REFUSED
    if not np.isfinite(number):
        return REFUSED
    if source is ValueKind.INTEGER:
        return number if Decimal(float(number)) == meaning else REFUSED
    if source is ValueKind.DECIMAL:
        digits = str(float(number)) if target.bit_width == 16 else str(number)
        return number if Decimal(digits) == meaning else REFUSED
    return number


def _time(value: Value, target: pa.DataType, *, refuses_finer: bool) -> Any:
    declared, source = kind_of(target), value.kind
    if source in {ValueKind.TEXT, ValueKind.STRING}:
        nanos = getattr(TIMES.get(value.meaning, Times()), declared.name.lower())
    elif source is declared or {source, declared} == {ValueKind.DATE, ValueKind.TIMESTAMP}:
        nanos = value.meaning
    else:
        return REFUSED
    if nanos is None or (declared is not ValueKind.TIME and not FIRST <= nanos <= LAST):
        return REFUSED
    if source is ValueKind.DATE and nanos % DAY:
        return REFUSED
    if declared is ValueKind.DATE:
        return REFUSED if nanos % DAY else nanos
    unit = NANOS[target.unit]
    if target.unit == "ns" and declared is ValueKind.TIMESTAMP and not -(2**63) <= nanos < 2**63:
        return REFUSED
    return REFUSED if refuses_finer and nanos % unit else nanos // unit * unit


def array_of(value: Value) -> pa.Array:
    """Return an array of null and the value."""
    type_, raws = value.type, [None, value.raw]
    if kind.is_dictionary(type_):
        return pa.array(raws, pa.string()).dictionary_encode()
    if type_ == pa.uuid():
        return pa.ExtensionArray.from_storage(type_, pa.array(raws, pa.binary(16)))
    if kind.is_temporal(type_):
        width = pa.int32() if kind.is_date32(type_) or kind.is_time32(type_) else pa.int64()
        return pa.array(raws, width).cast(type_)
    return pa.array(raws, type_)


def meaning_of(array: pa.Array) -> Any:
    """Return what the last value means, in a form that is compared exactly."""
    type_, last = array.type, array[len(array) - 1 :]
    if type_ == pa.uuid():
        return last.storage[0].as_py()
    if kind.is_temporal(type_):
        width = pa.int32() if kind.is_date32(type_) or kind.is_time32(type_) else pa.int64()
        return last.cast(width)[0].as_py() * (DAY if kind.is_date32(type_) else NANOS[type_.unit])
    if kind.is_floating(type_):
        return _FLOATS[type_.bit_width](last[0].as_py())
    raw = last[0].as_py()
    return Decimal(raw) if kind.is_integer(type_) else raw


def is_same(found: Any, wanted: Any) -> bool:
    """Return whether two meanings are equal, NaN included."""
    if isinstance(found, np.floating) and isinstance(wanted, np.floating):
        return bool(found == wanted or (np.isnan(found) and np.isnan(wanted)))
    return bool(type(found) is type(wanted) and found == wanted)
