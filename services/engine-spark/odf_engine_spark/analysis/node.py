"""A node of a transform's plan, with what is known of it."""

from dataclasses import dataclass
from typing import Literal

from odf_engine_spark.analysis.flow import Flow
from odf_engine_spark.analysis.joins import Condition
from odf_engine_spark.analysis.windowing import Over
from odf_engine_spark.spark.tree import Tree

Cut = Literal["grouped", "ranked", "running", "session", "as_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node of the plan and what is known of its rows. `stream` is what it reads (a leaf) or makes (a cut)."""

    tree: Tree
    flow: Flow
    children: tuple["Node", ...] = ()
    stream: str | None = None
    cut: Cut | None = None
    key: int | None = None  # of a time-bound aggregate or OVER: which grouping or partition column
    waits: tuple[float, float] = (0, 0)  # of a join: how long each side's row waits for a partner
    condition: Condition | None = None
    over: Over | None = None
    times: tuple[int, int] = (0, 0)  # of a join AS OF: the columns asked at and valid from
    key_names: tuple[
        str, ...
    ] = ()  # and what the input calls those that are compared, if it is an input's table
    behind: int = 0  # of a running OVER: how long after its time a record is final
    limit: int = 0

    @property
    def is_distinct(self) -> bool:
        """Tell whether the node is a DISTINCT, an aggregate over all columns."""
        return self.tree.kind == "Distinct"
