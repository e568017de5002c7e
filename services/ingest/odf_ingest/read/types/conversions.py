"""Conversions of values in all formats: one rule for each kind of value and each kind of declared type.

A value is converted exactly, or refused with a remedy. Only times may lose precision: a fraction that is finer than the
column is truncated towards the past, unless the source refuses that (`finerTimes`). The parsers of text formats convert
some types themselves; the rules describe what they accept, and tests check that. docs/generate.py prints the table
(why: decision 80).
"""

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kind

from odf_common.data.time_format import epoch_digits, epoch_hint, require_known_years
from odf_common.errors import InvalidInput
from odf_ingest.read.types import numbers, times
from odf_ingest.read.types.kinds import DECLARED, UUID, TimeFormats, ValueKind, kind_of
from odf_ingest.read.types.numbers import outgrown
from odf_ingest.read.types.times import cut, from_epoch
from odf_ingest.read.types.type_names import Quoted, show_value, type_name
from odf_ingest.read.types.uuids import to_uuids

Convert = Callable[[pa.Array, pa.DataType, TimeFormats], pa.Array]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """The conversion of one kind of value to one kind of type.

    `convert` raises `InvalidInput`, `ValueError` or Arrow's errors for values that are not accepted.
    """

    accepts: str = ""
    """A description of the accepted values; empty: no value is accepted."""
    instead: str
    """The remedy for a refused value."""
    convert: Convert


def convert_column(values: pa.ChunkedArray, field: pa.Field, formats: TimeFormats) -> pa.ChunkedArray:
    """Return a column in its declared type; raises `InvalidInput` with the path and the first value it refuses."""
    try:
        return _in_type(values, field, formats)
    except _Misfit as error:
        raise error.explanation() from error


def is_convertible(values: pa.Array, field: pa.Field, formats: TimeFormats) -> bool:
    """Return whether `convert_column` accepts all values. It does not search for the one that is refused."""
    try:
        _in_type(pa.chunked_array([values]), field, formats)
    except (_Misfit, InvalidInput):
        return False
    return True


@dataclass(eq=False)
class _Misfit(Exception):
    """Some values cannot be converted. `explanation` finds the first one and returns the error; that is slow."""

    explanation: Callable[[], InvalidInput]


def _in_type(values: pa.ChunkedArray, field: pa.Field, formats: TimeFormats) -> pa.ChunkedArray:
    """Return a column in its declared type; raises `_Misfit` or `InvalidInput`."""
    where = f"column {field.name}"
    if values.type != field.type:
        chunks = [_convert(chunk, field.type, where, formats) for chunk in values.chunks]
        values = pa.chunked_array(chunks, field.type)
    require_known_years(values, where)
    return values


def first_refused(values: pa.Array | pa.ChunkedArray, convert: Callable[[pa.Array], object]) -> int:
    """Return the first row that cannot be converted; there must be one."""
    first, count = 0, len(values)
    while count > 1:
        half = count // 2
        try:
            convert(values.slice(first, half))
        except (pa.ArrowException, ValueError, InvalidInput):
            count = half
        else:
            first, count = first + half, count - half
    return first


def misfit_text(value: object, source: ValueKind, target: pa.DataType) -> str:
    """Return the reason why a value is refused, and the remedy."""
    if isinstance(value, bool):
        value = Quoted(str(value).lower())
    elif isinstance(value, list | dict):
        value = Quoted("an array" if isinstance(value, list) else "an object")
    declared = kind_of(target)
    is_text = source in {ValueKind.TEXT, ValueKind.STRING, ValueKind.NUMBER}
    hint = epoch_hint(str(value)) if is_text and declared is ValueKind.TIMESTAMP else ""
    if is_text or source in {ValueKind.INTEGER, ValueKind.DECIMAL, ValueKind.FLOAT}:
        hint = hint or outgrown(value, target)
    hint = hint or f"; {TABLE[source, declared].instead}"
    return f"{show_value(value)} is not a value of {type_name(target)}{hint}"


def _convert(values: pa.Array, target: pa.DataType, where: str, formats: TimeFormats) -> pa.Array:
    if values.type == target:
        return values
    if values.null_count == len(values):
        return pa.nulls(len(values), target)
    values = _plain(values)
    source = kind_of(values.type)
    if source is kind_of(target) is ValueKind.STRUCT:
        return _struct(values, target, where, formats)
    if source is kind_of(target) is ValueKind.LIST:
        return _list(values, target, where, formats)
    return _leaf(values, target, where, formats)


