"""From one version of a query to the next: what the old one kept becomes what the new one goes on from."""

from collections.abc import Mapping
from pathlib import Path

from odf_common.errors import InvalidQuery
from odf_common.metadata.engine import TransformResponseSuccess
from odf_common.metadata.events import SetTransform
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.engine import MigrateRequest
from odf_engine_spark.prepared import PlannedInput, Prepared
from odf_engine_spark.state import State, read_state, write_state
from odf_engine_spark.transform import Transforms


def migrate(transforms: Transforms, request: MigrateRequest) -> TransformResponseSuccess:
    """Write the new version's checkpoint; raises `InvalidQuery` when the old one's state cannot be carried over.

    Queries that act on each record by itself keep nothing but watermarks, which go with their inputs.
    """
    if any(_prepared(transforms, request, each).is_stateful for each in (request.old, request.new)):
        raise InvalidQuery(
            text="the query keeps records between transactions, and what it has kept cannot be carried over to "
            "another query: make a new dataset of the new query instead"
        )
    state = read_state(None if request.prev_checkpoint_path is None else Path(request.prev_checkpoint_path))
    before = {reference: name for name, reference in _references(request.old).items()}
    kept = {
        name: state.inputs[before[reference]]
        for name, reference in _references(request.new).items()
        if before.get(reference) in state.inputs
    }
    write_state(State(watermark=state.watermark, inputs=kept), Path(request.new_checkpoint_path))
    watermark = state.watermark
    return TransformResponseSuccess(new_watermark=None if watermark is None else Timestamp(watermark))


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
