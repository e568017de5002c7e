"""The ODF data schema of later versions in Arrow's terms (wire-facts §1.6)."""

from collections.abc import Mapping
from typing import Final

import pyarrow as pa

from odf_common.data.types import TIMESTAMP
from odf_common.errors import InvalidInput
from odf_common.metadata import schema as odf

_PLAIN: Final[Mapping[type, pa.DataType]] = {
    odf.DataTypeBool: pa.bool_(),
    odf.DataTypeDate: pa.date32(),
    odf.DataTypeFloat16: pa.float16(),
    odf.DataTypeFloat32: pa.float32(),
    odf.DataTypeFloat64: pa.float64(),
    odf.DataTypeInt8: pa.int8(),
    odf.DataTypeInt16: pa.int16(),
    odf.DataTypeInt32: pa.int32(),
    odf.DataTypeInt64: pa.int64(),
    odf.DataTypeUInt8: pa.uint8(),
    odf.DataTypeUInt16: pa.uint16(),
    odf.DataTypeUInt32: pa.uint32(),
    odf.DataTypeUInt64: pa.uint64(),
    odf.DataTypeNull: pa.null(),
    odf.DataTypeString: pa.string(),
}
_UNITS: Final = ("s", "ms", "us", "ns")
_WIDE_PRECISION: Final = 38  # digits


def to_arrow(schema: odf.DataSchema) -> pa.Schema:
    """Return the Arrow schema; columns are required unless their type is an option. Raises `InvalidInput`."""
    return pa.schema([_field(column) for column in schema.fields])


def _field(column: odf.DataField) -> pa.Field:
    try:
        return _of(column.name, column.type)
    except (pa.ArrowException, ValueError, OverflowError) as error:
        raise InvalidInput(text=str(error), where=f"column {column.name}") from error


def _of(name: str, type_: odf.DataType) -> pa.Field:
    if isinstance(type_, odf.DataTypeOption):
        return pa.field(name, _type(type_.inner), nullable=True)
    return pa.field(name, _type(type_), nullable=isinstance(type_, odf.DataTypeNull))


def _type(type_: odf.DataType) -> pa.DataType:
    plain = _PLAIN.get(type(type_))
    if plain is not None:
        return plain
    match type_:
        case odf.DataTypeBinary(fixed_length=length):
            return pa.binary() if length is None else pa.binary(length)
        case odf.DataTypeDecimal(precision=precision, scale=scale):
            return (pa.decimal128 if precision <= _WIDE_PRECISION else pa.decimal256)(precision, scale)
        case odf.DataTypeStruct(fields=fields):
            return pa.struct([_field(inner) for inner in fields])
        case odf.DataTypeList(item_type=item, fixed_length=length):
            return pa.list_(_of("element", item), -1 if length is None else length)
        case odf.DataTypeMap(key_type=key, value_type=value, keys_sorted=keys_sorted):
            return pa.map_(_type(key), _of("value", value), bool(keys_sorted))
        case odf.DataTypeOption(inner=inner):
            return _type(inner)
        case _:
            return _of_time(type_)


def _of_time(type_: odf.DataType) -> pa.DataType:
    """Return the type of moments and lengths of time: milliseconds and UTC unless told otherwise."""
    match type_:
        case odf.DataTypeTimestamp(unit=None, timezone=None):
            return TIMESTAMP
        case odf.DataTypeTimestamp(unit=unit, timezone=zone):
            return pa.timestamp(_unit(unit), zone or "UTC")
        case odf.DataTypeTime(unit=unit):
            text = _unit(unit)
            return pa.time64(text) if text in {"us", "ns"} else pa.time32(text)
        case odf.DataTypeDuration(unit=unit):
            return pa.duration(_unit(unit))
        case _:
            raise InvalidInput(text=f"{type(type_).__name__} has no place in Arrow")


def _unit(unit: odf.TimeUnit | None) -> str:
    return _UNITS[odf.TimeUnit.Millisecond if unit is None else unit]
