"""Minimum and maximum of values that are only added (`Extreme`), or also removed (`Values`)."""

from bisect import insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from odf_engine_spark.aggregates.accumulators import check
from odf_engine_spark.values.python_values import Plain
from odf_engine_spark.values.sorted_runs import Run

_NOTES: Final = 16  # notes are counted when there are more than this plus twice the values
# New values are inserted one by one if there are that many times as many sorted ones.
_INSERT_RATIO: Final = 32


@dataclass(slots=True)
class Extreme:
    """The minimum or maximum of the added values; of equal values, the first one."""

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
    """The minimum or maximum, and all other values, so that any value can be removed.

    As long as nothing is removed, added values are only collected in `notes`, so that the cost of a request depends on
    its own records. Notes are counted when they outnumber the values, which depends only on the sequence of values.
    """

    is_max: bool
    best: Plain = None
    values: Run = field(default_factory=Run)  # distinct, ascending
    times: Run = field(default_factory=Run)  # how often each occurs
    notes: Run = field(default_factory=Run)  # added since the last count
    counts: dict[Plain, int] | None = None  # replaces `values` and `times` once those were read
    ordered: list[Plain] = field(default_factory=list)  # ascending; may contain removed values
    new: list[Plain] = field(default_factory=list)  # not yet in `ordered`

    def add(self, value: Plain) -> None:
        if self.best is None or (value > self.best if self.is_max else value < self.best):  # type: ignore[operator]
            self.best = value
        self.notes.more.append(value)
        if len(self.notes) > _NOTES + 2 * len(self.values if self.counts is None else self.counts):
            self._count_values()

    def take(self, value: Plain) -> bool:
        counts = self._count_values()
        count = counts.get(value, 0)
        if count > 1:
            counts[value] = count - 1
        elif count:
            del counts[value]
            if value == self.best:
                self.best = self._next(counts)
        return count > 0

    def _count_values(self) -> dict[Plain, int]:
        """Count the notes, clear them, and return the number of occurrences of each value."""
        is_first, counts = self.counts is None, self.counts
        if counts is None:
            self.ordered = list(self.values.plain())
            counts = self.counts = _counts(self.ordered, self.times.plain())
        for value in self.notes.plain():
            if value in counts:
                counts[value] += 1
            else:
                counts[value] = 1
                self.new.append(value)
        self.notes = Run()
        if is_first and counts:
            check(self.best == (max(counts) if self.is_max else min(counts)))  # type: ignore[type-var]
        return counts

    def _next(self, counts: Mapping[Plain, int]) -> Plain:
        if len(self.new) * _INSERT_RATIO > len(self.ordered):
            self.ordered = sorted(counts)  # type: ignore[type-var]
        else:
            for value in self.new:
                insort(self.ordered, value)  # type: ignore[type-var]
        self.new = []
        index = -1 if self.is_max else 0
        while self.ordered and self.ordered[index] not in counts:
            self.ordered.pop(index)
        return self.ordered[index] if self.ordered else None

    def value(self) -> Plain:
        return self.best

    def state(self) -> tuple[object, ...]:
        if self.counts is None:
            return self.best, self.values, self.times, self.notes
        values = sorted(self.counts)  # type: ignore[type-var]
        return self.best, Run(more=values), Run(more=[self.counts[value] for value in values]), self.notes


def load_values(is_max: bool, *state: object) -> Values:  # noqa: FBT001 - bound by kind
    """Return the accumulator with a state of `Values.state`, or an empty one; raises `ValueError`."""
    if not state:
        return Values(is_max)
    best, *runs = state
    values, times, notes = (run for run in runs if isinstance(run, Run))
    check(len(values) == len(times) and (best is None) == (not len(values) and not len(notes)))
    assert best is None or isinstance(best, int | float | str | bytes | tuple)
    return Values(is_max, best, values, times, notes)


def _counts(values: Sequence[Plain], times: Sequence[Plain]) -> dict[Plain, int]:
    counts = {
        value: count if isinstance(count, int) else 0 for value, count in zip(values, times, strict=True)
    }
    check(min(counts.values(), default=1) > 0 and list(values) == sorted(counts))  # type: ignore[type-var]
    return counts
