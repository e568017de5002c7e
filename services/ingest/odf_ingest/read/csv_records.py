"""Splits Csv text into complete records: a quote is closed in the record in which it is opened."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from odf_common.errors import InvalidInput
from odf_common.metadata.steps import ReadStepCsv
from odf_ingest.read.type_names import shown

_LINE_END: Final = re.compile(rb"\r\n|\n|\r|\Z")


@dataclass(eq=False, kw_only=True)
class UnclosedQuote(InvalidInput):
    """A record, starting at `line` (from 1), does not end."""

    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Grammar:
    """Separators and quotes; `escape` is None if quotes are doubled inside quotes.

    `record` matches one record up to its line end, `records` a whole text of them, `lines` a text with one record per
    line; `special`: characters without which each line is a record.
    """

    separator: str
    quote: str
    escape: str | None
    record: "re.Pattern[bytes]"
    records: "re.Pattern[bytes]"
    lines: "re.Pattern[bytes]"
    special: tuple[bytes, ...]

    def split(self, text: bytes) -> list[tuple[int, bytes]]:
        """Return the records with their first lines (from 1), without blank lines.

        Raises `UnclosedQuote` with the line of a quote that is never closed.
        """
        records = []
        at, line = 0, 1
        while at < len(text):
            end = self.end(text, at)
            if end > at:
                records.append((line, text[at:end]))
            line_end = _LINE_END.match(text, end)
            assert line_end is not None
            line += text.count(b"\n", at, line_end.end())
            at = line_end.end()
        return records

    def require_closed(self, text: bytes) -> None:
        """Raise `InvalidInput` with the line of a quote that is never closed."""
        if not self.is_plain(text) and self.records.fullmatch(text) is None:
            self.split(text)

    def end(self, text: bytes, at: int = 0) -> int:
        """Return the end of the record that starts at `at`; raises `UnclosedQuote` if it does not end."""
        found = self.record.match(text, at)
        end = at if found is None else found.end()
        if _LINE_END.match(text, end) is None:
            begin = shown(text[end : end + 40].decode(errors="replace").removeprefix(self.separator))
            raise UnclosedQuote(
                line=text.count(b"\n", 0, end) + 1,
                text=f"a quote or escape is never closed, starting at {begin}",
            )
        return end

    def is_plain(self, text: bytes) -> bool:
        """Return whether the text has no quotes or escapes that could contain a separator or newline."""
        return not any(one in text for one in self.special)

    def is_record_a_line(self, text: bytes) -> bool:
        """Return whether each line of the text is certainly one record."""
        return self.is_plain(text) or self.lines.fullmatch(text) is not None

    def width(self, record: bytes) -> int:
        """Return the number of values of a record."""
        separator = self.separator.encode()
        if self.is_plain(record):
            return record.count(separator) + 1
        return sum(1 for _ in _values(self.separator, self.quote, self.escape).finditer(record))


def grammar_of(step: ReadStepCsv) -> Grammar:
    """Return the grammar of the step's options; raises `InvalidInput` unless each is one ASCII character."""
    given = {"separator": step.separator, "quote": step.quote, "escape": step.escape}
    for name, value in given.items():
        if value and (len(value) != 1 or not value.isascii() or value in "\r\n"):
            raise InvalidInput(where=name, text=f"{value!r} is not one ASCII character")
    quote = step.quote or '"'
    return _grammar(step.separator or ",", quote, step.escape if step.escape != quote else None)


@cache
def _grammar(separator: str, quote: str, escape: str | None) -> Grammar:
    value, line = (_value_pattern(separator, quote, escape, extra) for extra in (b"", rb"\r\n"))
    record, one_line = (one + b"(?:" + re.escape(separator.encode()) + one + b")*+" for one in (value, line))
    return Grammar(
        separator=separator,
        quote=quote,
        escape=escape or None,
        record=re.compile(record, re.DOTALL),
        records=re.compile(b"(?:" + record + rb"(?:\r\n|\n|\r))*+" + record, re.DOTALL),
        lines=re.compile(b"(?:" + one_line + rb"\n)*+" + one_line),
        special=tuple(one.encode() for one in (quote, escape, "\r") if one),
    )


@cache
def _values(separator: str, quote: str, escape: str | None) -> "re.Pattern[bytes]":
    start = b"(?:^|(?<=" + re.escape(separator.encode()) + b"))"
    return re.compile(start + _value_pattern(separator, quote, escape, b""), re.DOTALL)


def _value_pattern(separator: str, quote: str, escape: str | None, never: bytes) -> bytes:
    """Return the pattern of one value, quoted or not; a quote opens only at its beginning.

    Quoted values contain no characters of `never`.
    """
    quoted, split = re.escape(quote.encode()), re.escape(separator.encode())
    escaped = re.escape(escape.encode()) if escape else b""
    any_ = b"[^" + never + b"]" if never else b"."
    hidden = escaped + any_ if escape else quoted + quoted
    inside = b"[^" + quoted + escaped + never + b"]"
    plain = b"[^" + split + escaped + rb"\r\n]"
    outside = b"(?:" + plain + b"++" + (b"|" + escaped + any_ if escape else b"") + b")*+"
    closed = quoted + b"(?:" + inside + b"++|" + hidden + b")*+" + quoted
    return b"(?:" + closed + outside + b"|(?!" + quoted + b")" + outside + b")"


def usual_width(grammar: Grammar, records: Sequence[bytes]) -> int:
    """Return the most frequent number of values."""
    ((width, _),) = Counter(map(grammar.width, records)).most_common(1)
    return width
