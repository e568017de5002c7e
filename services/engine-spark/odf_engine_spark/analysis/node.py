"""A node of a transform's plan, with what is known of its rows."""

from dataclasses import dataclass
from typing import Literal

from odf_engine_spark.analysis.flow import Flow
from odf_engine_spark.analysis.joins import Condition
from odf_engine_spark.analysis.windowing import Over
from odf_engine_spark.spark.tree import Tree

Cut = Literal["grouped", "ranked", "running", "session", "as_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A plan node and what is known of its rows. `stream` is what it reads (a leaf) or produces (a cut)."""

    tree: Tree
    flow: Flow
    children: tuple["Node", ...] = ()
    stream: str | None = None
    cut: Cut | None = None
    key: int | None = None  # of a time-bound aggregate or OVER: the position of the time among its keys
    waits: tuple[float, float] = (0, 0)  # of a join: for how long each side's row waits for a partner
    condition: Condition | None = None
    over: Over | None = None
    times: tuple[int, int] = (
        0,
        0,
    )  # of a temporal join: the columns with the time asked for and the version's start
    key_names: tuple[str, ...] = ()  # the input's names of the compared columns, if the table is an input
    behind: int = 0  # of a running OVER: how long after its time a record is final
    limit: int = 0

    @property
    def is_distinct(self) -> bool:
        """Return whether the node is a DISTINCT, an aggregate over all columns."""
        return self.tree.kind == "Distinct"
