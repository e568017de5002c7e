"""Upper bounds of columns that filters above them set, such as `WHERE rank <= 3`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from odf_engine_spark.spark.tree import Tree

_LIMITS: Final = {"LessThanOrEqual": "GreaterThanOrEqual", "LessThan": "GreaterThan", "EqualTo": "EqualTo"}


@dataclass(frozen=True, slots=True)
class Limits:
    """Upper bounds by column id, collected from the top of a plan down."""

    _most: dict[int, int] = field(default_factory=dict)

    def note(self, condition: Tree) -> None:
        """Record the bound of a condition, if it compares a column with a number."""
        if condition.kind in _LIMITS:
            column, limit = condition.children
        elif condition.kind in _LIMITS.values():
            limit, column = condition.children
        else:
            return
        if column.kind != "AttributeReference" or limit.kind != "Literal":
            return
        value = str(limit.fields["value"])
        if value.lstrip("-").isdigit():
            most = max(int(value) - (condition.kind in ("LessThan", "GreaterThan")), 0)
            self._most[column.id] = min(most, self._most.get(column.id, most))

    def follow(self, columns: Sequence[Tree]) -> None:
        """Apply the bounds of a projection's output columns to the columns that they rename."""
        for column in columns:
            if column.kind == "Alias" and column.children[0].kind == "AttributeReference":
                most = self.of(column.id)
                if most is not None:
                    self._most[column.children[0].id] = most

    def of(self, column: int) -> int | None:
        """Return the upper bound of a column, or None."""
        return self._most.get(column)
