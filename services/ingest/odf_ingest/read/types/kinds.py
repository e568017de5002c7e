"""The kinds of values and of declared types, the kinds that each format has, and the formats of times."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Self

import pyarrow as pa
import pyarrow.types as kind

from odf_common.data.time_format import named_format
from odf_common.metadata.events import ReadStep, ReadStepCsv, ReadStepJson, ReadStepNdJson

UUID: Final = pa.uuid()


class ValueKind(StrEnum):
    """Kinds of values and of declared types."""

    TEXT = "text"  # also the declared STRING
    STRING = "JSON string"
    NUMBER = "JSON number"
    ARRAY = "JSON array"
    OBJECT = "JSON object"
    BOOLEAN = "boolean"
    INTEGER = "integer"
    FLOAT = "floating-point number"
    DECIMAL = "decimal"
    BINARY = "binary value"
    UUID = "UUID"
    DATE = "date"
    TIME = "time of day"
    TIMESTAMP = "timestamp"
    LIST = "list"
    STRUCT = "struct"
    OTHER = "value of another type"


DECLARED: Final[Mapping[ValueKind, str]] = {
    ValueKind.BOOLEAN: "BOOLEAN",
    ValueKind.INTEGER: "TINYINT, SMALLINT, INT, BIGINT, also UNSIGNED",
    ValueKind.FLOAT: "FLOAT, DOUBLE",
    ValueKind.DECIMAL: "DECIMAL",
    ValueKind.TEXT: "STRING",
    ValueKind.BINARY: "BINARY",
    ValueKind.UUID: "UUID",
    ValueKind.DATE: "DATE",
    ValueKind.TIME: "TIME",
    ValueKind.TIMESTAMP: "TIMESTAMP",
    ValueKind.LIST: "ARRAY",
    ValueKind.STRUCT: "STRUCT",
}
_JSON: Final = (ValueKind.STRING, ValueKind.NUMBER, ValueKind.BOOLEAN, ValueKind.ARRAY, ValueKind.OBJECT)
# Written as JSON by the node: no text of theirs is in the source.
_REWRITTEN: Final = (ValueKind.STRING, ValueKind.NUMBER, ValueKind.BOOLEAN, ValueKind.LIST, ValueKind.STRUCT)
_TYPED: Final = (ValueKind.TEXT, *(declared for declared in DECLARED if declared is not ValueKind.TEXT))
FORMATS: Final[Mapping[str, tuple[ValueKind, ...]]] = {
    "csv": (ValueKind.TEXT,),
    "keys and headers of messages": (ValueKind.TEXT,),
    "json": _JSON,
    "ndjson": _JSON,
    "geojson": _REWRITTEN,
    "ndgeojson": _REWRITTEN,
    "esrishapefile": (ValueKind.STRING, ValueKind.NUMBER, ValueKind.BOOLEAN),
    "avro": _REWRITTEN,
    "protobuf": _REWRITTEN,
    "parquet": _TYPED,
    "arrow": _TYPED,
}
"""The kinds of values that a format has."""


def kind_of(type_: pa.DataType) -> ValueKind:
    """Return the kind of an Arrow type; layouts of the same values have the same kind."""
    if kind.is_dictionary(type_) or kind.is_run_end_encoded(type_):
        return kind_of(type_.value_type)
    if isinstance(type_, pa.BaseExtensionType):
        return ValueKind.UUID if type_ == UUID else kind_of(type_.storage_type)
    return next((found for found, is_kind in _KINDS if is_kind(type_)), ValueKind.OTHER)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedJson(ReadStepNdJson):
    """The read step for JSON that was converted from a binary format; binary values are base64 strings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeFormats:
    """Formats of timestamps and dates, and other options for reading values.

    None means RFC 3339 for timestamps, ISO 8601 for dates. With an `epoch…` format, values are numbers or strings.
    """

    timestamp: str | None = None
    date: str | None = None
    has_base64: bool = False
    """Whether strings in binary columns are base64; otherwise their UTF-8 bytes are used."""
    keeps_text: bool = False
    """Whether a JSON object or array in a column of STRING is kept as its text; otherwise it is refused."""
    is_inferred: bool = False
    """Whether types are inferred. Then a JSON number that a DOUBLE would round is refused."""
    strings: ValueKind = ValueKind.STRING
    """The kind of strings: those of JSON, which are never numbers, or text of any kind."""

    @classmethod
    def from_step(cls, step: ReadStep) -> Self:
        """Return the formats of a read step."""
        is_declared = bool(step.ddl_schema or step.schema)
        if not isinstance(step, ReadStepCsv | ReadStepJson | ReadStepNdJson):
            return cls(is_inferred=not is_declared)
        return cls(
            timestamp=named_format(step.timestamp_format),
            date=named_format(step.date_format),
            has_base64=isinstance(step, DecodedJson),
            # In an inferred column of STRING it is another kind of value than before.
            keeps_text=not isinstance(step, DecodedJson) and is_declared,
            is_inferred=not is_declared,
            strings=ValueKind.TEXT if isinstance(step, ReadStepCsv) else ValueKind.STRING,
        )


_KINDS: Final[tuple[tuple[ValueKind, Callable[[pa.DataType], bool]], ...]] = (
    (ValueKind.TEXT, lambda it: kind.is_string(it) or kind.is_large_string(it) or kind.is_string_view(it)),
    (ValueKind.BOOLEAN, kind.is_boolean),
    (ValueKind.INTEGER, kind.is_integer),
    (ValueKind.FLOAT, kind.is_floating),
    (ValueKind.DECIMAL, kind.is_decimal),
    (ValueKind.BINARY, lambda it: kind.is_binary(it) or kind.is_large_binary(it) or kind.is_binary_view(it)),
    (ValueKind.BINARY, kind.is_fixed_size_binary),
    (ValueKind.DATE, kind.is_date),
    (ValueKind.TIME, kind.is_time),
    (ValueKind.TIMESTAMP, kind.is_timestamp),
    (ValueKind.LIST, lambda it: kind.is_list(it) or kind.is_large_list(it) or kind.is_fixed_size_list(it)),
    (ValueKind.LIST, kind.is_map),
    (ValueKind.STRUCT, kind.is_struct),
)
