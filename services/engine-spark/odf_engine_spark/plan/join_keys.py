"""Finds the records to join again in a join without time bounds, which keeps all records of both sides.

Records whose partners are all old give no new rows, so they are not passed to Spark.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from odf_engine_spark.analysis.columns import output
from odf_engine_spark.analysis.joins import join_kind
from odf_engine_spark.analysis.plan_shape import Node
from odf_engine_spark.analysis.times import FOREVER
from odf_engine_spark.spark.logical_plans import COMPLETE
from odf_engine_spark.values.equality_codes import compact, equality_codes, is_among, normalize_keys


@dataclass(frozen=True, slots=True)
class JoinKeys:
    """Two streams that are joined on a pair of equal columns, which are given by position."""

    left: tuple[str, int]
    right: tuple[str, int]

    def recent(self, fed: Mapping[str, pa.Table], before: int) -> dict[str, pa.Table]:
        """Return the records that rows may depend on which were not complete at the watermark `before`."""
        sides = [(fed[stream], fed[stream].column(index)) for stream, index in (self.left, self.right)]
        # Coded together, so that equal keys of both sides have equal codes.
        keys = pa.chunked_array([chunk for _, column in sides for chunk in column.chunks], sides[0][1].type)
        codes = compact(equality_codes([normalize_keys(keys)], len(keys)))
        # A new row has a new record on one side at least; all pairs of old records were joined by earlier requests.
        is_new = np.concatenate([np.asarray(table.column(COMPLETE)) > before for table, _ in sides])
        matters = is_among(codes, codes[is_new])
        left, right = sides[0][0], sides[1][0]
        return {
            **fed,
            self.left[0]: left.filter(pa.array(matters[: len(left)])),
            self.right[0]: right.filter(pa.array(matters[len(left) :])),
        }


def join_keys_of(node: Node) -> JoinKeys | None:
    """Return the equal columns of a plan that joins two streams without time bounds; None for any other plan."""
    join = _below(node)
    if join.tree.kind != "Join" or join.cut is not None or join_kind(join.tree) != "Inner":
        return None
    assert join.condition is not None
    leaves = [_below(child) for child in join.children]
    if any(leaf.children or leaf.stream is None or leaf.cut is not None for leaf in leaves):
        return None
    (left, here), (right, there) = (
        (str(leaf.stream), [column for _, column in output(leaf.tree.children[0])]) for leaf in leaves
    )
    # A self-join reads one stream twice, so one side cannot be filtered alone. With time bounds on both sides, old
    # records leave the state anyway.
    if left == right or FOREVER not in (join.flow.retention[left], join.flow.retention[right]):
        return None
    for pair in join.condition.equal:
        one, other = pair if pair[0] in here else (pair[1], pair[0])
        if one in here and other in there:
            return JoinKeys((left, here.index(one)), (right, there.index(other)))
    return None


def _below(node: Node) -> Node:
    """Return the first node below nodes that process each row on its own."""
    while node.cut is None and len(node.children) == 1 and node.key is None and node.over is None:
        node = node.children[0]
    return node
