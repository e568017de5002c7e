"""Splits Csv text into records, and detects its dialect. A quote must be closed in the record that opens it."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

from odf_common.data.read_options import DEFAULT_QUOTE, DEFAULT_SEPARATOR, require_csv_characters
from odf_common.errors import InvalidInput
from odf_common.metadata.events import ReadStepCsv
from odf_ingest.read.encoding import to_utf8
from odf_ingest.read.types.type_names import show_value

_LINE_END: Final = re.compile(rb"\r\n|\n|\r|\Z")


class BadQuote(InvalidInput):
    """A quote that opens on `line` (from 1) is never closed, or has text after it."""

    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Grammar:
    """The separator, quote and escape characters of a Csv text; `quote` is None if there are no quotes.

    Inside quotes a quote is doubled or preceded by `escape`, if that is not None. Two escapes stand for one; an escape
    before any other character is kept. Outside of quotes an escape has no meaning.

    `record` matches one record up to its line end, `records` a text of complete records, `lines` a text with one record
    per line. In a text without any of the characters in `special`, each line is a record.
    """

    separator: str
    quote: str | None
    escape: str | None
    record: "re.Pattern[bytes]"
    records: "re.Pattern[bytes]"
    lines: "re.Pattern[bytes]"
    special: tuple[bytes, ...]

    def split(self, text: bytes) -> list[tuple[int, bytes]]:
        """Return the records, each with the number of its first line, from 1. Blank lines are skipped.

        Raises `BadQuote` with the line where a quote opens that is never closed or has text after it.
        """
        records = []
        start, line = 0, 1
        while start < len(text):
            end = self.end(text, start)
            if end > start:
                records.append((line, text[start:end]))
            line_end = _LINE_END.match(text, end)
            assert line_end is not None
            line += text.count(b"\n", start, line_end.end())
            start = line_end.end()
        return records

    def require_closed(self, text: bytes) -> None:
        """Raise `BadQuote` with the line where a quote opens that is never closed or has text after it."""
        if not self.is_plain(text) and self.records.fullmatch(text) is None:
            self.split(text)

    def end(self, text: bytes, start: int = 0) -> int:
        """Return the end of the record that starts at `start`; raises `BadQuote`."""
        match = self.record.match(text, start)
        end = start if match is None else match.end()
        if _LINE_END.match(text, end) is None:
            raise self._bad_quote(text, start, end)
        return end

    def _bad_quote(self, text: bytes, start: int, end: int) -> BadQuote:
        """Return the error of the record at `start`, whose values up to `end` are valid."""
        rest = text[end : end + 40].decode(errors="replace")
        if end == start or rest.startswith(self.separator):
            line, begin = text.count(b"\n", 0, end) + 1, show_value(rest.removeprefix(self.separator))
            return BadQuote(line=line, text=f"a quote is never closed: {begin}")
        *_, value = _values(self.separator, self.quote, self.escape).finditer(text[start:end])
        further = value.group().count(b"\n")
        where = f", {further} line{'s' * (further > 1)} further down" if further else ""
        line = text.count(b"\n", 0, start + value.start()) + 1
        return BadQuote(line=line, text=f"text follows the closing quote{where}: {show_value(rest)}")

    def is_blank(self, text: bytes) -> bool:
        """Return whether the text has only white space. A separator that is a tab does not count as white space."""
        return not text.strip(b" \t\r\n".replace(self.separator.encode(), b""))

    def is_plain(self, text: bytes) -> bool:
        """Return whether the text has no quotes or escapes, so that each separator or newline ends a value."""
        return not any(character in text for character in self.special)

    def is_record_a_line(self, text: bytes) -> bool:
        """Return whether each line of the text is certainly one record."""
        return self.is_plain(text) or self.lines.fullmatch(text) is not None

    def with_doubled_quotes(self, text: bytes) -> bytes:
        """Return the text with doubled quotes in place of escaped ones, and without escapes; quotes must be closed."""
        quote, escape = self.quote, self.escape
        if quote is None or escape is None or escape.encode() not in text:
            return text
        values = _quoted_value(self.separator, quote, escape)
        return values.sub(lambda match: _unescape(match.group(), quote, escape), text)

    def width(self, record: bytes) -> int:
        """Return the number of values of a record."""
        separator = self.separator.encode()
        if self.is_plain(record):
            return record.count(separator) + 1
        return sum(1 for _ in _values(self.separator, self.quote, self.escape).finditer(record))


def grammar_of(step: ReadStepCsv) -> Grammar:
    """Return the grammar of the step's options; raises `InvalidInput` unless each is one ASCII character."""
    require_csv_characters(step)
    separator = DEFAULT_SEPARATOR if step.separator is None else step.separator
    quote = DEFAULT_QUOTE if step.quote is None else step.quote
    is_off = not quote or step.escape in {"", quote, separator}
    return _grammar(separator, quote or None, None if is_off else step.escape)


