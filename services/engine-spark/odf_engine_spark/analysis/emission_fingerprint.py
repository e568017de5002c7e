"""Fingerprints of what determines when rows are emitted: queries with equal fingerprints can share state.

Rows that were complete under the old query have been emitted. Under the new query they must be complete at the same
time, or they would be emitted twice or never. So joins and windows must stay the same. Other columns and conditions may
change unless they decide when a row is complete. They do in a LEFT, RIGHT, FULL, SEMI or ANTI join, where a row with a
partner is complete early, and one without a partner late.
"""

import json
from collections.abc import Mapping
from typing import Final

from odf_engine_spark.analysis.joins import join_kind
from odf_engine_spark.analysis.plan_shape import Node
from odf_engine_spark.spark.tree import Tree

Fingerprint = tuple[object, ...]
_INPUT: Final = "input"
_UNLIKE: Final = (
    "desc",
    "output",
    "data",
    "jvmId",
    "qualifier",
    "metadata",
)  # differ when SQL is parsed again


def fingerprint_of(node: Node) -> Fingerprint:
    """Return the fingerprint of a plan."""
    children = tuple(fingerprint_of(child) for child in node.children)
    if not children:
        return (_INPUT, node.stream)
    if node.cut is not None:
        return (node.cut, *children)
    match node.tree.kind:
        case "Join" if join_kind(node.tree) == "Inner":
            assert node.condition is not None
            return ("join", node.condition.bounds, *children)
        case "Join":
            return (_text_of(node.tree), *children)
        case "Aggregate" | "Distinct":
            needed = [
                (node.flow.late.get(name), node.flow.retention.get(name))
                for name in _streams(node.children[0])
            ]
            return ("windows", node.flow.period, node.flow.phase, tuple(needed), *children)
        case "Window":
            return ("over", node.over, node.behind, node.flow.period, node.flow.phase, *children)
        case "Union":
            return ("union", *children)
        case _:
            (below,) = children
            return below


def rename_inputs(fingerprint: Fingerprint, names: Mapping[str, str]) -> Fingerprint:
    """Return a fingerprint with other names of its inputs."""
    if fingerprint[0] == _INPUT:
        return (_INPUT, names.get(str(fingerprint[1]), fingerprint[1]))
    return tuple(
        rename_inputs(part, names) if isinstance(part, tuple) and part else part for part in fingerprint
    )


def _streams(node: Node) -> tuple[str, ...]:
    """Return the streams that a plan reads, from left to right."""
    if node.stream is not None:
        return (node.stream,)
    return tuple(stream for child in node.children for stream in _streams(child))


def _text_of(tree: Tree) -> str:
    """Return a plan as text that is equal for equal plans, regardless of Spark's expression ids."""
    numbers: dict[int, int] = {}

    def plain(value: object) -> object:
        match value:
            case {"id": int(number), "jvmId": _}:
                return numbers.setdefault(number, len(numbers))
            case dict():
                return {key: plain(member) for key, member in value.items() if key not in _UNLIKE}
            case list():
                return [plain(item) for item in value]
            case _:
                return value

    return json.dumps([plain(dict(node.fields)) for node in _nodes(tree)], sort_keys=True, default=str)


def _nodes(tree: Tree) -> list[Tree]:
    return [tree, *(node for child in tree.children for node in _nodes(child))]
