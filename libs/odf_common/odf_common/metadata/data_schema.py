"""The ODF data schema of 0.37+: slot 1 of `SetDataSchema`, and `schema` of read steps (wire-facts §1.6)."""

from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated

from odf_common.metadata.scalars import ExtraAttributes, Int32, UInt32, UInt64, Width


class TimeUnit(IntEnum):
    """Unit of times, timestamps and durations; a 16-bit enum on the wire."""

    Second = 0
    Millisecond = 1
    Microsecond = 2
    Nanosecond = 3


TimeUnit16 = Annotated[TimeUnit, Width(2, signed=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataTypeBinary:
    """Bytes, of a fixed length (bytes) if given."""

    fixed_length: UInt64 | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DataTypeBool:
    """True or false."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataTypeDate:
    """Calendar date."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataTypeDecimal:
    """Exact number with `precision` digits, `scale` of them after the decimal point."""

    precision: UInt32
    scale: Int32


@dataclass(frozen=True, slots=True, kw_only=True)
class DataTypeDuration:
    """Length of time; milliseconds by default."""

    unit: TimeUnit16 | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DataTypeFloat16:
    """IEEE half."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataTypeFloat32:
    """IEEE single."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataTypeFloat64:
    """IEEE double."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataTypeInt8:
    """Signed, 8 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataTypeInt16:
    """Signed, 16 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataTypeInt32:
    """Signed, 32 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataTypeInt64:
    """Signed, 64 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataTypeUInt8:
    """Unsigned, 8 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataTypeUInt16:
    """Unsigned, 16 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataTypeUInt32:
    """Unsigned, 32 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataTypeUInt64:
    """Unsigned, 64 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataTypeList:
    """Items of one type; `fixed_length` items if given."""

    item_type: "DataType"
    fixed_length: UInt64 | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DataTypeMap:
    """Keys to values."""

    key_type: "DataType"
    value_type: "DataType"
    keys_sorted: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DataTypeNull:
    """Always null."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataTypeOption:
    """The inner type, or null."""

    inner: "DataType"


@dataclass(frozen=True, slots=True, kw_only=True)
class DataTypeStruct:
    """Named fields in order."""

    fields: tuple["DataField", ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataTypeTime:
    """Time of day; milliseconds by default."""

    unit: TimeUnit16 | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DataTypeTimestamp:
    """Timestamp; milliseconds and UTC by default."""

    unit: TimeUnit16 | None = None
    timezone: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DataTypeString:
    """UTF-8 string."""


DataType = (
    DataTypeBinary
    | DataTypeBool
    | DataTypeDate
    | DataTypeDecimal
    | DataTypeDuration
    | DataTypeFloat16
    | DataTypeFloat32
    | DataTypeFloat64
    | DataTypeInt8
    | DataTypeInt16
    | DataTypeInt32
    | DataTypeInt64
    | DataTypeUInt8
    | DataTypeUInt16
    | DataTypeUInt32
    | DataTypeUInt64
    | DataTypeList
    | DataTypeMap
    | DataTypeNull
    | DataTypeOption
    | DataTypeStruct
    | DataTypeTime
    | DataTypeTimestamp
    | DataTypeString
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataField:
    """One column: name, type, free attributes."""

    name: str
    type: DataType
    extra: ExtraAttributes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSchema:
    """Columns in order."""

    fields: tuple[DataField, ...]
    extra: ExtraAttributes | None = None
