"""What a transform sees of its inputs: planned on their chains, and read again from what a stored event says. Pure.

A stored ExecuteTransform says of each input which half-open interval of blocks and records it saw (RFC-014). So the
coordinator first decides these intervals (`plan_inputs`) and reads their blocks as far as the input stays what it is
(`input_until_change`); who replays starts from the stored event and reads the same blocks (`input_of`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from odf_common.chain.state import ChainState
from odf_common.errors import VerificationFailed
from odf_common.hashing.multihash import Multihash
from odf_common.identity.did import DatasetId
from odf_common.metadata.block import MetadataBlock
from odf_common.metadata.engine import Watermark
from odf_common.metadata.events import (
    AddData,
    DataSlice,
    ExecuteTransform,
    ExecuteTransformInput,
    OffsetInterval,
    SetDataSchema,
    SetVocab,
)


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

    `offset_interval` is closed, None without new records. `is_redefined`: it has another schema or vocabulary now.
    """

    step: ExecuteTransformInput
    slices: tuple[DataSlice, ...]
    offset_interval: OffsetInterval | None
    watermarks: tuple[Watermark, ...]
    is_redefined: bool = False


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
    for dataset in state.inputs:
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
    seen = _Seen()
    for block in blocks:
        seen.take(block)
    return seen.brought(step)


def input_until_change(
    step: ExecuteTransformInput, blocks: Iterable[tuple[Multihash, MetadataBlock]]
) -> InputSlices:
    """Return what an input brings to a planned step, which ends before the input changes (spec: Batch step).

    `blocks` are those after `prevBlockHash` up to `newBlockHash`, oldest first, with their hashes. A block that sets
    schema or vocabulary ends the step if there are records or watermarks before it, so that one request sees one
    schema of each input; the next step begins with it.
    """
    seen = _Seen()
    last = step.prev_block_hash
    has_schema = last is not None  # no step is planned before there is one
    for name, block in blocks:
        if has_schema and _redefines(block) and (seen.slices or seen.watermarks):
            break
        has_schema = has_schema or isinstance(block.event, SetDataSchema)
        seen.take(block)
        last = name
    cut = replace(
        step,
        new_block_hash=None if last == step.prev_block_hash else last,
        new_offset=seen.slices[-1].offset_interval.end if seen.slices else None,
    )
    return seen.brought(cut)


@dataclass(slots=True)
class _Seen:
    """What the blocks of a step hold."""

    slices: list[DataSlice] = field(default_factory=list)
    watermarks: list[Watermark] = field(default_factory=list)
    is_redefined: bool = False

    def take(self, block: MetadataBlock) -> None:
        """Add a block, the next one."""
        event = block.event
        self.is_redefined = self.is_redefined or _redefines(block)
        if not isinstance(event, (AddData, ExecuteTransform)):
            return
        if event.new_data is not None:
            self.slices.append(event.new_data)
        if event.new_watermark is not None:
            self.watermarks.append(Watermark(system_time=block.system_time, event_time=event.new_watermark))

    def brought(self, step: ExecuteTransformInput) -> InputSlices:
        """Return what a step brings that says that it saw these blocks; raises `InputMismatch` where it did not."""
        before = -1 if step.prev_offset is None else step.prev_offset
        last = before if step.new_offset is None else step.new_offset
        first = self.slices[0].offset_interval.start if self.slices else before + 1
        end = self.slices[-1].offset_interval.end if self.slices else before
        if (first, end) != (before + 1, last):
            text = f"the transform saw offsets {before + 1}–{last}, the blocks hold {first}–{end}"
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
    """Tell whether a transform is to run: an input has records, watermarks or other columns, or there is no schema."""
    return state.schema is None or any(one.slices or one.watermarks or one.is_redefined for one in inputs)


def empty_step(state: ChainState) -> tuple[ExecuteTransformInput, ...]:
    """Return the inputs of a step that sees nothing new of any, in SetTransform order."""
    done = (state.progress_of(dataset) for dataset in state.inputs)
    return tuple(
        ExecuteTransformInput(
            dataset_id=one.dataset_id, prev_block_hash=one.last_block, prev_offset=one.last_offset
        )
        for one in done
    )
