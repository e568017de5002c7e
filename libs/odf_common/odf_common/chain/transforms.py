"""Planning transforms and making events with data: pure, the same for running a transform and replaying it.

A stored ExecuteTransform says of each input which half-open interval of blocks and records it saw (RFC-014). So the
coordinator first decides these intervals (`plan_inputs`), reads their blocks as far as the input stays what it is
(`input_until_change`) and asks the engine (`build_request`); the verifier starts from the stored event, reads the same
blocks (`input_of`), and gets the same request.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from odf_common.chain.events import checkpoint_hash, later
from odf_common.errors import InvalidInput, VerificationFailed
from odf_common.hashing.multihash import Multihash
from odf_common.identity.did import DatasetId
from odf_common.metadata.block import MetadataBlock
from odf_common.metadata.chain_state import ChainState
from odf_common.metadata.engine import (
    TransformRequest,
    TransformRequestInput,
    TransformResponseSuccess,
    Watermark,
)
from odf_common.metadata.events import (
    AddData,
    Checkpoint,
    DataSlice,
    ExecuteTransform,
    ExecuteTransformInput,
    OffsetInterval,
    SetDataSchema,
    SetTransform,
    SetVocab,
)
from odf_common.metadata.scalars import Timestamp
from odf_common.metadata.vocabulary import DatasetVocabulary

PathOf = Callable[[Multihash], str]  # local path of a slice, by its physical hash


@dataclass(eq=False, kw_only=True)
class InputMismatch(VerificationFailed):
    """What a transform says it saw of an input is not what the input's chain holds."""

    dataset: str
    text: str

    def __str__(self) -> str:
        """Return which input, and the difference."""
        return f"input {self.dataset}: {self.text}"


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSlices:
    """What one input brings to one transform: slices and watermarks, oldest first.

    `offset_interval` is closed, None without new records.
    """

    step: ExecuteTransformInput
    slices: tuple[DataSlice, ...]
    offset_interval: OffsetInterval | None
    watermarks: tuple[Watermark, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSource:
    """Where the engine finds an input: its alias, vocabulary, a file with its schema, and its slices.

    Vocabulary and schema are those in force at `last_block` of the input's step, not later ones.
    """

    alias: str
    vocab: DatasetVocabulary
    schema_file: str
    path_of: PathOf


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFiles:
    """Local paths for the engine: the checkpoint to go on from, and where to write checkpoint and data."""

    prev_checkpoint: str | None
    new_checkpoint: str
    new_data: str


def input_ids(transform: SetTransform) -> tuple[DatasetId, ...]:
    """Return the inputs of an admitted transform in its order."""
    return tuple(DatasetId.parse(one.dataset_ref) for one in transform.inputs)


def last_block(step: ExecuteTransformInput) -> Multihash | None:
    """Return the block of the input up to which it is processed after this step."""
    return step.prev_block_hash if step.new_block_hash is None else step.new_block_hash


def plan_inputs(
    state: ChainState, heads: Mapping[DatasetId, ChainState]
) -> tuple[ExecuteTransformInput, ...] | None:
    """Return what the next transform sees of each input, in SetTransform order; None when there is nothing to do.

    `heads` has the inputs' states by id. Nothing is to do without a transform, while an input has no schema yet, or
    when all inputs are where they were and the schema is set. A plan may still hold nothing but definitions: only
    the inputs' blocks tell, see `has_work`; and they may end a step before the head, see `input_until_change`.
    """
    if state.transform is None:
        return None
    steps = []
    for dataset in input_ids(state.transform):
        head = heads.get(dataset)
        if head is None or head.schema is None:
            return None
        steps.append(_step_to(state, head))
    if state.schema is not None and all(one.new_block_hash is None for one in steps):
        return None
    return tuple(steps)


def _step_to(state: ChainState, head: ChainState) -> ExecuteTransformInput:
    done = state.progress_of(head.dataset_id)
    return ExecuteTransformInput(
        dataset_id=head.dataset_id,
        prev_block_hash=done.last_block,
        new_block_hash=None if head.head == done.last_block else head.head,
        prev_offset=done.last_offset,
        new_offset=None if head.last_offset == done.last_offset else head.last_offset,
    )


def input_of(step: ExecuteTransformInput, blocks: Iterable[MetadataBlock]) -> InputSlices:
    """Return what the blocks after `prevBlockHash` up to `newBlockHash`, oldest first, bring to a transform.

    The same for a planned step and for one of a stored event. Raises `InputMismatch` when the blocks do not hold
    exactly the records that the step names.
    """
    slices: list[DataSlice] = []
    watermarks: list[Watermark] = []
    for block in blocks:
        _take(block, slices, watermarks)
    return _brought(step, slices, watermarks)


def input_until_change(
    step: ExecuteTransformInput, blocks: Iterable[tuple[Multihash, MetadataBlock]]
) -> InputSlices:
    """Return what an input brings to a planned step, which ends before the input changes (spec: Batch step).

    `blocks` are those after `prevBlockHash` up to `newBlockHash`, oldest first, with their hashes. A block that sets
    schema or vocabulary ends the step if there are records or watermarks before it, so that one request sees one
    schema of each input; the next step begins with it.
    """
    slices: list[DataSlice] = []
    watermarks: list[Watermark] = []
    last = step.prev_block_hash
    has_schema = last is not None  # no step is planned before there is one
    for name, block in blocks:
        is_other = isinstance(block.event, (SetDataSchema, SetVocab))
        if is_other and has_schema and (slices or watermarks):
            break
        has_schema = has_schema or isinstance(block.event, SetDataSchema)
        _take(block, slices, watermarks)
        last = name
    cut = replace(
        step,
        new_block_hash=None if last == step.prev_block_hash else last,
        new_offset=slices[-1].offset_interval.end if slices else None,
    )
    return _brought(cut, slices, watermarks)


def _take(block: MetadataBlock, slices: list[DataSlice], watermarks: list[Watermark]) -> None:
    event = block.event
    if not isinstance(event, (AddData, ExecuteTransform)):
        return
    if event.new_data is not None:
        slices.append(event.new_data)
    if event.new_watermark is not None:
        watermarks.append(Watermark(system_time=block.system_time, event_time=event.new_watermark))


def _brought(
    step: ExecuteTransformInput, slices: Sequence[DataSlice], watermarks: Sequence[Watermark]
) -> InputSlices:
    _check_records(step, slices)
    start = 0 if step.prev_offset is None else step.prev_offset + 1
    interval = None if step.new_offset is None else OffsetInterval(start=start, end=step.new_offset)
    return InputSlices(
        step=step, slices=tuple(slices), offset_interval=interval, watermarks=tuple(watermarks)
    )


def _check_records(step: ExecuteTransformInput, slices: Sequence[DataSlice]) -> None:
    before = -1 if step.prev_offset is None else step.prev_offset
    last = before if step.new_offset is None else step.new_offset
    first = slices[0].offset_interval.start if slices else before + 1
    end = slices[-1].offset_interval.end if slices else before
    if (first, end) != (before + 1, last):
        text = f"the transform saw offsets {before + 1}–{last}, the blocks hold {first}–{end}"
        raise InputMismatch(dataset=str(step.dataset_id), text=text)


def has_work(state: ChainState, inputs: Iterable[InputSlices]) -> bool:
    """Tell whether a transform is to run: some input has records or watermarks, or there is no schema yet."""
    return state.schema is None or any(one.slices or one.watermarks for one in inputs)


def build_request(
    state: ChainState,
    inputs: Sequence[InputSlices],
    sources: Mapping[DatasetId, InputSource],
    *,
    alias: str,
    system_time: Timestamp,
    files: RequestFiles,
) -> TransformRequest:
    """Return the request for the step after `state`, inputs in SetTransform order (wire-facts §7.4).

    `state` is that of the output before the step, `alias` the output's name for logs, and `system_time` that of the
    block to come.
    """
    transform = state.transform
    if transform is None:
        raise InvalidInput(text=f"{state.dataset_id} has no transform")
    aliases = {DatasetId.parse(one.dataset_ref): one.alias or one.dataset_ref for one in transform.inputs}
    return TransformRequest(
        dataset_id=state.dataset_id,
        dataset_alias=alias,
        system_time=system_time,
        vocab=state.vocabulary,
        transform=transform.transform,
        query_inputs=tuple(
            _request_input(one, aliases[one.step.dataset_id], sources[one.step.dataset_id]) for one in inputs
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
        data_paths=tuple(source.path_of(one.physical_hash) for one in slices.slices),
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
    """Return the event of a transform that ran on top of `state`; the watermark is carried, never lowered.

    Raises `InvalidInput` when the engine's answer and the slice it wrote do not agree on the offsets.
    """
    written = None if new_data is None else new_data.offset_interval
    if response.new_offset_interval != written:
        raise InvalidInput(
            text=f"the engine answers offsets {response.new_offset_interval}, its data has {written}"
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
    """Tell whether an event on top of `state` says nothing, so that no block is written.

    An event may have nothing but input blocks; they are read again with the next one that has more (§5.5, 6).
    """
    return event.new_data is None and event.new_checkpoint is None and event.new_watermark is None


def is_migration(event: ExecuteTransform, replaced: SetTransform | None) -> bool:
    """Tell whether a transform carries the output from one query to the next (spec: Migrate Query).

    `replaced` is the transform that the block directly before set anew, None if that block is another one. What
    runs a query has something new of an input; a migration has nothing.
    """
    return replaced is not None and all(step.new_block_hash is None for step in event.query_inputs)