def _plain(values: pa.Array) -> pa.Array:
    """Return the values in a layout that all Arrow functions support: no encoded, 16-bit or extension type."""
    if kind.is_dictionary(values.type):
        return _plain(values.dictionary_decode())
    if kind.is_run_end_encoded(values.type):
        return _plain(pc.run_end_decode(values))
    if isinstance(values, pa.ExtensionArray) and values.type != UUID:
        return _plain(values.storage)
    if kind.is_decimal(values.type) and values.type.bit_width < 128:
        return values.cast(pa.decimal128(values.type.precision, values.type.scale))
    return values


def _leaf(values: pa.Array, target: pa.DataType, where: str, formats: TimeFormats) -> pa.Array:
    source = kind_of(values.type)
    source = formats.strings if source is ValueKind.TEXT else source
    is_since_1970 = kind.is_timestamp(target) and epoch_digits(formats.timestamp) is not None
    # Text formats parse such numbers as decimals.
    rule = TABLE[
        ValueKind.NUMBER if source is ValueKind.DECIMAL and is_since_1970 else source, kind_of(target)
    ]

    def convert(some: pa.Array) -> pa.Array:
        has_values = some.null_count < len(some)
        return rule.convert(some, target, formats) if has_values else pa.nulls(len(some), target)

    def explanation() -> InvalidInput:
        one = values.slice(first_refused(values, convert), 1)
        try:
            convert(one)
        except InvalidInput as error:
            return InvalidInput(where=where, text=str(error))
        except (pa.ArrowException, ValueError):
            pass
        try:
            require_known_years(pa.chunked_array([one]), where)  # Arrow cannot print such a time
        except InvalidInput as error:
            return error
        return InvalidInput(where=where, text=misfit_text(_value_of(one[0]), source, target))

    try:
        return convert(values)
    except (pa.ArrowException, ValueError) as error:
        raise _Misfit(explanation) from error
    except InvalidInput as error:
        raise InvalidInput(where=where, text=str(error)) from error


def _value_of(value: pa.Scalar) -> object:
    """Return a value to quote in a message, even if Python has no object for it."""
    if kind.is_temporal(value.type):
        return Quoted(value.cast(pa.string()).as_py())
    if kind.is_struct(value.type):
        return {}
    return Quoted(str(value)) if kind.is_decimal(value.type) else value.as_py()


def _struct(values: pa.Array, target: pa.DataType, where: str, formats: TimeFormats) -> pa.Array:
    """Return structs with the declared fields, matched by name. Others are dropped; optional ones may be missing."""
    names = [field.name for field in values.type]
    # Below a null struct there may be any values: flattening makes them null.
    members = values.flatten() if values.null_count else [values.field(n) for n in range(len(names))]
    parts = []
    for inner in target.fields:
        if names.count(inner.name) > 1:
            raise InvalidInput(where=f"{where}.{inner.name}", text="occurs more than once")
        has_it = inner.name in names
        part = members[names.index(inner.name)] if has_it else pa.nulls(len(values), inner.type)
        _require(inner, where, has_nulls=part.null_count > values.null_count)
        parts.append(_convert(part, inner.type, f"{where}.{inner.name}", formats))
    mask = values.is_null() if values.null_count else None
    return pa.StructArray.from_arrays(parts, fields=list(target.fields), mask=mask)


def _list(values: pa.Array, target: pa.DataType, where: str, formats: TimeFormats) -> pa.Array:
    if kind.is_map(values.type):
        values = values.cast(pa.list_(pa.struct([values.type.key_field, values.type.item_field])))
    elif not kind.is_list(values.type):
        values = values.cast(pa.list_(values.type.value_field))
    items = values.flatten()
    _require(target.value_field, where, has_nulls=items.null_count > 0)
    items = _convert(items, target.value_type, f"{where}[]", formats)
    lengths = pc.fill_null(pc.list_value_length(values), 0)
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths).cast(pa.int32())])
    mask = values.is_null() if values.null_count else None
    lists = pa.ListArray.from_arrays(offsets, items, type=pa.list_(target.value_field), mask=mask)
    try:
        return lists.cast(target)
    except pa.ArrowInvalid as error:
        raise InvalidInput(where=where, text=f"a list has not {target.list_size} elements") from error


def _require(part: pa.Field, where: str, *, has_nulls: bool) -> None:
    if has_nulls and not part.nullable:
        raise InvalidInput(where=where, text=f"its field {part.name} is required and is null")


