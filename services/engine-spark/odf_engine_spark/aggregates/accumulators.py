"""Accumulators of sums and counts: they add values one by one, with Spark's semantics (ANSI). Callers skip nulls.

Accumulators that can only add give the same bits as Spark, with floats rounded after each value. Those that can also
remove values are exact: after a retraction, a total is the correctly rounded total of the remaining values. A state is
read from storage that other programs can write to, so `load_exact` raises `ValueError` if it is inconsistent.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

from odf_common.errors import InvalidQuery
from odf_engine_spark.values.python_values import Plain

V_contra = TypeVar("V_contra", contravariant=True)
_UNIT: Final = 1074  # the smallest double is 2**-1074
_ONE: Final = 1 << _UNIT
_EXACT_SUM_BYTES: Final = 320  # more than the sum of 2**63 doubles needs


class Accumulator(Protocol[V_contra]):
    """Aggregates values in the order of their arrival."""

    def add(self, value: V_contra) -> None:
        """Add a value; raises `InvalidQuery` on overflow."""

    def value(self) -> Plain:
        """Return the aggregate of the values so far."""

    def state(self) -> tuple[object, ...]:
        """Return the state from which an equal accumulator can be created."""


class Retractable(Accumulator[V_contra], Protocol[V_contra]):
    """An accumulator that can also remove values."""

    def take(self, value: V_contra) -> bool:
        """Remove a value; returns False if the state shows that the value was never added."""


@dataclass(slots=True)
class Count:
    """The number of values."""

    count: int = 0

    def __post_init__(self) -> None:
        check(self.count >= 0)

    def add(self, value: object) -> None:
        self.count += 1

    def take(self, value: object) -> bool:
        self.count -= 1
        return self.count >= 0

    def value(self) -> Plain:
        return self.count

    def state(self) -> tuple[object, ...]:
        return (self.count,)


@dataclass(slots=True)
class Whole:
    """The exact total of integers or of unscaled decimals, or a function of it; null without values."""

    finish: Callable[[int, int], int]  # from total and count to the result
    limit: int  # the total is less, and not less than -limit
    name: str  # of the type, for the error on overflow
    count: int = 0
    total: int = 0

    def __post_init__(self) -> None:
        check(self.count >= 0 and (self.count > 0 or not self.total))

    def add(self, value: int) -> None:
        self.count += 1
        self._set(self.total + value)

    def take(self, value: int) -> bool:
        self.count -= 1
        total = self.total - value
        self._set(total)
        return self.count > 0 or (self.count == 0 and not total)

    def _set(self, total: int) -> None:
        if not -self.limit <= total < self.limit:
            raise overflow(self.name)
        self.total = total

    def value(self) -> Plain:
        return self.finish(self.total, self.count) if self.count else None

    def state(self) -> tuple[object, ...]:
        return self.count, self.total


@dataclass(slots=True)
class DoubleSum:
    """The total of doubles, rounded after each addition, or a function of it; null without values."""

    finish: Callable[[float, int], float]
    count: int = 0
    total: float = 0.0

    def __post_init__(self) -> None:
        check(self.count >= 0 and (self.count > 0 or not self.total))

    def add(self, value: float) -> None:
        self.count += 1
        self.total += value

    def value(self) -> Plain:
        return _finish_total(self.finish, self.total, self.count)

    def state(self) -> tuple[object, ...]:
        return self.count, self.total


@dataclass(slots=True)
class Exact:
    """The total of doubles: the same as `DoubleSum` until the first removal, and then exact and correctly rounded."""

    finish: Callable[[float, int], float]
    inexact: DoubleSum = field(init=False)
    exact: int = 0  # the total of the finite values, in units of 2**-1074
    nans: int = 0
    infinities: int = 0
    negative_infinities: int = 0
    is_exact: bool = False

    def __post_init__(self) -> None:
        self.inexact = DoubleSum(self.finish)

    def add(self, value: float) -> None:
        self.inexact.add(value)
        self._note(value, 1)

    def take(self, value: float) -> bool:
        self.inexact.count -= 1
        self._note(value, -1)
        specials = (self.nans, self.infinities, self.negative_infinities)
        self.is_exact = self.inexact.count > 0
        if self.is_exact:
            return min(specials) >= 0
        is_empty = not (self.inexact.count or self.exact or any(specials))
        self.inexact = DoubleSum(self.finish)
        return is_empty

    def _note(self, value: float, times: int) -> None:
        if math.isfinite(value):
            top, bottom = value.as_integer_ratio()
            self.exact += times * top << _UNIT + 1 - bottom.bit_length()
        elif math.isnan(value):
            self.nans += times
        elif value > 0:
            self.infinities += times
        else:
            self.negative_infinities += times

    def value(self) -> Plain:
        total = self._round_sum() if self.is_exact else self.inexact.total
        return _finish_total(self.finish, total, self.inexact.count)

    def _round_sum(self) -> float:
        if self.nans or (self.infinities and self.negative_infinities):
            return math.nan
        if self.infinities or self.negative_infinities:
            return math.inf if self.infinities else -math.inf
        try:
            return self.exact / _ONE
        except OverflowError:
            return math.inf if self.exact > 0 else -math.inf

    def state(self) -> tuple[object, ...]:
        specials = (self.nans, self.infinities, self.negative_infinities)
        # Once the exact total is shown, the rounded one is not needed: write 0, so that equal states are equal bytes.
        total = 0.0 if self.is_exact else self.inexact.total
        return (self.inexact.count, total, _pack_integer(self.exact), *specials, int(self.is_exact))


def load_exact(finish: Callable[[float, int], float], *state: object) -> Exact:
    """Return the accumulator with a state of `Exact.state`, or an empty one; raises `ValueError`."""
    accumulator = Exact(finish)
    if state:
        count, total, exact, *specials, is_exact = state
        assert isinstance(count, int)
        assert isinstance(total, float)
        assert isinstance(exact, bytes)
        accumulator.inexact = DoubleSum(finish, count, total)
        accumulator.exact, accumulator.is_exact = _unpack_integer(exact), bool(is_exact)
        accumulator.nans, accumulator.infinities, accumulator.negative_infinities = (
            Count(n).count for n in _ints(specials)
        )
        check(count > 0 or not (accumulator.exact or any(specials) or is_exact))
    return accumulator


def overflow(name: str) -> InvalidQuery:
    """Return the error for a total that exceeds its type."""
    return InvalidQuery(
        text=f"[ARITHMETIC_OVERFLOW] a total exceeds {name}: CAST the argument to a wider type"
    )


def _finish_total(finish: Callable[[float, int], float], total: float, count: int) -> Plain:
    if not count:
        return None
    value = finish(total, count)
    # NaNs differ in their bits, and values are compared by them: use one.
    return math.nan if math.isnan(value) else value


def _pack_integer(exact: int) -> bytes:
    """Return an integer as its number of trailing zero bits (two bytes) and the remaining bits; empty for 0."""
    if not exact:
        return b""
    zeros = (exact & -exact).bit_length() - 1
    rest = exact >> zeros
    return zeros.to_bytes(2) + rest.to_bytes(rest.bit_length() // 8 + 1, signed=True)


def _unpack_integer(raw: bytes) -> int:
    zeros = int.from_bytes(raw[:2])
    check(len(raw) <= _EXACT_SUM_BYTES and zeros < 8 * _EXACT_SUM_BYTES)
    exact = int.from_bytes(raw[2:], signed=True) << zeros
    check(_pack_integer(exact) == raw)
    return exact


def _ints(values: Sequence[object]) -> list[int]:
    assert all(isinstance(value, int) for value in values)
    return list(values)  # type: ignore[arg-type]


def check(holds: bool) -> None:  # noqa: FBT001 — the only thing to say
    """Raise `ValueError` unless a condition on a state holds."""
    if not holds:
        raise ValueError("the state of an aggregate is inconsistent")
