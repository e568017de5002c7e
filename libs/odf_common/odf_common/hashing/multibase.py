"""Multibase: bytes as text whose first character names the encoding (spec: Hash Representation).

All encodings with status `final` in the multibase table can be decoded; base16 is used for encoding (RFC-012). Base16
and base32 ignore case. Padding is required in encodings that have it and refused in others, and unused bits at the end
must be zero. So in each encoding bytes have only one spelling, apart from case.
"""

import base64
import re
from collections.abc import Callable
from typing import Final

from odf_common.errors import InvalidInput

MAX_MULTIBASE_CHARACTERS: Final = 1024  # hashes and ids need 76, and base58 takes quadratic time
_BASE58: Final = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_BASE58_VALUE: Final = {character: value for value, character in enumerate(_BASE58)}
_HEX: Final = re.compile(r"(?:[0-9a-fA-F]{2})*")


def encode(raw: bytes, encoding: str = "f") -> str:
    """Encode bytes as multibase text; `encoding` is the one-character code, by default that of base16."""
    return encoding + _codec(encoding)[0](raw)


def decode(text: str) -> bytes:
    """Decode multibase text; raises `InvalidInput` unless it is valid and in an encoding with status `final`."""
    if not text:
        raise InvalidInput(text="expected multibase text, got an empty string")
    if len(text) > MAX_MULTIBASE_CHARACTERS:
        raise InvalidInput(text=f"multibase text is longer than {MAX_MULTIBASE_CHARACTERS} characters")
    read = _codec(text[0])[1]
    try:
        return read(text[1:])
    except (ValueError, KeyError) as error:
        raise InvalidInput(text=f"{text!r} is not valid multibase text of encoding {text[0]!r}") from error


def _codec(encoding: str) -> "_Codec":
    final = _FINAL.get(encoding)
    if final is None:
        raise InvalidInput(
            text=f"{encoding!r} is not a final multibase encoding; expected one of {''.join(_FINAL)}"
        )
    return final


def _from_hex(text: str) -> bytes:
    if not _HEX.fullmatch(text):  # bytes.fromhex alone would accept white space
        raise ValueError
    return bytes.fromhex(text)


def _to_base32(raw: bytes) -> str:
    return base64.b32encode(raw).decode().rstrip("=").lower()


def _from_base32(text: str) -> bytes:
    if not text.isascii() or "=" in text:
        raise ValueError
    raw = base64.b32decode(text.upper() + "=" * (-len(text) % 8))
    if _to_base32(raw) != text.lower():
        raise ValueError
    return raw


def _to_base58(raw: bytes) -> str:
    number = int.from_bytes(raw, "big")
    digits = []
    while number:
        number, digit = divmod(number, 58)
        digits.append(_BASE58[digit])
    zeros = len(raw) - len(raw.lstrip(b"\0"))
    return "1" * zeros + "".join(reversed(digits))


def _from_base58(text: str) -> bytes:
    number = 0
    for character in text:
        number = number * 58 + _BASE58_VALUE[character]
    zeros = len(text) - len(text.lstrip("1"))
    return bytes(zeros) + number.to_bytes((number.bit_length() + 7) // 8, "big")


def _to_base64(altchars: bytes, *, padded: bool) -> Callable[[bytes], str]:
    def write(raw: bytes) -> str:
        text = base64.b64encode(raw, altchars).decode()
        return text if padded else text.rstrip("=")

    return write


def _from_base64(altchars: bytes, *, padded: bool) -> Callable[[str], bytes]:
    write = _to_base64(altchars, padded=padded)

    def read(text: str) -> bytes:
        raw = base64.b64decode(text if padded else text + "=" * (-len(text) % 4), altchars)
        if write(raw) != text:  # b64decode skips characters outside the alphabet
            raise ValueError
        return raw

    return read


_Codec = tuple[Callable[[bytes], str], Callable[[str], bytes]]

_FINAL: Final[dict[str, _Codec]] = {
    "f": (bytes.hex, _from_hex),
    "F": (lambda raw: raw.hex().upper(), _from_hex),
    "b": (_to_base32, _from_base32),
    "B": (lambda raw: _to_base32(raw).upper(), _from_base32),
    "z": (_to_base58, _from_base58),
    "m": (_to_base64(b"+/", padded=False), _from_base64(b"+/", padded=False)),
    "u": (_to_base64(b"-_", padded=False), _from_base64(b"-_", padded=False)),
    "U": (_to_base64(b"-_", padded=True), _from_base64(b"-_", padded=True)),
}
FINAL: Final = tuple(_FINAL)
