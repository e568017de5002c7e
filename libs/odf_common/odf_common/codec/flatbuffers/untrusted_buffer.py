"""A FlatBuffer that nobody has checked: positions are checked before they are read, and reading has a budget.

References may lead to the same bytes any number of times. All strings, vectors and tables together may cover
no more than a small multiple of the buffer, so that a short buffer cannot ask for much time or memory.
"""

import struct
from dataclasses import dataclass
from typing import Final

from odf_common.errors import InvalidInput

_GENEROSITY: Final = 4  # how many times over the bytes of a buffer may be read
_U32: Final = struct.Struct("<I")
_I32: Final = struct.Struct("<i")
_VTABLE_HEAD: Final = struct.Struct("<HH")
_VTABLES: Final = tuple(struct.Struct(f"<{count}H") for count in range(33))


@dataclass(eq=False, kw_only=True)
class UnknownMember(InvalidInput):
    """The bytes hold a union member or an enum value that this version does not know."""


class Source:
    """A buffer being read, with what is left of its budget."""

    __slots__ = ("budget", "depth", "raw", "size")

    def __init__(self, raw: bytes) -> None:
        """Start at the outermost table."""
        self.raw = raw
        self.size = len(raw)
        self.budget = _GENEROSITY * len(raw) + 64
        self.depth = 0

    def follow(self, at: int) -> int:
        """Return where the reference at `at` leads."""
        try:
            to = at + int(_U32.unpack_from(self.raw, at)[0])
        except struct.error as error:
            raise InvalidInput(text="a reference lies outside the buffer") from error
        if to + 4 > self.size:
            raise InvalidInput(text="a reference leads outside the buffer")
        return to

    def span(self, at: int, *, width: int) -> tuple[int, int]:
        """Return first byte and item count of the vector at `at`, whose items are `width` bytes each."""
        count: int = _U32.unpack_from(self.raw, at)[0]
        if at + 4 + count * width > self.size:
            raise InvalidInput(text="a vector leaves the buffer")
        self.spend(4 + count * width)
        return at + 4, count

    def spend(self, size: int) -> None:
        """Take `size` bytes from the budget; raises `InvalidInput` when it is used up."""
        self.budget -= size
        if self.budget < 0:
            raise InvalidInput(text="the same bytes are referred to too often")

    def vtable(self, at: int) -> tuple[tuple[int, ...], int]:
        """Return the field positions, by slot, of the table at `at`, and the table's size in bytes."""
        raw = self.raw
        where = at - int(_I32.unpack_from(raw, at)[0])
        if where < 0 or where + 4 > self.size:
            raise InvalidInput(text="a vtable lies outside the buffer")
        length, size = _VTABLE_HEAD.unpack_from(raw, where)
        if length < 4 or length % 2 or where + length > self.size or at + size > self.size or size < 4:
            raise InvalidInput(text="a vtable or its table leaves the buffer")
        self.spend(size)
        count = (length - 4) // 2
        layout = _VTABLES[count] if count < len(_VTABLES) else struct.Struct(f"<{count}H")
        return layout.unpack_from(raw, where + 4), size
