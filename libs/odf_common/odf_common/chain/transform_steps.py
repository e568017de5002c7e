"""A step of a transform: its inputs, the request to the engine, and the event built from the response. Pure.

A stored ExecuteTransform event names the interval of blocks and records that each input contributed (RFC-014). The
coordinator therefore first plans these intervals (`plan_inputs`), and then reads their blocks up to a change of schema
or vocabulary (`input_until_change`). A replay starts from the stored event and reads the same blocks (`input_of`).
Requests and events are built by the same functions in both cases.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from odf_common.chain.build_blocks import checkpoint_hash, later
from odf_common.chain.state import ChainState
from odf_common.errors import InvalidInput, VerificationFailed
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.engine_messages import (
    TransformRequest,
    TransformRequestInput,
    TransformResponseSuccess,
    Watermark,
)
from odf_common.metadata.events import (
    Checkpoint,
    DataEvent,
    DatasetVocabulary,
    DataSlice,
    ExecuteTransform,
    ExecuteTransformInput,
    MetadataBlock,
    OffsetInterval,
    SetDataSchema,
    SetTransform,
    SetVocab,
)
from odf_common.metadata.scalars import Timestamp


class InputMismatch(VerificationFailed):
    """The records that an event says a transform has read do not match the chain of the input."""

    MESSAGE = "input {dataset}: {text}"

    dataset: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSlices:
    """The slices and watermarks that one input contributes to one transform step, oldest first."""

    step: ExecuteTransformInput
    slices: tuple[DataSlice, ...]
    offset_interval: OffsetInterval | None
    """The interval of all slices, including its end; None if there are no new records."""
    watermarks: tuple[Watermark, ...]
    is_redefined: bool = False
    """Whether the schema or vocabulary of the input changes in this step."""


def plan_inputs(
    state: ChainState, heads: Mapping[DatasetId, ChainState]
) -> tuple[ExecuteTransformInput, ...] | None:
    """Return the data that the next transform step reads from each input, in SetTransform order.

    `heads` contains the states of the inputs at their heads, by id. The result is None if there is nothing to do:
    without a transform, if an input has no schema, or if no input has changed and the output has a schema. Only the
    blocks of the inputs show whether a planned step has any records or watermarks (`has_work`), and whether it ends
    before the heads (`input_until_change`).
    """
    if state.transform is None:
        return None
    steps = []
    for dataset in state.inputs:
        head = heads.get(dataset)
        if head is None or head.schema is None:
            return None
        steps.append(_step_to(state, head))
    # A first step without records still gives the output its schema, which datasets downstream wait for.
    if state.schema is not None and all(step.new_block_hash is None for step in steps):
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
    """Return the contribution of an input to a step; `blocks` are those that the step names, oldest first.

    It is the same for a planned step and for the step of a stored event. Raises `InputMismatch` unless the blocks
    contain exactly the records that the step names.
    """
    contents = _StepContents()
    for block in blocks:
        contents.take(block)
    return contents.input_slices(step)


def input_until_change(
    step: ExecuteTransformInput, blocks: Iterable[tuple[Multihash, MetadataBlock]]
) -> InputSlices:
    """Return the contribution of an input to a planned step, which ends before the input changes (spec: Batch step).

    `blocks` are those that the step names, oldest first, with their hashes. A block that sets schema or vocabulary ends
    the step if records or watermarks come before it, so that a request has one schema per input. The next step begins
    with that block.
    """
    contents = _StepContents()
    last = step.prev_block_hash
    has_schema = last is not None  # no step is planned before the input has a schema
    for name, block in blocks:
        if has_schema and _redefines(block) and (contents.slices or contents.watermarks):
            break
        has_schema = has_schema or isinstance(block.event, SetDataSchema)
        contents.take(block)
        last = name
    cut = replace(
        step,
        new_block_hash=None if last == step.prev_block_hash else last,
        new_offset=contents.slices[-1].offset_interval.end if contents.slices else None,
    )
    return contents.input_slices(cut)


@dataclass(slots=True)
class _StepContents:
    """The slices and watermarks in the blocks of a step."""

    slices: list[DataSlice] = field(default_factory=list)
    watermarks: list[Watermark] = field(default_factory=list)
    is_redefined: bool = False

    def take(self, block: MetadataBlock) -> None:
        """Add the next block."""
        event = block.event
        self.is_redefined = self.is_redefined or _redefines(block)
        if not isinstance(event, DataEvent):
            return
        if event.new_data is not None:
            self.slices.append(event.new_data)
        if event.new_watermark is not None:
            self.watermarks.append(Watermark(system_time=block.system_time, event_time=event.new_watermark))

    def input_slices(self, step: ExecuteTransformInput) -> InputSlices:
        """Return the contribution of the blocks to a step; raises `InputMismatch` if the step names other records."""
        before = -1 if step.prev_offset is None else step.prev_offset
        last = before if step.new_offset is None else step.new_offset
        first = self.slices[0].offset_interval.start if self.slices else before + 1
        end = self.slices[-1].offset_interval.end if self.slices else before
        if (first, end) != (before + 1, last):
            text = f"the transform read offsets {before + 1}–{last}, but the blocks have {first}–{end}"
            raise InputMismatch(dataset=str(step.dataset_id), text=text)
        interval = None if step.new_offset is None else OffsetInterval(start=before + 1, end=step.new_offset)
        return InputSlices(
            step=step,
            slices=tuple(self.slices),
            offset_interval=interval,
            watermarks=tuple(self.watermarks),
            is_redefined=self.is_redefined,
        )


def _redefines(block: MetadataBlock) -> bool:
    return isinstance(block.event, (SetDataSchema, SetVocab))


def has_work(state: ChainState, inputs: Iterable[InputSlices]) -> bool:
    """Return whether a transform has to run.

    It has if an input has new records, watermarks, schema or vocabulary, or if the output has no schema yet.
    """
    return state.schema is None or any(
        input_.slices or input_.watermarks or input_.is_redefined for input_ in inputs
    )


def empty_step(state: ChainState) -> tuple[ExecuteTransformInput, ...]:
    """Return the inputs of a step that reads nothing new, in SetTransform order."""
    done = (state.progress_of(dataset) for dataset in state.inputs)
    return tuple(
        ExecuteTransformInput(
            dataset_id=progress.dataset_id,
            prev_block_hash=progress.last_block,
            prev_offset=progress.last_offset,
        )
        for progress in done
    )


PathOf = Callable[[Multihash], str]  # local path of a slice, by its physical hash


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSource:
    """An input for the engine: its alias, its vocabulary, a file with its schema, and the paths of its slices.

    Vocabulary and schema are those after the last block that the step reads, not later ones.
    """

    alias: str
    vocab: DatasetVocabulary
    schema_file: str
    path_of: PathOf


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFiles:
    """Local paths for the engine: the previous checkpoint to read, and the new checkpoint and data to write."""

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

    `state` is the output's state before the step, `alias` names the output in logs, and `system_time` is that of
    the new block.
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
    """Return the event for a transform step that ran on top of `state`; its watermark is never lower than before.

    Raises `InvalidInput` if the offsets in the engine's response differ from those of the slice that it wrote.
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
    """Return whether an event adds nothing to `state`, so that no block is written.

    An event may contain input blocks only. The next event that adds something then names these blocks again (§5.5, 6).
    """
    return event.new_data is None and event.new_checkpoint is None and event.new_watermark is None


def is_migration(event: ExecuteTransform, replaced: SetTransform | None) -> bool:
    """Return whether an event is the migration from one query to the next (spec: Migrate Query).

    `replaced` is the transform that the previous block has replaced; None if that block is not a SetTransform. A step
    that runs a query reads new blocks of an input; a migration reads none.
    """
    return replaced is not None and all(step.new_block_hash is None for step in event.query_inputs)


def changes_nothing(state: ChainState, event: ExecuteTransform) -> bool:
    """Return whether an event without new input leaves records, checkpoint and watermark of `state` as they are."""
    checkpoint = None if event.new_checkpoint is None else event.new_checkpoint.physical_hash
    is_same = checkpoint == checkpoint_hash(state) and event.new_watermark == state.watermark
    return event.new_data is None and is_same
