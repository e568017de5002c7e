"""An untrusted FlatBuffer: positions are checked before they are read, and the total work is limited by a budget.

Several references may point to the same bytes. All strings, vectors and tables together may therefore have no more than
a small multiple of the size of the buffer, so that a short buffer cannot consume much time or memory.
"""

import struct
from typing import Final

from odf_common.errors import InvalidInput

_MAX_READ_FACTOR: Final = 4  # how many times the buffer's size may be read
_U32: Final = struct.Struct("<I")
_I32: Final = struct.Struct("<i")
_VTABLE_HEAD: Final = struct.Struct("<HH")
_MAX_SLOTS: Final = 32  # more than any table of ours has
_VTABLES: Final = tuple(struct.Struct(f"<{count}H") for count in range(_MAX_SLOTS + 1))


class UnknownMember(InvalidInput):
    """This version does not know a union member or an enum value."""


class Source:
    """A buffer that is being read, with its remaining budget."""

    __slots__ = ("budget", "depth", "raw", "size")

    def __init__(self, raw: bytes) -> None:
        """Start reading a buffer with the full budget."""
        self.raw = raw
        self.size = len(raw)
        self.budget = _MAX_READ_FACTOR * len(raw) + 64
        self.depth = 0

    def follow(self, position: int) -> int:
        """Return the position that the reference at `position` points to."""
        try:
            to = position + int(_U32.unpack_from(self.raw, position)[0])
        except struct.error as error:
            raise InvalidInput(text="a reference is outside the buffer") from error
        if to + 4 > self.size:
            raise InvalidInput(text="a reference leads outside the buffer")
        return to

    def span(self, position: int, *, width: int) -> tuple[int, int]:
        """Return the first byte and the item count of the vector at `position`; each item has `width` bytes."""
        count: int = _U32.unpack_from(self.raw, position)[0]
        if position + 4 + count * width > self.size:
            raise InvalidInput(text="a vector exceeds the buffer")
        self.spend(4 + count * width)
        return position + 4, count

    def spend(self, size: int) -> None:
        """Deduct `size` bytes from the budget; raises `InvalidInput` when it is used up."""
        self.budget -= size
        if self.budget < 0:
            raise InvalidInput(text="too many references lead to the same bytes")

    def vtable(self, position: int) -> tuple[tuple[int, ...], int]:
        """Return the positions of the fields of the table at `position`, by slot, and the size of the table in bytes.

        Slots beyond those of any known table are omitted, because many tables may share a vtable, which the budget
        does not count.
        """
        raw = self.raw
        where = position - int(_I32.unpack_from(raw, position)[0])
        if where < 0 or where + 4 > self.size:
            raise InvalidInput(text="a vtable is outside the buffer")
        length, size = _VTABLE_HEAD.unpack_from(raw, where)
        if length < 4 or length % 2 or where + length > self.size or position + size > self.size or size < 4:
            raise InvalidInput(text="a vtable or its table exceeds the buffer")
        self.spend(size)
        count = min((length - 4) // 2, _MAX_SLOTS)
        return _VTABLES[count].unpack_from(raw, where + 4), size
