"""The thirteen metadata events in the order of their discriminators (spec: Metadata Events; wire-facts §1.4–1.5).

Also the names of the system columns, with which they are read (spec: DatasetVocabulary).
"""

from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Final

from odf_common.hashing.multihash import Multihash
from odf_common.identity.did import DatasetId
from odf_common.metadata.data_schema import DataSchema
from odf_common.metadata.fetching import FetchStep, PrepStep
from odf_common.metadata.scalars import ExtraAttributes, Timestamp, UInt64
from odf_common.metadata.steps import MergeStrategy, ReadStep, Strings, Transform


class DatasetKind(IntEnum):
    """Root datasets ingest data from sources, derivative ones compute theirs from other datasets."""

    Root = 0
    Derivative = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetInterval:
    """Closed interval of record offsets."""

    start: UInt64
    end: UInt64

    @property
    def records(self) -> int:
        """Return the number of records."""
        return self.end - self.start + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSlice:
    """One immutable Parquet file of records; `size` in bytes."""

    logical_hash: Multihash
    physical_hash: Multihash
    offset_interval: OffsetInterval
    size: UInt64


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The state that an engine needs to continue; `size` in bytes."""

    physical_hash: Multihash
    size: UInt64


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceState:
    """The position of a source."""

    source_name: str
    kind: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AddData:
    """Data was ingested into a root dataset."""

    prev_checkpoint: Multihash | None = None
    prev_offset: UInt64 | None = None
    new_data: DataSlice | None = None
    new_checkpoint: Checkpoint | None = None
    new_watermark: Timestamp | None = None
    new_source_state: SourceState | None = None
    extra: ExtraAttributes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecuteTransformInput:
    """The data that a transform read from one input: half-open intervals of blocks and offsets (RFC-014)."""

    dataset_id: DatasetId
    prev_block_hash: Multihash | None = None
    new_block_hash: Multihash | None = None
    prev_offset: UInt64 | None = None
    new_offset: UInt64 | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecuteTransform:
    """A step of a derivative's transform was executed."""

    query_inputs: tuple[ExecuteTransformInput, ...]
    prev_checkpoint: Multihash | None = None
    prev_offset: UInt64 | None = None
    new_data: DataSlice | None = None
    new_checkpoint: Checkpoint | None = None
    new_watermark: Timestamp | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Seed:
    """The dataset's identity; always the first event."""

    dataset_id: DatasetId
    dataset_kind: DatasetKind


@dataclass(frozen=True, slots=True, kw_only=True)
class SetPollingSource:
    """Definition of a source whose data this node fetches."""

    fetch: FetchStep
    prepare: tuple[PrepStep, ...] | None = None
    read: ReadStep
    preprocess: Transform | None = None
    merge: MergeStrategy


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformInput:
    """An input of a transform; `alias` is its name in SQL."""

    dataset_ref: str
    alias: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SetTransform:
    """The query that computes a derivative dataset."""

    inputs: tuple[TransformInput, ...]
    transform: Transform


@dataclass(frozen=True, slots=True, kw_only=True)
class SetVocab:
    """Names of the system columns."""

    offset_column: str | None = None
    operation_type_column: str | None = None
    system_time_column: str | None = None
    event_time_column: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachmentEmbedded:
    """A file stored in the chain."""

    path: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachmentsEmbedded:
    """Files stored in the chain."""

    items: tuple[AttachmentEmbedded, ...]


Attachments = AttachmentsEmbedded


@dataclass(frozen=True, slots=True, kw_only=True)
class SetAttachments:
    """Files attached to the dataset."""

    attachments: Attachments


@dataclass(frozen=True, slots=True, kw_only=True)
class SetInfo:
    """Description and keywords of the dataset."""

    description: str | None = None
    keywords: Strings | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SetLicense:
    """The licence of the data."""

    short_name: str
    name: str
    spdx_id: str | None = None
    website_url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SetDataSchema:
    """Schema of the following slices: Arrow IPC bytes (0.34.1), or an ODF schema (0.37+)."""

    raw_arrow_schema: bytes | None = None
    schema: DataSchema | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPushSource:
    """Definition of a source whose data is pushed."""

    source_name: str
    read: ReadStep
    preprocess: Transform | None = None
    merge: MergeStrategy


@dataclass(frozen=True, slots=True, kw_only=True)
class DisablePushSource:
    """A push source is disabled: it takes no more data."""

    source_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DisablePollingSource:
    """The polling source is disabled: it takes no more data."""


KnownEvent = (
    AddData
    | ExecuteTransform
    | Seed
    | SetPollingSource
    | SetTransform
    | SetVocab
    | SetAttachments
    | SetInfo
    | SetLicense
    | SetDataSchema
    | AddPushSource
    | DisablePushSource
    | DisablePollingSource
)
ROOT_ONLY: Final = (AddData, SetPollingSource, AddPushSource, DisablePushSource, DisablePollingSource)
DERIVATIVE_ONLY: Final = (ExecuteTransform, SetTransform)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownEvent:
    """An event that this version cannot read: its discriminator, the reason, and the buffer that contains it.

    A table's end is not recorded, so its bytes are those of the whole `MetadataBlock`, or of the wrapper of a single
    event. With them the event can be copied, but only in the same place.
    """

    discriminator: int
    reason: str
    raw: bytes = b""


MetadataEvent = KnownEvent | UnknownEvent
DataEvent = AddData | ExecuteTransform  # what brings records, checkpoints and watermarks


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetVocabulary:
    """The names of the four system columns, with defaults for missing ones."""

    offset_column: str = "offset"
    operation_type_column: str = "op"
    system_time_column: str = "system_time"
    event_time_column: str = "event_time"


def vocabulary_of(event: SetVocab | None) -> DatasetVocabulary:
    """Return the names that `event` sets, with defaults for missing ones."""
    if event is None:
        return DatasetVocabulary()
    names = {f.name: getattr(event, f.name) for f in fields(event)}
    return DatasetVocabulary(**{name: value for name, value in names.items() if value is not None})
