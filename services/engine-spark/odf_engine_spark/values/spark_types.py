"""Conversion of Arrow's types to Spark's and back.

Spark has no unsigned integers, no UUIDs, one time unit, and one layout of strings; times of day become strings. A type
without a counterpart is refused by name. Results are converted to the types that slices are stored with, by a table
that docs/generate.py prints (why: decision 80).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.types as kind
from pyspark.errors import PySparkTypeError
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    CalendarIntervalType,
    DataType,
    StructField,
    StructType,
    YearMonthIntervalType,
)

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
    """Return the type of a column in Spark; raises `InvalidQuery` if there is none."""
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
    """Return the schema of an input in Spark: all columns are nullable, without metadata."""
    return pa.schema([pa.field(f.name, spark_type(f.type, f.name), nullable=True) for f in schema])


def output_type(type_: pa.DataType, where: str) -> pa.DataType:
    """Return the type that a result column is stored with; raises `InvalidQuery` if it cannot be stored."""
    rule = next((rule for rule in RESULT_TYPES if rule.has(type_)), None)
    if rule is not None and not rule.becomes:
        raise _refusal(rule, where)
    if kind.is_timestamp(type_):
        return MICROSECONDS
    if kind.is_large_string(type_):
        return pa.string()
    if kind.is_large_binary(type_):
        return pa.binary()
    if kind.is_struct(type_):
        return pa.struct([pa.field(f.name, output_type(f.type, f"{where}.{f.name}")) for f in type_.fields])
    if kind.is_list(type_):
        return pa.list_(pa.field("element", output_type(type_.value_type, f"{where}[]")))
    return type_


def output_schema_of(schema: pa.Schema) -> pa.Schema:
    """Return the schema that a result is stored with: all columns are nullable, without metadata."""
    return pa.schema([pa.field(f.name, output_type(f.type, f.name)) for f in schema])


def arrow_schema_of(columns: StructType) -> pa.Schema:
    """Return the columns of a result as an Arrow schema; raises `InvalidQuery` for types that Arrow does not have."""
    return pa.schema([_arrow_field(column) for column in columns])


def _arrow_field(column: StructField) -> pa.Field:
    _require_in_arrow(column.dataType, column.name)
    one = StructType([column])
    try:
        return to_arrow_schema(one, error_on_duplicated_field_names_in_struct=True, timezone="UTC").field(0)
    except (PySparkTypeError, ValueError) as error:
        text = f"{column.dataType.simpleString()} cannot be returned: CAST it ({error})"
        raise InvalidQuery(where=f"column {column.name}", text=text) from error


def _require_in_arrow(type_: DataType, where: str) -> None:
    match type_:
        case StructType():
            for field in type_.fields:
                _require_in_arrow(field.dataType, f"{where}.{field.name}")
        case ArrayType():
            _require_in_arrow(type_.elementType, f"{where}[]")
        case YearMonthIntervalType():
            raise _refusal(YEAR_MONTH, where)
        case CalendarIntervalType():
            raise _refusal(CALENDAR, where)
        case _:
            pass


def _refusal(rule: "ResultRule", where: str) -> InvalidQuery:
    return InvalidQuery(where=f"column {where}", text=f"{rule.sql} cannot be returned: {rule.instead}")


# --- the table ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultRule:
    """The rule for a type in a query's result: what it is stored as, or that it is refused."""

    sql: str
    has: Callable[[pa.DataType], bool]
    """Returns whether an Arrow type is covered by this rule; never for SQL types that Arrow does not have."""
    becomes: str = ""
    """The stored type, empty if the type is refused."""
    instead: str = ""
    """The advice for values that are refused."""


def _is_never(type_: pa.DataType) -> bool:
    del type_
    return False


OTHER_YEARS: Final = "make it NULL by CASE, or leave the record out by WHERE"
_TO_NUMBER: Final = "CAST it to STRING, or compute timestampdiff({unit}, …) instead"
YEAR_MONTH: Final = ResultRule(
    sql="INTERVAL YEAR TO MONTH", has=_is_never, instead=_TO_NUMBER.format(unit="MONTH")
)
CALENDAR: Final = ResultRule(sql="INTERVAL", has=kind.is_interval, instead="CAST it to STRING")
RESULT_TYPES: Final = (
    ResultRule(
        sql="BOOLEAN, TINYINT, SMALLINT, INT, BIGINT, FLOAT, DOUBLE, DECIMAL, BINARY",
        has=lambda it: any(is_same(it) for is_same in (kind.is_boolean, kind.is_integer, kind.is_floating)),
        becomes="the same",
    ),
    ResultRule(sql="STRING, CHAR, VARCHAR", has=kind.is_string, becomes="STRING"),
    ResultRule(
        sql="DATE",
        has=kind.is_date,
        becomes="DATE",
        instead=f"in other years than 0001 to 9999: {OTHER_YEARS}",
    ),
    ResultRule(
        sql="TIMESTAMP, TIMESTAMP_NTZ",
        has=kind.is_timestamp,
        becomes="TIMESTAMP(6) in UTC, and TIMESTAMP(3) for the event time, cut towards the past",
        instead=f"in other years than 0001 to 9999: {OTHER_YEARS}",
    ),
    ResultRule(
        sql="VARIANT, GEOMETRY, GEOGRAPHY", has=_is_never, becomes="a STRUCT of Spark's encoding in bytes"
    ),
    ResultRule(sql="STRUCT<>", has=lambda it: it == pa.struct([]), instead="it has no fields"),
    ResultRule(
        sql="ARRAY<STRUCT>",
        has=lambda it: kind.is_list(it) and kind.is_struct(it.value_type),
        instead="it has no logical hash: return a list for each field, by transform(…), or to_json(…)",
    ),
    ResultRule(
        sql="ARRAY, STRUCT", has=lambda it: kind.is_list(it) or kind.is_struct(it), becomes="the same"
    ),
    ResultRule(
        sql="MAP", has=kind.is_map, instead="use map_keys(…) and map_values(…), two lists, or to_json(…)"
    ),
    ResultRule(sql="TIME", has=kind.is_time, instead="CAST it to STRING"),
    ResultRule(sql="INTERVAL DAY TO SECOND", has=kind.is_duration, instead=_TO_NUMBER.format(unit="SECOND")),
    YEAR_MONTH,
    CALENDAR,
    ResultRule(sql="VOID", has=kind.is_null, instead="it is always null, CAST it to the intended type"),
)
"""The rules for all types that a query's result may have."""
