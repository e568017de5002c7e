"""Rows of a partition by rank, of which only the first places are shown."""

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from heapq import heappop, heappush


@dataclass(slots=True)
class Places:
    """The rows in the first places, and the others, by numbers that order as they do."""

    limit: int
    first: list[int] = field(default_factory=list)
    others: list[int] = field(default_factory=list)  # a heap; some may be gone
    gone: set[int] = field(default_factory=set)

    def add(self, key: int) -> None:
        """Put a row in its place."""
        if len(self.first) < self.limit:
            insort(self.first, key)
        elif self.limit and key < self.first[-1]:
            insort(self.first, key)
            heappush(self.others, self.first.pop())
        else:
            heappush(self.others, key)

    def take(self, key: int) -> None:
        """Take a row away, which is there; another one may come up to the first places."""
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
