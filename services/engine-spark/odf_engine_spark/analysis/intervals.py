"""Intervals in SQL, converted to microseconds."""

import re
from collections.abc import Mapping
from typing import Final

from odf_engine_spark.spark.tree import Tree

DAY_MICROSECONDS: Final = 86_400_000_000
UNIT_MICROSECONDS: Final[Mapping[str, int]] = {
    "microsecond": 1,
    "millisecond": 1000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": DAY_MICROSECONDS,
    "week": 7 * DAY_MICROSECONDS,
}
LONGEST_UNIT_MICROSECONDS: Final[Mapping[str, int]] = {
    **dict.fromkeys(("month", "mon", "mm"), 31 * DAY_MICROSECONDS),
    "quarter": 92 * DAY_MICROSECONDS,
    **dict.fromkeys(("year", "yyyy", "yy"), 366 * DAY_MICROSECONDS),
}
_INTERVAL: Final = re.compile(r"\s*([+-]?\d+)\s+([a-z]+?)s?(?=\s|$)", re.IGNORECASE)


def constant(value: Tree) -> int | None:
    """Return the signed length of a literal interval in microseconds; None for anything else, including months."""
    match value.kind:
        case "UnaryMinus":
            inner = constant(value.children[0])
            return None if inner is None else -inner
        case "Cast" | "Alias":
            return constant(value.children[0])
        case "Literal":
            text, type_ = str(value.fields["value"]), str(value.fields["dataType"])
            if type_ in ("interval", "string"):
                return interval_of(text)
            is_days = type_.startswith("interval ") and "month" not in type_ and "year" not in type_
            return int(text) if is_days and text.lstrip("-").isdigit() else None
        case _:
            return None


def interval_of(text: str) -> int | None:
    """Return the length of an interval such as `1 day 2 hours` in microseconds; None unless it is fixed."""
    total, position = 0, 0
    text = text.strip().removeprefix("INTERVAL ").removeprefix("interval ")
    while position < len(text):
        match = _INTERVAL.match(text, position)
        unit = UNIT_MICROSECONDS.get(match[2].lower()) if match else None
        if match is None or unit is None:
            return None
        total += int(match[1]) * unit
        position = match.end()
    return total if text else None


def literal_duration(value: Tree, unit: int) -> int | None:
    """Return a literal number of units as a signed duration in microseconds; None for anything else.

    `unit` is the length of a unit in microseconds, negative for a subtraction. An interval counts as a number of units
    by its whole days.
    """
    match value.kind:
        case "Cast":
            return literal_duration(value.children[0], unit)
        case "UnaryMinus":
            return literal_duration(value.children[0], -unit)
        case "ExtractANSIIntervalDays":
            days = constant(value.children[0])
            return None if days is None else days // DAY_MICROSECONDS * unit
        case "Literal":
            text = str(value.fields["value"])
            return int(text) * unit if text.lstrip("-").isdigit() else None
        case _:
            return None
