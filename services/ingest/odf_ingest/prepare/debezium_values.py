"""Converts Debezium's JSON values to text that can be read as the column's type.

Debezium writes decimals in base64, and times as numbers. Their units and scales are in the schema of a message
(`value.converter.schemas.enable=true`). Without the schema only a DATE can be converted: the units of other times and
the scale of decimals are unknown.
"""

import base64
import binascii
import json
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Final, TypeAlias

import pyarrow as pa
import pyarrow.types as kind

from odf_common.errors import InvalidInput
from odf_ingest.read.types.type_names import show_value

JsonObject: TypeAlias = dict[str, object]
Convert = Callable[[object], object]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_DAY_NS: Final = 86_400 * 10**9
_MAX_SCALE: Final = 1_000
_NUMBER: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_NO_SCALE: Final = (
    "is no number: of a decimal of decimal.handling.mode=precise only the schema has the scale; set "
    "value.converter.schemas.enable=true or decimal.handling.mode=string in the connector"
)
_TIMESTAMPS: Final = {
    "io.debezium.time.Timestamp": 10**6,
    "org.apache.kafka.connect.data.Timestamp": 10**6,
    "io.debezium.time.MicroTimestamp": 10**3,
    "io.debezium.time.NanoTimestamp": 1,
}
_TIMES: Final = {
    "io.debezium.time.Time": 10**6,
    "org.apache.kafka.connect.data.Time": 10**6,
    "io.debezium.time.MicroTime": 10**3,
    "io.debezium.time.NanoTime": 1,
}
_DATES: Final = ("io.debezium.time.Date", "org.apache.kafka.connect.data.Date")
_DECIMAL: Final = "org.apache.kafka.connect.data.Decimal"
_ANY_SCALE: Final = "io.debezium.data.VariableScaleDecimal"
# By the name in `connect.name`.
_AVRO: Final = {
    "io.debezium.time.Date": "date",
    "io.debezium.time.Timestamp": "timestamp-millis",
    "io.debezium.time.MicroTimestamp": "timestamp-micros",
    "io.debezium.time.NanoTimestamp": "timestamp-nanos",
    "io.debezium.time.Time": "time-millis",
    "io.debezium.time.MicroTime": "time-micros",
}


class _Number(str):
    """A number in its original notation."""

    __slots__ = ()

    def __repr__(self) -> str:
        """Return the number without quotes."""
        return str(self)


def object_of(value: bytes) -> JsonObject:
    """Return a JSON object whose numbers keep their original notation; raises `InvalidInput`."""
    try:
        plain = json.loads(
            value,
            parse_int=_Number,
            parse_float=_Number,
            parse_constant=_refuse,
            object_pairs_hook=_distinct,
        )
    except (ValueError, RecursionError) as error:
        raise InvalidInput(text=f"is not JSON: {error}") from error
    if not isinstance(plain, dict):
        raise InvalidInput(text=f"expected an object, got {show_value(plain)}")
    return plain


def text_of(value: object) -> str:
    """Return a value as JSON."""
    match value:
        case _Number():
            return str(value)
        case dict():
            return f"{{{','.join(f'{json.dumps(name)}:{text_of(one)}' for name, one in value.items())}}}"
        case list():
            return f"[{','.join(map(text_of, value))}]"
        case _:
            return json.dumps(value)


def converters(schema: object, columns: pa.Schema | None) -> Mapping[str, Convert]:
    """Return by column the function that converts its values to text of the declared type.

    `schema` is that of the message, None if it has none.
    """
    found: dict[str, Convert] = {}
    declared = {} if columns is None else {column.name: column.type for column in columns}
    for name, type_ in declared.items():
        if kind.is_date(type_):
            found[name] = _date
        elif kind.is_decimal(type_):
            found[name] = _decimal_without_scale
    for field in _fields(schema):
        name, meaning = field.get("field"), field.get("name")
        type_ = declared.get(str(name))
        convert = _converter(str(meaning), field, type_)
        if convert is not None:
            found[str(name)] = convert
    return found


def with_logical_types(schema: str) -> str:
    """Return an Avro schema in which Debezium's time types are replaced by Avro's logical types, where these exist."""
    return json.dumps(_logical(json.loads(schema)))


def _logical(part: object) -> object:
    if isinstance(part, list):
        return [_logical(inner) for inner in part]
    if not isinstance(part, dict):
        return part
    changed = {name: _logical(inner) for name, inner in part.items()}
    meaning = part.get("connect.name")
    if isinstance(meaning, str) and meaning in _AVRO and "logicalType" not in part:
        changed["logicalType"] = _AVRO[meaning]
    return changed


