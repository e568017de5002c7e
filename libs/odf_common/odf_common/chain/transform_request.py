"""Requests to the engine, and events from its responses: the same for running a transform and replaying it.

How the inputs are chosen is in `chain/transform_inputs.py`. Pure.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from odf_common.chain.add_data import checkpoint_hash, later
from odf_common.chain.state import ChainState
from odf_common.chain.transform_inputs import InputSlices
from odf_common.errors import InvalidInput
from odf_common.hashing.multihash import Multihash
from odf_common.identity.did import DatasetId
from odf_common.metadata.engine_messages import (
    TransformRequest,
    TransformRequestInput,
    TransformResponseSuccess,
)
from odf_common.metadata.events import (
    Checkpoint,
    DatasetVocabulary,
    DataSlice,
    ExecuteTransform,
    ExecuteTransformInput,
    SetTransform,
)
from odf_common.metadata.scalars import Timestamp

PathOf = Callable[[Multihash], str]  # local path of a slice, by its physical hash


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSource:
    """An input as the engine gets it: its alias, vocabulary, a file with its schema, and its slices.

    Vocabulary and schema are those at `last_block` of the input's step, not later ones.
    """

    alias: str
    vocab: DatasetVocabulary
    schema_file: str
    path_of: PathOf


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFiles:
    """Local paths for the engine: the previous checkpoint, and where to write checkpoint and data."""

    prev_checkpoint: str | None
    new_checkpoint: str
    new_data: str


def build_request(
    state: ChainState,
    inputs: Sequence[InputSlices],
    sources: Mapping[DatasetId, InputSource],
    *,
    alias: str,
    system_time: Timestamp,
    files: RequestFiles,
) -> TransformRequest:
    """Return the request for the step after `state`, with inputs in SetTransform order (wire-facts §7.4).

    `state` is the output's before the step, `alias` the output's name for logs, `system_time` that of the new block.
    """
    transform = state.transform
    if transform is None:
        raise InvalidInput(text=f"{state.dataset_id} has no transform")
    aliases = {
        DatasetId.parse(input_.dataset_ref): input_.alias or input_.dataset_ref for input_ in transform.inputs
    }
    return TransformRequest(
        dataset_id=state.dataset_id,
        dataset_alias=alias,
        system_time=system_time,
        vocab=state.vocabulary,
        transform=transform.transform,
        query_inputs=tuple(
            _request_input(input_, aliases[input_.step.dataset_id], sources[input_.step.dataset_id])
            for input_ in inputs
        ),
        next_offset=state.next_offset,
        prev_checkpoint_path=files.prev_checkpoint,
        new_checkpoint_path=files.new_checkpoint,
        new_data_path=files.new_data,
    )


def _request_input(slices: InputSlices, query_alias: str, source: InputSource) -> TransformRequestInput:
    return TransformRequestInput(
        dataset_id=slices.step.dataset_id,
        dataset_alias=source.alias,
        query_alias=query_alias,
        vocab=source.vocab,
        offset_interval=slices.offset_interval,
        data_paths=tuple(source.path_of(slice_.physical_hash) for slice_ in slices.slices),
        schema_file=source.schema_file,
        explicit_watermarks=slices.watermarks,
    )


def next_event(
    state: ChainState,
    steps: Iterable[ExecuteTransformInput],
    response: TransformResponseSuccess,
    *,
    new_data: DataSlice | None,
    new_checkpoint: Checkpoint | None,
) -> ExecuteTransform:
    """Return the event of a transform that ran on top of `state`; the watermark is carried over, never lowered.

    Raises `InvalidInput` if the engine's response and the slice that it wrote have different offsets.
    """
    written = None if new_data is None else new_data.offset_interval
    if response.new_offset_interval != written:
        raise InvalidInput(
            text=f"the engine reported offsets {response.new_offset_interval}, but its data has {written}"
        )
    return ExecuteTransform(
        query_inputs=tuple(steps),
        prev_checkpoint=checkpoint_hash(state),
        prev_offset=state.last_offset,
        new_data=new_data,
        new_checkpoint=new_checkpoint,
        new_watermark=later(state.watermark, response.new_watermark),
    )


def is_no_op(state: ChainState, event: ExecuteTransform) -> bool:
    """Return whether an event on top of `state` adds nothing, so that no block is written.

    An event may have nothing but input blocks; they are read again by the next one that has more (§5.5, 6).
    """
    return event.new_data is None and event.new_checkpoint is None and event.new_watermark is None


def is_migration(event: ExecuteTransform, replaced: SetTransform | None) -> bool:
    """Return whether a transform is a migration from one query to the next (spec: Migrate Query).

    `replaced` is the transform that the previous block replaced, None if that block is not a SetTransform. A step that
    runs a query reads something new of an input; a migration does not.
    """
    return replaced is not None and all(step.new_block_hash is None for step in event.query_inputs)


def changes_nothing(state: ChainState, event: ExecuteTransform) -> bool:
    """Return whether an event without new input leaves records, checkpoint and watermark of `state` unchanged."""
    checkpoint = None if event.new_checkpoint is None else event.new_checkpoint.physical_hash
    is_same = checkpoint == checkpoint_hash(state) and event.new_watermark == state.watermark
    return event.new_data is None and is_same
