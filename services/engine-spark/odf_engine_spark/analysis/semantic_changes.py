"""Determines which queries may have other results now than with an earlier semantics number of the engine.

The number rises with each change of results (`server/identity.py`). Each change is listed here with its kind and the
condition for the queries that it concerns. A query that no change concerns continues with this engine, and its old
blocks replay to the same bits. A condition holds if a result may differ, and also if that is too costly to decide. It
is not a change if this engine only refuses a record, such as one with a year outside of 1 to 9999: the result is the
same, or there is none.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.types as kind

from odf_common.errors import InvalidQuery
from odf_engine_spark.analysis.columns import output, reference
from odf_engine_spark.analysis.intervals import LONGEST_UNIT_MICROSECONDS, UNIT_MICROSECONDS, constant
from odf_engine_spark.analysis.times import Time, Times, known_of
from odf_engine_spark.spark.listed_functions import names_in
from odf_engine_spark.spark.tree import Tree

MILLISECOND: Final = 1000  # microseconds
_UNNAMED: Final = 1  # the number of versions that do not name one, which had a hash of the sources
_NUMBER: Final = re.compile(r"\.s(\d+)\.")
_FRACTION: Final = re.compile(r"\.(\d*?)0*$")
# Their value is that of the first child, or none.
_FIRST_CHILD: Final = names_in(
    "Alias KnownNullable KnownNotNull DatetimeAdd DatetimeSub AggregateExpression WindowExpression Min Max MinBy MaxBy "
    "Nvl NthValue FromUTCTimestamp ToUTCTimestamp TimestampAddYMInterval PreciseTimestampConversion"
)
_DATES: Final = names_in(
    "TruncDate DateAdd DateSub AddMonths LastDay NextDay MakeDate ParseToDate DateFromUnixDate DateAddYMInterval"
)
_WHOLE_TYPES: Final = frozenset(("date", "long", "integer", "short", "byte"))  # numbers are seconds


@dataclass(frozen=True, slots=True)
class AnalysedQuery:
    """An analysed query, as the conditions of changes need it."""

    tree: Tree
    times: Times
    """What is known of the query's time columns."""
    event_time: int
    """The column that becomes the event time of the output."""
    inputs: Sequence[pa.Schema]
    loss: InvalidQuery | None
    """The error for decimals that lose fractional digits, None if there are none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SemanticChange:
    """A change of the engine's results."""

    number: int
    """The first semantics number that has the change."""
    kind: str
    concerns: Callable[[AnalysedQuery], bool]


def number_of(version: str | None, current: int) -> int:
    """Return the semantics number in the version of an engine; `current` for a transform without a version."""
    if version is None:
        return current
    found = _NUMBER.search(version)
    return int(found[1]) if found else _UNNAMED


def with_number(version: str, number: int) -> str:
    """Return the version of an engine with another semantics number."""
    return _NUMBER.sub(f".s{number}.", version)


def changes_of(query: AnalysedQuery) -> tuple[SemanticChange, ...]:
    """Return the changes that concern a query."""
    return tuple(change for change in CHANGES if change.concerns(query))


def kinds_since(changes: Iterable[SemanticChange], number: int) -> tuple[str, ...]:
    """Return the kinds of the changes after a semantics number."""
    return tuple(change.kind for change in changes if change.number > number)


def _has_finer_times(query: AnalysedQuery) -> bool:
    """Return whether the query may cut times: its event time to milliseconds, or an input column to microseconds."""
    columns = _Columns(query)
    return not columns.has_milliseconds(reference("", query.event_time)) or columns.reads_nanoseconds()


def _loses_places(query: AnalysedQuery) -> bool:
    return query.loss is not None


FINER_TIMES: Final = SemanticChange(
    number=2,
    kind="times finer than stored are cut towards the past, before 1970 too, not towards 1970",
    concerns=_has_finer_times,
)
CHANGES: Final = (
    FINER_TIMES,
    SemanticChange(
        number=2, kind="decimals that lose places are refused, not rounded", concerns=_loses_places
    ),
)


