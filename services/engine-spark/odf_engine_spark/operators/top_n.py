"""The sorted rows of one partition, of which only the first `limit` are emitted."""

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from heapq import heappop, heappush


@dataclass(slots=True)
class Places:
    """The first rows of a partition and all others, as numbers that sort like the rows."""

    limit: int
    first: list[int] = field(default_factory=list)
    others: list[int] = field(default_factory=list)  # a heap; may contain removed rows
    gone: set[int] = field(default_factory=set)

    def add(self, key: int) -> None:
        """Insert a row."""
        if len(self.first) < self.limit:
            insort(self.first, key)
        elif self.limit and key < self.first[-1]:
            insort(self.first, key)
            heappush(self.others, self.first.pop())
        else:
            heappush(self.others, key)

    def take(self, key: int) -> None:
        """Remove an existing row; another one may move up into the first rows."""
        at = bisect_left(self.first, key)
        if at == len(self.first) or self.first[at] != key:
            self.gone.add(key)
            return
        del self.first[at]
        while self.others:
            following = heappop(self.others)
            if following not in self.gone:
                self.first.append(following)
                return
            self.gone.discard(following)