@cache
def _grammar(separator: str, quote: str | None, escape: str | None) -> Grammar:
    value, line = (_value_pattern(separator, quote, escape, extra) for extra in (b"", rb"\r\n"))
    record, one_line = (
        byte + b"(?:" + re.escape(separator.encode()) + byte + b")*+" for byte in (value, line)
    )
    return Grammar(
        separator=separator,
        quote=quote,
        escape=escape,
        record=re.compile(record, re.DOTALL),
        records=re.compile(b"(?:" + record + rb"(?:\r\n|\n|\r))*+" + record, re.DOTALL),
        lines=re.compile(b"(?:" + one_line + rb"\n)*+" + one_line),
        special=tuple(text.encode() for text in (quote, "\r") if text),
    )


@cache
def _values(separator: str, quote: str | None, escape: str | None) -> "re.Pattern[bytes]":
    start = b"(?:^|(?<=" + re.escape(separator.encode()) + b"))"
    return re.compile(start + _value_pattern(separator, quote, escape, b""), re.DOTALL)


@cache
def _quoted_value(separator: str, quote: str, escape: str) -> "re.Pattern[bytes]":
    """Return the pattern of quoted values in a text of several records."""
    start = rb"(?:\A|(?<=[\r\n" + re.escape(separator.encode()) + b"]))"
    return re.compile(start + _closed_pattern(quote, escape, b""), re.DOTALL)


def _unescape(value: bytes, quote: str, escape: str) -> bytes:
    if escape.encode() not in value:
        return value
    pairs = {f"{escape}{quote}".encode(): quote * 2, escape.encode() * 2: escape}
    return _pairs(quote, escape).sub(
        lambda match: pairs.get(match.group(), match.group().decode()).encode(), value
    )


@cache
def _pairs(quote: str, escape: str) -> "re.Pattern[bytes]":
    """Return the pattern of an escaped quote, an escaped escape and a doubled quote."""
    one, two = re.escape(quote.encode()), re.escape(escape.encode())
    return re.compile(two + b"[" + one + two + b"]|(?<=.)" + one + one + b"(?=.)", re.DOTALL)


def _value_pattern(separator: str, quote: str | None, escape: str | None, never: bytes) -> bytes:
    """Return the pattern of one value, quoted or not; a quote opens only at its beginning.

    Quoted values contain no characters of `never`.
    """
    outside = b"[^" + re.escape(separator.encode()) + rb"\r\n]*+"
    if quote is None:
        return outside
    closed = _closed_pattern(quote, escape, never)
    return b"(?:" + closed + b"|(?!" + re.escape(quote.encode()) + b")" + outside + b")"


def _closed_pattern(quote: str, escape: str | None, never: bytes) -> bytes:
    quoted = re.escape(quote.encode())
    escaped = re.escape(escape.encode()) if escape else b""
    any_ = b"[^" + never + b"]" if never else b"."
    hidden = quoted + quoted + (b"|" + escaped + any_ if escape else b"")
    inside = b"[^" + quoted + escaped + never + b"]"
    return quoted + b"(?:" + inside + b"++|" + hidden + b")*+" + quoted


def usual_width(grammar: Grammar, records: Sequence[bytes]) -> int:
    """Return the most frequent number of values in a record."""
    ((width, _),) = Counter(map(grammar.width, records)).most_common(1)
    return width


_SEPARATORS: Final = (None, ";", "\t", "|")  # None: the default
_QUOTES: Final = (None, "'")
_ESCAPE: Final = "\\"
_ONE_COLUMN: Final = 0.1  # weight of a text with one column: any text has one with some separator
_BAD_QUOTE: Final = 0.5  # weight of the records before a bad quote


def with_dialect(step: ReadStepCsv, content: bytes) -> ReadStepCsv:
    """Return the step with the separator, quote and escape with which the most records are as wide as the header.

    Characters that the step already has are kept. The step stays without them if the defaults are as good.
    """
    text = to_utf8(content, step.encoding).lstrip(b"\r\n")
    found, most = step, 0.0
    for candidate in _candidates(step, text):
        share = _fitting_share(candidate, text)
        if share > most:
            found, most = candidate, share
        if most == 1:
            break
    return found


def _candidates(step: ReadStepCsv, text: bytes) -> Iterator[ReadStepCsv]:
    """Yield steps with characters that occur in the text, the more likely first."""
    header = text.partition(b"\n")[0]
    separators = [one for one in _SEPARATORS if one is None or one.encode() in header]
    quotes = [one for one in _QUOTES if one is None or one.encode() in text]
    escapes = [None, _ESCAPE] if _ESCAPE.encode() in text else [None]
    for separator in separators if step.separator is None else [step.separator]:
        for quote in quotes if step.quote is None else [step.quote]:
            for escape in escapes if step.escape is None else [step.escape]:
                yield replace(step, separator=separator, quote=quote, escape=escape)


def _fitting_share(step: ReadStepCsv, text: bytes) -> float:
    """Return the weighted share of the records that have as many values as the first one."""
    grammar, weight = grammar_of(step), 1.0
    try:
        records = grammar.split(text)
    except BadQuote as error:
        weight = _BAD_QUOTE
        before = b"\n".join(text.split(b"\n")[: error.line - 1])
        records = grammar.split(before)
    if not records:
        return 0
    width = grammar.width(records[0][1])
    fitting = sum(grammar.width(record) == width for _, record in records)
    return weight * fitting / len(records) * (_ONE_COLUMN if width == 1 else 1)