def _cast(values: pa.Array, target: pa.DataType, formats: TimeFormats) -> pa.Array:
    del formats
    return values.cast(target)


def _refuse(values: pa.Array, target: pa.DataType, formats: TimeFormats) -> pa.Array:
    raise ValueError(values, target, formats)


def _ignoring_formats(convert: Callable[[pa.Array, pa.DataType], pa.Array]) -> Convert:
    return lambda values, target, formats: convert(values, target)  # noqa: ARG005 - the same for all formats


def _of_text(convert: Callable[[pa.Array, pa.DataType], pa.Array]) -> Convert:
    """Return a conversion of strings in any Arrow layout."""
    return lambda values, target, formats: convert(values.cast(pa.string()), target)  # noqa: ARG005 - as above


def _since_1970(values: pa.Array, target: pa.DataType, formats: TimeFormats) -> pa.Array:
    """Return the timestamps for numbers of a text format, whose unit is the source's `timestampFormat`."""
    digits = epoch_digits(formats.timestamp)
    return _refuse(values, target, formats) if digits is None else from_epoch(values, digits, target)


def _timestamps(values: pa.Array, target: pa.DataType, formats: TimeFormats) -> pa.Array:
    parsed = times.to_timestamps(values.cast(pa.string()), formats.timestamp, target)
    return cut(parsed, target)


def _dates(values: pa.Array, target: pa.DataType, formats: TimeFormats) -> pa.Array:
    return times.to_dates(values.cast(pa.string()), formats.date).cast(target)


def _bytes(values: pa.Array, target: pa.DataType, formats: TimeFormats) -> pa.Array:
    if not formats.has_base64:
        return values.cast(pa.binary()).cast(target)
    decoded = [None if text is None else _of_base64(text) for text in values.to_pylist()]
    return pa.array(decoded, pa.binary()).cast(target)


def _of_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        reason = f"{show_value(text)} is not base64, in which a decoded message has bytes; declare STRING"
        raise InvalidInput(text=reason) from error


def _uuids_of_bytes(values: pa.Array, target: pa.DataType) -> pa.Array:
    return pa.ExtensionArray.from_storage(target, values.cast(target.storage_type))


# --- the table ----------------------------------------------------------------------------------------------------

_NO_UNIT: Final = "a number has no unit: declare BIGINT, and convert it in preprocess, as by"
_NUMBERS: Final = (ValueKind.INTEGER, ValueKind.FLOAT, ValueKind.DECIMAL)
_TEXTS: Final = (ValueKind.TEXT, ValueKind.STRING)
_WIDER: Final = "declare a type that has it"
_TO_WHOLE: Final = "whole numbers in the range of the type"
_TO_DECIMAL: Final = "the same digits, if the type has them; zeros at the end do not count"
_FINER: Final = "a finer fraction is cut towards the past"
_CUT: Final = f"the same time; {_FINER}"
_DIGITS: Final = "write a number of up to these digits, or declare more"
_BY_NAME: Final = "the declared fields by name, by this table"
_DECLARE: Final[Mapping[ValueKind, str]] = {
    ValueKind.TEXT: "STRING",
    ValueKind.STRING: "STRING",
    ValueKind.NUMBER: "BIGINT, DECIMAL or DOUBLE",
    ValueKind.ARRAY: "ARRAY<…>",
    ValueKind.OBJECT: "STRUCT<…>",
    ValueKind.INTEGER: "BIGINT",
    ValueKind.FLOAT: "DOUBLE",
    ValueKind.LIST: "ARRAY<…>",
    ValueKind.STRUCT: "STRUCT<…>",
}


def _rule(accepts: str, convert: Convert, instead: str) -> Rule:
    return Rule(accepts=accepts, convert=convert, instead=instead)


def _accepting_rules() -> Mapping[tuple[ValueKind, ValueKind], Rule]:
    """Return the rules that accept some values, by kind of value and kind of declared type."""
    rules: dict[tuple[ValueKind, ValueKind], Rule] = {}
    for text in _TEXTS:
        rules |= {(text, declared): rule for declared, rule in _of_strings().items()}
    rules |= {(ValueKind.TEXT, declared): rule for declared, rule in _of_untyped_text().items()}
    rules |= {(ValueKind.NUMBER, declared): rule for declared, rule in _of_json_numbers().items()}
    rules |= _of_json_containers() | _of_typed_numbers() | _of_typed_times() | _of_other_types()
    return rules


