"""Converts strings to timestamps without reading the clock.

Spark converts a string with only a time of day, such as `10:00`, to a TIMESTAMP of the current day: the same records
would give another result tomorrow. Here such a string is not a valid TIMESTAMP, just as it is not a valid TIMESTAMP_NTZ
or DATE: a cast fails, `try_cast` and `try_to_timestamp` return NULL. Strings within other values cannot be replaced in
this way. So new queries may not read TIMESTAMPs from JSON and CSV without a format, from variants, or from lists, maps
and structs of strings.
"""

from typing import Final

from odf_common.errors import InvalidQuery
from odf_engine_spark.spark.jvm import Java, Spark
from odf_engine_spark.spark.logical_plans import (
    EXPRESSIONS,
    Plans,
    all_expressions,
    items,
    json_type,
    types_in,
)
from odf_engine_spark.spark.tree import Tree

_EXPRESSION: Final = f"{EXPRESSIONS}.Expression"
_SEQUENCE: Final = "scala.collection.immutable.Seq"
_OPTION: Final = "scala.Some"
_WITHOUT_DATE: Final = r"^[\s\p{Cntrl}]*(T|[0-9]*:)"
_NAMED: Final = "a time of day without a date: "
_TIME: Final = "timestamp"
_FORMAT: Final = "timestampformat"
_TARGETS: Final = {
    "Cast": "dataType",
    "VariantGet": "targetType",
    "JsonToStructs": "schema",
    "CsvToStructs": "schema",
}


def without_today(spark: Spark, plan: Java, tree: Tree) -> Java:
    """Return an analysed plan in which strings with only a time of day are not valid TIMESTAMPs."""
    if not any(_gives_timestamp(node) for node in tree.walk()):
        return plan  # most queries, at no call into the JVM
    return _Guard(spark).plan(plan)


def _gives_timestamp(node: Tree) -> bool:
    return node.kind in ("Cast", "ParseToTimestamp") and node.fields["dataType"] == "timestamp"


def check_nested_times(plan: Java, tree: Tree) -> None:
    """Raise `InvalidQuery` if an analysed plan converts strings within other values to TIMESTAMPs."""
    if not any(_gives_nested(node) for node in tree.walk()):
        return  # most queries, at no call into the JVM
    for expression in all_expressions(plan):
        if advice := _advice(expression):
            raise InvalidQuery(
                text=f"{expression.sql()}: a time of day without a date would be one of today; {advice}"
            )


def _gives_nested(node: Tree) -> bool:
    return node.kind in _TARGETS and _has_time(node.fields[_TARGETS[node.kind]])


def _advice(expression: Java) -> str:
    """Return the advice for an expression that converts strings within other values to TIMESTAMPs; empty for others."""
    match expression.getClass().getSimpleName():
        case "JsonToStructs" | "CsvToStructs" if _has_time(json_type(expression.schema())):
            options = items(expression.options().keys().toSeq())
            has_format = _FORMAT in (str(option).lower() for option in options)
            return "" if has_format else "give it the option timestampFormat, or declare STRING and CAST it"
        case "VariantGet" if _has_time(json_type(expression.targetType())):
            return "get a STRING from the variant, and CAST it"
        case "Cast":
            source, target = json_type(expression.child().dataType()), json_type(expression.dataType())
            is_nested = source != "string" and _reads_time(source, target)
            return "CAST each STRING in it" if is_nested else ""
        case _:
            return ""


def _has_time(type_: object) -> bool:
    return type_ == _TIME or any(_has_time(part) for part in types_in(type_))


def _reads_time(source: object, target: object) -> bool:
    """Return whether a conversion between two types converts strings within values to TIMESTAMPs."""
    if source in ("string", "variant"):
        return _has_time(target)
    pairs = zip(types_in(source), types_in(target), strict=False)
    return any(_reads_time(before, after) for before, after in pairs)


class _Guard:
    """Rewrites a plan so that the strings it converts to TIMESTAMPs never have only a time of day."""

    def __init__(self, spark: Spark) -> None:
        self._spark = spark
        self._plans = Plans(spark, spark)
        self._expressions = spark.classes(EXPRESSIONS)

    def plan(self, plan: Java) -> Java:
        """Return the plan with the expressions of all its nodes rewritten."""
        below = items(plan.children())
        if below:
            plan = plan.withNewChildren(self._spark.seq([self.plan(child) for child in below]))
        if not any(self._is_concerned(expression) for expression in items(plan.expressions())):
            return plan
        parts = [self._part(plan.productElement(index)) for index in range(plan.productArity())]
        return plan.makeCopy(self._spark.objects(parts))

    def _is_concerned(self, expression: Java) -> bool:
        return self._guard_cast(expression) is not None or any(
            self._is_concerned(child) for child in items(expression.children())
        )

    def _part(self, part: Java) -> Java:
        """Return an argument of a node with its expressions rewritten."""
        if self._spark.is_a(part, _EXPRESSION):
            return self._plans.rebuild(part, self._guard_cast)
        if self._spark.is_a(part, _SEQUENCE):
            return self._spark.seq([self._part(item) for item in items(part)])
        if self._spark.is_a(part, _OPTION):
            return self._spark.method("scala.Option.apply")(self._part(part.get()))
        return part

    def _guard_cast(self, expression: Java) -> Java | None:
        """Return a conversion from string to TIMESTAMP with its string rewritten; None for other expressions."""
        if expression.getClass().getSimpleName() not in ("Cast", "ParseToTimestamp"):
            return None
        text, *formats = items(expression.children())
        types = text.dataType().typeName(), expression.dataType().typeName()
        if formats or types != ("string", "timestamp"):
            return None
        string = self._plans.rebuild(text, self._guard_cast)
        literal = self._spark.singleton(f"{EXPRESSIONS}.Literal").apply
        named = self._expressions.Concat(self._spark.seq([literal(_NAMED), string]))
        is_without = self._expressions.RLike(string, literal(_WITHOUT_DATE))
        return expression.withNewChildren(self._spark.seq([self._expressions.If(is_without, named, string)]))
