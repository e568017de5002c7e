"""Messages of the Smart Transfer Protocol (wire-facts §8.3–8.5).

A message is a dataclass whose fields are those of its JSON object; `message_json` reads and writes that.
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
    """The kind of an object file."""

    DATA_SLICE = "DataSlice"
    CHECKPOINT = "Checkpoint"

    @property
    def kind(self) -> ObjectKind:
        """Return the folder of such objects."""
        return ObjectKind.DATA if self is ObjectType.DATA_SLICE else ObjectKind.CHECKPOINT

    @classmethod
    def for_kind(cls, kind: ObjectKind) -> "ObjectType":
        """Return the type of the objects in a folder."""
        return cls.DATA_SLICE if kind is ObjectKind.DATA else cls.CHECKPOINT


class DatasetVisibility(StrEnum):
    """The readers of a dataset that a push creates."""

    PRIVATE = "Private"
    PUBLIC = "Public"

    @classmethod
    def _missing_(cls, value: object) -> "DatasetVisibility | None":
        return next((member for member in cls if member.value.lower() == str(value)), None)


class Phase(StrEnum):
    """The step in which an internal error occurred: `Pull` or `Push`, and its name."""

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
    """The way in which an object is fetched."""

    HTTP_DOWNLOAD = "HttpDownload"


class PushStrategy(StrEnum):
    """Whether an object is sent, and how."""

    SKIP_UPLOAD = "SkipUpload"
    HTTP_UPLOAD = "HttpUpload"


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferPlan:
    """Totals of the blocks of a range and of the objects that they name, whether the receiver has them or not."""

    num_blocks: int = 0
    num_objects: int = 0
    num_records: int = 0
    bytes_in_raw_blocks: int = 0
    bytes_in_raw_objects: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BlocksBatch:
    """Blocks in an archive (`archive`)."""

    num_blocks: int
    media_type: str = ARCHIVE_MEDIA_TYPE
    encoding: str = ENCODING
    payload: bytes
    archive: Multihash | None = field(default=None, metadata=EXTENSION)
    """The hash of an archive that was uploaded, if the payload is empty."""

    def __post_init__(self) -> None:
        """Raise `InvalidInput` unless the archive is of the only kind there is."""
        if (self.media_type, self.encoding) != (ARCHIVE_MEDIA_TYPE, ENCODING):
            text = f"expected {ARCHIVE_MEDIA_TYPE} ({ENCODING}), got {self.media_type} ({self.encoding})"
            raise InvalidInput(text=text, where="blocks")


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectFile:
    """A slice or checkpoint; `size` in bytes."""

    object_type: ObjectType
    physical_hash: Multihash
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpHeader:
    """A header of the request for an object."""

    name: str
    value: str

    def __post_init__(self) -> None:
        """Raise `InvalidInput` unless it can be sent: a line break would begin another header."""
        if _HEADER_NAME.fullmatch(self.name) is None or _HEADER_VALUE.fullmatch(self.value) is None:
            raise InvalidInput(text=f"not a header: {self.name[:80]!r}", where="headers")


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferUrl:
    """The URL from which an object is fetched, or to which it is sent."""

    url: str
    headers: tuple[HttpHeader, ...] = ()
    expires_at: str | None = None
    """RFC 3339; None if it does not expire."""

    def __post_init__(self) -> None:
        """Raise `InvalidInput` unless it is an HTTP URL."""
        try:
            parts = urlsplit(self.url)
            is_http = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            is_http = False
        if not is_http:
            raise InvalidInput(text=f"expected an HTTP URL, got {self.url[:200]!r}", where="url")


@dataclass(frozen=True, slots=True, kw_only=True)
class Download:
    """The download of an object."""

    object_file: ObjectFile
    pull_strategy: PullStrategy = PullStrategy.HTTP_DOWNLOAD
    download_from: TransferUrl


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """The upload of an object; `upload_to` is None if the receiver has it."""

    object_file: ObjectFile
    push_strategy: PushStrategy
    upload_to: TransferUrl | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PullRequest:
    """The client has the chain up to `begin_after`, and wants it up to `stop_at`, or to the head."""

    begin_after: Multihash | None = None
    stop_at: Multihash | None = None
    force_update_if_diverged: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PullAccepted:
    """The range exists; this is what it amounts to."""

    is_result: ClassVar = True
    transfer_plan: TransferPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataRequest:
    """The client asks for the blocks of the range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataReply:
    """The blocks of the range."""

    blocks: BlocksBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadsRequest:
    """The client asks where these objects can be fetched."""

    object_files: tuple[ObjectFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadsReply:
    """The downloads of the objects, in the order of the request."""

    object_transfer_strategies: tuple[Download, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PushRequest:
    """The client wants to append to `current_head`, which it takes for the server's head; None: a new dataset."""

    current_head: Multihash | None = None
    transfer_plan: TransferPlan
    force_update_if_diverged: bool
    visibility_for_created_dataset: DatasetVisibility


@dataclass(frozen=True, slots=True, kw_only=True)
class PushAccepted:
    """The server's head is as the client said."""

    is_result: ClassVar = True


@dataclass(frozen=True, slots=True, kw_only=True)
class NewBlocks:
    """The new blocks."""

    new_blocks: BlocksBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class BlocksAccepted:
    """The blocks were received."""

    is_result: ClassVar = True


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadsRequest:
    """The client asks where to send these objects; another request follows if the list is truncated."""

    object_files: tuple[ObjectFile, ...]
    is_truncated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadsReply:
    """The uploads of the objects."""

    is_result: ClassVar = True
    object_transfer_strategies: tuple[Upload, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressRequest:
    """The server asks how many objects were sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadsRunning:
    """The number of objects sent in this round."""

    uploaded_objects_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadsComplete:
    """All objects of the round were sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompleteRequest:
    """The client asks that the head is moved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PushConfirmed:
    """The head was moved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedBlockOverwriteRestricted:
    """A forced transfer would replace a dataset by one with another id or kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Internal:
    """Any other error."""

    phase: Phase
    error_message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InvalidInterval:
    """`tail` is not an ancestor of `head`."""

    head: Multihash
    tail: Multihash


@dataclass(frozen=True, slots=True, kw_only=True)
class InvalidHead:
    """The server's head is `expected_head`, not `actual_head`, which the client claimed."""

    actual_head: Multihash | None = None
    expected_head: Multihash | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RefCollision:
    """The dataset exists under another name."""

    dataset_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NameCollision:
    """Another dataset has the name."""

    dataset_alias: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownFault:
    """An error that only the other side knows."""

    text: str
    """Its JSON."""


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
    """The answer instead of the one that was asked for."""

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
