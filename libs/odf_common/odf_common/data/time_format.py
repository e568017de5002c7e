"""Formats of timestamps and dates in text, and the range of years: 1 to 9999 in UTC, which every reader supports.

A format is strftime's if it has a `%`, else Java's SimpleDateFormat; or epoch times. A numeric format becomes one
regular expression, so that Arrow parses whole columns; any other is parsed by Python, one distinct string at a time. A
format means what it means to strftime or SimpleDateFormat, or it is refused; unlike Java, nothing may follow the time,
and a 30th of February is refused.

Arrow and Parquet allow more years; an offset from UTC can exceed the range: 9999-12-31T23:00:00-05:00.
"""

import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kind

from odf_common.data.columns import PER_SECOND
from odf_common.errors import InvalidInput
from odf_common.metadata.scalars import NANOS, Timestamp


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeFormat:
    """A format of times: as a regular expression with the groups y m d H M S f z, and as a format of strptime."""

    text: str
    regex: str
    strptime: str
    is_numeric: bool
    """Whether `regex` has groups for all parts of a time; otherwise matching text is parsed by `strptime`."""
    prefix: str
    """A year to put in front of the text if the format has no year, because strptime would use 1900."""


_NUMBERS: Final[Mapping[str, tuple[str, str]]] = {
    # Each with its group, and what it matches unless digits of another part precede or follow it.
    "%m": ("m", r"\d{1,2}"),
    "%d": ("d", r"\d{1,2}"),
    "%H": ("H", r"\d{1,2}"),
    "%M": ("M", r"\d{1,2}"),
    "%S": ("S", r"\d{1,2}"),
    "%I": ("", r"\d{1,2}"),
    "%Y": ("y", r"\d{4}"),
    "%y": ("", r"\d{2}"),
    "%j": ("", r"\d{1,3}"),
    "%f": ("f", r"\d{1,9}"),
}
_FULL_WIDTH: Final = {r"\d{1,2}": r"\d{2}", r"\d{1,3}": r"\d{3}"}
_ZONE: Final = r"(?P<z>Z|[+-]\d{2}(?::?\d{2})?)"
_WORD: Final = r"[^\d\s]+"  # a month, a day of the week, AM or PM
_COMPOSED: Final = {"%F": "%Y-%m-%d", "%T": "%H:%M:%S", "%R": "%H:%M", "%D": "%m/%d/%y", "%e": "%d"}
# Letters of SimpleDateFormat, by minimum repetition.
_JAVA: Final[dict[str, Sequence[tuple[int, str]]]] = {
    "y": ((3, "%Y"), (2, ""), (1, "%Y")),
    "M": ((4, "%B"), (3, "%b"), (1, "%m")),
    "L": ((4, "%B"), (3, "%b"), (1, "%m")),
    "d": ((1, "%d"),),
    "D": ((1, "%j"),),
    "H": ((1, "%H"),),
    "h": ((1, "%I"),),
    "m": ((1, "%M"),),
    "s": ((1, "%S"),),
    "S": ((4, ""), (3, "%f"), (1, "")),
    "a": ((1, "%p"),),
    "E": ((4, "%A"), (1, "%a")),
    "X": ((4, ""), (1, "%z")),
    "Z": ((1, "%z"),),
}
# What SimpleDateFormat does with other letters, or with these in another number, is seldom what is meant.
_JAVA_ADVICE: Final[Mapping[str, str]] = {
    "y": "in SimpleDateFormat its century depends on the day on which it is read; write strftime's %y, or yyyy",
    "u": "in SimpleDateFormat it is the day of the week; write y",
    "Y": "in SimpleDateFormat it is the year of the week; write y",
    "S": "in SimpleDateFormat it is a number of milliseconds; write SSS, or strftime's %f for other fractions",
    "X": "a zone has at most three",
    "x": "in SimpleDateFormat it does not exist; write X",
    "z": "names of zones differ from place to place; write X or Z for offsets",
}
_JAVA_TOKEN: Final = re.compile(r"'((?:[^']|'')*)'|([A-Za-z])\2*|[^A-Za-z']+")
_TOKEN: Final = re.compile(r"%.|[^%]+|%\Z", re.DOTALL)
_DIRECTIVES: Final = frozenset("%" + letter for letter in "YymdHIMSfzjbBaAp")
RFC3339: Final = "rfc3339"  # the default
EPOCHS: Final[Mapping[str, int]] = {  # digits of a second that the number has
    "epochSeconds": 0,
    "epochMillis": 3,
    "epochMicros": 6,
    "epochNanos": 9,
}
_LIKELY_SECONDS: Final = (946_684_800, 4_102_444_800)  # the years 2000 to 2099
_MAX_DIGITS: Final = 20


