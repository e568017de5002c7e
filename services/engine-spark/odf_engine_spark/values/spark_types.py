"""Arrow types converted to Spark's and back.

Spark has no unsigned integers, no UUIDs, one unit of time, and one layout of strings; times of day become strings. A
type without a counterpart is refused by name. Results are converted to the types that slices are stored with.
"""

from typing import Final

import pyarrow as pa
import pyarrow.types as kind

from odf_common.errors import InvalidQuery

MICROSECONDS: Final = pa.timestamp("us", "UTC")
_OTHER: Final = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.uuid(): pa.string(),
    pa.time32("s"): pa.string(),
    pa.time32("ms"): pa.string(),
    pa.time64("us"): pa.string(),
    pa.time64("ns"): pa.string(),
}
_SAME: Final = (
    kind.is_boolean,
    kind.is_signed_integer,
    kind.is_floating,
    kind.is_date32,
    kind.is_string,
    kind.is_binary,
    kind.is_null,
)


def spark_type(type_: pa.DataType, where: str) -> pa.DataType:
    """Return the type that a column has inside Spark; raises `InvalidQuery` if none fits."""
    if type_ in _OTHER:
        return _OTHER[type_]
    if kind.is_timestamp(type_):
        return MICROSECONDS
    if kind.is_date64(type_):
        return pa.date32()
    if kind.is_dictionary(type_):
        return spark_type(type_.value_type, where)
    if kind.is_large_string(type_) or kind.is_string_view(type_):
        return pa.string()
    if kind.is_large_binary(type_) or kind.is_binary_view(type_) or kind.is_fixed_size_binary(type_):
        return pa.binary()
    if kind.is_struct(type_):
        fields = [pa.field(f.name, spark_type(f.type, f"{where}.{f.name}"), f.nullable) for f in type_.fields]
        return pa.struct(fields)
    if kind.is_list(type_) or kind.is_large_list(type_) or kind.is_fixed_size_list(type_):
        return pa.list_(pa.field("element", spark_type(type_.value_type, where), nullable=True))
    if any(same(type_) for same in _SAME) or (kind.is_decimal128(type_) and type_.scale >= 0):
        return type_
    why = ", whose decimals have at most 38 digits" if kind.is_decimal256(type_) else ""
    raise InvalidQuery(text=f"type {type_} has no counterpart in Spark{why}", where=f"column {where}")


def spark_schema_of(schema: pa.Schema) -> pa.Schema:
    """Return the schema of an input as Spark sees it: every column is nullable, without metadata."""
    return pa.schema([pa.field(f.name, spark_type(f.type, f.name), nullable=True) for f in schema])


def output_type(type_: pa.DataType, where: str) -> pa.DataType:
    """Return the type that a result column is stored with; raises `InvalidQuery` if it cannot be stored."""
    if kind.is_timestamp(type_):
        return MICROSECONDS
    if kind.is_null(type_):
        raise InvalidQuery(text=f"column {where} is always null: CAST it to the intended type")
    if kind.is_duration(type_) or kind.is_interval(type_) or kind.is_time(type_):
        raise InvalidQuery(text=f"column {where} has type {type_}, which cannot be stored: CAST it")
    if kind.is_large_string(type_):
        return pa.string()
    if kind.is_large_binary(type_):
        return pa.binary()
    if kind.is_struct(type_):
        return pa.struct([pa.field(f.name, output_type(f.type, f"{where}.{f.name}")) for f in type_.fields])
    if kind.is_list(type_):
        return pa.list_(pa.field("element", output_type(type_.value_type, where)))
    if kind.is_map(type_):
        raise InvalidQuery(text=f"column {where} is a map, which cannot be stored: use a list of structs")
    return type_


def output_schema_of(schema: pa.Schema) -> pa.Schema:
    """Return the schema that a result is stored with: every column is nullable, without metadata."""
    return pa.schema([pa.field(f.name, output_type(f.type, f.name)) for f in schema])