def _of_strings() -> Mapping[ValueKind, Rule]:
    decimals = _rule(_TO_DECIMAL, _of_text(numbers.text_to_decimals), _DIGITS)
    timestamp = _rule(
        f"RFC 3339, in UTC if it has no offset, or the source's `timestampFormat`; {_FINER}",
        _timestamps,
        times.WRITE_TIME,
    )
    date = _rule("YYYY-MM-DD, or the source's `dateFormat`", _dates, times.WRITE_DATE)
    time = _rule(
        f"HH:MM, HH:MM:SS or with a fraction; {_FINER}",
        _of_text(times.to_times),
        "write it as 23:59:59.999",
    )
    uuid = _rule(
        "its canonical form, in upper or lower case",
        _of_text(_to_uuids),
        "write it as 123e4567-e89b-12d3-a456-426614174000",
    )
    binary = _rule("its bytes in UTF-8; of Avro and Protobuf the bytes themselves", _bytes, _WIDER)
    return {
        ValueKind.TEXT: _rule("the same", _cast, _WIDER),
        ValueKind.DECIMAL: decimals,
        ValueKind.BINARY: binary,
        ValueKind.UUID: uuid,
        ValueKind.DATE: date,
        ValueKind.TIME: time,
        ValueKind.TIMESTAMP: timestamp,
    }


def _to_uuids(values: pa.Array, target: pa.DataType) -> pa.Array:
    del target
    return to_uuids(values)


def _of_untyped_text() -> Mapping[ValueKind, Rule]:
    whole = _rule(
        f"{_TO_WHOLE}, also written as 1039.0 or 1e3",
        _of_text(numbers.to_whole_numbers),
        "write a whole number in its range, or declare DECIMAL, DOUBLE or STRING",
    )
    real = _rule(
        "the nearest number; NaN and infinity if written so",
        _of_text(numbers.to_floats),
        "write a number in its range, or declare STRING",
    )
    boolean = _rule("true and false, 1 and 0", _cast, "write true or false, or declare STRING")
    decimal = _rule(_TO_DECIMAL, _of_text(numbers.trimmed_text_to_decimals), _DIGITS)
    return {
        ValueKind.BOOLEAN: boolean,
        ValueKind.INTEGER: whole,
        ValueKind.FLOAT: real,
        ValueKind.DECIMAL: decimal,
    }


def _of_json_numbers() -> Mapping[ValueKind, Rule]:
    """Return the rules for JSON numbers. The parser and `json_exact` implement them: Arrow has no such type."""
    return {
        ValueKind.INTEGER: _rule(f"{_TO_WHOLE}, also 1039.0 or 1e3", _refuse, "declare DECIMAL or DOUBLE"),
        ValueKind.FLOAT: _rule("the nearest number, unless it is out of range", _refuse, "declare DECIMAL"),
        ValueKind.DECIMAL: _rule(_TO_DECIMAL, _refuse, _DIGITS),
        ValueKind.TIMESTAMP: _rule(
            f"the time since 1970, only with `timestampFormat: epochMillis` or another unit; {_FINER}",
            _since_1970,
            "a number has no unit: set timestampFormat, such as epochMillis",
        ),
    }


def _of_json_containers() -> dict[tuple[ValueKind, ValueKind], Rule]:
    """Return the rules for JSON objects and arrays, which `json_exact` implements too."""
    text = "its own text, every byte as in the source, unless the column is inferred"
    or_text = "or, for a source of Json or NdJson, STRING to keep its text"
    return {
        (ValueKind.ARRAY, ValueKind.TEXT): _rule(text, _refuse, f"declare ARRAY<…>, {or_text}"),
        (ValueKind.OBJECT, ValueKind.TEXT): _rule(text, _refuse, f"declare STRUCT<…>, {or_text}"),
        (ValueKind.ARRAY, ValueKind.LIST): _rule("the elements by this table", _refuse, _WIDER),
        (ValueKind.OBJECT, ValueKind.STRUCT): _rule(_BY_NAME, _refuse, _WIDER),
    }


