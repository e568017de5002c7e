"""Messages of the Smart Transfer Protocol (wire-facts §8.3–8.5).

Each message is a dataclass with the fields of its JSON object; `message_json` converts between the two.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar, Final
from urllib.parse import urlsplit

from odf_common.errors import InvalidInput
from odf_common.hashing.multihash import Multihash
from odf_common.ports.store import ObjectKind

ARCHIVE_MEDIA_TYPE: Final = "application/tar+gzip"
ENCODING: Final = "raw"
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", re.ASCII)
_HEADER_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
VERSION_HEADER: Final = "x-odf-smtp-version"
VERSION: Final = 1
YES, NO = "1", "0"  # values of the headers below
# Of the server's answer to the upgrade for a push: uploads that were interrupted are continued, even of archives of
# blocks.
CONTINUES_HEADER: Final = "odf-continued-uploads"
# Of the server's answer to `refs/head`: it has signatures of the dataset's blocks, and sends them in packs. Of its
# answer to the upgrade for a push: it takes signatures, in the archive of blocks.
SIGNATURES_HEADER: Final = "odf-block-signatures"
# Of a client's request for a push: the visibility of a new dataset was chosen, and is not a default. Of the server's
# answer: a new dataset gets it, on a single-tenant node too.
CHOSEN_HEADER: Final = "odf-chosen-visibility"
# Of the server's answer to `refs/head`: whether everyone may read the dataset.
EVERYONE_HEADER: Final = "odf-public"
# Of the server's answer to `refs/head`: the URLs that an exchange gives for objects are those of the server's bucket.
DIRECT_HEADER: Final = "odf-direct-downloads"
# Objects in one list: with URLs that are signed, of up to 3 KiB, the answer has 16 MiB, which `message_json` reads.
LISTED: Final = 5_000
EXTENSION: Final[Mapping[str, bool]] = {"extension": True}  # of a field that is not in the specification


class ObjectType(StrEnum):
    """The type of an object file, as the protocol names it."""

    DATA_SLICE = "DataSlice"
    CHECKPOINT = "Checkpoint"

    @property
    def kind(self) -> ObjectKind:
        """Return the object kind, which is the object's folder in a repository."""
        return ObjectKind.DATA if self is ObjectType.DATA_SLICE else ObjectKind.CHECKPOINT

    @classmethod
    def for_kind(cls, kind: ObjectKind) -> "ObjectType":
        """Return the object type for an object kind."""
        return cls.DATA_SLICE if kind is ObjectKind.DATA else cls.CHECKPOINT


class DatasetVisibility(StrEnum):
    """The visibility of a dataset that a push creates."""

    PRIVATE = "Private"
    PUBLIC = "Public"

    @classmethod
    def _missing_(cls, value: object) -> "DatasetVisibility | None":
        return next((member for member in cls if member.value.lower() == str(value)), None)


class Phase(StrEnum):
    """The step in which an internal error occurred, as `Pull/<step>` or `Push/<step>`."""

    PULL_INITIAL = "Pull/InitialRequest"
    PULL_METADATA = "Pull/MetadataRequest"
    PULL_OBJECTS = "Pull/ObjectsRequest"
    PUSH_INITIAL = "Push/InitialRequest"
    PUSH_METADATA = "Push/MetadataRequest"
    PUSH_OBJECTS = "Push/ObjectsRequest"
    PUSH_TARGET = "Push/EnsuringTargetExists"
    PUSH_UPLOADS = "Push/ObjectsUploadProgress"
    PUSH_COMPLETE = "Push/CompleteRequest"


class PullStrategy(StrEnum):
    """The method for downloading an object."""

    HTTP_DOWNLOAD = "HttpDownload"


class PushStrategy(StrEnum):
    """The method for uploading an object, or that the upload is skipped."""

    SKIP_UPLOAD = "SkipUpload"
    HTTP_UPLOAD = "HttpUpload"


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferPlan:
    """The totals of a range: its blocks, the objects that they refer to, and records.

    Objects are counted whether or not the receiver has them already.
    """

    num_blocks: int = 0
    num_objects: int = 0
    num_records: int = 0
    bytes_in_raw_blocks: int = 0
    bytes_in_raw_objects: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BlocksBatch:
    """Blocks as a gzipped tar (`archive`)."""

    num_blocks: int
    media_type: str = ARCHIVE_MEDIA_TYPE
    encoding: str = ENCODING
    payload: bytes
    archive: Multihash | None = field(default=None, metadata=EXTENSION)
    """The hash of the archive if it was uploaded separately; the payload is then empty."""

    def __post_init__(self) -> None:
        """Raise `InvalidInput` unless the media type and encoding are the supported ones."""
        if (self.media_type, self.encoding) != (ARCHIVE_MEDIA_TYPE, ENCODING):
            text = f"expected {ARCHIVE_MEDIA_TYPE} ({ENCODING}), got {self.media_type} ({self.encoding})"
            raise InvalidInput(text=text, where="blocks")


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectFile:
    """A data slice or checkpoint; `size` is in bytes."""

    object_type: ObjectType
    physical_hash: Multihash
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpHeader:
    """A header to send with the request that uploads or downloads an object."""

    name: str
    value: str

    def __post_init__(self) -> None:
        """Raise `InvalidInput` unless name and value are valid: a line break could add another header."""
        if _HEADER_NAME.fullmatch(self.name) is None or _HEADER_VALUE.fullmatch(self.value) is None:
            raise InvalidInput(text=f"not a header: {self.name[:80]!r}", where="headers")


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferUrl:
    """The URL for the upload or download of an object."""

    url: str
    headers: tuple[HttpHeader, ...] = ()
    expires_at: str | None = None
    """The time at which the URL expires, in RFC 3339; None if it does not expire."""

    def __post_init__(self) -> None:
        """Raise `InvalidInput` unless `url` is an HTTP or HTTPS URL."""
        try:
            parts = urlsplit(self.url)
            is_http = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            is_http = False
        if not is_http:
            raise InvalidInput(text=f"expected an HTTP URL, got {self.url[:200]!r}", where="url")


