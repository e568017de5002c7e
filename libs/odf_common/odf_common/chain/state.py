"""The state of a metadata chain after a block, and how the next block changes it.

Nothing is checked here: `chain/rules` checks a block before it calls `begin` or `after`. States are
cached by `dataset/state_cache.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.events import (
    AddPushSource,
    Checkpoint,
    DataEvent,
    DatasetKind,
    DatasetVocabulary,
    DisablePollingSource,
    DisablePushSource,
    ExecuteTransform,
    ExecuteTransformInput,
    KnownEvent,
    MetadataBlock,
    MetadataEvent,
    Seed,
    SetAttachments,
    SetDataSchema,
    SetInfo,
    SetLicense,
    SetPollingSource,
    SetTransform,
    SetVocab,
    SourceState,
    UnknownEvent,
    vocabulary_of,
)
from odf_common.metadata.scalars import Timestamp, UInt64, record_count

DEFAULT_SOURCE: Final = "default"  # the name under which a polling source keeps its state


@dataclass(frozen=True, slots=True, kw_only=True)
class InputProgress:
    """The last block and the last record of an input that a derivative dataset has processed."""

    dataset_id: DatasetId
    last_block: Multihash | None = None
    last_offset: UInt64 | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Definitions:
    """The current definitions of a dataset; they change rarely, so that consecutive states share one object."""

    schema: SetDataSchema | None = None
    vocab: SetVocab | None = None
    info: SetInfo | None = None
    license: SetLicense | None = None
    attachments: SetAttachments | None = None
    transform: SetTransform | None = None
    polling_source: SetPollingSource | None = None
    """The enabled polling source; None if it is disabled or was never defined."""
    push_sources: Mapping[str, AddPushSource] = field(default_factory=dict)
    """The enabled push sources, by name."""
    disabled_sources: frozenset[str] = frozenset()
    """Names of sources that were disabled and have not been replaced since."""
    has_opaque_source: bool = False
    """Whether a source was defined in a form that this version cannot read."""

    def by_kind(self) -> Mapping[type[KnownEvent], KnownEvent | None]:
        """Return the current event of each kind that a dataset can have only one of."""
        return {
            SetAttachments: self.attachments,
            SetDataSchema: self.schema,
            SetInfo: self.info,
            SetLicense: self.license,
            SetPollingSource: self.polling_source,
            SetTransform: self.transform,
            SetVocab: self.vocab,
        }

    def replaced_by(self, event: KnownEvent) -> KnownEvent | None:
        """Return the current event that `event` would replace; None if it would replace none."""
        if isinstance(event, AddPushSource):
            return self.push_sources.get(event.source_name)
        return self.by_kind().get(type(event))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainState:
    """The state of a chain after the block `head`."""

    head: Multihash
    block_version: int
    """The manifest version of the chain's first block."""
    dataset_id: DatasetId
    kind: DatasetKind
    sequence_number: int
    system_time: Timestamp
    last_offset: int | None = None
    """Offset of the last record; None if there are no records."""
    watermark: Timestamp | None = None
    checkpoint: Checkpoint | None = None
    """The checkpoint of the last event with data; None if that event has none."""
    source_states: Mapping[str, SourceState] = field(default_factory=dict)
    """The latest state of each source, by name."""
    last_source_state: SourceState | None = None
    """The source state of the last event with data; None if that event has none."""
    input_progress: tuple[InputProgress, ...] = ()
    """The progress of each input, in the order of the last transform's inputs."""
    definitions: Definitions = field(default_factory=Definitions)
    renamed_after: Multihash | None = None
    """The block before system columns were first renamed after a schema was set; None if they never were."""

    @property
    def schema(self) -> SetDataSchema | None:
        """Return the current schema of the data; None before the first SetDataSchema."""
        return self.definitions.schema

    @property
    def vocabulary(self) -> DatasetVocabulary:
        """Return the names of the system columns; names that are not set have their defaults."""
        return vocabulary_of(self.definitions.vocab)

    @property
    def info(self) -> SetInfo | None:
        """Return the latest description."""
        return self.definitions.info

    @property
    def transform(self) -> SetTransform | None:
        """Return the current transform."""
        return self.definitions.transform

    @property
    def polling_source(self) -> SetPollingSource | None:
        """Return the enabled polling source; None if it is disabled or was never defined."""
        return self.definitions.polling_source

    @property
    def push_sources(self) -> Mapping[str, AddPushSource]:
        """Return the enabled push sources, by name."""
        return self.definitions.push_sources

    @property
    def next_offset(self) -> int:
        """Return the offset of the next record."""
        return record_count(self.last_offset)

    @property
    def inputs(self) -> tuple[DatasetId, ...]:
        """Return the datasets that the transform reads, in its order; empty for a root dataset."""
        transform = self.transform
        return (
            ()
            if transform is None
            else tuple(DatasetId.parse(input_.dataset_ref) for input_ in transform.inputs)
        )

    def progress_of(self, dataset: DatasetId) -> InputProgress:
        """Return the progress of an input; an empty progress if it was not processed yet."""
        for progress in self.input_progress:
            if progress.dataset_id == dataset:
                return progress
        return InputProgress(dataset_id=dataset)


# The union has its events in the order of the FlatBuffers schema, which counts from 1: 0 is no event.
_TAGS: Final = {kind: tag for tag, kind in enumerate(KnownEvent.__args__, start=1)}


def event_tag(event: MetadataEvent) -> int:
    """Return the event's discriminator (wire-facts §1.4)."""
    return event.discriminator if isinstance(event, UnknownEvent) else _TAGS[type(event)]


def begin(block: MetadataBlock, seed: Seed, *, head: Multihash, version: int) -> ChainState:
    """Return the state of a chain that has only its first block."""
    return ChainState(
        head=head,
        block_version=version,
        dataset_id=seed.dataset_id,
        kind=seed.dataset_kind,
        sequence_number=block.sequence_number,
        system_time=block.system_time,
    )


def after(past: ChainState, block: MetadataBlock, *, head: Multihash) -> ChainState:
    """Return the state with `block` on top of `past`; `head` is the hash of the block."""
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
    """Return the progress of an input after a transform step (RFC-014)."""
    return InputProgress(
        dataset_id=step.dataset_id,
        last_block=step.prev_block_hash if step.new_block_hash is None else step.new_block_hash,
        last_offset=step.prev_offset if step.new_offset is None else step.new_offset,
    )


def _renamed_after(past: ChainState, event: SetVocab) -> Multihash | None:
    """Return the block before the first change of column names after a schema was set; `event` may be that change."""
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
