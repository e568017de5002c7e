"""Bodies with a `Content-Encoding` (RFC 9110, 8.4): decompressed in pieces, and refused without their end.

aiohttp's own decompression is turned off: it takes a gzip body without its end for complete.
"""

import zlib
from collections.abc import Iterator
from typing import Final, Protocol

from odf_common.errors import InvalidInput

DECODED_BYTES: Final = 1024 * 1024
GZIP_BITS: Final = 31
ZLIB_BITS: Final = 15
RAW_BITS: Final = -15
ZLIB_METHOD: Final = 8  # the low half of the first byte of a zlib header


class UnsupportedEncoding(InvalidInput):
    """The body is encoded in a way that this node does not read."""

    ADVICE = "send the body with Content-Encoding gzip or deflate, or without one"


class BodyCutOff(InvalidInput):
    """The body ends before its own end, or is not encoded as its headers say."""

    ADVICE = "send the whole body again"


class BodyDecoder(Protocol):
    """Decodes one body."""

    def decode(self, chunk: bytes) -> Iterator[bytes]:
        """Yield what a chunk decodes to, in pieces of limited size; raises `BodyCutOff`."""

    def finish(self) -> None:
        """Raise `BodyCutOff` unless the body is complete."""


def body_decoder(encoding: str) -> BodyDecoder:
    """Return the decoder for a `Content-Encoding`; raises `UnsupportedEncoding`."""
    match encoding.strip().lower():
        case "" | "identity":
            return _Identity()
        case "gzip" | "x-gzip":
            return _Compressed("gzip")
        case "deflate":
            return _Compressed("deflate")
        case _:
            raise UnsupportedEncoding(where="header Content-Encoding", text=f"{encoding!r} is not supported")


class _Identity:
    def decode(self, chunk: bytes) -> Iterator[bytes]:
        yield chunk

    def finish(self) -> None:
        """HTTP itself says where the body ends."""


class _Compressed:
    """gzip (RFC 1952), in one member or more; or deflate: a zlib stream (RFC 1950), or a raw one, as some send it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._stream = zlib.decompressobj(GZIP_BITS)
        self._has_begun = False

    def decode(self, chunk: bytes) -> Iterator[bytes]:
        while chunk:
            if not self._has_begun or self._stream.eof:
                self._begin(chunk[0])
            piece = self._piece(chunk)
            while piece:
                yield piece
                # Without input as well: zlib may hold back output beyond the limit.
                piece = self._piece(self._stream.unconsumed_tail)
            chunk = self._stream.unused_data

    def finish(self) -> None:
        if not self._stream.eof:
            raise self._refusal(f"ends before the end of its {self._name} stream")

    def _piece(self, data: bytes) -> bytes:
        try:
            return self._stream.decompress(data, DECODED_BYTES)
        except zlib.error as error:
            raise self._refusal(f"is not a {self._name} stream: {error}") from error

    def _begin(self, first: int) -> None:
        """Start the stream, or the next member of gzip."""
        if self._has_begun and self._name != "gzip":
            raise self._refusal(f"continues after the end of its {self._name} stream")
        bits = GZIP_BITS
        if self._name == "deflate":
            bits = ZLIB_BITS if first & 0xF == ZLIB_METHOD else RAW_BITS
        self._stream = zlib.decompressobj(bits)
        self._has_begun = True

    def _refusal(self, why: str) -> BodyCutOff:
        return BodyCutOff(text=f"the body {why}; nothing was accepted")
