"""The metadata events and their fragments, the block around an event, and the other contents of manifests.

The order of fields is slot order, the order of union members is discriminator order (spec: Metadata Events, Fragments,
Manifests; wire-facts §1.4–1.6). The module also has the names of the system columns (spec: DatasetVocabulary).
"""

from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Final

from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.data_schema import DataSchema
from odf_common.metadata.fetching import FetchStep, PrepStep
from odf_common.metadata.scalars import ExtraAttributes, Strings, Timestamp, UInt64

# --- Read ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadStepCsv:
    """Delimiter-separated text."""

    ddl_schema: Strings | None = None
    separator: str | None = None
    encoding: str | None = None
    quote: str | None = None
    escape: str | None = None
    header: bool | None = None
    infer_schema: bool | None = None
    null_value: str | None = None
    date_format: str | None = None
    timestamp_format: str | None = None
    schema: DataSchema | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadStepGeoJson:
    """A GeoJSON FeatureCollection."""

    ddl_schema: Strings | None = None
    schema: DataSchema | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadStepEsriShapefile:
    """An ESRI shapefile; `sub_path` is its path in the archive."""

    ddl_schema: Strings | None = None
    sub_path: str | None = None
    schema: DataSchema | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadStepParquet:
    """A Parquet file."""

    ddl_schema: Strings | None = None
    schema: DataSchema | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadStepJson:
    """A JSON array of objects; `sub_path` is its place in the document."""

    sub_path: str | None = None
    ddl_schema: Strings | None = None
    date_format: str | None = None
    encoding: str | None = None
    timestamp_format: str | None = None
    schema: DataSchema | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadStepNdJson:
    """One JSON object per line."""

    ddl_schema: Strings | None = None
    date_format: str | None = None
    encoding: str | None = None
    timestamp_format: str | None = None
    schema: DataSchema | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadStepNdGeoJson:
    """One GeoJSON Feature per line."""

    ddl_schema: Strings | None = None
    schema: DataSchema | None = None


ReadStep = (
    ReadStepCsv
    | ReadStepGeoJson
    | ReadStepEsriShapefile
    | ReadStepParquet
    | ReadStepJson
    | ReadStepNdJson
    | ReadStepNdGeoJson
)

# --- Transform ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlQueryStep:
    """A query with an alias; without an alias, it is the output of the transform."""

    alias: str | None = None
    query: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TemporalTable:
    """An input that a query can join as of a given time."""

    name: str
    primary_key: Strings


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformSql:
    """SQL for one engine; in normalized form, `query` is absent and the last of `queries` has no alias."""

    engine: str
    version: str | None = None
    query: str | None = None
    queries: tuple[SqlQueryStep, ...] | None = None
    temporal_tables: tuple[TemporalTable, ...] | None = None


Transform = TransformSql

# --- Merge --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeStrategyAppend:
    """Every record is new."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeStrategyLedger:
    """Records whose primary key was seen before are dropped."""

    primary_key: Strings


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeStrategySnapshot:
    """Each batch is the complete state; the changes since the previous batch are recorded."""

    primary_key: Strings
    compare_columns: Strings | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeStrategyChangelogStream:
    """Records carry their own operation type."""

    primary_key: Strings


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeStrategyUpsertStream:
    """A record replaces the previous record with the same primary key."""

    primary_key: Strings


MergeStrategy = (
    MergeStrategyAppend
    | MergeStrategyLedger
    | MergeStrategySnapshot
    | MergeStrategyChangelogStream
    | MergeStrategyUpsertStream
)


class DatasetKind(IntEnum):
    """Root datasets ingest data from sources; derivative datasets compute their data from other datasets."""

    Root = 0
    Derivative = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetInterval:
    """An interval of record offsets, including its end."""

    start: UInt64
    end: UInt64

    @property
    def records(self) -> int:
        """Return the number of records."""
        return self.end - self.start + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSlice:
    """An immutable Parquet file of records; `size` is in bytes."""

    logical_hash: Multihash
    physical_hash: Multihash
    offset_interval: OffsetInterval
    size: UInt64


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The state with which an engine continues a transform; `size` is in bytes."""

    physical_hash: Multihash
    size: UInt64


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceState:
    """The position up to which a source has been read."""

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
    """A step of a derivative dataset's transform was executed."""

    query_inputs: tuple[ExecuteTransformInput, ...]
    prev_checkpoint: Multihash | None = None
    prev_offset: UInt64 | None = None
    new_data: DataSlice | None = None
    new_checkpoint: Checkpoint | None = None
    new_watermark: Timestamp | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Seed:
    """The identity of the dataset; always the first event."""

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
    """Schema of the data slices that follow: Arrow IPC bytes (0.34.1), or an ODF schema (0.37+)."""

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
    """A push source is disabled and accepts no more data."""

    source_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DisablePollingSource:
    """The polling source is disabled and fetches no more data."""


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

    FlatBuffers does not record where a table ends, so the bytes are those of the whole `MetadataBlock`, or of the
    wrapper of a single event. They allow the event to be copied, but only to the same place.
    """

    discriminator: int
    reason: str
    raw: bytes = b""


MetadataEvent = KnownEvent | UnknownEvent
DataEvent = AddData | ExecuteTransform  # what brings records, checkpoints and watermarks


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetVocabulary:
    """The names of the four system columns; names that are not set have their defaults."""

    offset_column: str = "offset"
    operation_type_column: str = "op"
    system_time_column: str = "system_time"
    event_time_column: str = "event_time"


def vocabulary_of(event: SetVocab | None) -> DatasetVocabulary:
    """Return the names that `event` sets, with defaults for names that are not set."""
    if event is None:
        return DatasetVocabulary()
    names = {f.name: getattr(event, f.name) for f in fields(event)}
    return DatasetVocabulary(**{name: value for name, value in names.items() if value is not None})


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataBlock:
    """A block of the chain: an event, its time, and the hash of the previous block."""

    system_time: Timestamp
    prev_block_hash: Multihash | None = None
    sequence_number: UInt64
    event: MetadataEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetSnapshot:
    """The name, kind and first events of a dataset; `name` is an alias as the user wrote it."""

    name: str
    kind: DatasetKind
    metadata: tuple[KnownEvent, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """A repository, given by the URL below which its datasets are."""

    url: str
