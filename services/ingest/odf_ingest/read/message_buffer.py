"""Values of many messages in one byte string: no object per message is kept, and line-based parsers can read it.

Objects that live until a batch is full are scattered over memory by then, and cost more than everything else done
with them here.
"""

from collections.abc import Iterable, Sequence
from typing import Final, Self, overload

import numpy as np
import numpy.typing as npt

Places = npt.NDArray[np.int64]
_SEPARATOR: Final = b"\n"


class MessageBuffer(Sequence[bytes | None]):
    """Byte strings in order; None for a tombstone.

    `text` has a newline between values, `ends` the end of each value in it, `empty` the indices of None.
    """

    __slots__ = ("empty", "ends", "text")

    def __init__(self, text: bytes, ends: Places, empty: frozenset[int] = frozenset()) -> None:
        """Use these arrays without checks."""
        self.text = text
        self.ends = ends
        self.empty = empty

    @classmethod
    def of(cls, values: Sequence[bytes | None]) -> "MessageBuffer":
        """Return the same values, packed."""
        if isinstance(values, MessageBuffer):
            return values
        try:
            text, empty = _SEPARATOR.join(values), frozenset[int]()  # type: ignore[arg-type]  # tombstones are rare
        except TypeError:
            empty = frozenset(place for place, value in enumerate(values) if value is None)
            values = [value or b"" for value in values]
            text = _SEPARATOR.join(values)  # type: ignore[arg-type]  # none are left
        lengths = np.fromiter(map(len, values), np.int64, len(values))  # type: ignore[arg-type]
        return cls(text, np.cumsum(lengths + 1) - 1, empty)

    @classmethod
    def joined(cls, parts: Sequence["MessageBuffer"]) -> "MessageBuffer":
        """Return the values of all parts, each of which is non-empty."""
        if len(parts) == 1:
            return parts[0]
        ends, empty, at, count = [], set[int](), 0, 0
        for part in parts:
            ends.append(part.ends + at)
            empty |= {count + place for place in part.empty}
            at, count = at + len(part.text) + 1, count + len(part)
        return cls(_SEPARATOR.join(part.text for part in parts), np.concatenate(ends), frozenset(empty))

    @property
    def sizes(self) -> Places:
        """Return the cumulative bytes of the values, up to and including each one."""
        return self.ends - np.arange(len(self.ends))

    def take(self, places: Iterable[int]) -> list[bytes | None]:
        """Return the values at these indices."""
        return [self[int(place)] for place in places]

    def __len__(self) -> int:
        """Return the number of values."""
        return len(self.ends)

    @overload
    def __getitem__(self, place: int) -> bytes | None: ...

    @overload
    def __getitem__(self, place: slice) -> Self: ...

    def __getitem__(self, place: int | slice) -> "bytes | MessageBuffer | None":
        """Return one value, or those of a range without steps."""
        if isinstance(place, slice):
            start, stop, _ = place.indices(len(self))
            return self if (start, stop) == (0, len(self)) else self._range(start, stop)
        place = range(len(self))[place]
        return None if place in self.empty else self.text[self._start(place) : int(self.ends[place])]

    def _start(self, place: int) -> int:
        return int(self.ends[place - 1]) + 1 if place else 0

    def _range(self, start: int, stop: int) -> "MessageBuffer":
        if start >= stop:
            return MessageBuffer(b"", self.ends[:0])
        first = self._start(start)
        empty = frozenset(place - start for place in self.empty if start <= place < stop)
        return MessageBuffer(
            self.text[first : int(self.ends[stop - 1])], self.ends[start:stop] - first, empty
        )
