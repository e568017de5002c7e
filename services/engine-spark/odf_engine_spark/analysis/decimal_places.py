"""Refuses expressions whose decimals lose fractional digits.

A decimal has at most 38 digits. If an exact result may need more, Spark keeps the digits before the point, and rounds
those after it to six digits or fewer: 0.000000123456789012 * 2.5 becomes 0.000000.
"""

import re
from dataclasses import dataclass
from typing import Final

from odf_common.errors import InvalidQuery
from odf_engine_spark.spark.jvm import Java, Spark
from odf_engine_spark.spark.logical_plans import all_expressions, items, with_children
from odf_engine_spark.spark.tree import Tree

MAX_DIGITS: Final = 38
_SIGNS: Final = {"Multiply": "*", "Divide": "/", "Add": "+", "Subtract": "-"}
# What gives decimals without a type that names them
_SOURCES: Final = ("decimal", "ToNumber", "SecondWithFraction")
_TYPE: Final = re.compile(r"DECIMAL\((\d+),(\d+)\)")
_VARIABLE: Final = "NamedLambdaVariable"
_PRINTED_VARIABLE: Final = re.compile(r"namedlambdavariable\(\)")
_CAST: Final = "org.apache.spark.sql.catalyst.expressions.Cast"


@dataclass(frozen=True, slots=True)
class Decimal:
    """A decimal type: its total number of digits, and its number of digits after the point."""

    digits: int
    places: int

    def __str__(self) -> str:
        """Return the type as SQL."""
        return f"DECIMAL({self.digits},{self.places})"

    @property
    def whole(self) -> int:
        """Return the number of digits before the point."""
        return self.digits - self.places

    def with_whole(self, most: int) -> "Decimal":
        """Return the type with the same number of digits after the point, and at most `most` before it."""
        return Decimal(self.places + min(self.whole, most), self.places)


def check_decimals(spark: Spark, plan: Java, tree: Tree) -> None:
    """Raise `InvalidQuery` if an expression of an analysed plan rounds digits that its exact result may have.

    A quotient has no exact result: it must keep at least as many digits after the point as its operands.
    """
    if not any(_mentions(tree, source) for source in _SOURCES):
        return  # most queries, at no call into the JVM
    is_written = spark.singleton(_CAST).USER_SPECIFIED_CAST()
    for expression in all_expressions(plan):
        _check(expression, is_written)


def _is_lossy(kind: str, left: Decimal, right: Decimal, result: Decimal) -> bool:
    """Return whether Spark's result type has fewer digits after the point than it must have."""
    if kind == "Multiply":
        return result.places < left.places + right.places
    return result.places < max(left.places, right.places)


def _lossless_types(kind: str, left: Decimal, right: Decimal) -> tuple[Decimal, Decimal] | None:
    """Return operand types with which nothing is rounded; None if the digits after the point alone are too many.

    They have the same digits after the point, and fewer before it. The wider operand of a product is reduced first.
    """
    places = max(left.places, right.places)
    room = {
        "Multiply": MAX_DIGITS - 1 - left.places - right.places,
        "Divide": MAX_DIGITS - places - right.places,
    }.get(kind, MAX_DIGITS - 1 - places)
    # A type without places has at least one digit before the point.
    least = 0 if left.places and right.places else 2 if kind == "Multiply" else 1
    if room < least:
        return None
    match kind:
        case "Multiply":
            narrow = min(left.whole, right.whole, room // 2)
            wide = room - narrow
            is_left_narrow = left.whole < right.whole
            return (
                left.with_whole(narrow if is_left_narrow else wide),
                right.with_whole(wide if is_left_narrow else narrow),
            )
        case "Divide":
            return left.with_whole(room), right
        case _:
            return left.with_whole(room), right.with_whole(room)


def _check(expression: Java, is_written: Java) -> None:
    kind = expression.getClass().getSimpleName()
    if kind in _SIGNS:
        left, right = items(expression.children())
        before = [*_types(left), *_types(right)]
        after = _types(expression)
        if (len(before), len(after)) == (2, 1) and _is_lossy(kind, before[0], before[1], after[0]):
            raise _refusal(kind, (left, right), (before[0], before[1]), after[0], is_written)
    elif kind == "Cast" and not expression.getTagValue(is_written).isDefined():
        child = expression.child()
        for from_, to in zip(_types(child), _types(expression), strict=False):
            if to.places < from_.places:
                raise InvalidQuery(
                    text=f"{_text(child, is_written)} loses decimal places: {from_} becomes {to} where it is combined "
                    f"with another type; CAST the other value AS DECIMAL({MAX_DIGITS}, {from_.places}), or this one "
                    "to the places that are enough"
                )


def _refusal(
    kind: str,
    operands: tuple[Java, Java],
    types: tuple[Decimal, Decimal],
    result: Decimal,
    is_written: Java,
) -> InvalidQuery:
    sign = _SIGNS[kind]
    texts = [_text(operand, is_written) for operand in operands]
    lossless = _lossless_types(kind, *types)
    advice = "CAST the operands to fewer places"
    if lossless is not None:
        casts = [
            text if old == new else f"CAST({text} AS DECIMAL({new.digits}, {new.places}))"
            for text, old, new in zip(texts, types, lossless, strict=True)
        ]
        advice = (
            f"write {casts[0]} {sign} {casts[1]}, or cast to fewer places for more digits before the point"
        )
    return InvalidQuery(
        text=f"{texts[0]} {sign} {texts[1]} loses decimal places: {types[0]} {sign} {types[1]} is rounded to "
        f"{result}, since decimals have at most {MAX_DIGITS} digits; {advice}"
    )


def _types(expression: Java) -> list[Decimal]:
    """Return the decimal types in an expression's type, in order."""
    sql = expression.dataType().sql()
    return [Decimal(int(digits), int(places)) for digits, places in _TYPE.findall(sql)]


def _text(expression: Java, is_written: Java) -> str:
    """Return an expression as SQL, without the casts that Spark has added."""
    is_cast = expression.getClass().getSimpleName() == "Cast"
    if is_cast and not expression.getTagValue(is_written).isDefined():
        return _text(expression.child(), is_written)
    # Spark prints a variable of a lambda without its name, in the order of the children.
    variables = (part for part in with_children(expression) if part.getClass().getSimpleName() == _VARIABLE)
    return _PRINTED_VARIABLE.sub(lambda _: str(next(variables).name()), str(expression.sql()))


def _mentions(tree: Tree, word: str) -> bool:
    return word in str(tree.fields) or any(_mentions(child, word) for child in tree.children)