@dataclass(frozen=True, slots=True, kw_only=True)
class Download:
    """Instructions for the download of one object."""

    object_file: ObjectFile
    pull_strategy: PullStrategy = PullStrategy.HTTP_DOWNLOAD
    download_from: TransferUrl


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """Instructions for the upload of one object; `upload_to` is None if the receiver has the object already."""

    object_file: ObjectFile
    push_strategy: PushStrategy
    upload_to: TransferUrl | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PullRequest:
    """The client requests the blocks after `begin_after` up to `stop_at`.

    If `begin_after` is None, from the first block of the chain; if `stop_at` is None, up to the head.
    """

    begin_after: Multihash | None = None
    stop_at: Multihash | None = None
    force_update_if_diverged: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PullAccepted:
    """The server accepts the pull; `transfer_plan` has the totals of the requested range."""

    is_result: ClassVar = True
    transfer_plan: TransferPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataRequest:
    """The client requests the blocks of the range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataReply:
    """The server sends the blocks of the range."""

    blocks: BlocksBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadsRequest:
    """The client requests URLs for the download of these objects."""

    object_files: tuple[ObjectFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadsReply:
    """The server's download instructions for the objects, in the order of the request."""

    object_transfer_strategies: tuple[Download, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PushRequest:
    """The client requests to push blocks that follow `current_head`, which it assumes to be the server's head.

    If `current_head` is None, the dataset is new on the server.
    """

    current_head: Multihash | None = None
    transfer_plan: TransferPlan
    force_update_if_diverged: bool
    visibility_for_created_dataset: DatasetVisibility


@dataclass(frozen=True, slots=True, kw_only=True)
class PushAccepted:
    """The server accepts the push; its head is the client's `current_head`."""

    is_result: ClassVar = True


@dataclass(frozen=True, slots=True, kw_only=True)
class NewBlocks:
    """The client sends the blocks of the push."""

    new_blocks: BlocksBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class BlocksAccepted:
    """The server has accepted the blocks."""

    is_result: ClassVar = True


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadsRequest:
    """The client requests URLs for the upload of these objects; if `is_truncated`, another such request follows."""

    object_files: tuple[ObjectFile, ...]
    is_truncated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadsReply:
    """The server's upload instructions for the objects."""

    is_result: ClassVar = True
    object_transfer_strategies: tuple[Upload, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressRequest:
    """The server asks how many objects have been uploaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadsRunning:
    """The client reports how many objects of the latest list it has uploaded."""

    uploaded_objects_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadsComplete:
    """The client reports that all objects of the latest list have been uploaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompleteRequest:
    """The client requests that the server moves the head to the last pushed block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PushConfirmed:
    """The server has moved the head."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedBlockOverwriteRestricted:
    """A forced transfer would replace a dataset with one of another id or kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Internal:
    """An internal error of the server, or a fault that has no type of its own."""

    phase: Phase
    error_message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InvalidInterval:
    """The block `tail` is not an ancestor of `head`."""

    head: Multihash
    tail: Multihash


@dataclass(frozen=True, slots=True, kw_only=True)
class InvalidHead:
    """The server's head is `expected_head`, and not the client's `actual_head`."""

    actual_head: Multihash | None = None
    expected_head: Multihash | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RefCollision:
    """The server has this dataset under another name."""

    dataset_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NameCollision:
    """The server has another dataset under this name."""

    dataset_alias: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownFault:
    """A fault of a type that this node does not know."""

    text: str
    """The fault as JSON."""


Fault = (
    SeedBlockOverwriteRestricted
    | Internal
    | InvalidInterval
    | InvalidHead
    | RefCollision
    | NameCollision
    | UnknownFault
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """The server refuses a request; takes the place of any of its answers."""

    fault: Fault


Message = (
    PullRequest
    | PullAccepted
    | MetadataRequest
    | MetadataReply
    | DownloadsRequest
    | DownloadsReply
    | PushRequest
    | PushAccepted
    | NewBlocks
    | BlocksAccepted
    | UploadsRequest
    | UploadsReply
    | ProgressRequest
    | UploadsRunning
    | UploadsComplete
    | CompleteRequest
    | PushConfirmed
    | Refusal
)
