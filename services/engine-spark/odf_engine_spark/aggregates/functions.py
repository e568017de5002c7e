"""The accumulator of each SQL aggregate, with the conversion of its arguments and the columns of its state.

Result types are Spark's: the sum of integers is BIGINT, of floats DOUBLE, and of DECIMAL(p, s) a decimal with ten more
digits. An average is a DOUBLE, and of decimals a DECIMAL, rounded half up.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import gt, lt
from typing import Any, Final, Generic, Literal, TypeVar

import pyarrow as pa
import pyarrow.types as kind

from odf_common.errors import InvalidQuery
from odf_engine_spark.aggregates.accumulators import (
    Accumulator,
    Count,
    DoubleSum,
    Retractable,
    Whole,
    load_exact,
    overflow,
)
from odf_engine_spark.aggregates.extremes import Extreme, load_values
from odf_engine_spark.values.python_values import Plain, column_of, comparable, doubles, presence
from odf_engine_spark.values.sorted_runs import read_runs, write_runs

A_co = TypeVar("A_co", covariant=True)
_DIGITS: Final = 38
_GUARD: Final = 39  # decimal places of a quotient of decimals, before it is rounded to its type


@dataclass(frozen=True, slots=True)
class Aggregate:
    """An aggregate function and the type of its result."""

    kind: Literal["count", "sum", "min", "max", "avg"]
    type: pa.DataType


@dataclass(frozen=True, slots=True)
class Part:
    """One column of an aggregate's state, and the functions that read and write it."""

    type: pa.DataType
    read: Callable[[pa.ChunkedArray], list[Any]]
    write: Callable[[Sequence[Any]], pa.Array]
    is_nullable: bool = False


@dataclass(frozen=True, slots=True)
class Fold(Generic[A_co]):
    """The implementation of an aggregate for an argument type.

    `read` converts arguments, and `write` converts results. `make` creates an accumulator, from a state if one is
    given.
    """

    parts: tuple[Part, ...]
    read: Callable[[pa.ChunkedArray], list[Plain]]
    make: Callable[..., A_co]
    write: Callable[[Sequence[Plain]], pa.Array]


def running_fold(aggregate: Aggregate, argument: pa.DataType) -> Fold[Accumulator[Any]]:
    """Return the implementation for records that are only added; raises `InvalidQuery` for unsupported types."""
    if aggregate.kind in ("min", "max"):
        better: Callable[[Any, Any], bool] = lt if aggregate.kind == "min" else gt
        if kind.is_floating(argument):
            better = partial(_is_better_float, better)
        return Fold(
            (_part(argument, is_nullable=True),),
            comparable,
            partial(Extreme, better),
            _as(aggregate, argument),
        )
    if _is_double(aggregate, argument):
        return Fold((COUNT, _DOUBLE), doubles, partial(DoubleSum, _FINISH[aggregate.kind]), _doubles)
    return _exact_fold(aggregate, argument)


def changing_fold(aggregate: Aggregate, argument: pa.DataType) -> Fold[Retractable[Any]]:
    """Return the implementation for records that may be retracted; raises `InvalidQuery` for unsupported types."""
    parts: tuple[Part, ...]
    if aggregate.kind in ("min", "max"):
        values = _list(argument)
        parts = (_part(argument, is_nullable=True), values, _list(pa.int64()), values)
        return Fold(
            parts, comparable, partial(load_values, aggregate.kind == "max"), _as(aggregate, argument)
        )
    if _is_double(aggregate, argument):
        parts = (COUNT, _DOUBLE, _part(pa.binary()), COUNT, COUNT, COUNT, _part(pa.bool_()))
        return Fold(parts, doubles, partial(load_exact, _FINISH[aggregate.kind]), _doubles)
    return _exact_fold(aggregate, argument)


def _is_double(aggregate: Aggregate, argument: pa.DataType) -> bool:
    is_number = kind.is_floating(argument) or (aggregate.kind == "avg" and kind.is_integer(argument))
    return aggregate.kind in ("sum", "avg") and is_number and aggregate.type == pa.float64()


def _exact_fold(aggregate: Aggregate, argument: pa.DataType) -> Fold[Retractable[Any]]:
    result = aggregate.type
    match aggregate.kind:
        case "count" if result == pa.int64():
            return Fold((COUNT,), presence, Count, partial(column_of, type_=result))
        case "sum" if kind.is_integer(argument) and result == pa.int64():
            make = partial(Whole, _total, 1 << 63, "BIGINT")
            return Fold((COUNT, COUNT), comparable, make, partial(column_of, type_=result))
        case "sum" if (
            kind.is_decimal128(argument) and kind.is_decimal128(result) and result.scale == argument.scale
        ):
            return _decimal(result, result, _total)
        case "avg" if kind.is_decimal128(argument) and kind.is_decimal128(result):
            held = pa.decimal128(min(argument.precision + 10, _DIGITS), argument.scale)
            return _decimal(held, result, partial(_mean, argument.scale, result))
        case _:
            raise InvalidQuery(text=f"{aggregate.kind} of {argument} as {result} is not supported")


def _decimal(
    held: pa.DataType, result: pa.DataType, finish: Callable[[int, int], int]
) -> Fold[Retractable[Any]]:
    make = partial(Whole, finish, 10**held.precision, f"DECIMAL({held.precision}, {held.scale})")
    return Fold((COUNT, _part(held)), comparable, make, partial(column_of, type_=result))


def _total(total: int, count: int) -> int:
    return total


def _mean(scale: int, result: pa.DataType, total: int, count: int) -> int:
    # Spark divides to 39 digits, then rounds to the type: both half up.
    quotient = _half_up(total * 10 ** (_GUARD - scale), count)
    mean = _half_up(quotient, 10 ** (_GUARD - result.scale))
    if abs(mean) >= 10**result.precision:
        raise overflow(f"DECIMAL({result.precision}, {result.scale})")
    return mean


def _half_up(value: int, by: int) -> int:
    rounded = (2 * abs(value) + by) // (2 * by)
    return rounded if value >= 0 else -rounded


def _same(total: float, count: int) -> float:
    return total


def _double_mean(total: float, count: int) -> float:
    # Adding 0.0 turns -0.0 into 0.0: values are compared by their bits.
    return total / count + 0.0


_FINISH: Final = {"sum": _same, "avg": _double_mean}


def _is_better_float(better: Callable[[Plain, Plain], bool], value: Plain, best: Plain) -> bool:
    # -1 is the code of -0.0: neither zero is less than the other, so the first one stays.
    return better(value, best) and not (value in (-1, 0) and best in (-1, 0))


def _as(aggregate: Aggregate, argument: pa.DataType) -> Callable[[Sequence[Plain]], pa.Array]:
    def write(values: Sequence[Plain]) -> pa.Array:
        return column_of(values, argument).cast(aggregate.type)

    return write


def _doubles(values: Sequence[Plain]) -> pa.Array:
    return pa.array(values, pa.float64())


def _part(type_: pa.DataType, *, is_nullable: bool = False) -> Part:
    return Part(type_, comparable, partial(column_of, type_=type_), is_nullable)


def _list(items: pa.DataType) -> Part:
    type_ = pa.list_(pa.field("item", items, nullable=False))
    write = partial(write_runs, type_=type_, write=partial(column_of, type_=items))
    return Part(type_, partial(read_runs, read=comparable), write)


COUNT: Final = _part(pa.int64())
_DOUBLE: Final = Part(pa.float64(), doubles, _doubles)
