"""The state of a metadata chain at one block: all that the next block is checked against or built on.

Only the values are defined here: `chain/fold.py` computes them, `dataset/state_codec.py` stores them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from odf_common.hashing.multihash import Multihash
from odf_common.identity.did import DatasetId
from odf_common.metadata.events import (
    AddPushSource,
    Checkpoint,
    DatasetKind,
    DatasetVocabulary,
    KnownEvent,
    SetAttachments,
    SetDataSchema,
    SetInfo,
    SetLicense,
    SetPollingSource,
    SetTransform,
    SetVocab,
    SourceState,
    vocabulary_of,
)
from odf_common.metadata.scalars import Timestamp, UInt64, record_count

DEFAULT_SOURCE: Final = "default"  # the name under which a polling source keeps its state


@dataclass(frozen=True, slots=True, kw_only=True)
class InputProgress:
    """Progress of an input of a derivative dataset, up to and including these."""

    dataset_id: DatasetId
    last_block: Multihash | None = None
    last_offset: UInt64 | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Definitions:
    """The current definitions of a dataset; they change seldom, so blocks with data share one value."""

    schema: SetDataSchema | None = None
    vocab: SetVocab | None = None
    info: SetInfo | None = None
    license: SetLicense | None = None
    attachments: SetAttachments | None = None
    transform: SetTransform | None = None
    polling_source: SetPollingSource | None = None
    """None even if it is disabled."""
    push_sources: Mapping[str, AddPushSource] = field(default_factory=dict)
    """The enabled ones, by name."""
    disabled_sources: frozenset[str] = frozenset()
    """Sources that were disabled and have not been replaced."""
    has_opaque_source: bool = False
    """A source was defined in a form that this version cannot read."""

    def by_kind(self) -> Mapping[type[KnownEvent], KnownEvent | None]:
        """Return the current event of each kind of which a dataset has at most one."""
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
        """Return the current event that `event` would replace; None if there is none."""
        if isinstance(event, AddPushSource):
            return self.push_sources.get(event.source_name)
        return self.by_kind().get(type(event))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainState:
    """A chain folded up to and including the block `head`."""

    head: Multihash
    block_version: int
    """The manifest version that the chain began with."""
    dataset_id: DatasetId
    kind: DatasetKind
    sequence_number: int
    system_time: Timestamp
    last_offset: int | None = None
    """The offset of the last record."""
    watermark: Timestamp | None = None
    checkpoint: Checkpoint | None = None
    """Of the last event with data, None if it had none."""
    source_states: Mapping[str, SourceState] = field(default_factory=dict)
    """The latest state of every source."""
    last_source_state: SourceState | None = None
    """Of the last event with data, None if it had none."""
    input_progress: tuple[InputProgress, ...] = ()
    """In the order of the last transform's inputs."""
    definitions: Definitions = field(default_factory=Definitions)
    renamed_after: Multihash | None = None
    """The block before the first that names system columns otherwise than the schema before it; None without one."""

    @property
    def schema(self) -> SetDataSchema | None:
        """Return the schema of the slices, None before the first SetDataSchema."""
        return self.definitions.schema

    @property
    def vocabulary(self) -> DatasetVocabulary:
        """Return the names of the system columns, with defaults for missing ones."""
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
        """Return the current polling source, None even if it is disabled."""
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
        """Return the progress of an input; an empty progress if it was never processed."""
        for progress in self.input_progress:
            if progress.dataset_id == dataset:
                return progress
        return InputProgress(dataset_id=dataset)
