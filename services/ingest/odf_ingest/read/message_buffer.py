"""The values of many messages in one byte string, which line-based parsers can read directly.

One Python object per message would be slower than all other work: objects that live until a batch is full are scattered
over the memory.
"""

from collections.abc import Iterable, Sequence
from typing import Final, Self, overload

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]
_SEPARATOR: Final = b"\n"


class MessageBuffer(Sequence[bytes | None]):
    """A sequence of byte strings; None is a tombstone.

    `text` has all values, separated by newlines. `ends` has the end of each value in `text`, `empty` the indices of
    tombstones.
    """

    __slots__ = ("empty", "ends", "text")

    def __init__(self, text: bytes, ends: Int64Array, empty: frozenset[int] = frozenset()) -> None:
        """Use these values without checks."""
        self.text = text
        self.ends = ends
        self.empty = empty

    @classmethod
    def pack(cls, values: Sequence[bytes | None]) -> "MessageBuffer":
        """Return a buffer with these values."""
        if isinstance(values, MessageBuffer):
            return values
        try:
            text, empty = _SEPARATOR.join(values), frozenset[int]()  # type: ignore[arg-type]  # tombstones are rare
        except TypeError:
            empty = frozenset(index for index, value in enumerate(values) if value is None)
            values = [value or b"" for value in values]
            text = _SEPARATOR.join(values)  # type: ignore[arg-type]  # none are left
        lengths = np.fromiter(map(len, values), np.int64, len(values))  # type: ignore[arg-type]
        return cls(text, np.cumsum(lengths + 1) - 1, empty)

    @classmethod
    def from_parts(cls, parts: Sequence["MessageBuffer"]) -> "MessageBuffer":
        """Return a buffer with the values of all parts; no part may be empty."""
        if len(parts) == 1:
            return parts[0]
        ends, empty, offset, count = [], set[int](), 0, 0
        for part in parts:
            ends.append(part.ends + offset)
            empty |= {count + index for index in part.empty}
            offset, count = offset + len(part.text) + 1, count + len(part)
        return cls(_SEPARATOR.join(part.text for part in parts), np.concatenate(ends), frozenset(empty))

    @property
    def sizes(self) -> Int64Array:
        """Return for each value the size in bytes of all values up to and including it."""
        return self.ends - np.arange(len(self.ends))

    def take(self, indices: Iterable[int]) -> list[bytes | None]:
        """Return the values at these indices."""
        return [self[int(index)] for index in indices]

    def __len__(self) -> int:
        """Return the number of values."""
        return len(self.ends)

    @overload
    def __getitem__(self, index: int) -> bytes | None: ...

    @overload
    def __getitem__(self, index: slice) -> Self: ...

    def __getitem__(self, index: int | slice) -> "bytes | MessageBuffer | None":
        """Return one value, or the values of a range without steps."""
        if isinstance(index, slice):
            start, stop, _ = index.indices(len(self))
            return self if (start, stop) == (0, len(self)) else self._range(start, stop)
        index = range(len(self))[index]
        return None if index in self.empty else self.text[self._start(index) : int(self.ends[index])]

    def _start(self, index: int) -> int:
        return int(self.ends[index - 1]) + 1 if index else 0

    def _range(self, start: int, stop: int) -> "MessageBuffer":
        if start >= stop:
            return MessageBuffer(b"", self.ends[:0])
        first = self._start(start)
        empty = frozenset(index - start for index in self.empty if start <= index < stop)
        return MessageBuffer(
            self.text[first : int(self.ends[stop - 1])], self.ends[start:stop] - first, empty
        )
