"""Formats of timestamps and dates in text: strftime's if there is a `%`, else Java's SimpleDateFormat.

A numeric format becomes one regular expression, so that Arrow parses whole columns; any other is parsed by Python, one
distinct string at a time.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from odf_common.errors import InvalidInput


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeFormat:
    """A format as a regular expression (groups y m d H M S f z; None if it has words), and as strptime's."""

    text: str
    regex: str | None
    strptime: str


_GROUPS: Final = {
    "%Y": r"(?P<y>\d{4})",
    "%m": r"(?P<m>\d{1,2})",
    "%d": r"(?P<d>\d{1,2})",
    "%H": r"(?P<H>\d{1,2})",
    "%M": r"(?P<M>\d{1,2})",
    "%S": r"(?P<S>\d{1,2})",
    "%f": r"(?P<f>\d{1,9})",
    "%z": r"(?P<z>Z|[+-]\d{2}(?::?\d{2})?)",
}
_COMPOSED: Final = {"%F": "%Y-%m-%d", "%T": "%H:%M:%S", "%R": "%H:%M", "%D": "%m/%d/%y", "%e": "%d"}
# Letters of SimpleDateFormat, by minimum repetition.
_JAVA: Final[dict[str, Sequence[tuple[int, str]]]] = {
    "y": ((3, "%Y"), (2, "%y"), (1, "%Y")),
    "u": ((3, "%Y"), (2, "%y"), (1, "%Y")),
    "M": ((4, "%B"), (3, "%b"), (1, "%m")),
    "L": ((4, "%B"), (3, "%b"), (1, "%m")),
    "d": ((1, "%d"),),
    "D": ((1, "%j"),),
    "H": ((1, "%H"),),
    "h": ((1, "%I"),),
    "m": ((1, "%M"),),
    "s": ((1, "%S"),),
    "S": ((1, "%f"),),
    "a": ((1, "%p"),),
    "E": ((4, "%A"), (1, "%a")),
    "X": ((1, "%z"),),
    "x": ((1, "%z"),),
    "Z": ((1, "%z"),),
}
_JAVA_TOKEN: Final = re.compile(r"'((?:[^']|'')*)'|([A-Za-z])\2*|[^A-Za-z']+")
_TOKEN: Final = re.compile(r"%.|[^%]+|%\Z", re.DOTALL)
_DIRECTIVES: Final = frozenset("%" + letter for letter in "YymdHIMSfzjbBaAp")
RFC3339: Final = "rfc3339"  # the only name of a format; the default


@cache
def time_format(text: str) -> TimeFormat:
    """Return a read step's `timestampFormat` or `dateFormat`, which is not `rfc3339`; raises `InvalidInput`."""
    strptime = text if "%" in text else _from_java(text)
    strptime = "".join(_COMPOSED.get(token, token) for token in _TOKEN.findall(strptime))
    _require_directives(strptime, text)
    return TimeFormat(text=text, regex=_regex(strptime), strptime=strptime)


def named_format(text: str | None) -> str | None:
    """Return the format; None if it is absent or `rfc3339`."""
    return None if text is None or text.lower() == RFC3339 else text


def _require_directives(strptime: str, text: str) -> None:
    seen = set()
    for token in _TOKEN.findall(strptime):
        if not token.startswith("%") or token == "%%":  # noqa: S105 - no secret
            continue
        if token not in _DIRECTIVES:
            supported = " ".join(sorted(_DIRECTIVES | set(_COMPOSED)))
            raise InvalidInput(
                where=f"time format {text!r}", text=f"{token} is not supported; supported are {supported}"
            )
        if token in seen:
            raise InvalidInput(
                where=f"time format {text!r}", text=f"a part of the time occurs twice ({token})"
            )
        seen.add(token)
    if not seen:
        raise InvalidInput(where=f"time format {text!r}", text="has no part of a date or time")


def _from_java(text: str) -> str:
    parts = []
    end = 0
    for match in _JAVA_TOKEN.finditer(text):
        if match.start() != end:
            break
        end = match.end()
        parts.append(_java_token(match, text))
    if end != len(text):
        raise InvalidInput(where=f"time format {text!r}", text=f"cannot be read at {text[end:]!r}")
    return "".join(parts)


def _java_token(match: "re.Match[str]", text: str) -> str:
    quoted, letter = match.group(1), match.group(2)
    if quoted is not None:
        return (quoted.replace("''", "'") if quoted else "'").replace("%", "%%")
    if letter is None:
        return match.group(0).replace("%", "%%")
    for least, token in _JAVA.get(letter, ()):
        if len(match.group(0)) >= least:
            return token
    raise InvalidInput(where=f"time format {text!r}", text=f"the letter {letter!r} is not supported")


def _regex(strptime: str) -> str | None:
    parts = []
    for token in _TOKEN.findall(strptime):
        if token == "%%":  # noqa: S105 - no secret
            parts.append("%")
        elif token.startswith("%"):
            if token not in _GROUPS:
                return None
            parts.append(_GROUPS[token])
        else:
            parts.append(re.escape(token))
    return f"^{''.join(parts)}$"