def epoch_digits(text: str | None) -> int | None:
    """Return the number of fractional digits of a second for an epoch format; None if it is another format."""
    return (
        None if text is None else {name.lower(): digits for name, digits in EPOCHS.items()}.get(text.lower())
    )


def likely_epoch(number: float) -> str | None:
    """Return the epoch format that places a number in the years 2000 to 2099; None if there is none."""
    first, last = _LIKELY_SECONDS
    likely = (name for name, digits in EPOCHS.items() if first <= number / 10**digits < last)
    return next(likely, None)


def epoch_hint(text: str) -> str:
    """Return a hint for an error message: an epoch format that fits a numeric text; empty if the text is no number."""
    name = likely_epoch(int(text)) if text.isascii() and text.isdigit() and len(text) < _MAX_DIGITS else None
    return "" if name is None else f"; with `timestampFormat: {name}` it is"


@cache
def time_format(text: str) -> TimeFormat:
    """Return the parsed `timestampFormat` or `dateFormat`, which is not a named one; raises `InvalidInput`."""
    is_java = "%" not in text
    strptime = _from_java(text) if is_java else text
    tokens = [
        part for token in _TOKEN.findall(strptime) for part in _TOKEN.findall(_COMPOSED.get(token, token))
    ]
    seen = _directives(tokens, text)
    is_numeric = all(_NUMBERS.get(token, ("",))[0] for token in seen - {"%z"})
    has_year = bool(seen & {"%Y", "%y"}) or is_numeric
    patterns = _patterns(tokens, milliseconds=is_java, is_numeric=is_numeric)
    return TimeFormat(
        text=text,
        regex=f"^{''.join(patterns)}$",
        strptime="".join(tokens if has_year else ["%Y ", *tokens]),
        is_numeric=is_numeric,
        prefix="" if has_year else "1970 ",
    )


def named_format(text: str | None) -> str | None:
    """Return the format; None if it is absent or `rfc3339`, which is the default."""
    return None if text is None or text.lower() == RFC3339 else text


def require_timestamp_format(text: str | None) -> None:
    """Raise `InvalidInput` for a `timestampFormat` that cannot be parsed; None means RFC 3339."""
    named = named_format(text)
    if named is not None and epoch_digits(named) is None:
        time_format(named)


def _directives(tokens: Sequence[str], text: str) -> set[str]:
    """Return the parts of a time that a format contains; raises `InvalidInput` if the format is not usable."""
    seen: set[str] = set()
    for token in tokens:
        if not token.startswith("%") or token == "%%":  # noqa: S105 - no secret
            continue
        if token not in _DIRECTIVES:
            supported = " ".join(sorted(_DIRECTIVES | set(_COMPOSED)))
            raise _refusal(text, f"{token} is not supported; supported are {supported}")
        if token in seen:
            raise _refusal(text, f"a part of the time occurs twice ({token})")
        seen.add(token)
    if not seen:
        raise _refusal(text, "has no part of a date or time")
    if "%p" in seen and "%I" not in seen:
        raise _refusal(text, "AM and PM need an hour from 1 to 12 (Java's h, strftime's %I)")
    return seen


def _refusal(text: str, why: str) -> InvalidInput:
    return InvalidInput(where=f"time format {text!r}", text=why)


def _from_java(text: str) -> str:
    if text.lower().startswith(("epoch", "rfc", "unix")):
        raise _refusal(text, f"is unknown; formats by name are {RFC3339}, {', '.join(EPOCHS)}")
    parts = []
    end = 0
    for match in _JAVA_TOKEN.finditer(text):
        if match.start() != end:
            break
        end = match.end()
        parts.append(_java_token(match, text))
    if end != len(text):
        raise _refusal(text, f"cannot be read at {text[end:]!r}")
    return "".join(parts)


def _java_token(match: "re.Match[str]", text: str) -> str:
    quoted, letter = match.group(1), match.group(2)
    if quoted is not None:
        return (quoted.replace("''", "'") if quoted else "'").replace("%", "%%")
    if letter is None:
        return match.group(0).replace("%", "%%")
    for least, token in _JAVA.get(letter, ()):
        if len(match.group(0)) >= least and token:
            return token
        if len(match.group(0)) >= least:
            break
    what = repr(match.group(0)) if letter in _JAVA else f"the letter {letter!r}"
    advice = f": {_JAVA_ADVICE[letter]}" if letter in _JAVA_ADVICE else ""
    raise _refusal(text, f"{what} is not supported{advice}")


