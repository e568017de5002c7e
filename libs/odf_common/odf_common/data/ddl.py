"""Schemas as SQL column definitions (DDL): parsing what users write, and formatting."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.types as kind

from odf_common.data.columns import decimal_type, stored_type
from odf_common.errors import InvalidInput, nearest

_TOKEN: Final = re.compile(r"""\s*(?:(`[^`]+`|"[^"]+")|([^\W\d]\w*(?:-\w+)*)|(\d+)|([(),<>:\[\]])|(\S))""")
_SIMPLE: Final[Mapping[str, pa.DataType]] = {
    "BOOLEAN": pa.bool_(),
    "BOOL": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "INTEGER": pa.int32(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "REAL": pa.float32(),
    "DOUBLE": pa.float64(),
    "UUID": pa.uuid(),
    "STRING": pa.string(),
    "TEXT": pa.string(),
    "DATE": pa.date32(),
    "BINARY": pa.binary(),
    "VARBINARY": pa.binary(),
    "BYTEA": pa.binary(),
}
_UNSIGNED: Final[Mapping[str, pa.DataType]] = {
    "TINYINT": pa.uint8(),
    "SMALLINT": pa.uint16(),
    "INT": pa.uint32(),
    "INTEGER": pa.uint32(),
    "BIGINT": pa.uint64(),
}
_MAX_PRECISION: Final = 76  # digits
_MAX_DEPTH: Final = 32
_UNITS: Final = ((0, "s"), (3, "ms"), (6, "us"), (9, "ns"))  # maximum decimals of a second per unit


def ddl_to_schema(columns: Sequence[str]) -> pa.Schema:
    """Return the Arrow schema for column definitions such as `population BIGINT NOT NULL`, in the same order.

    Timestamps are in UTC. Raises `InvalidInput` with the name of the column.
    """
    fields: list[pa.Field] = []
    for text in columns:
        fields.extend(_Definitions(text).columns())
    seen: set[str] = set()
    for column in fields:
        if column.name in seen:
            raise InvalidInput(text="is defined twice", where=f"column {column.name}")
        seen.add(column.name)
    return pa.schema(fields)


@dataclass(frozen=True, slots=True)
class _Token:
    text: str
    is_name: bool
    is_quoted: bool


class _Definitions:
    """A parser for one string of column definitions."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._column = text.strip()
        self._tokens = [_token(match) for match in _TOKEN.finditer(text)]
        self._position = 0
        self._depth = 0

    def columns(self) -> list[pa.Field]:
        if not self._tokens:
            raise self._error("expected a name and a type")
        fields = []
        while self._position < len(self._tokens):
            fields.append(self._definition(top=True))
            if self._position < len(self._tokens):
                self._expect(",")
        return fields

    def _definition(self, *, top: bool) -> pa.Field:
        name = self._name()
        if top:
            self._column = name
        else:
            self._accept(":")
        type_ = self._type()
        return pa.field(name, type_, nullable=not self._not_null())

    def _name(self) -> str:
        token = self._next("a name")
        if not token.is_name:
            raise self._error(f"expected a name, got {token.text!r}")
        return token.text

    def _type(self) -> pa.DataType:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise self._error(f"types are nested more than {_MAX_DEPTH} deep")
        token = self._next("a type")
        if not token.is_name or token.is_quoted:
            raise self._error(f"expected a type, got {token.text!r}")
        type_ = self._type_named(token.text.upper())
        while self._accept("["):
            self._expect("]")
            type_ = pa.list_(type_)
        self._depth -= 1
        return type_

    def _type_named(self, word: str) -> pa.DataType:
        parse = self._parametric().get(word)
        if parse is not None:
            return parse()
        if word not in _SIMPLE:
            meant = nearest(word, (*_SIMPLE, *self._parametric()))
            hint = "" if meant is None else f"; did you mean {meant}?"
            raise self._error(f"unknown type {word}", hint)
        if word == "DOUBLE":
            self._accept("PRECISION")
        if word in _UNSIGNED and self._accept("UNSIGNED"):
            return _UNSIGNED[word]
        return _SIMPLE[word]

    def _parametric(self) -> Mapping[str, Callable[[], pa.DataType]]:
        return {
            "DECIMAL": self._decimal,
            "NUMERIC": self._decimal,
            "TIMESTAMP": self._timestamp,
            "TIMESTAMPTZ": self._timestamp,
            "TIME": self._time,
            "VARCHAR": self._text_type,
            "CHAR": self._text_type,
            "ARRAY": self._array,
            "STRUCT": self._struct,
        }

    def _decimal(self) -> pa.DataType:
        parameters = self._parameters(2)
        precision, scale = (*parameters, *(10, 0)[len(parameters) :])
        if not 1 <= precision <= _MAX_PRECISION or scale > precision:
            raise self._error(f"DECIMAL({precision}, {scale}) does not exist")
        return decimal_type(precision, scale)

    def _timestamp(self) -> pa.DataType:
        unit = self._unit("TIMESTAMP")
        if self._accept("WITH"):
            self._accept("LOCAL")
            self._expect("TIME")
            self._expect("ZONE")
        elif self._accept("WITHOUT"):
            raise self._error("times without a zone cannot be compared; use TIMESTAMP, which is in UTC")
        return pa.timestamp(unit, "UTC")

    def _time(self) -> pa.DataType:
        unit = self._unit("TIME")
        return pa.time64(unit) if unit in {"us", "ns"} else pa.time32(unit)

    def _text_type(self) -> pa.DataType:
        self._parameters(1)
        return pa.string()

    def _array(self) -> pa.DataType:
        self._expect("<")
        item = self._type()
        nullable = not self._not_null()
        self._expect(">")
        return pa.list_(pa.field("element", item, nullable))

    def _struct(self) -> pa.DataType:
        self._expect("<")
        fields = [self._definition(top=False)]
        while self._accept(","):
            fields.append(self._definition(top=False))
        self._expect(">")
        return pa.struct(fields)

    def _unit(self, word: str) -> str:
        digits = (*self._parameters(1), 3)[0]
        for most, unit in _UNITS:
            if digits <= most:
                return unit
        raise self._error(f"{word}({digits}) does not exist; a second has at most 9 digits")

    def _parameters(self, most: int) -> tuple[int, ...]:
        """Return the numbers in parentheses; none if there are no parentheses."""
        numbers: list[int] = []
        if self._accept("("):
            while True:
                token = self._next("a number")
                if not (token.text.isascii() and token.text.isdigit()) or len(token.text) > 3:
                    raise self._error(f"expected a small number, got {token.text!r}")
                numbers.append(int(token.text))
                if not self._accept(","):
                    break
            self._expect(")")
        if len(numbers) > most:
            raise self._error(f"expected at most {most} parameters, got {len(numbers)}")
        return tuple(numbers)

    def _not_null(self) -> bool:
        if self._accept("NOT"):
            self._expect("NULL")
            return True
        self._accept("NULL")
        return False

    def _accept(self, word: str) -> bool:
        if self._position < len(self._tokens):
            token = self._tokens[self._position]
            if not token.is_quoted and token.text.upper() == word:
                self._position += 1
                return True
        return False

    def _expect(self, word: str) -> None:
        if not self._accept(word):
            got = repr(self._tokens[self._position].text) if self._position < len(self._tokens) else "the end"
            raise self._error(f"expected {word!r}, got {got}", self._if_cut())

    def _next(self, what: str) -> _Token:
        if self._position >= len(self._tokens):
            raise self._error(f"expected {what}, got the end", self._if_cut())
        self._position += 1
        return self._tokens[self._position - 1]

    def _if_cut(self) -> str:
        """Return a hint for a definition that ends inside parentheses, because YAML splits lists at commas."""
        is_cut = self._text.count("(") > self._text.count(")")
        return (
            '; in a YAML list such as [amount DECIMAL(6,2)], quote it: ["amount DECIMAL(6,2)"]'
            if is_cut
            else ""
        )

    def _error(self, text: str, hint: str = "") -> InvalidInput:
        return InvalidInput(text=f"{text} in {self._text.strip()!r}{hint}", where=f"column {self._column}")


def _token(match: "re.Match[str]") -> _Token:
    quoted, word, number, sign, other = match.groups()
    if quoted:
        return _Token(quoted[1:-1], is_name=True, is_quoted=True)
    return _Token(word or number or sign or other, is_name=bool(word), is_quoted=False)


_PLAIN_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_WORDS: Final = ("NOT", "NULL")
_NAMES: Final[Mapping[pa.DataType, str]] = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    pa.uint8(): "TINYINT UNSIGNED",
    pa.uint16(): "SMALLINT UNSIGNED",
    pa.uint32(): "INT UNSIGNED",
    pa.uint64(): "BIGINT UNSIGNED",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.string(): "STRING",
    pa.binary(): "BINARY",
    pa.date32(): "DATE",
    pa.uuid(): "UUID",
}
_DIGITS: Final = {"s": 0, "ms": 3, "us": 6, "ns": 9}


def schema_to_ddl(schema: pa.Schema) -> tuple[str, ...]:
    """Return the definition of each column as it is stored; raises `InvalidInput` for types that DDL does not have."""
    return tuple(_definition(column, " ", column.name) for column in schema)


def type_to_ddl(type_: pa.DataType) -> str:
    """Return a type as DDL writes it, or as Arrow does if DDL does not have it."""
    try:
        return _type(stored_type(type_), "")
    except InvalidInput:
        return str(type_)


def _definition(column: pa.Field, gap: str, where: str) -> str:
    return f"{_name(column.name)}{gap}{_type(stored_type(column.type), where)}{_requirement(column)}"


def _requirement(column: pa.Field) -> str:
    return "" if column.nullable else " NOT NULL"


def _name(name: str) -> str:
    if _PLAIN_NAME.fullmatch(name) and name.upper() not in _WORDS:
        return name
    quote = '"' if "`" in name else "`"
    if not name or quote in name:
        raise InvalidInput(text="the name cannot be quoted", where=f"column {name}")
    return f"{quote}{name}{quote}"


def _type(type_: pa.DataType, where: str) -> str:
    simple = _NAMES.get(type_)
    if simple is not None:
        return simple
    if kind.is_decimal(type_) and type_.scale >= 0:
        return f"DECIMAL({type_.precision}, {type_.scale})"
    if kind.is_timestamp(type_):
        return f"TIMESTAMP({_DIGITS[type_.unit]})"
    if kind.is_time(type_):
        return f"TIME({_DIGITS[type_.unit]})"
    if kind.is_list(type_):
        item = type_.value_field
        return f"ARRAY<{_type(stored_type(item.type), f'{where}[]')}{_requirement(item)}>"
    if kind.is_struct(type_) and type_.num_fields:
        inner = (_definition(field, ": ", f"{where}.{field.name}") for field in type_.fields)
        return f"STRUCT<{', '.join(inner)}>"
    raise InvalidInput(text=f"type {type_} has no definition in SQL", where=f"column {where}")
