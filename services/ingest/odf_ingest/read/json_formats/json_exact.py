"""Parses JSON token by token if pyarrow's parser refuses it or would change values.

Numbers stay strings, so no value is converted to a double. Values in a notation that pyarrow does not accept (`1039.0`
for an integer) are rewritten. Errors for values that do not fit have column, value and type.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Final

import pyarrow as pa
import pyarrow.types as kind

from odf_common.data.time_format import epoch_digits
from odf_common.errors import InvalidInput
from odf_ingest.read.encoding import not_utf8
from odf_ingest.read.types.conversions import TABLE, misfit_text
from odf_ingest.read.types.kinds import TimeFormats, ValueKind, kind_of
from odf_ingest.read.types.numbers import is_rounded
from odf_ingest.read.types.type_names import Quoted, show_value

_KINDS: Final[Mapping[type[object], ValueKind]] = {
    bool: ValueKind.BOOLEAN,
    Quoted: ValueKind.NUMBER,
    str: ValueKind.STRING,
    list: ValueKind.ARRAY,
    dict: ValueKind.OBJECT,
}
"""The kinds of decoded values by class; a subclass is before its base class."""
NO_COLUMN_TEXT: Final = (
    "has no column with a value"  # and neither has any message that is read together with it
)
_INFINITE: Final = frozenset({"NaN", "Infinity", "-Infinity"})
_ROUNDED: Final = (
    "would be {nearest:.0f} as DOUBLE, the type that was inferred; declare DOUBLE to take the nearest number, or "
    "DECIMAL, in a new dataset if this one has records"
)
_MAX_DIGITS: Final = 80  # of a number written in full; the widest decimal has 76
_DECIMAL: Final = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_SPACE: Final = re.compile(r"[ \t\n\r]*")
# Numbers that may be integers but are not written as such; the first pattern also matches inside strings.
_ODD: Final = re.compile(rb"\d(?:\.0+(?!\d)|(?:\.\d+)?[eE][+-]?\d)")
_ODD_NUMBER: Final = rb"\d++(?:\.0++(?!\d)|(?:\.\d++)?[eE])"
_SKIPPED: Final = rb'[^"\d]++|"(?:[^"\\]++|\\.)*+(?:"|\Z)|(?!' + _ODD_NUMBER + rb")\d++(?:\.\d++)?"
_UP_TO_ODD: Final = re.compile(
    rb"((?:" + _SKIPPED + rb")*+)(?:(\d++(?:\.\d++)?(?:[eE][+-]?\d++)?)|\Z)", re.DOTALL
)


class Misfit(InvalidInput):
    """A valid JSON object does not fit the columns."""


def _object(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidInput(where=f"column {twice}", text="is duplicated")
    return members


_DECODER: Final = json.JSONDecoder(
    parse_int=Quoted, parse_float=Quoted, parse_constant=Quoted, object_pairs_hook=_object
)


def decode(text: bytes) -> object:
    """Return the JSON value with its numbers as `Quoted`. Raises `InvalidInput`, also for duplicate keys."""
    try:
        return _DECODER.decode(text.decode())
    except UnicodeDecodeError as error:
        raise not_utf8(text) from error
    except (ValueError, RecursionError) as error:
        raise InvalidInput(text=f"is not JSON: {error}") from error


def decode_object(text: bytes) -> dict[str, object]:
    """Return the JSON object; raises `InvalidInput`."""
    decoded = decode(text)
    if not isinstance(decoded, dict):
        raise InvalidInput(text="is not a JSON object")
    return decoded


def with_plain_numbers(text: bytes) -> bytes | None:
    """Return the text with integers written without an exponent (`1e3` becomes 1000); None if nothing changes."""
    if _ODD.search(text) is None:
        return None
    return _UP_TO_ODD.sub(_plain, text)


def _plain(match: "re.Match[bytes]") -> bytes:
    skipped, number = match.groups()
    if number is None:
        return bytes(skipped)
    whole, _, fraction = number.partition(b".")
    if not fraction.strip(b"0") and b"e" not in whole and b"E" not in whole:
        return bytes(skipped + whole)
    return bytes(skipped + (_whole_number(number.decode()).encode() or number))


def _whole_number(token: str) -> str:
    """Return the sign and digits of an integer; an empty string if it has a fraction or too many digits."""
    try:
        number = Decimal(token)
    except ArithmeticError:
        return ""
    if not number.is_finite() or number.adjusted() >= _MAX_DIGITS:
        return ""
    if number == 0:
        return "-0" if number.is_signed() else "0"
    _, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    if exponent < 0 and any(digits[exponent:]):
        return ""
    return str(int(number))


def rewrite_exactly(text: bytes, schema: pa.Schema, formats: TimeFormats) -> bytes:
    """Return the object with only the columns of `schema`, in a form that pyarrow parses exactly.

    Raises `InvalidInput` with column, value and type. Strings of times and UUIDs are not checked here; numbers in
    columns of timestamps become strings if the format is one of numbers since 1970.
    """
    decoded = decode_object(text)
    require_known(decoded, schema)
    columns = [
        (column.name, _fit(decoded, column, column.name, formats))
        for column in schema
        if column.name in decoded
    ]
    try:
        return _write_object(columns).encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(text=f"has half a surrogate pair: {show_value(error.object)}") from error


def with_text_of_containers(text: bytes, columns: Iterable[pa.Field]) -> bytes:
    """Return the object with nested objects and arrays replaced by their text, where the column is a STRING.

    Columns may be at any depth. Text that is not a JSON object is returned unchanged; the later parser reports it.
    """
    try:
        return Document(text.decode()).with_text_of_containers(columns).encode()
    except (ValueError, RecursionError, InvalidInput):
        return text


def require_known(members: dict[str, object], schema: pa.Schema) -> None:
    """Raise `InvalidInput` unless the object has at least one of the columns."""
    if len(schema) == 0:
        raise Misfit(text=NO_COLUMN_TEXT)
    if not any(name in members for name in schema.names):
        has = f"it has {', '.join(map(show_value, list(members)[:10]))}" if members else "it is empty"
        raise Misfit(text=f"has none of the columns {', '.join(schema.names[:20])}; {has}")


def _write_object(columns: Sequence[tuple[str, str]]) -> str:
    return "{" + ",".join(f"{json.dumps(name)}:{value}" for name, value in columns) + "}"


def _fit(members: dict[str, object], column: pa.Field, where: str, formats: TimeFormats) -> str:
    """Return a column's value as JSON; raises `InvalidInput` if it is not of the column's type."""
    return _value(members[column.name], column.type, where, formats)


def _value(value: object, target: pa.DataType, where: str, formats: TimeFormats) -> str:
    if value is None:
        return "null"
    source, declared = _kind_of(value), kind_of(target)
    is_since_1970 = source is ValueKind.NUMBER and declared is ValueKind.TIMESTAMP
    # Those that are kept as text are strings by now.
    is_container_as_text = declared is ValueKind.TEXT and source in {ValueKind.ARRAY, ValueKind.OBJECT}
    is_accepted = TABLE[source, declared].accepts and not is_container_as_text
    if not is_accepted or (is_since_1970 and epoch_digits(formats.timestamp) is None):
        raise _misfit(value, target, where)
    if isinstance(value, dict):
        parts = [inner for inner in target.fields if inner.name in value]
        fitted = [_fit(value, part, f"{where}.{part.name}", formats) for part in parts]
        return _write_object(list(zip((part.name for part in parts), fitted, strict=True)))
    if isinstance(value, list):
        items = [_value(item, target.value_type, f"{where}[]", formats) for item in value]
        return f"[{','.join(items)}]"
    if declared is ValueKind.INTEGER:
        return _integer(str(value), target, where)
    if declared is ValueKind.FLOAT:
        return _floating(str(value), target, where, formats)
    if declared is ValueKind.DECIMAL and isinstance(value, str):
        return _decimal(value, target, where)
    return json.dumps(value, ensure_ascii=False)


def _kind_of(value: object) -> ValueKind:
    for type_, value_kind in _KINDS.items():
        if isinstance(value, type_):
            return value_kind
    raise TypeError(value)


def _integer(token: str, target: pa.DataType, where: str) -> str:
    digits = "" if token in _INFINITE else _whole_number(token)
    bits = target.bit_width - int(kind.is_signed_integer(target))
    least = -(2**bits) if kind.is_signed_integer(target) else 0
    if not digits or not least <= int(digits) < 2**bits:
        raise _misfit(Quoted(token), target, where)
    return str(int(digits))


def _floating(token: str, target: pa.DataType, where: str, formats: TimeFormats) -> str:
    if token in _INFINITE:
        raise Misfit(where=f"column {where}", text=f"{token} is not JSON (RFC 8259): write null")
    if math.isinf(pa.scalar(float(token)).cast(target).as_py()):
        raise _misfit(Quoted(token), target, where)
    if formats.is_inferred and is_rounded(token):
        raise Misfit(
            where=f"column {where}",
            text=f"{show_value(Quoted(token))} {_ROUNDED.format(nearest=float(token))}",
        )
    return token


def _decimal(token: str, target: pa.DataType, where: str) -> str:
    # Python's own parser also accepts white space, underscores and digits of all scripts.
    if _DECIMAL.fullmatch(token) is None:
        raise _misfit(token, target, where)
    try:
        number = Decimal(token)
    except ArithmeticError as error:
        raise _misfit(token, target, where) from error
    if number == 0:
        return "0"
    digits = "".join(map(str, number.as_tuple().digits))
    scale = -int(number.as_tuple().exponent) - (len(digits) - len(digits.rstrip("0")))
    if scale > target.scale or number.adjusted() >= target.precision - target.scale:
        raise _misfit(token, target, where)
    written = f"{number:f}"
    # Arrow counts zeros at the end as digits.
    return written.rstrip("0").rstrip(".") if "." in written else written


def _misfit(value: object, target: pa.DataType, where: str) -> Misfit:
    text = misfit_text(value, _kind_of(value), target)
    return Misfit(where=f"column {where}", text=text)


PositionedText = tuple[int, str]  # where a record begins, in characters, and its text


class Document:
    """Scans a JSON document, and extracts its records exactly as written."""

    def __init__(self, text: str) -> None:
        """Start at the first token."""
        self._text = text
        self._position = 0
        self._skip_space()

    def records(self, path: Sequence[str]) -> list[PositionedText]:
        """Return all records at `path`; raises `InvalidInput` unless the document is JSON to its end."""
        try:
            records = self._records(path)
        except (ValueError, RecursionError) as error:
            raise InvalidInput(text=f"is not JSON: {error}") from error
        if self._position != len(self._text):
            hint = (
                "; objects one after the other are NdJson"
                if self._text.startswith("{", self._position)
                else ""
            )
            raise InvalidInput(
                text=f"is not JSON: text after the document at character {self._position}{hint}"
            )
        return records

    def typed_array(self, name: str) -> tuple[object, list[PositionedText] | None]:
        """Return the member `type` of the document's object, and the objects in its array `name`.

        Each is None if the member is missing. Raises `InvalidInput` unless the document is JSON to its end.
        """
        try:
            array = self._typed_array(name)
        except (ValueError, RecursionError) as error:
            raise InvalidInput(text=f"is not JSON: {error}") from error
        if self._position != len(self._text):
            raise InvalidInput(text=f"is not JSON: text after the document at character {self._position}")
        return array

    def _typed_array(self, name: str) -> tuple[object, list[PositionedText] | None]:
        if not self._takes("{"):
            raise InvalidInput(text="is not a JSON object")
        members: dict[str, object] = {}
        records: list[PositionedText] | None = None
        while not self._takes("}"):
            if members:
                self._expect(",")
            member = self._name()
            if member in members:
                raise InvalidInput(text=f"the document has {member!r} twice")
            members[member] = None
            if member == name:
                records = self._records([])
            elif member == "type":
                members[member] = json.loads(self._value())
            else:
                self._value()
        return members.get("type"), records

    def with_text_of_containers(self, columns: Iterable[pa.Field]) -> str:
        """Return the document with nested objects and arrays replaced by their text, where the column is a STRING."""
        changes: list[PositionedText] = []
        self._keep_members(columns, changes)
        pieces, end = [], 0
        for start, kept in changes:
            pieces += [self._text[end:start], json.dumps(kept, ensure_ascii=False)]
            end = start + len(kept)
        return "".join([*pieces, self._text[end:]])

    def _keep_members(self, columns: Iterable[pa.Field], changes: list[PositionedText]) -> None:
        types = {column.name: column.type for column in columns}
        self._expect("{")
        is_first = True
        while not self._takes("}"):
            if not is_first:
                self._expect(",")
            is_first = False
            self._keep_value(types.get(self._name()), changes)

    def _keep_elements(self, type_: pa.DataType, changes: list[PositionedText]) -> None:
        self._expect("[")
        is_first = True
        while not self._takes("]"):
            if not is_first:
                self._expect(",")
            is_first = False
            self._keep_value(type_, changes)

    def _keep_value(self, type_: pa.DataType | None, changes: list[PositionedText]) -> None:
        """Read a value, and add its objects and arrays that are kept as text to `changes`."""
        start, char = self._position, self._text[self._position : self._position + 1]
        if type_ is not None and char == "{" and kind.is_struct(type_):
            self._keep_members(type_.fields, changes)
        elif type_ is not None and char == "[" and kind_of(type_) is ValueKind.LIST:
            self._keep_elements(type_.value_type, changes)
        else:
            text = self._value()
            if type_ is not None and char in {"{", "["} and kind_of(type_) is ValueKind.TEXT:
                changes.append((start, text))

    def _records(self, path: Sequence[str]) -> list[PositionedText]:
        if path:
            return self._member(path)
        if not self._takes("["):
            return [self._object()]
        records: list[PositionedText] = []
        while not self._takes("]"):
            if records:
                self._expect(",")
            records.append(self._object())
        return records

    def _member(self, path: Sequence[str]) -> list[PositionedText]:
        """Read an object and return the records in its member `path[0]`."""
        nothing = InvalidInput(text=f"the document has no member {path[0]!r}")
        if not self._takes("{"):
            raise nothing
        members: dict[str, list[PositionedText]] = {}
        while not self._takes("}"):
            if members:
                self._expect(",")
            name = self._name()
            if name in members:
                raise InvalidInput(text=f"the document has {name!r} twice")
            if name == path[0]:
                members[name] = self._records(path[1:])
            else:
                members[name] = []
                self._value()
        if path[0] not in members:
            raise nothing
        return members[path[0]]

    def _name(self) -> str:
        name, end = _DECODER.raw_decode(self._text, self._position)
        if type(name) is not str:
            raise InvalidInput(text=f"is not JSON: expected a name at character {self._position}")
        self._position = end
        self._skip_space()
        self._expect(":")
        return name

    def _object(self) -> PositionedText:
        if not self._text.startswith("{", self._position):
            raise InvalidInput(text="expected an array of objects")
        return self._position, self._value()

    def _value(self) -> str:
        start = self._position
        _, self._position = _DECODER.raw_decode(self._text, start)
        text = self._text[start : self._position]
        self._skip_space()
        return text

    def _takes(self, char: str) -> bool:
        if not self._text.startswith(char, self._position):
            return False
        self._position += 1
        self._skip_space()
        return True

    def _expect(self, char: str) -> None:
        if not self._takes(char):
            raise InvalidInput(text=f"is not JSON: expected {char!r} at character {self._position}")

    def _skip_space(self) -> None:
        match = _SPACE.match(self._text, self._position)
        assert match is not None
        self._position = match.end()
