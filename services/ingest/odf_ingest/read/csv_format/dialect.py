"""Finds the separator, quote and escape of a Csv text with a header line."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from odf_common.metadata.steps import ReadStepCsv
from odf_ingest.read.csv_format.csv_records import BadQuote, grammar_of
from odf_ingest.read.encoding import to_utf8

_SEPARATORS: Final = (None, ";", "\t", "|")  # None: the default
_QUOTES: Final = (None, "'")
_ESCAPE: Final = "\\"
_ONE_COLUMN: Final = 0.1  # what a text without separators counts: every text is one with some character
_BAD_QUOTE: Final = 0.5  # what records before a faulty quote count


def with_dialect(step: ReadStepCsv, content: bytes) -> ReadStepCsv:
    """Return the step with characters such that the most records have as many values as the header.

    Those that the step has are kept. Without a better choice they are the defaults, which stay absent.
    """
    text = to_utf8(content, step.encoding).lstrip(b"\r\n")
    found, most = step, 0.0
    for candidate in _candidates(step, text):
        share = _fitting(candidate, text)
        if share > most:
            found, most = candidate, share
        if most == 1:
            break
    return found


def _candidates(step: ReadStepCsv, text: bytes) -> Iterator[ReadStepCsv]:
    """Yield steps, the likelier first, with characters that occur in the text."""
    header = text.partition(b"\n")[0]
    separators = [one for one in _SEPARATORS if one is None or one.encode() in header]
    quotes = [one for one in _QUOTES if one is None or one.encode() in text]
    escapes = [None, _ESCAPE] if _ESCAPE.encode() in text else [None]
    for separator in separators if step.separator is None else [step.separator]:
        for quote in quotes if step.quote is None else [step.quote]:
            for escape in escapes if step.escape is None else [step.escape]:
                yield replace(step, separator=separator, quote=quote, escape=escape)


def _fitting(step: ReadStepCsv, text: bytes) -> float:
    """Return the share of the records that have as many values as the first."""
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
