"""Analysis of join conditions: the time bounds between the two sides, and the pairs of equal columns."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from odf_common.errors import InvalidQuery
from odf_engine_spark.analysis.flow import Flow
from odf_engine_spark.analysis.times import FOREVER, Frame, Time, Times, known_of
from odf_engine_spark.spark.tree import Tree

_AT_LEAST: Final = {"GreaterThanOrEqual": 0, "GreaterThan": 1}
_AT_MOST: Final = {"LessThanOrEqual": 0, "LessThan": 1}
_EQUAL: Final = ("EqualTo", "EqualNullSafe")


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """A join condition: its time bounds and its pairs of equal columns.

    `bounds` are the minimum and maximum, in microseconds, of how much later than the left row the right row is
    complete.
    """

    bounds: tuple[float, float]
    is_keyed: bool
    equal: tuple[tuple[int, int], ...]
    is_plain: bool
    """Whether the condition consists of equal columns only."""

    def check_as_of(self, columns: Sequence[tuple[str, int]], table: str, declared: Sequence[str]) -> None:
        """Raise `InvalidQuery` unless the condition can select one version of a temporal join's table.

        `declared` is the primary key of the table.
        """
        if not self.equal or not self.is_plain:
            raise InvalidQuery(
                text=f"{table} AS OF a time can only be joined ON equal columns, such as "
                f"t.symbol = {table}.symbol; put other conditions into WHERE, and compute columns in an earlier step"
            )
        names = {name.lower() for name, column in columns if column in {right for _, right in self.equal}}
        missing = [name for name in declared if name.lower() not in names]
        if missing:
            raise InvalidQuery(
                text=f"the join with {table} has to compare its whole primary key; {missing[0]} is missing"
            )


def read_condition(conditions: Sequence[Tree], left: Flow, right: Flow) -> Condition:
    """Return the time bounds and equal columns of a conjunction of conditions."""
    lower, upper = -FOREVER, FOREVER
    left_times, right_times = {**left.maybe, **left.times}, {**right.maybe, **right.times}
    equal: list[tuple[int, int]] = []
    is_keyed, others = False, 0
    for condition in conditions:
        differences = list(_differences(condition, left_times, right_times))
        for low, high in differences:
            lower, upper = max(lower, low), min(upper, high)
        if condition.kind in _EQUAL:
            is_keyed = True
            pair = [child.id for child in condition.children if child.kind == "AttributeReference"]
            if len(pair) == 2 and condition.kind == "EqualTo":
                equal.append((pair[0], pair[1]))
                continue
        others += 1
    return Condition(bounds=(lower, upper), is_keyed=is_keyed, equal=tuple(equal), is_plain=not others)


def _differences(condition: Tree, left: Times, right: Times) -> Iterable[tuple[float, float]]:
    """Yield the ranges to which a condition restricts how much later the right row is complete."""
    if condition.kind == "Between":
        (value,), (low,), (high,) = (condition.part(name) for name in ("input", "lower", "upper"))
        yield from _comparison_ranges("GreaterThanOrEqual", value, low, left, right)
        yield from _comparison_ranges("LessThanOrEqual", value, high, left, right)
    elif condition.kind in _EQUAL or condition.kind in _AT_LEAST or condition.kind in _AT_MOST:
        one, other = condition.children
        yield from _comparison_ranges(condition.kind, one, other, left, right)


def _comparison_ranges(
    kind: str, one: Tree, other: Tree, left: Times, right: Times
) -> Iterable[tuple[float, float]]:
    straight = _times(one, left), _times(other, right)
    if straight[0] and straight[1]:
        # left ≥ right by `slack` means: right − left ≤ −slack
        low, high = _range(kind)
        yield from (_gap(a, b, -high, -low) for a, b in zip(*straight, strict=False))
        return
    # The same condition written with the right side first.
    crossed = _times(other, left), _times(one, right)
    if crossed[0] and crossed[1]:
        low, high = _range(kind)
        yield from (_gap(a, b, low, high) for a, b in zip(*crossed, strict=False))


def _range(kind: str) -> tuple[float, float]:
    """Return the range of the first operand minus the second for a comparison operator."""
    if kind in _AT_LEAST:
        return _AT_LEAST[kind], FOREVER
    if kind in _AT_MOST:
        return -FOREVER, -_AT_MOST[kind]
    return 0, 0


def _gap(left: Time, right: Time, lower: float, upper: float) -> tuple[float, float]:
    """Return the range of how much later the right row is complete.

    The times of the right and left rows differ by `lower` to `upper`.
    """
    return right.span.lower + lower - left.span.upper, right.span.upper + upper - left.span.lower


def _times(value: Tree, times: Times) -> tuple[Time, ...]:
    match known_of(value, times):
        case Time() as time:
            return (time,)
        case Frame() as frame:
            return frame.start_time, frame.end_time
        case _:
            return ()


def join_kind(node: Tree) -> str:
    """Return Spark's name of a join's type, such as LeftOuter."""
    kind = node.fields["joinType"]
    return str(kind.get("object") or kind.get("product-class")).rsplit(".", 1)[-1].removesuffix("$")


def conjuncts(conditions: tuple[Tree, ...]) -> tuple[Tree, ...]:
    """Return the operands of nested ANDs."""
    operands: list[Tree] = []
    for condition in conditions:
        operands.extend(conjuncts(condition.children) if condition.kind == "And" else (condition,))
    return tuple(operands)
