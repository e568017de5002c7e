"""Requests to migrate from one version of a query to the next (spec: Migrate Query)."""

from collections.abc import Iterator, Mapping

from odf_common.chain.state import ChainState
from odf_common.chain.transform_request import RequestFiles
from odf_common.data.schema_evolution import schema_of_event
from odf_common.errors import InvalidInput, NotFound
from odf_common.identity.did import DatasetId
from odf_common.metadata.events import SetTransform
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.engine import MigrateRequest, PlannedInput


def migrate_request(
    state: ChainState,
    old: SetTransform,
    new: SetTransform,
    inputs: Mapping[DatasetId, ChainState],
    *,
    system_time: Timestamp,
    files: RequestFiles,
) -> MigrateRequest:
    """Return the request to migrate from `old` to `new` after `state` of the output.

    `inputs`: each input's state at the last block read. Raises `NotFound` for an input without a schema, and
    `InvalidInput` if the versions use one alias for two inputs.
    """
    return MigrateRequest(
        old=old,
        new=new,
        inputs=tuple(_inputs(old, new, inputs)),
        vocab=state.vocabulary,
        system_time=system_time,
        next_offset=state.next_offset,
        prev_checkpoint_path=files.prev_checkpoint,
        new_checkpoint_path=files.new_checkpoint,
        new_data_path=files.new_data,
    )


def _inputs(
    old: SetTransform, new: SetTransform, inputs: Mapping[DatasetId, ChainState]
) -> Iterator[PlannedInput]:
    called: dict[str, DatasetId] = {}
    for input_ in (*old.inputs, *new.inputs):
        dataset, name = DatasetId.parse(input_.dataset_ref), input_.alias or input_.dataset_ref
        before = called.get(name.lower())
        if before is not None and before != dataset:
            text = f"{name} was the alias of {before} and is now that of {dataset}; use different aliases"
            raise InvalidInput(text=text)
        if before is None:
            state = inputs.get(dataset)
            if state is None or state.schema is None:
                raise NotFound(what=f"the schema of {name}")
            called[name.lower()] = dataset
            yield PlannedInput(name=name, schema=schema_of_event(state.schema), vocab=state.vocabulary)
