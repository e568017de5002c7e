"""The inputs of a transform step: planned from their chains, or read back from a stored event. Pure.

A stored ExecuteTransform records which half-open interval of blocks and records each input contributed (RFC-014). So
the coordinator first decides these intervals (`plan_inputs`) and reads their blocks up to a change of schema or
vocabulary (`input_until_change`); a replay starts from the stored event and reads the same blocks (`input_of`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from odf_common.chain.state import ChainState
from odf_common.errors import VerificationFailed
from odf_common.hashing.multihash import Multihash
from odf_common.identity.did import DatasetId
from odf_common.metadata.engine_messages import Watermark
from odf_common.metadata.events import (
    DataEvent,
    DataSlice,
    ExecuteTransformInput,
    OffsetInterval,
    SetDataSchema,
    SetVocab,
)
from odf_common.metadata.manifest_contents import MetadataBlock


class InputMismatch(VerificationFailed):
    """An event's record of what a transform read of an input does not match the input's chain."""

    MESSAGE = "input {dataset}: {text}"

    dataset: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSlices:
    """The contribution of one input to one transform step: slices and watermarks, oldest first."""

    step: ExecuteTransformInput
    slices: tuple[DataSlice, ...]
    offset_interval: OffsetInterval | None
    """Closed; None without new records."""
    watermarks: tuple[Watermark, ...]
    is_redefined: bool = False
    """The input's schema or vocabulary changes in this step."""


def plan_inputs(
    state: ChainState, heads: Mapping[DatasetId, ChainState]
) -> tuple[ExecuteTransformInput, ...] | None:
    """Return the data that the next transform step reads from each input, in SetTransform order.

    None if there is nothing to do.
    `heads` has the inputs' states by id. There is nothing to do without a transform, while an input has no schema, or
    if all inputs are unchanged and the output has a schema. A planned step may still contain nothing but definitions,
    which only the inputs' blocks show (`has_work`), and it may end before the heads (`input_until_change`).
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
    """Return the contribution of the blocks after `prevBlockHash` up to `newBlockHash`, oldest first, to a step.

    This is the same for a planned step and a stored event's. Raises `InputMismatch` unless the blocks contain exactly
    the records that the step names.
    """
    contents = _StepContents()
    for block in blocks:
        contents.take(block)
    return contents.input_slices(step)


def input_until_change(
    step: ExecuteTransformInput, blocks: Iterable[tuple[Multihash, MetadataBlock]]
) -> InputSlices:
    """Return the contribution of an input to a planned step, which ends before the input changes (spec: Batch step).

    `blocks` are those after `prevBlockHash` up to `newBlockHash`, oldest first, with their hashes. A block that sets
    schema or vocabulary ends the step if records or watermarks come before it, so that a request sees one schema per
    input; the next step begins with that block.
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
    """Contents of the blocks of a step."""

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
        """Return the contribution of a step of these blocks; raises `InputMismatch` unless it names their records."""
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
    """Return whether a transform has to run: for an input's records, watermarks or other columns, or a first schema."""
    return state.schema is None or any(
        input_.slices or input_.watermarks or input_.is_redefined for input_ in inputs
    )


def empty_step(state: ChainState) -> tuple[ExecuteTransformInput, ...]:
    """Return the inputs of a step without new input, in SetTransform order."""
    done = (state.progress_of(dataset) for dataset in state.inputs)
    return tuple(
        ExecuteTransformInput(
            dataset_id=progress.dataset_id,
            prev_block_hash=progress.last_block,
            prev_offset=progress.last_offset,
        )
        for progress in done
    )
