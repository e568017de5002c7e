"""Infers columns of JSON objects without a declared schema from all records of a batch.

pyarrow infers the columns if all records have the same kinds of values. Otherwise the most frequent kind of value of
each column decides; of equally frequent ones, the first. A column of numbers is BIGINT if all are integers, otherwise
DOUBLE; it is DECIMAL if that type cannot represent all of them exactly. Existing columns of the dataset keep their
names and types. Columns may be added, also inside structs.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from decimal import Decimal
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.json as pj
import pyarrow.types as kind

from odf_common.errors import InvalidInput
from odf_ingest.read.json_formats.json_exact import decode_object
from odf_ingest.read.message_buffer import MessageBuffer
from odf_ingest.read.types.columns import extend_columns
from odf_ingest.read.types.numbers import LONG_NUMBER, is_rounded
from odf_ingest.read.types.type_names import Quoted, show_value

HALF_PAIR: Final = re.compile(
    rb"\\u[dD][89abAB]\w\w(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB]\w\w)\\u[dD][c-fC-F]"
)
_BIGINT_END: Final = 2**63
_MOST_DIGITS: Final = 38  # of a decimal that every reader knows
MAX_NESTING: Final = 32  # thousands of nested types would overflow the parser's stack


def infer_schema(lines: MessageBuffer, base: pa.Schema | None, parsed: pa.Schema | None) -> pa.Schema:
    """Return the columns of `base`, followed by new ones, in stored types.

    `parsed` is the schema that pyarrow has inferred; None if pyarrow cannot parse the lines together.
    """
    if parsed is None or (_has_doubles(parsed) and LONG_NUMBER.search(lines.text)):
        deep = too_deep(lines)
        parsed = _vote(line for row, line in enumerate(lines) if line and row not in deep)
    return extend_columns(base, parsed)


def too_deep(lines: MessageBuffer) -> AbstractSet[int]:
    """Return the indices of the lines that are nested too deeply for inference."""
    raw = np.frombuffer(lines.text, np.uint8)
    opened = np.append(0, np.cumsum((raw == ord("{")) | (raw == ord("["))))
    counts = np.diff(opened[lines.ends], prepend=0)
    return {int(row) for row in np.flatnonzero(counts > MAX_NESTING) if _is_deep(lines[int(row)] or b"")}


def require_inferable(lines: MessageBuffer) -> None:
    """Raise `InvalidInput` if a line is nested too deeply, or has names that are not valid Unicode."""
    if too_deep(lines):
        raise InvalidInput(text=f"is nested more than {MAX_NESTING} levels deep; declare a schema to read it")
    if HALF_PAIR.search(lines.text) is not None:
        for line in lines:
            _require_names(decode_object(line or b""))


def _require_names(value: object) -> None:
    if isinstance(value, dict):
        for name, inner in value.items():
            if not _is_name(name):
                raise InvalidInput(text=f"has half a surrogate pair: {show_value(name)}")
            _require_names(inner)
    elif isinstance(value, list):
        for inner in value:
            _require_names(inner)


def _is_deep(line: bytes) -> bool:
    try:
        level: list[object] = [decode_object(line)]
    except InvalidInput:
        return True
    for _ in range(MAX_NESTING + 1):
        level = [
            inner
            for value in level
            if isinstance(value, dict | list)
            for inner in (value.values() if isinstance(value, dict) else value)
        ]
    return bool(level)


def _has_doubles(columns: Iterable[pa.Field]) -> bool:
    return any(
        kind.is_floating(column.type)
        or (kind.is_struct(column.type) and _has_doubles(column.type.fields))
        or (kind.is_list(column.type) and _has_doubles([column.type.value_field]))
        for column in columns
    )


def _vote(lines: Iterable[bytes]) -> pa.Schema:
    votes = _Votes()
    for line in lines:
        try:
            votes.add(decode_object(line))
        except InvalidInput:
            # It will be rejected when it is read.
            continue
    return pa.schema(votes.columns())


class _Votes:
    """Counts the kinds of values at one path of many records."""

    def __init__(self) -> None:
        self._counts: Counter[type[object]] = Counter()
        self._fields: dict[str, _Votes] = {}
        self._element: _Votes | None = None
        self._texts: set[str] = set()
        self._numbers: set[str] = set()

    def add(self, value: object) -> None:
        """Count a value from `decode`, and its nested values."""
        if value is None:
            return
        self._counts[type(value)] += 1
        if isinstance(value, dict):
            for name, inner in value.items():
                self._fields.setdefault(name, _Votes()).add(inner)
        elif isinstance(value, list):
            self._element = self._element or _Votes()
            for inner in value:
                self._element.add(inner)
        elif isinstance(value, Quoted):
            self._numbers.add(value)
        elif isinstance(value, str):
            self._texts.add(value)

    def columns(self) -> list[tuple[str, pa.DataType]]:
        """Return the names and types of the fields that have values."""
        fields = [(name, votes.winner()) for name, votes in self._fields.items()]
        return [(name, type_) for name, type_ in fields if type_ is not None and _is_name(name)]

    def winner(self) -> pa.DataType | None:
        """Return the type of the most frequent kind of value; None if there are no values.

        Empty objects and arrays are not counted, because they have no type.
        """
        types = (self._type_of(kind_) for kind_, _ in self._counts.most_common())
        return next((type_ for type_ in types if type_ is not None), None)

    def _type_of(self, kind_: type[object]) -> pa.DataType | None:
        if kind_ is dict:
            # Once: each level would double the work of those below it.
            columns = self.columns()
            return pa.struct(columns) if columns else None
        if kind_ is list:
            element = None if self._element is None else self._element.winner()
            return None if element is None else pa.list_(element)
        if kind_ is bool:
            return pa.bool_()
        if kind_ is str:
            return _text_type(sorted(self._texts))
        return _number_type(self._numbers)


def _is_name(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _number_type(numbers: AbstractSet[str]) -> pa.DataType:
    """Return the type that represents all numbers exactly. If there is none: BIGINT or DOUBLE, which refuse some."""
    is_whole = all(number.lstrip("-").isdigit() for number in numbers)
    usual = pa.int64() if is_whole else pa.float64()
    is_exact = (
        all(-_BIGINT_END <= Decimal(number) < _BIGINT_END for number in numbers)
        if is_whole
        else not any(map(is_rounded, numbers))
    )
    return usual if is_exact else _decimal_type(numbers) or usual


def _decimal_type(numbers: Iterable[str]) -> pa.DataType | None:
    try:
        decimals = [Decimal(number) for number in numbers]
    except ArithmeticError:
        return None
    if not all(number.is_finite() for number in decimals):
        return None
    digits = max(number.adjusted() + 1 for number in decimals)
    scale = max(map(_scale, decimals))
    return pa.decimal128(_MOST_DIGITS, scale) if digits + scale <= _MOST_DIGITS else None


def _scale(number: Decimal) -> int:
    """Return the number of digits after the point, without zeros at the end."""
    _, digits, exponent = number.as_tuple()
    zeros = len(digits) - len("".join(map(str, digits)).rstrip("0"))
    return max(0, -int(exponent) - zeros) if number else 0


def _text_type(texts: Sequence[str]) -> pa.DataType:
    """Return the type that pyarrow infers from strings: a timestamp if all are timestamps, otherwise string."""
    lines = "\n".join(json.dumps({"c": text}) for text in texts)
    try:
        type_: pa.DataType = pj.read_json(pa.BufferReader(lines.encode())).schema.field("c").type
    except pa.ArrowInvalid:
        return pa.string()
    return type_
