"""Determines the inputs that may never retract: those with records that wait for the watermark (docs/adr/0086).

A row that waits for the watermark is final once it is emitted. So it must be computed from records that are never
retracted: a retraction would be too late for some rows and in time for others. All other steps emit changelogs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from odf_engine_spark.analysis.plan_shape import Node

_APPENDED: Final = "an input that is only appended to (merge: Append or Ledger)"


@dataclass(frozen=True, slots=True)
class FinalStep:
    """A step whose rows wait for the watermark: its name, and the advice for an input that retracts."""

    name: str
    instead: str


_CHANGES: Final = (
    "write SELECT /*+ CHANGES */ …: each record then changes the row of its group, and nothing waits"
)
_WINDOWS: Final = FinalStep("GROUP BY a window or time", _CHANGES)
_DISTINCT: Final = FinalStep("DISTINCT with an event time", _CHANGES)
_SESSION: Final = FinalStep(
    "session_window", f"use {_APPENDED}, or windows of a fixed length with the hint CHANGES"
)
_OVER: Final = FinalStep(
    "OVER in order of time", f"use {_APPENDED}, or GROUP BY for totals that follow the changes"
)
_JOIN: Final = FinalStep(
    "JOIN",
    f"use {_APPENDED} on both sides, or put the UNION ALL of both into a dataset, and GROUP BY the key there: "
    "max(…) of the columns of each side",
)
_AS_OF: Final = FinalStep(
    "JOIN … FOR SYSTEM_TIME AS OF",
    "keep the versions in an input that is only appended to (merge: Append, or Ledger with the key and the event time "
    "as primaryKey); the end of a version is a record too, such as one with a NULL price",
)
_UNION: Final = FinalStep(
    "UNION ALL with rows that wait for the watermark, or with others of the same input",
    "put one of its sides into a dataset of its own",
)
_SEVERAL: Final = FinalStep(
    "GROUP BY or row_number() over several inputs",
    "put their UNION ALL into a dataset of its own, and group or rank the records of that",
)
_CUTS: Final[Mapping[str, FinalStep]] = {"session": _SESSION, "running": _OVER, "as_of": _AS_OF}
_WAITING: Final[Mapping[str, FinalStep]] = {
    "Aggregate": _WINDOWS,
    "Distinct": _DISTINCT,
    "Window": _OVER,
    "Join": _JOIN,
    "Union": _UNION,
}


def final_steps(node: Node) -> dict[str, FinalStep]:
    """Return the inputs that may never retract, each with the first step in which its records wait."""
    found: dict[str, FinalStep] = {}
    _collect(node, found)
    return found


def retraction_refusal(steps: Mapping[str, FinalStep], reasons: Mapping[str, str]) -> str:
    """Return the reason why a query with these steps cannot read its inputs; empty if it can.

    `reasons` are the reasons why inputs may retract records, by the inputs' names, such as "merges by UpsertStream".
    """
    for name, why in reasons.items():
        step = steps.get(name.lower())
        if step is not None:
            return (
                f"{step.name} needs records that are never retracted, since its rows are final once the watermark has "
                f"passed, but {name} {why}: {step.instead}"
            )
    return ""


def _collect(node: Node, found: dict[str, FinalStep]) -> frozenset[str]:
    """Add the steps of a plan in which records wait; returns the inputs whose records have not waited so far."""
    if not node.children:
        assert node.stream is not None
        return frozenset({node.stream})
    inputs = frozenset[str]().union(*(_collect(child, found) for child in node.children))
    step = _step_of(node)
    if step is not None:
        for name in inputs:
            found.setdefault(name, step)
    return inputs if step is None and node.cut is None else frozenset()


def _step_of(node: Node) -> FinalStep | None:
    if node.cut is None:
        return _WAITING.get(node.tree.kind) if node.flow.waits else None
    if node.cut in _CUTS:
        return _CUTS[node.cut]
    (below,) = (
        node.children
    )  # of a group or rank: with several streams, the order of its records is that of time
    return _SEVERAL if len(below.flow.streams) > 1 else None