class _Columns:
    """The columns of a query and the expressions that define them."""

    def __init__(self, query: AnalysedQuery) -> None:
        self._query = query
        self._values: dict[int, list[Tree]] = defaultdict(list)
        self._inputs: dict[int, str] = {}  # names of the columns of inputs
        self._is_whole: dict[int, bool] = {}
        for node in query.tree.walk():
            match node.kind:
                case "Alias":
                    self._values[node.id].append(node.children[0])
                case "LocalRelation":
                    self._inputs.update({column: name for name, column in output(node)})
                case "Union":  # has the columns of its first branch
                    first, *others = (output(child) for child in node.children)
                    for branch in others:
                        for (name, column), (_, other) in zip(first, branch, strict=True):
                            self._values[column].append(reference(name, other))
                case _:
                    pass

    def reads_nanoseconds(self) -> bool:
        """Return whether an expression reads an input column with nanoseconds, which Spark does not have."""
        fine = {
            column for column, name in self._inputs.items() if any(map(_has_nanoseconds, self._types(name)))
        }
        if not fine:
            return False
        used = (
            part for node in self._query.tree.walk() if node.kind != "LocalRelation" for part in node.inner()
        )
        return any(
            part.kind == "AttributeReference" and part.id in fine for tree in used for part in tree.walk()
        )

    def has_milliseconds(self, value: Tree) -> bool:
        """Return whether the values of a time expression are whole milliseconds for all possible records."""
        known = known_of(value, self._query.times)
        if isinstance(known, Time) and known.period % MILLISECOND == 0:
            return True
        match value.kind:
            case "AttributeReference":
                return self._has_milliseconds(value.id)
            case "Literal":
                return _is_coarse_literal(value)
            case "Cast" | "SecondsToTimestamp":
                inner = value.children[0]
                is_whole = str(inner.fields.get("dataType")) in _WHOLE_TYPES
                return is_whole or value.fields.get("dataType") == "date" or self.has_milliseconds(inner)
            case "TruncTimestamp":
                unit, time = value.children
                return _is_coarse_unit(unit) or self.has_milliseconds(time)
            case "GetStructField":
                return self._has_milliseconds_inside(value.children[0], int(value.fields["ordinal"]))
            case "PreciseTimestampConversion" if any(part.kind == "Remainder" for part in value.walk()):
                return _has_coarse_windows(value)
            case "MillisToTimestamp":
                return True
            case _ if value.kind in _DATES:
                return True
            case _:
                parts = _parts(value)
                return bool(parts) and all(self.has_milliseconds(part) for part in parts)

    def _has_milliseconds(self, column: int) -> bool:
        if column not in self._is_whole:
            name, values = self._inputs.get(column), self._values.get(column, ())
            is_known = name is not None or bool(values)
            is_stored_so = name is None or all(map(_has_whole_milliseconds, self._types(name)))
            self._is_whole[column] = is_known and is_stored_so and all(map(self.has_milliseconds, values))
        return self._is_whole[column]

    def _has_milliseconds_inside(self, struct: Tree, index: int) -> bool:
        """Return whether a field of a struct, such as the end of a window, always has whole milliseconds."""
        if struct.kind == "CreateNamedStruct":  # names and values in turn
            return self.has_milliseconds(struct.children[2 * index + 1])
        if struct.kind != "AttributeReference":
            return False
        values = self._values.get(struct.id, ())
        return bool(values) and all(self._has_milliseconds_inside(value, index) for value in values)

    def _types(self, name: str) -> Sequence[pa.DataType]:
        """Return the types of the input columns with a name."""
        schemas = (schema for schema in self._query.inputs if name in schema.names)
        return [schema.field(name).type for schema in schemas]


def _parts(value: Tree) -> Sequence[Tree]:
    """Return the expressions of which one provides the value; empty if they are not known."""
    children = value.children
    if value.kind in _FIRST_CHILD:
        return children[:1]
    match value.kind:
        case "Coalesce" | "Greatest" | "Least":
            return children
        case "If":
            return children[1:]
        case "CaseWhen":
            return (*children[1::2], *(children[-1:] if len(children) % 2 else ()))
        case "TimestampAddInterval" if _is_multiple(constant(children[1])):
            return children[:1]
        case "TimestampAdd" if str(value.fields["unit"]).lower() != "microsecond":
            return children[1:]
        case _:
            return ()


def _has_whole_milliseconds(type_: pa.DataType) -> bool:
    return kind.is_date(type_) or (kind.is_timestamp(type_) and type_.unit in ("s", "ms"))


def _has_nanoseconds(type_: pa.DataType) -> bool:
    """Return whether a type has nanoseconds, also nested."""
    if kind.is_timestamp(type_):
        return str(type_.unit) == "ns"
    return any(_has_nanoseconds(type_.field(number).type) for number in range(type_.num_fields))


def _is_multiple(value: object) -> bool:
    return value is not None and int(str(value)) % MILLISECOND == 0


def _has_coarse_windows(edge: Tree) -> bool:
    """Return whether the edges of `window(…)`, which are multiples of its slide, are whole milliseconds."""
    literals = [part for part in edge.walk() if part.kind == "Literal" and part.fields["dataType"] == "long"]
    return all(_is_multiple(literal.fields["value"]) for literal in literals)


def _is_coarse_unit(unit: Tree) -> bool:
    name = str(unit.fields.get("value")).lower()
    return unit.kind == "Literal" and (
        name in LONGEST_UNIT_MICROSECONDS or UNIT_MICROSECONDS.get(name, 1) % MILLISECOND == 0
    )


def _is_coarse_literal(value: Tree) -> bool:
    """Return whether a literal is null, or a time with at most three fractional digits of a second."""
    if value.fields["value"] is None:
        return True
    fraction = _FRACTION.search(str(value.fields["value"]))
    is_time = str(value.fields["dataType"]).startswith(("timestamp", "date"))
    return is_time and (fraction is None or len(fraction[1]) <= 3)  # digits of milliseconds
