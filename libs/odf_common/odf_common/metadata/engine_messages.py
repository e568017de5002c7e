"""Messages of the engine contract (spec: Engine Protocol; wire-facts §1.5 rows 50–63, §7)."""

from dataclasses import dataclass

from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.events import DatasetVocabulary, OffsetInterval, Transform
from odf_common.metadata.scalars import Strings, Timestamp, UInt64


@dataclass(frozen=True, slots=True, kw_only=True)
class RawQueryRequest:
    """A request to preprocess one batch; the query reads the files as table `input`."""

    input_data_paths: Strings
    transform: Transform
    output_data_path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RawQueryResponseProgress:
    """The request is still being processed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RawQueryResponseSuccess:
    """The request succeeded, and `num_records` records were written."""

    num_records: UInt64


@dataclass(frozen=True, slots=True, kw_only=True)
class RawQueryResponseInvalidQuery:
    """The query is invalid."""

    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RawQueryResponseInternalError:
    """The engine failed."""

    message: str
    backtrace: str | None = None


RawQueryResponse = (
    RawQueryResponseProgress
    | RawQueryResponseSuccess
    | RawQueryResponseInvalidQuery
    | RawQueryResponseInternalError
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RawQueryResponseRoot:
    """The root table of a response, since a union cannot be a root."""

    value: RawQueryResponse


@dataclass(frozen=True, slots=True, kw_only=True)
class Watermark:
    """A watermark, and the system time of the block that set it."""

    system_time: Timestamp
    event_time: Timestamp


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformRequestInput:
    """New slices and watermarks of one input; `offset_interval` includes its end, None if there are no new records."""

    dataset_id: DatasetId
    dataset_alias: str
    query_alias: str
    vocab: DatasetVocabulary
    offset_interval: OffsetInterval | None = None
    data_paths: Strings
    schema_file: str
    explicit_watermarks: tuple[Watermark, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformRequest:
    """A request to execute the next step of a transform."""

    dataset_id: DatasetId
    dataset_alias: str
    system_time: Timestamp
    vocab: DatasetVocabulary
    transform: Transform
    query_inputs: tuple[TransformRequestInput, ...]
    next_offset: UInt64
    prev_checkpoint_path: str | None = None
    new_checkpoint_path: str
    new_data_path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformResponseProgress:
    """The request is still being processed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformResponseSuccess:
    """The request succeeded; the offset interval includes its end, None if there are no new records."""

    new_offset_interval: OffsetInterval | None = None
    new_watermark: Timestamp | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformResponseInvalidQuery:
    """The query is invalid."""

    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformResponseInternalError:
    """The engine failed."""

    message: str
    backtrace: str | None = None


TransformResponse = (
    TransformResponseProgress
    | TransformResponseSuccess
    | TransformResponseInvalidQuery
    | TransformResponseInternalError
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformResponseRoot:
    """The root table of a response, since a union cannot be a root."""

    value: TransformResponse
