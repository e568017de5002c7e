"""What a metadata chain amounts to at one block: all that the next block is checked against or built on.

Only the values are here. How blocks change them is `chain/fold.py`; how they are stored is `dataset/state_codec.py`.
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
    KnownEvent,
    SetAttachments,
    SetDataSchema,
    SetInfo,
    SetLicense,
    SetPollingSource,
    SetTransform,
    SetVocab,
    SourceState,
)
from odf_common.metadata.scalars import Timestamp
from odf_common.metadata.vocabulary import DatasetVocabulary, vocabulary_of

DEFAULT_SOURCE: Final = "default"  # the name under which a polling source keeps its state


@dataclass(frozen=True, slots=True, kw_only=True)
class InputProgress:
    """How far an input of a derivative dataset has been processed, both ends included."""

    dataset_id: DatasetId
    last_block: Multihash | None = None
    last_offset: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Definitions:
    """What the dataset says of itself; changes seldom, so that blocks with data share one.

    `push_sources` and `polling_source` are those that take data now. `disabled_sources` names those that took
    data once and have not been replaced. `has_opaque_source`: some source was defined in a form that this
    version cannot read.
    """

    schema: SetDataSchema | None = None
    vocab: SetVocab | None = None
    info: SetInfo | None = None
    license: SetLicense | None = None
    attachments: SetAttachments | None = None
    transform: SetTransform | None = None
    polling_source: SetPollingSource | None = None
    push_sources: Mapping[str, AddPushSource] = field(default_factory=dict)
    disabled_sources: frozenset[str] = frozenset()
    has_opaque_source: bool = False

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
    """A chain folded up to and including the block `head`.

    `block_version` is the manifest version the chain began in. `last_offset` is that of the last record.
    `checkpoint` and `last_source_state` are those of the last event with data, None when it had none;
    `source_states` has the latest of every source. `input_progress` is in the order of the last transform.
    """

    head: Multihash
    block_version: int
    dataset_id: DatasetId
    kind: DatasetKind
    sequence_number: int
    system_time: Timestamp
    last_offset: int | None = None
    watermark: Timestamp | None = None
    checkpoint: Checkpoint | None = None
    source_states: Mapping[str, SourceState] = field(default_factory=dict)
    last_source_state: SourceState | None = None
    input_progress: tuple[InputProgress, ...] = ()
    definitions: Definitions = field(default_factory=Definitions)

    @property
    def schema(self) -> SetDataSchema | None:
        """Return the schema of the slices, None until there is one."""
        return self.definitions.schema

    @property
    def vocab(self) -> SetVocab | None:
        """Return the vocabulary as it was set, None where it never was."""
        return self.definitions.vocab

    @property
    def vocabulary(self) -> DatasetVocabulary:
        """Return the names of the system columns, defaults filled."""
        return vocabulary_of(self.definitions.vocab)

    @property
    def info(self) -> SetInfo | None:
        """Return the latest description."""
        return self.definitions.info

    @property
    def license(self) -> SetLicense | None:
        """Return the latest licence."""
        return self.definitions.license

    @property
    def attachments(self) -> SetAttachments | None:
        """Return the latest attachments."""
        return self.definitions.attachments

    @property
    def transform(self) -> SetTransform | None:
        """Return the transform in force."""
        return self.definitions.transform

    @property
    def polling_source(self) -> SetPollingSource | None:
        """Return the polling source in force, None also when it is disabled."""
        return self.definitions.polling_source

    @property
    def push_sources(self) -> Mapping[str, AddPushSource]:
        """Return the push sources that take data, by name."""
        return self.definitions.push_sources

    @property
    def disabled_sources(self) -> frozenset[str]:
        """Return the names of sources that take no more data."""
        return self.definitions.disabled_sources

    @property
    def next_offset(self) -> int:
        """Return the offset of the next record."""
        return 0 if self.last_offset is None else self.last_offset + 1

    @property
    def inputs(self) -> tuple[DatasetId, ...]:
        """Return the datasets that the transform reads, in its order; none for a root."""
        transform = self.transform
        return (
            () if transform is None else tuple(DatasetId.parse(one.dataset_ref) for one in transform.inputs)
        )

    def progress_of(self, dataset: DatasetId) -> InputProgress:
        """Return how far an input was processed; an empty progress for one never seen."""
        for progress in self.input_progress:
            if progress.dataset_id == dataset:
                return progress
        return InputProgress(dataset_id=dataset)
