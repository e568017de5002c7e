"""Checks of the options of read steps; `where` in an error is the option's name in the manifest (spec: ReadStep)."""

import codecs
from contextlib import suppress
from typing import Final

from odf_common.data.time_format import epoch_digits, named_format, require_timestamp_format, time_format
from odf_common.errors import InvalidInput
from odf_common.metadata.events import (
    ReadStep,
    ReadStepCsv,
    ReadStepEsriShapefile,
    ReadStepJson,
    ReadStepNdJson,
)

# Defaults, which are never written into blocks. There is none for `escape`: a quote inside quotes is doubled
# (RFC 4180), and a backslash is an ordinary character. The specification's default is the backslash; see ADR 0081.
DEFAULT_SEPARATOR: Final = ","
DEFAULT_QUOTE: Final = '"'

GEOMETRY: Final = "geometry"  # the column of a feature's geometry

# Python's encodings that are not character sets.
_NO_CHARSETS: Final = frozenset(
    {"idna", "mbcs", "oem", "palmos", "punycode", "raw-unicode-escape", "undefined", "unicode-escape"}
)


def require_options(step: ReadStep) -> None:
    """Raise `InvalidInput` for an option that no file could satisfy or that is not supported."""
    if isinstance(step, ReadStepCsv):
        require_csv_characters(step)
    if isinstance(step, ReadStepJson):
        _require_sub_path(step.sub_path)
    if isinstance(step, ReadStepEsriShapefile) and step.sub_path == "":
        raise InvalidInput(where="subPath", text="is empty; name a .shp file, or leave it out")
    if isinstance(step, ReadStepCsv | ReadStepJson | ReadStepNdJson):
        _require_encoding(step.encoding)
        _require_time_formats(step)


def require_csv_characters(step: ReadStepCsv) -> None:
    """Raise `InvalidInput` unless separator, quote and escape are distinguishable single characters."""
    characters = {"separator": step.separator, "quote": step.quote, "escape": step.escape}
    for name, value in characters.items():
        is_off = value == "" and name != "separator"
        if value is not None and not is_off and not _is_character(value):
            raise InvalidInput(where=name, text=f"{value!r} is not one ASCII character")
    separator = DEFAULT_SEPARATOR if step.separator is None else step.separator
    others = {"quote": DEFAULT_QUOTE if step.quote is None else step.quote, "escape": step.escape}
    for name, value in others.items():
        if value == separator:
            raise InvalidInput(where=name, text=f"{value!r} is also the separator; choose another character")


def _is_character(value: str) -> bool:
    return len(value) == 1 and value.isascii() and value not in "\0\r\n"


def _require_encoding(encoding: str | None) -> None:
    if encoding is None:
        return
    try:
        name = codecs.lookup(encoding).name
        with suppress(UnicodeError):
            b" ".decode(encoding)  # refuses codecs that are not of text
    except (LookupError, ValueError) as error:
        text = f"{encoding!r} is not a known encoding; names are such as utf-8, latin-1, windows-1252, utf-16"
        raise InvalidInput(where="encoding", text=text) from error
    if name.replace("_", "-") in _NO_CHARSETS:
        raise InvalidInput(where="encoding", text=f"{encoding!r} is not an encoding of text")


def _require_time_formats(step: ReadStepCsv | ReadStepJson | ReadStepNdJson) -> None:
    option = "timestampFormat"
    try:
        require_timestamp_format(step.timestamp_format)
        option, date = "dateFormat", named_format(step.date_format)
        if epoch_digits(date) is not None:
            raise InvalidInput(text=f"{date} is a timestampFormat, of TIMESTAMP columns")
        if date is not None:
            time_format(date)
    except InvalidInput as error:
        raise InvalidInput(where=option, text=str(error)) from error


def _require_sub_path(path: str | None) -> None:
    if path is not None and not all(path.split(".")):
        raise InvalidInput(where="subPath", text=f"{path!r} is not of the form a.b.c")
