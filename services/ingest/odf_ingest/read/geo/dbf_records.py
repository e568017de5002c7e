"""The attributes of a .dbf file → values for JSON: numbers keep their digits (dBASE III to V).

The encoding is that of the .cpg file, else of the language driver in the header, else UTF-8 if all text is that, else
ISO 8859-1.
"""

import codecs
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from odf_common.errors import InvalidInput
from odf_ingest.read.types.type_names import Quoted, show_value

_FIELDS_OFFSET: Final = 32
_FIELD_BYTES: Final = 32
_FIELDS_END: Final = 0x0D
_DELETED: Final = b"*"
_NUMBER: Final = re.compile(r"([+-]?)(\d*)(?:\.(\d*))?(?:[eE]([+-]?\d+))?", re.ASCII)
_DAY: Final = re.compile(r"\d{8}", re.ASCII)
_DRIVERS: Final = (
    "01:437 02:850 03:1252 08:865 13:932 4d:936 4e:949 4f:950 50:874 57:1252 58:1252 59:1252 "
    "64:852 65:866 66:865 67:861 6a:737 6b:857 78:950 79:949 7a:936 7b:932 c8:1250 c9:1251 "
    "ca:1254 cb:1253 cc:1257"
)
# By language driver, the byte 29 of a header.
_CODE_PAGES: Final = {
    int(driver, 16): int(page) for driver, page in (pair.split(":") for pair in _DRIVERS.split())
}
_FALLBACK: Final = "iso-8859-1"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Field:
    name: bytes
    type: str
    start: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Header:
    records: int
    start: int
    size: int
    """Bytes of a record, with its deletion mark."""
    fields: tuple[_Field, ...]


def attributes(dbf: bytes, cpg: bytes | None) -> Iterator[dict[str, object] | None]:
    """Yield each record's values by name, None for a deleted record.

    Raises `InvalidInput`: before the first record for a malformed file, else with the record.
    """
    header = _header(dbf)
    encoding = _encoding(dbf, cpg, header)
    names = [_decode(field.name, encoding, "a column's name") for field in header.fields]
    if len(set(names)) != len(names):
        raise InvalidInput(where=".dbf", text=f"has two columns with the same name: {', '.join(names)}")
    return _records(dbf, header, names, encoding)


def _records(
    dbf: bytes, header: _Header, names: Sequence[str], encoding: str
) -> Iterator[dict[str, object] | None]:
    columns = list(zip(names, header.fields, strict=True))
    for number in range(header.records):
        start = header.start + number * header.size
        record = dbf[start : start + header.size]
        if record[:1] == _DELETED:
            yield None
            continue
        values: dict[str, object] = {}
        for name, field in columns:
            try:
                values[name] = _value(field, record[field.start : field.start + field.size], encoding)
            except ValueError as error:
                text = f"{error}; correct it in the .dbf file, or mark its record as deleted"
                raise InvalidInput(where=f"record {number + 1}: column {name}", text=text) from error
        yield values


def _header(dbf: bytes) -> _Header:
    if len(dbf) < _FIELDS_OFFSET + 1:
        raise InvalidInput(where=".dbf", text="is truncated")
    records, start, size = struct.unpack_from("<IHH", dbf, 4)
    fields = []
    position, offset = _FIELDS_OFFSET, 1
    while position < min(start, len(dbf)) and dbf[position] != _FIELDS_END:
        entry = dbf[position : position + _FIELD_BYTES]
        if len(entry) < _FIELD_BYTES:
            raise InvalidInput(where=".dbf", text="is truncated")
        field = _Field(
            name=entry[:11].split(b"\0", 1)[0].strip(),
            type=chr(entry[11]),
            start=offset,
            size=entry[16],
        )
        fields.append(field)
        position, offset = position + _FIELD_BYTES, offset + field.size
    if not fields or start <= position - _FIELD_BYTES or offset > size:
        raise InvalidInput(where=".dbf", text="its header contradicts itself")
    if start + records * size > len(dbf):
        have = max(len(dbf) - start, 0) // size
        raise InvalidInput(where=".dbf", text=f"is truncated: it claims {records} records and has {have}")
    for field in fields:
        if field.type not in "CNFDL":
            text = f"type {field.type!r} is not supported; supported are C, N, F, D and L"
            raise InvalidInput(where=f".dbf: column {show_value(field.name.decode('latin-1'))}", text=text)
    return _Header(records=records, start=start, size=size, fields=tuple(fields))


def _encoding(dbf: bytes, cpg: bytes | None, header: _Header) -> str:
    if cpg is not None and cpg.strip():
        return _encoding_of(cpg)
    page = _CODE_PAGES.get(dbf[29])
    if page is not None:
        return f"cp{page}"
    # `start` is beyond the header, so that only text of records and names of columns is looked at.
    try:
        dbf[header.start :].decode()
        for field in header.fields:
            field.name.decode()
    except UnicodeDecodeError:
        return _FALLBACK
    return "utf-8"


def _encoding_of(cpg: bytes) -> str:
    """Return Python's name of an encoding such as `UTF-8`, `1252`, `ANSI 1252`, `88591` or `ISO 8859-1`."""
    text = cpg.decode("ascii", "replace").strip()
    plain = text.lower().removeprefix("ansi").removeprefix("oem").replace(" ", "-").strip("-")
    if plain.isdecimal():
        pages = {"65001": "utf-8"}
        plain = pages.get(plain, f"iso-8859-{plain[4:]}" if plain.startswith("8859") else f"cp{plain}")
    try:
        "".encode(plain)
        return codecs.lookup(plain).name
    except (LookupError, ValueError) as error:
        raise InvalidInput(where=".cpg", text=f"{show_value(text)} is not a known encoding") from error


def _decode(raw: bytes, encoding: str, what: str) -> str:
    try:
        return raw.decode(encoding)
    except (UnicodeError, LookupError) as error:
        raise InvalidInput(where=".dbf", text=f"{what} is not {encoding} text") from error


def _value(field: _Field, raw: bytes, encoding: str) -> object:
    """Return a value for JSON; raises `ValueError`."""
    if field.type == "C":
        try:
            return raw.rstrip(b"\0 ").decode(encoding).rstrip(" ") or None
        except UnicodeDecodeError:
            raise ValueError(f"{show_value(raw.rstrip(b' '))} is not {encoding} text") from None
    text = raw.decode("latin-1").strip("\0 ")
    if not text or set(text) == {"*"}:
        return None
    if field.type == "L":
        return _logical(text)
    return _day(text) if field.type == "D" else _number(text)


def _logical(text: str) -> bool | None:
    if text in "TtYy":
        return True
    if text in "FfNn":
        return False
    if text == "?":
        return None
    raise ValueError(f"{show_value(text)} is not a logical value")


def _day(text: str) -> str | None:
    if text == "0" * 8:
        return None
    if _DAY.fullmatch(text) is None:
        raise ValueError(f"{show_value(text)} is not a date of the form YYYYMMDD")
    return f"{text[:4]}-{text[4:6]}-{text[6:]}"


def _number(text: str) -> Quoted:
    """Return the number as JSON writes it, with the same digits."""
    match = _NUMBER.fullmatch(text)
    if match is None or not (match.group(2) or match.group(3)):
        raise ValueError(f"{show_value(text)} is not a number")
    sign, whole, fraction, exponent = match.groups()
    digits = (whole.lstrip("0") or "0") + (f".{fraction}" if fraction else "")
    return Quoted(f"{sign.strip('+')}{digits}" + (f"e{int(exponent)}" if exponent else ""))
