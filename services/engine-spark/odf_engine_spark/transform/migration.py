"""Migrates the state of a query from one version of the query to the next.

Windows and joins store input records unchanged, so a new query can continue with them if its rows are complete at the
same times (`emission_fingerprint`). Groups, top-N rows and versions of a temporal join are results of one query. They
can only be kept if that part of the query is unchanged.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pyarrow as pa

from odf_common.errors import InvalidQuery
from odf_common.metadata.engine_messages import TransformResponseSuccess
from odf_common.metadata.events import SetTransform
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.engine import MigrateRequest, PlannedInput
from odf_engine_spark.analysis.emission_fingerprint import rename_inputs
from odf_engine_spark.analysis.semantic_changes import kinds_since
from odf_engine_spark.analysis.times import FOREVER
from odf_engine_spark.plan.prepared import PreparedTransform
from odf_engine_spark.plan.segments import Segment
from odf_engine_spark.plan.stages import Stage
from odf_engine_spark.transform.checkpoint import State, read_state, write_state
from odf_engine_spark.transform.execute_transform import Transforms

_EARLIER: Final = "its event times would be before the output's watermark"


def migrate(transforms: Transforms, request: MigrateRequest, number: int) -> TransformResponseSuccess:
    """Write the checkpoint for the new query; raises `InvalidQuery` if the state of the old one cannot be migrated.

    `number` is the semantics number of the engine that wrote the state.
    """
    before = {reference: name for name, reference in _references(request.old).items()}
    names = {
        before[reference]: name for name, reference in _references(request.new).items() if reference in before
    }
    old, new = _prepare_replaced(transforms, request), _prepare(transforms, request, request.new)
    lowered = {one.lower(): other.lower() for one, other in names.items()}
    check_carried(old, new, lowered)
    _check_repeated(old, number)
    state = read_state(None if request.prev_checkpoint_path is None else Path(request.prev_checkpoint_path))
    inputs = {name: state.inputs[other] for other, name in names.items() if other in state.inputs}
    tables = _rename_tables(state.tables, lowered)
    write_state(
        State(watermark=state.watermark, inputs=inputs, tables=tables), Path(request.new_checkpoint_path)
    )
    watermark = state.watermark
    return TransformResponseSuccess(new_watermark=None if watermark is None else Timestamp(watermark))


def check_carried(old: PreparedTransform, new: PreparedTransform, names: Mapping[str, str]) -> None:
    """Raise `InvalidQuery` unless the new query can continue with the state of the old one.

    `names` maps the names of inputs in the old query to their names in the new one.
    """
    if not old.is_stateful and not new.is_stateful:
        if _lag(new) > _lag(old):
            raise InvalidQuery(text=f"{_EARLIER}: create a new dataset with the new query instead")
        return
    if len(old.stages) != len(new.stages) or not all(
        _same_stage(one, other, names) for one, other in zip(old.stages, new.stages, strict=True)
    ):
        raise _state_loss("GROUP BY, row_number(), running OVER and AS OF cannot be changed")
    if (old.last.flow.is_retractable or old.last.late) and not _same_segment(old.last, new.last, names):
        raise _state_loss(
            "GROUP BY, row_number() and LATE cannot be changed, since rows already emitted may be retracted later"
        )
    if new.last.waits and not old.last.waits:
        raise _state_loss("the new query needs records that the old one did not keep")
    if old.last.waits and not new.last.waits:
        raise _state_loss("records wait in windows or joins that the new query does not have")
    if new.last.late > old.last.late:
        raise _state_loss("the new bound in LATE needs records that the old query has dropped")
    if rename_inputs(old.fingerprint, names) != new.fingerprint:
        raise _state_loss(
            "windows, joins, time bounds and inputs, and all that a LEFT, RIGHT, FULL, SEMI or ANTI join compares, "
            "have to stay the same, or rows would be emitted twice or never"
        )
    if _lag(new) > _lag(old):
        raise _state_loss(_EARLIER)


def _check_repeated(old: PreparedTransform, number: int) -> None:
    """Raise `InvalidQuery` if rows that an earlier engine has emitted could be retracted with other values."""
    kinds = kinds_since(old.changes, number)
    if kinds and (old.last.flow.is_retractable or old.last.late):
        text = (
            "rows of an earlier version of the engine may be retracted later, and this one would retract other values "
            f"({'; '.join(kinds)}): derive them again with `odf engine upgrade DATASET --from-start`"
        )
        raise InvalidQuery(text=text)


def _lag(prepared: PreparedTransform) -> float:
    """Return how far a row's event time may be before the watermark at which it is emitted, in microseconds."""
    event_time = prepared.event_time
    return FOREVER if event_time is None else event_time.span.upper


def _same_stage(old: Stage, new: Stage, names: Mapping[str, str]) -> bool:
    """Return whether two stages have the same state after the same input."""
    if type(old) is not type(new):
        return False
    for field in old.__slots__:  # type: ignore[attr-defined]
        one, other = getattr(old, field), getattr(new, field)
        is_same = _same_segment(one, other, names) if isinstance(one, Segment) else one == other
        if not is_same:
            return False
    return True


def _same_segment(old: Segment, new: Segment, names: Mapping[str, str]) -> bool:
    """Return whether two segments compute the same results from the same streams."""
    leaves = tuple(names.get(leaf, leaf) for leaf in old.slot.leaves())
    is_same = old.slot.node.sameResult(new.slot.node)
    return bool(is_same) and leaves == new.slot.leaves() and old.schema == new.schema


def _rename_tables(tables: Mapping[str, pa.Table], names: Mapping[str, str]) -> dict[str, pa.Table]:
    """Return the tables of the state, with the names of inputs changed to those in the new query."""
    renamed = {}
    for place, table in tables.items():
        part, slash, stream = place.rpartition("/")
        renamed[f"{part}/{names.get(stream, stream)}" if slash else place] = table
    return renamed


def _state_loss(why: str) -> InvalidQuery:
    return InvalidQuery(
        text=f"the query keeps records between transactions, and they cannot be migrated to the new query: {why}; "
        "create a new dataset with the new query instead"
    )


def _prepare_replaced(transforms: Transforms, request: MigrateRequest) -> PreparedTransform:
    """Return the prepared old query; raises `InvalidQuery` if it is refused today, as its state is then unknown."""
    try:
        return _prepare(transforms, request, request.old)
    except InvalidQuery as error:
        text = f"the query that is replaced is refused now, so its state cannot be migrated: {error}"
        raise InvalidQuery(text=text) from error


def _prepare(transforms: Transforms, request: MigrateRequest, version: SetTransform) -> PreparedTransform:
    names = {name.lower() for name in _references(version)}
    inputs = [
        PlannedInput(name=input_.name, schema=input_.schema, vocab=input_.vocab)
        for input_ in request.inputs
        if input_.name.lower() in names
    ]
    return transforms.prepare(version.transform, inputs, request.vocab)


def _references(version: SetTransform) -> Mapping[str, str]:
    """Return the dataset reference of each input by its SQL name."""
    return {input_.alias or input_.dataset_ref: input_.dataset_ref for input_ in version.inputs}
