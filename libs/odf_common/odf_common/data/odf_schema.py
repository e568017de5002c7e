"""Conversion between the ODF data schema of newer manifest versions and Arrow schemas (wire-facts §1.6)."""

from collections.abc import Mapping
from typing import Final

import pyarrow as pa
import pyarrow.types as kind

from odf_common.data.columns import TIME_UNITS, TIMESTAMP, decimal_type
from odf_common.errors import InvalidInput
from odf_common.metadata import data_schema as odf
from odf_common.metadata.scalars import UInt64

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
_OF_PLAIN: Final[Mapping[pa.DataType, type]] = {plain: of for of, plain in _PLAIN.items()}


def to_arrow(schema: odf.DataSchema) -> pa.Schema:
    """Return the Arrow schema; a column is required unless its type is `Option`. Raises `InvalidInput`."""
    return pa.schema([_field(column) for column in schema.fields])


def _field(column: odf.DataField) -> pa.Field:
    try:
        return _field_of(column.name, column.type)
    except (pa.ArrowException, ValueError, OverflowError) as error:
        raise InvalidInput(text=str(error), where=f"column {column.name}") from error


def _field_of(name: str, type_: odf.DataType) -> pa.Field:
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
            return decimal_type(precision, scale)
        case odf.DataTypeStruct(fields=fields):
            return pa.struct([_field(inner) for inner in fields])
        case odf.DataTypeList(item_type=item, fixed_length=length):
            return pa.list_(_field_of("element", item), -1 if length is None else length)
        case odf.DataTypeMap(key_type=key, value_type=value, keys_sorted=keys_sorted):
            return pa.map_(_type(key), _field_of("value", value), bool(keys_sorted))
        case odf.DataTypeOption(inner=inner):
            return _type(inner)
        case _:
            return _of_time(type_)


def _of_time(type_: odf.DataType) -> pa.DataType:
    """Return the Arrow type for timestamps, times and durations; the defaults are milliseconds and UTC."""
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
            raise InvalidInput(text=f"{type(type_).__name__} has no counterpart in Arrow")


def _unit(unit: odf.TimeUnit | None) -> str:
    return TIME_UNITS[odf.TimeUnit.Millisecond if unit is None else unit]


def from_arrow(schema: pa.Schema) -> odf.DataSchema:
    """Return the ODF schema; Arrow types that differ only in layout become the same type. Raises `InvalidInput`."""
    return odf.DataSchema(fields=tuple(_data_field(column, column.name) for column in schema))


def _data_field(column: pa.Field, where: str) -> odf.DataField:
    return odf.DataField(name=column.name, type=_optional(column, where))


def _optional(column: pa.Field, where: str) -> odf.DataType:
    type_ = _data_type(column.type, where)
    is_plain = not column.nullable or isinstance(type_, odf.DataTypeNull)
    return type_ if is_plain else odf.DataTypeOption(inner=type_)


def _data_type(type_: pa.DataType, where: str) -> odf.DataType:
    plain = _OF_PLAIN.get(type_)
    if plain is not None:
        data_type: odf.DataType = plain()
        return data_type
    if isinstance(type_, pa.BaseExtensionType):
        return _data_type(type_.storage_type, where)
    if kind.is_dictionary(type_):
        return _data_type(type_.value_type, where)
    if kind.is_large_string(type_) or kind.is_string_view(type_):
        return odf.DataTypeString()
    if kind.is_fixed_size_binary(type_):
        return odf.DataTypeBinary(fixed_length=UInt64(type_.byte_width))
    if kind.is_binary(type_) or kind.is_large_binary(type_) or kind.is_binary_view(type_):
        return odf.DataTypeBinary()
    if kind.is_decimal(type_):
        return odf.DataTypeDecimal(precision=type_.precision, scale=type_.scale)
    return _nested_type(type_, where)


def _nested_type(type_: pa.DataType, where: str) -> odf.DataType:
    if kind.is_struct(type_):
        fields = tuple(_data_field(inner, f"{where}.{inner.name}") for inner in type_.fields)
        return odf.DataTypeStruct(fields=fields)
    if kind.is_map(type_):
        return odf.DataTypeMap(
            key_type=_data_type(type_.key_type, f"{where}.key"),
            value_type=_optional(type_.item_field, f"{where}.value"),
            keys_sorted=type_.keys_sorted or None,
        )
    if kind.is_list(type_) or kind.is_large_list(type_) or kind.is_fixed_size_list(type_):
        length = UInt64(type_.list_size) if kind.is_fixed_size_list(type_) else None
        return odf.DataTypeList(item_type=_optional(type_.value_field, f"{where}[]"), fixed_length=length)
    return _data_time(type_, where)


def _data_time(type_: pa.DataType, where: str) -> odf.DataType:
    unit = odf.TimeUnit(TIME_UNITS.index(type_.unit)) if hasattr(type_, "unit") else None
    if kind.is_date64(type_):
        return odf.DataTypeDate()
    if kind.is_timestamp(type_):
        return odf.DataTypeTimestamp(unit=unit, timezone=type_.tz)
    if kind.is_time(type_):
        return odf.DataTypeTime(unit=unit)
    if kind.is_duration(type_):
        return odf.DataTypeDuration(unit=unit)
    raise InvalidInput(text=f"type {type_} has no counterpart in ODF", where=f"column {where}")
