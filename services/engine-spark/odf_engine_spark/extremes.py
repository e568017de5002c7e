"""The least and the greatest of values, which are added one by one, and taken back (see `accumulators`)."""

from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from odf_engine_spark.accumulators import check
from odf_engine_spark.plain import Plain

_FEW: Final = 32  # new values are put in their places one by one if the others are as many times more


@dataclass(slots=True)
class Extreme:
    """The least value, or the greatest; of equal ones the first."""

    is_better: Callable[[Plain, Plain], bool]
    best: Plain = None

    def add(self, value: Plain) -> None:
        if self.best is None or self.is_better(value, self.best):
            self.best = value

    def value(self) -> Plain:
        return self.best

    def state(self) -> tuple[object, ...]:
        return (self.best,)


@dataclass(slots=True)
class Values:
    """The least value, or the greatest, with every other one, so that any may be taken back."""

    is_max: bool
    counts: dict[Plain, int] = field(default_factory=dict)
    ordered: list[Plain] = field(default_factory=list)  # ascending; some may be gone
    new: list[Plain] = field(default_factory=list)  # not among the ordered yet
    best: Plain = None

    def add(self, value: Plain) -> None:
        if value in self.counts:
            self.counts[value] += 1
            return
        self.counts[value] = 1
        self.new.append(value)
        if self.best is None or (value > self.best if self.is_max else value < self.best):  # type: ignore[operator]
            self.best = value

    def take(self, value: Plain) -> None:
        count = self.counts.get(value, 0)
        if count > 1:
            self.counts[value] = count - 1
        elif count:
            del self.counts[value]
            if value == self.best:
                self.best = self._next()

    def _next(self) -> Plain:
        if len(self.new) * _FEW > len(self.ordered):
            self.ordered = sorted(self.counts)  # type: ignore[type-var]
        else:
            for value in self.new:
                insort(self.ordered, value)  # type: ignore[type-var]
        self.new = []
        place = -1 if self.is_max else 0
        while self.ordered and self.ordered[place] not in self.counts:
            self.ordered.pop(place)
        return self.ordered[place] if self.ordered else None

    def value(self) -> Plain:
        return self.best

    def state(self) -> tuple[object, ...]:
        values = sorted(self.counts)  # type: ignore[type-var]
        return values, [self.counts[value] for value in values]


def load_values(is_max: bool, values: Sequence[Plain] = (), counts: Sequence[int] = ()) -> Values:  # noqa: FBT001 — bound by kind
    """Return what `Values.state` gave, empty without a state."""
    check(len(values) == len(counts) and min(counts, default=1) > 0 and list(values) == sorted(set(values)))  # type: ignore[type-var]
    best = None if not values else values[-1] if is_max else values[0]
    return Values(is_max, dict(zip(values, counts, strict=True)), list(values), [], best)
