"""The fold of a chain: how each block changes the state on which the next one is admitted.

Nothing is checked here; `chain/rules` checks before it calls `begin` and `after`.
"""

from dataclasses import replace
from typing import Final

from odf_common.chain.state import DEFAULT_SOURCE, ChainState, Definitions, InputProgress
from odf_common.hashing.multihash import Multihash
from odf_common.metadata.events import (
    AddPushSource,
    DataEvent,
    DisablePollingSource,
    DisablePushSource,
    ExecuteTransform,
    ExecuteTransformInput,
    KnownEvent,
    MetadataEvent,
    Seed,
    SetAttachments,
    SetDataSchema,
    SetInfo,
    SetLicense,
    SetPollingSource,
    SetTransform,
    SetVocab,
    UnknownEvent,
    vocabulary_of,
)
from odf_common.metadata.manifest_contents import MetadataBlock

# The union has its events in the order of the FlatBuffers schema, which counts from 1: 0 is no event.
_TAGS: Final = {kind: tag for tag, kind in enumerate(KnownEvent.__args__, start=1)}


def event_tag(event: MetadataEvent) -> int:
    """Return the event's discriminator (wire-facts §1.4)."""
    return event.discriminator if isinstance(event, UnknownEvent) else _TAGS[type(event)]


def begin(block: MetadataBlock, seed: Seed, *, head: Multihash, version: int) -> ChainState:
    """Return the state of a chain with only its first block."""
    return ChainState(
        head=head,
        block_version=version,
        dataset_id=seed.dataset_id,
        kind=seed.dataset_kind,
        sequence_number=block.sequence_number,
        system_time=block.system_time,
    )


def after(past: ChainState, block: MetadataBlock, *, head: Multihash) -> ChainState:
    """Return the state with `block` on top; `head` is the block's hash."""
    # Written out field by field, since this is hot, and `replace` collects all fields by name first.
    last_offset = past.last_offset
    watermark = past.watermark
    checkpoint = past.checkpoint
    source_states = past.source_states
    last_source_state = past.last_source_state
    input_progress = past.input_progress
    definitions = past.definitions
    event = block.event
    if isinstance(event, DataEvent):
        if event.new_data is not None:
            last_offset = event.new_data.offset_interval.end
        # An event with data states both whether they changed or not, so nothing is kept: an absent checkpoint is none.
        watermark = event.new_watermark
        checkpoint = event.new_checkpoint
        if isinstance(event, ExecuteTransform):
            # The event names every input of the transform (a rule), so nothing of the earlier progress has to be kept.
            input_progress = tuple(progress_after(step) for step in event.query_inputs)
        else:
            last_source_state = event.new_source_state
            if last_source_state is not None:
                source_states = {**source_states, last_source_state.source_name: last_source_state}
    else:
        definitions = _redefine(definitions, event)
    return ChainState(
        head=head,
        block_version=past.block_version,
        dataset_id=past.dataset_id,
        kind=past.kind,
        sequence_number=block.sequence_number,
        system_time=block.system_time,
        last_offset=last_offset,
        watermark=watermark,
        checkpoint=checkpoint,
        source_states=source_states,
        last_source_state=last_source_state,
        input_progress=input_progress,
        definitions=definitions,
        renamed_after=_renamed_after(past, event) if isinstance(event, SetVocab) else past.renamed_after,
    )


def progress_after(step: ExecuteTransformInput) -> InputProgress:
    """Return the progress of an input after a transform step that read `step` of it (RFC-014)."""
    return InputProgress(
        dataset_id=step.dataset_id,
        last_block=step.prev_block_hash if step.new_block_hash is None else step.new_block_hash,
        last_offset=step.prev_offset if step.new_offset is None else step.new_offset,
    )


def _renamed_after(past: ChainState, event: SetVocab) -> Multihash | None:
    """Return the block before the first event, up to this one, that renames columns that a schema has."""
    if past.renamed_after is not None or past.schema is None or vocabulary_of(event) == past.vocabulary:
        return past.renamed_after
    return past.head


def _redefine(past: Definitions, event: MetadataEvent) -> Definitions:
    match event:
        case SetDataSchema():
            return replace(past, schema=event)
        case SetVocab():
            return replace(past, vocab=event)
        case SetInfo():
            return replace(past, info=event)
        case SetLicense():
            return replace(past, license=event)
        case SetAttachments():
            return replace(past, attachments=event)
        case SetTransform():
            return replace(past, transform=event)
        case _:
            return _redefine_sources(past, event)


def _redefine_sources(past: Definitions, event: MetadataEvent) -> Definitions:
    disabled = past.disabled_sources
    match event:
        case SetPollingSource():
            return replace(past, polling_source=event, disabled_sources=disabled - {DEFAULT_SOURCE})
        case DisablePollingSource():
            return replace(past, polling_source=None, disabled_sources=disabled | {DEFAULT_SOURCE})
        case AddPushSource(source_name=name):
            sources = {**past.push_sources, name: event}
            return replace(past, push_sources=sources, disabled_sources=disabled - {name})
        case DisablePushSource(source_name=name):
            rest = {other: source for other, source in past.push_sources.items() if other != name}
            return replace(past, push_sources=rest, disabled_sources=disabled | {name})
        case UnknownEvent(discriminator=tag) if tag in (_TAGS[SetPollingSource], _TAGS[AddPushSource]):
            # It may replace any of the earlier sources, so none of them may be used any more.
            return replace(past, polling_source=None, push_sources={}, has_opaque_source=True)
        case _:
            return past