def _of_typed_numbers() -> dict[tuple[ValueKind, ValueKind], Rule]:
    integer, floating, decimal = _NUMBERS
    shortest = "its shortest decimal digits, if the type has them: 19.99 for DECIMAL(10, 2), and not 0.125"
    digits = "declare more digits, or DOUBLE"
    return {
        (integer, integer): _rule(_TO_WHOLE, _cast, "declare a wider type"),
        (integer, floating): _rule(
            "the same number, if the type has it",
            _ignoring_formats(numbers.integers_to_floats),
            "declare BIGINT",
        ),
        (integer, decimal): _rule(
            "the same number, if it has room",
            _ignoring_formats(numbers.integers_to_decimals),
            "declare more digits",
        ),
        (floating, integer): _rule(_TO_WHOLE, _cast, "declare DOUBLE"),
        (floating, floating): _rule(
            "the same number, if the type has it",
            _ignoring_formats(numbers.floats_to_floats),
            "declare DOUBLE",
        ),
        (floating, decimal): _rule(shortest, _ignoring_formats(numbers.floats_to_decimals), digits),
        (decimal, integer): _rule(_TO_WHOLE, _cast, "declare DECIMAL"),
        (decimal, floating): _rule(
            "the nearest number, if its shortest decimal digits are those of the decimal",
            _ignoring_formats(numbers.decimals_to_floats),
            "declare DECIMAL",
        ),
        (decimal, decimal): _rule(
            _TO_DECIMAL, _ignoring_formats(numbers.decimals_to_decimals), "declare more digits"
        ),
    }


def _of_typed_times() -> dict[tuple[ValueKind, ValueKind], Rule]:
    day = "declare TIMESTAMP(3), and take its day in preprocess: CAST(… AS DATE)"
    return {
        (ValueKind.DATE, ValueKind.DATE): _rule("the same day", _ignoring_formats(times.to_days), day),
        (ValueKind.DATE, ValueKind.TIMESTAMP): _rule(
            "midnight in UTC", _ignoring_formats(times.from_dates), "declare DATE"
        ),
        (ValueKind.TIMESTAMP, ValueKind.DATE): _rule(
            "midnight in UTC only, as its day", _ignoring_formats(times.to_days), day
        ),
        (ValueKind.TIMESTAMP, ValueKind.TIMESTAMP): _rule(
            f"{_CUT}; without a zone it is in UTC", _ignoring_formats(cut), "declare fewer digits"
        ),
        (ValueKind.TIME, ValueKind.TIME): _rule(_CUT, _ignoring_formats(cut), "declare more digits"),
    }


def _of_other_types() -> dict[tuple[ValueKind, ValueKind], Rule]:
    return {
        (ValueKind.BOOLEAN, ValueKind.BOOLEAN): _rule("the same", _cast, _WIDER),
        (ValueKind.INTEGER, ValueKind.TEXT): _rule("its digits", _cast, _WIDER),
        (ValueKind.BINARY, ValueKind.TEXT): _rule("its text, if it is UTF-8", _cast, "declare BINARY"),
        (ValueKind.BINARY, ValueKind.BINARY): _rule("the same", _cast, "declare BINARY"),
        (ValueKind.BINARY, ValueKind.UUID): _rule(
            "16 bytes", _ignoring_formats(_uuids_of_bytes), "declare BINARY"
        ),
        (ValueKind.UUID, ValueKind.UUID): _rule("the same", _cast, _WIDER),
        (ValueKind.UUID, ValueKind.BINARY): _rule("its 16 bytes", _cast, "declare UUID"),
        (ValueKind.LIST, ValueKind.LIST): _rule("the elements by this table", _refuse, _WIDER),
        (ValueKind.STRUCT, ValueKind.STRUCT): _rule(_BY_NAME, _refuse, _WIDER),
    }


def _refusing_rule(source: ValueKind, declared: ValueKind) -> Rule:
    """Return the rule for a kind of value and a kind of type that accepts no value."""
    if source is ValueKind.OTHER:
        return Rule(instead="no column has this type: convert it before", convert=_refuse)
    instead = f"declare {_DECLARE.get(source) or DECLARED[source]}, and convert it in preprocess"
    if source in {ValueKind.NUMBER, *_NUMBERS}:
        function = {ValueKind.TIMESTAMP: "timestamp_millis", ValueKind.DATE: "date_from_unix_date"}.get(
            declared
        )
        instead = instead if function is None else f"{_NO_UNIT} {function}(…)"
    if source is ValueKind.TIMESTAMP and declared is ValueKind.INTEGER:
        instead = f"{instead}, as by unix_millis(…)"
    if declared in {ValueKind.TIME, ValueKind.UUID}:  # which no query returns
        instead = instead.partition(", and")[0]
    return Rule(instead=instead, convert=_refuse)


TABLE: Final[Mapping[tuple[ValueKind, ValueKind], Rule]] = {
    (source, declared): _refusing_rule(source, declared) for source in ValueKind for declared in DECLARED
} | dict(_accepting_rules())
"""A rule for each kind of value and each kind of declared type."""