def _patterns(tokens: Sequence[str], *, milliseconds: bool, is_numeric: bool) -> Sequence[str]:
    """Return a regular expression for each token; adjacent numbers must have their full width."""
    patterns = []
    for before, token, after in zip(("", *tokens), tokens, (*tokens[1:], ""), strict=False):
        group, digits = _NUMBERS.get(token, ("", ""))
        if before in _NUMBERS or after in _NUMBERS:
            digits = _FULL_WIDTH.get(digits, digits)
        if token == "%f" and milliseconds:  # noqa: S105 - no secret
            digits = r"\d{3}"
        if digits:
            patterns.append(f"(?P<{group}>{digits})" if group else digits)
        elif token == "%%":  # noqa: S105 - no secret
            patterns.append("%")
        elif token.startswith("%"):
            patterns.append(_ZONE if token == "%z" else _WORD)  # noqa: S105 - no secret
        elif is_numeric:
            patterns.append(re.escape(token))
        else:  # as strptime does
            patterns.append(r"\s+".join(map(re.escape, re.split(r"\s+", token))))
    return patterns


_FIRST_DAY: Final = -719_162  # 0001-01-01, in days since the epoch
_LAST_DAY: Final = 2_932_896  # 9999-12-31
_DAY_SECONDS: Final = 86_400


def require_known_years(column: pa.ChunkedArray, where: str) -> None:
    """Raise `InvalidInput` with the place and the value if a time is outside of the years 1 to 9999."""
    if _may_exceed(column.type):
        _require_known(column.combine_chunks() if kind.is_nested(column.type) else column, where)


def first_unknown_year(table: pa.Table) -> tuple[int, InvalidInput] | None:
    """Return the first row with a time outside of the years 1 to 9999, and an error with its place and value."""
    for name, column in zip(table.column_names, table.columns, strict=True):
        error = _unknown_year(column, name)
        if error is not None:
            # By halves, since a value within a list does not know its row.
            return bisect_left(range(len(column)), 1, key=partial(_has_unknown, column)), error
    return None


def _has_unknown(column: pa.ChunkedArray, last: int) -> bool:
    """Return whether a row up to and including `last` has a time outside of the years 1 to 9999."""
    return _unknown_year(column.slice(0, last + 1), "") is not None


def _unknown_year(column: pa.ChunkedArray, name: str) -> InvalidInput | None:
    try:
        require_known_years(column, f"column {name}")
    except InvalidInput as error:
        return error
    return None


def _may_exceed(type_: pa.DataType) -> bool:
    if kind.is_struct(type_):
        return any(_may_exceed(inner.type) for inner in type_.fields)
    if kind.is_list(type_) or kind.is_large_list(type_) or kind.is_fixed_size_list(type_):
        return _may_exceed(type_.value_type)
    if kind.is_map(type_):
        return _may_exceed(type_.key_type) or _may_exceed(type_.item_type)
    return bool(kind.is_date(type_) or (kind.is_timestamp(type_) and type_.unit != "ns"))


def _require_known(values: pa.Array | pa.ChunkedArray, where: str) -> None:
    type_ = values.type
    if not _may_exceed(type_):
        return
    if kind.is_struct(type_):
        for inner, part in zip(type_.fields, values.flatten(), strict=True):
            _require_known(part, f"{where}.{inner.name}")
    elif kind.is_map(type_):
        entry = pa.struct([("key", type_.key_type), ("value", type_.item_type)])
        _require_known(values.cast(pa.list_(entry)), where)
    elif kind.is_nested(type_):
        _require_known(values.flatten(), f"{where}[]")
    else:
        _require_within(values, where)


def _require_within(values: pa.Array | pa.ChunkedArray, where: str) -> None:
    per_day = _per_day(values.type)
    first, last = _FIRST_DAY * per_day, (_LAST_DAY + 1) * per_day - 1
    numbers = values.cast(pa.int32() if kind.is_date32(values.type) else pa.int64())
    bounds = pc.min_max(numbers).as_py()
    if bounds["min"] is None or (bounds["min"] >= first and bounds["max"] <= last):
        return
    is_out = pc.or_(pc.less(numbers, first), pc.greater(numbers, last))
    ns = numbers.filter(is_out)[0].as_py() * (_DAY_SECONDS * NANOS // per_day)
    text = str(Timestamp(ns))  # Arrow writes no date for those that are far out
    value = text.partition("T")[0] if kind.is_date(values.type) else text
    raise InvalidInput(where=where, text=f"{value} is outside of the years 0001 to 9999 in UTC")


def _per_day(type_: pa.DataType) -> int:
    if kind.is_date32(type_):
        return 1
    return 86_400_000 if kind.is_date64(type_) else _DAY_SECONDS * PER_SECOND[type_.unit]
