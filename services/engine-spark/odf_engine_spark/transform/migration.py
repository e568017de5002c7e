"""From one version of a query to the next: what the old one kept becomes what the new one goes on from.

Windows and joins keep records as they came, so another query can go on with them, as long as its rows are complete
when the other's were (`skeleton`). Folded groups, places and versions are what one query made of its records: they go
on only unchanged.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pyarrow as pa

from odf_common.errors import InvalidQuery
from odf_common.metadata.engine import TransformResponseSuccess
from odf_common.metadata.events import SetTransform
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.engine import MigrateRequest
from odf_engine_spark.analysis.emission_fingerprint import renamed
from odf_engine_spark.analysis.times import FOREVER
from odf_engine_spark.plan.prepared import PlannedInput, Prepared
from odf_engine_spark.plan.segments import Segment
from odf_engine_spark.plan.stages import Stage
from odf_engine_spark.transform.checkpoint import State, read_state, write_state
from odf_engine_spark.transform.transform import Transforms

_EARLIER: Final = "its event times would lie before what was said to be complete"


def migrate(transforms: Transforms, request: MigrateRequest) -> TransformResponseSuccess:
    """Write the new version's checkpoint; raises `InvalidQuery` when the old one's state cannot be carried over."""
    before = {reference: name for name, reference in _references(request.old).items()}
    names = {
        before[reference]: name for name, reference in _references(request.new).items() if reference in before
    }
    old, new = (_prepared(transforms, request, each) for each in (request.old, request.new))
    lowered = {one.lower(): other.lower() for one, other in names.items()}
    check_carried(old, new, lowered)
    state = read_state(None if request.prev_checkpoint_path is None else Path(request.prev_checkpoint_path))
    kept = {name: state.inputs[other] for other, name in names.items() if other in state.inputs}
    tables = _renamed(state.tables, lowered)
    write_state(
        State(watermark=state.watermark, inputs=kept, tables=tables), Path(request.new_checkpoint_path)
    )
    watermark = state.watermark
    return TransformResponseSuccess(new_watermark=None if watermark is None else Timestamp(watermark))


def check_carried(old: Prepared, new: Prepared, names: Mapping[str, str]) -> None:
    """Return if the new query can go on from what the old one keeps; raises `InvalidQuery` if not.

    `names` are the inputs' in the old query, and what they are called in the new one.
    """
    if not old.is_stateful and not new.is_stateful:
        if _lag(new) > _lag(old):
            raise InvalidQuery(text=f"{_EARLIER}: make a new dataset of the new query instead")
        return
    if len(old.stages) != len(new.stages) or not all(
        _same_stage(one, other, names) for one, other in zip(old.stages, new.stages, strict=True)
    ):
        raise _lost("GROUP BY, row_number(), running OVER and AS OF go on only unchanged")
    if (old.last.flow.takes_back or old.last.late) and not _same_segment(old.last, new.last, names):
        raise _lost(
            "GROUP BY, row_number() and LATE go on only unchanged, since records that are out may be taken back"
        )
    if new.last.waits and not old.last.waits:
        raise _lost("it needs records that the other query has not kept")
    if old.last.waits and not new.last.waits:
        raise _lost("records wait in windows or joins that the new query does not have")
    if new.last.late > old.last.late:
        raise _lost("records of windows that late ones may correct are gone")
    if renamed(old.skeleton, names) != new.skeleton:
        raise _lost(
            "windows, joins, bounds in time and inputs, and all that a LEFT, RIGHT, FULL, SEMI or ANTI join compares, "
            "stay as they are, or rows would come twice or never"
        )
    if _lag(new) > _lag(old):
        raise _lost(_EARLIER)


def _lag(prepared: Prepared) -> float:
    """Return how long before it is complete a row may have happened."""
    known = prepared.event_time
    return FOREVER if known is None else known.span.most


def _same_stage(old: Stage, new: Stage, names: Mapping[str, str]) -> bool:
    """Tell whether two steps keep the same of the same."""
    if type(old) is not type(new):
        return False
    for field in old.__slots__:  # type: ignore[attr-defined]
        one, other = getattr(old, field), getattr(new, field)
        is_same = _same_segment(one, other, names) if isinstance(one, Segment) else one == other
        if not is_same:
            return False
    return True


def _same_segment(old: Segment, new: Segment, names: Mapping[str, str]) -> bool:
    """Tell whether two parts compute the same from the same streams."""
    leaves = tuple(names.get(leaf, leaf) for leaf in old.slot.leaves())
    is_same = old.slot.node.sameResult(new.slot.node)
    return bool(is_same) and leaves == new.slot.leaves() and old.schema == new.schema


def _renamed(tables: Mapping[str, pa.Table], names: Mapping[str, str]) -> dict[str, pa.Table]:
    """Return the state's tables, those of inputs under the names that these have now."""
    renamed = {}
    for place, table in tables.items():
        part, slash, stream = place.rpartition("/")
        renamed[f"{part}/{names.get(stream, stream)}" if slash else place] = table
    return renamed


def _lost(why: str) -> InvalidQuery:
    return InvalidQuery(
        text=f"the query keeps records between transactions, and what was kept cannot be carried over: {why}; "
        "make a new dataset of the new query instead"
    )


def _prepared(transforms: Transforms, request: MigrateRequest, version: SetTransform) -> Prepared:
    names = {name.lower() for name in _references(version)}
    inputs = [
        PlannedInput(name=each.name, schema=each.schema, vocab=each.vocab)
        for each in request.inputs
        if each.name.lower() in names
    ]
    return transforms.prepare(version.transform, inputs, request.vocab)


def _references(version: SetTransform) -> Mapping[str, str]:
    """Return what each input is, by its name in SQL."""
    return {each.alias or each.dataset_ref: each.dataset_ref for each in version.inputs}
