"""Converts text from other encodings to UTF-8, and checks UTF-8."""

import codecs
from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from odf_common.errors import InvalidInput

BOM: Final = codecs.BOM_UTF8
_UTF8 = frozenset({"utf-8", "utf8", "utf_8"})
_UNPACK: Final = (
    "unpack it before; a polling source does by `prepare: Decompress`, HTTP by `Content-Encoding`"
)
_SIGNATURES: Final = {
    b"\x1f\x8b": f"is compressed by gzip: {_UNPACK}",
    b"\x28\xb5\x2f\xfd": f"is compressed by zstd: {_UNPACK}",
    b"\xfd7zXZ": f"is compressed by xz: {_UNPACK}",
    b"BZh": f"is compressed by bzip2: {_UNPACK}",
    b"PK\x03\x04": "is a ZIP archive, as workbooks of spreadsheets are: unpack it, or export the sheet as Csv",
    b"\xd0\xcf\x11\xe0": "is a workbook of a spreadsheet: export the sheet as Csv",
    b"PAR1": "is Parquet: declare `kind: Parquet`, or name the format of the push",
    codecs.BOM_UTF16_LE: "is UTF-16 text: declare `encoding: utf-16`",
    codecs.BOM_UTF16_BE: "is UTF-16 text: declare `encoding: utf-16`",
}
_LONGEST: Final = max(map(len, _SIGNATURES))
_OTHER: Final = (
    "is not UTF-8 text: convert it, or declare its `encoding` (Csv, Json, NdJson), such as windows-1252"
)


def is_utf8(encoding: str | None) -> bool:
    """Return whether an encoding is UTF-8; None means UTF-8."""
    return encoding is None or encoding.lower() in _UTF8


def to_utf8(raw: bytes, encoding: str | None) -> bytes:
    """Return the text in UTF-8 without a byte order mark; raises `InvalidInput`."""
    if encoding is not None and not is_utf8(encoding):
        try:
            return raw.decode(encoding).removeprefix("\ufeff").encode()
        except UnicodeDecodeError as error:
            number = raw.count(b"\n", 0, error.start) + 1
            line = f"line {number}" if b"\n" in raw.strip() else None
            text = f"cannot be read as {encoding}: byte 0x{raw[error.start]:02x}"
            raise InvalidInput(where=line, text=text) from error
        except (LookupError, UnicodeError) as error:
            raise InvalidInput(text=f"cannot be read as {encoding}: {error}") from error
    return raw.removeprefix(BOM)


def decodable(values: Sequence[bytes], encoding: str | None) -> Sequence[bytes]:
    """Return the values that can be decoded, converted to UTF-8; others are left out."""
    if encoding is None:
        return values
    decoded = []
    for value in values:
        try:
            decoded.append(to_utf8(value, encoding))
        except InvalidInput:
            continue
    return decoded


def not_utf8(raw: bytes) -> InvalidInput:
    """Return the error for bytes that are not UTF-8; it names the format that their first bytes suggest."""
    found = (text for signature, text in _SIGNATURES.items() if raw.startswith(signature))
    return InvalidInput(text=next(found, _OTHER))


def require_utf8(raw: bytes | pa.Buffer) -> None:
    """Raise `InvalidInput` unless the bytes are UTF-8; they are not copied."""
    if isinstance(raw, bytes) and raw.isascii():
        return
    size = len(raw)
    offsets = pa.array([0, size], pa.int64()).buffers()[1]
    buffer = raw if isinstance(raw, pa.Buffer) else pa.py_buffer(raw)
    text = pa.Array.from_buffers(pa.large_string(), 1, [None, offsets, buffer])
    try:
        text.validate(full=True)
    except pa.ArrowInvalid as error:
        raise not_utf8(buffer.slice(0, min(size, _LONGEST)).to_pybytes()) from error


def require_utf8_lines(text: bytes) -> None:
    """Raise `InvalidInput` unless the text is UTF-8. The error has the line, unless the bytes are not text at all."""
    try:
        require_utf8(text)
    except InvalidInput as error:
        if error.text != _OTHER:
            raise
        lines = enumerate(text.split(b"\n"), start=1)
        first = next(number for number, line in lines if not _is_utf8(line))
        raise InvalidInput(where=f"line {first}", text=error.text) from error


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True