def with_values(row: JsonObject, convert: Mapping[str, Convert]) -> JsonObject:
    """Return a row with converted values; raises `InvalidInput` with the column."""
    values: JsonObject = {}
    for name, value in row.items():
        change = convert.get(name)
        try:
            values[name] = value if change is None or value is None else change(value)
        except OverflowError as error:
            raise InvalidInput(where=f"column {name}", text=f"{show_value(value)} is out of range") from error
        except ValueError as error:
            raise InvalidInput(where=f"column {name}", text=f"{show_value(value)} {error}") from error
    return values


def _fields(schema: object) -> Iterator[JsonObject]:
    """Yield the fields of the row in the schema of a change message."""
    for field in _list(schema):
        if field.get("field") in ("before", "after"):
            yield from _list(field)


def _list(schema: object) -> Iterator[JsonObject]:
    fields = schema.get("fields") if isinstance(schema, dict) else None
    if isinstance(fields, list):
        yield from (field for field in fields if isinstance(field, dict))


def _converter(meaning: str, field: JsonObject, type_: pa.DataType | None) -> Convert | None:
    """Return the converter for values of this Debezium type; None if they need none.

    Numbers need none if the column is declared as a number.
    """
    is_number = type_ is not None and kind.is_integer(type_)
    if meaning == _DECIMAL:
        parameters = field.get("parameters")
        scale = parameters.get("scale") if isinstance(parameters, dict) else None
        return partial(_decimal, scale=int(str(scale))) if str(scale).isdecimal() else None
    if meaning == _ANY_SCALE:
        return _decimal_with_scale
    if is_number:
        return None
    if meaning in _DATES:
        return _date
    if meaning in _TIMESTAMPS:
        return partial(_timestamp, unit=_TIMESTAMPS[meaning])
    if meaning in _TIMES:
        return partial(_time, unit=_TIMES[meaning])
    return None


def _timestamp(value: object, *, unit: int) -> object:
    """Return a number of `unit` nanoseconds since 1970 as text."""
    if not isinstance(value, _Number):
        return value
    seconds, rest = divmod(int(value) * unit, 10**9)
    time = _EPOCH + timedelta(seconds=seconds)
    return f"{time:%Y-%m-%dT%H:%M:%S}.{rest:09d}".rstrip("0").rstrip(".") + "Z"


def _time(value: object, *, unit: int) -> object:
    """Return a number of `unit` nanoseconds since midnight as text."""
    if not isinstance(value, _Number):
        return value
    nanoseconds = int(value) * unit
    if not 0 <= nanoseconds < _DAY_NS:
        raise ValueError("is no time of day")
    seconds, rest = divmod(nanoseconds, 10**9)
    text = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return f"{text}.{rest:09d}".rstrip("0") if rest else text


def _date(value: object) -> object:
    """Return a number of days since 1970 as text."""
    if not isinstance(value, _Number):
        return value
    return (date(1970, 1, 1) + timedelta(days=int(value))).isoformat()


def _decimal(value: object, *, scale: int) -> object:
    if not isinstance(value, str) or isinstance(value, _Number):
        return value
    return _unscale(value, scale)


def _decimal_with_scale(value: object) -> object:
    """Return a VariableScaleDecimal as text."""
    if not isinstance(value, dict) or value.keys() != {"scale", "value"}:
        return value
    return _unscale(str(value["value"]), int(str(value["scale"])))


def _decimal_without_scale(value: object) -> object:
    """Return a value of a DECIMAL column whose scale is unknown, because the message has no schema."""
    if isinstance(value, dict):
        return _decimal_with_scale(value)
    if isinstance(value, str) and not isinstance(value, _Number) and not _NUMBER.fullmatch(value):
        raise ValueError(_NO_SCALE)
    return value


def _unscale(text: str, scale: int) -> str:
    """Return the big-endian integer in base64 with `scale` decimals as text."""
    try:
        raw = base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError("is not base64, in which a decimal is with decimal.handling.mode=precise") from error
    if abs(scale) > _MAX_SCALE:
        raise ValueError("has a scale out of range")
    number = int.from_bytes(raw, "big", signed=True)
    digits = tuple(map(int, str(abs(number))))
    return f"{Decimal((int(number < 0), digits, -scale)):f}"


def _refuse(text: str) -> object:
    raise ValueError(f"{text} is no number of JSON")


def _distinct(pairs: list[tuple[str, object]]) -> JsonObject:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object has the same name twice")
    return found
