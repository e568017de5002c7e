"""Filters over labels, headers and events: a small language of JSON objects.

    {key: value, …}      all entries hold; {} holds for everything
    value                a JSON value (equality), {"$in": […]}, {"$like": "x%"} or {"$exists": true}
    "$not": filter       "$or": [filter, …]       "$and": [filter, …]

A filter is a function of the values that a key has. An absent key has none: it equals nothing, so `$not` of an equality
holds. `%` in a pattern matches any characters, and nothing else is special.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias, assert_never

from odf_common.errors import InvalidInput
from odf_common.identity.dataset_refs import is_like, parse_pattern
from odf_common.resources.labels import json_equal

MAX_DEPTH: Final = 8
MAX_ENTRIES: Final = 64


@dataclass(frozen=True, slots=True)
class All:
    """Every filter holds; without filters: always."""

    filters: tuple["Filter", ...] = ()


@dataclass(frozen=True, slots=True)
class AnyOf:
    """At least one filter holds; without filters: never."""

    filters: tuple["Filter", ...] = ()


@dataclass(frozen=True, slots=True)
class Not:
    """The filter does not hold."""

    filter: "Filter"


@dataclass(frozen=True, slots=True)
class ValueIn:
    """The key has one of the values."""

    key: str
    values: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Like:
    """The key has a string that matches the pattern."""

    key: str
    pattern: str


@dataclass(frozen=True, slots=True)
class Exists:
    """The key has a value, or has none."""

    key: str
    expected: bool


EVERYTHING: Final = All()
Filter: TypeAlias = All | AnyOf | Not | ValueIn | Like | Exists
Values: TypeAlias = Callable[[str], tuple[object, ...]]
"""Returns the values of a key: none if it is absent, several for what has several spellings."""


@dataclass(frozen=True, slots=True)
class FilterKey:
    """A key as it is looked up."""

    name: str
    is_name: bool = False
    """Whether its values are names: strings that are compared in lower case."""


KeyParser: TypeAlias = Callable[[str], FilterKey]
"""Returns the key that a filter's key stands for; raises `InvalidInput` for keys that cannot exist."""


def parse_filter(filter: object, parse_key: KeyParser, *, where: str = "") -> Filter:
    """Read a filter; raises `InvalidInput` with the place within `where`, the name of the filter's own field."""
    return _Parser(parse_key).filter(filter, where, 1)


def holds(filter: Filter, values: Values) -> bool:
    """Return whether a filter holds for what has these values."""
    match filter:
        case All(filters):
            return all(holds(part, values) for part in filters)
        case AnyOf(filters):
            return any(holds(part, values) for part in filters)
        case Not(negated):
            return not holds(negated, values)
        case ValueIn(key, expected):
            return any(json_equal(value, one) for value in values(key) for one in expected)
        case Like(key, pattern):
            return any(isinstance(value, str) and is_like(pattern, value) for value in values(key))
        case Exists(key, expected):
            return bool(values(key)) is expected
        case _:
            assert_never(filter)


def required_values(filter: Filter) -> tuple[ValueIn, ...]:
    """Return equalities without which a filter cannot hold, so that an index may find the candidates."""
    match filter:
        case All(filters):
            return tuple(one for part in filters for one in required_values(part))
        case ValueIn():
            return (filter,)
        case AnyOf((only,)):
            return required_values(only)
        case _:
            return ()


def required_keys(filter: Filter) -> frozenset[str]:
    """Return keys that must have a value for a filter to hold."""
    match filter:
        case All(filters):
            return frozenset(key for part in filters for key in required_keys(part))
        case AnyOf((first, *others)):
            return required_keys(first).intersection(*map(required_keys, others))
        case ValueIn(key) | Like(key) | Exists(key, True):
            return frozenset((key,))
        case _:
            return frozenset()


@dataclass(slots=True)
class _Parser:
    """Reads one filter, and counts its entries."""

    parse_key: KeyParser
    entries: int = field(default=0)

    def filter(self, value: object, where: str, depth: int) -> Filter:
        if not isinstance(value, Mapping):
            raise InvalidInput(
                where=where or None, text=f"expected an object of keys and values, got {value!r}"
            )
        if depth > MAX_DEPTH:
            raise InvalidInput(where=where, text=f"filters are nested more than {MAX_DEPTH} levels deep")
        parts = tuple(
            self._entry(str(key), part, f"{where}.{key}".lstrip("."), depth) for key, part in value.items()
        )
        return parts[0] if len(parts) == 1 else All(parts)

    def _entry(self, key: str, value: object, where: str, depth: int) -> Filter:
        self._count(1, where)
        match key:
            case "$not":
                return Not(self.filter(value, where, depth + 1))
            case "$or":
                return AnyOf(self._filters(value, where, depth))
            case "$and":
                return All(self._filters(value, where, depth))
            case _ if key.startswith("$"):
                raise InvalidInput(where=where, text="unknown operator; expected a key, $not, $or or $and")
            case _:
                return self._condition(key, value, where)

    def _filters(self, value: object, where: str, depth: int) -> tuple[Filter, ...]:
        if not isinstance(value, list | tuple):
            raise InvalidInput(where=where, text=f"expected a list of filters, got {value!r}")
        return tuple(self.filter(part, f"{where}[{index}]", depth + 1) for index, part in enumerate(value))

    def _condition(self, key: str, value: object, where: str) -> Filter:
        try:
            return _condition(self.parse_key(key), value, lambda number: self._count(number, where))
        except InvalidInput as error:
            raise InvalidInput(where=where, text=error.text) from error

    def _count(self, number: int, where: str) -> None:
        self.entries += number
        if self.entries > MAX_ENTRIES:
            raise InvalidInput(where=where, text=f"the filter has more than {MAX_ENTRIES} entries")


def _condition(key: FilterKey, value: object, count: Callable[[int], None]) -> Filter:
    """Return the condition of one key: an equality unless the value is an object with an operator."""
    if not isinstance(value, Mapping) or not any(str(name).startswith("$") for name in value):
        return ValueIn(key.name, (_comparable(key, value),))
    match dict(value):
        case {"$in": list() | tuple() as values, **others} if not others:
            count(len(values))
            return ValueIn(key.name, tuple(_comparable(key, one) for one in values))
        case {"$like": str() as pattern, **others} if not others:
            return Like(key.name, _name_pattern(pattern) if key.is_name else pattern)
        case {"$exists": bool() as exists, **others} if not others:
            return Exists(key.name, exists)
    expected = '{"$in": […]}, {"$like": "x%"} or {"$exists": true}'
    raise InvalidInput(
        text=f"expected a value or {expected}, got {dict(value)!r}; several are joined by $and"
    )


def _comparable(key: FilterKey, value: object) -> object:
    if not key.is_name:
        return value
    if not isinstance(value, str):
        raise InvalidInput(text=f"expected a name, got {value!r}")
    return value.lower()


def _name_pattern(pattern: str) -> str:
    found = parse_pattern(pattern)
    if found.account is not None:
        raise InvalidInput(text=f"{pattern!r} has an account; it is a key of its own")
    return found.dataset.lower()
