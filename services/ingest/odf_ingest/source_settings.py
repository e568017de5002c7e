"""The settings of sources on this node, which manifests cannot express.

The metadata of a chain has no fields for them, and they affect no hash: two nodes may treat bad records differently.
They are stored in one note of the dataset, `sources`: a JSON object of settings by source name.

Also the names of external topics that a source reads, and the topics of a cluster that no source may read.
"""

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import PurePath
from typing import ClassVar, Final, Self

from urllib3.exceptions import LocationParseError
from urllib3.util import Url, parse_url

from odf_common.errors import InvalidInput
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.store import BlobStore
from odf_common.resources.secret_text import MASK, NO_SECRET, Secret
from odf_ingest.message_columns import (
    NO_HEADERS,
    NO_NAMES,
    ColumnNames,
    Envelope,
    HeaderColumns,
    KeyFormat,
    MessageColumns,
    MessageFormat,
)

MAX_TOPICS: Final = 100  # names and patterns of one source
NONE: Final = "none"
_NAME: Final = re.compile(r"[A-Za-z0-9._*-]{1,249}", re.ASCII)
_INTERNAL: Final = "__"  # how the names of Kafka's own topics begin
_NODE: Final = "odf."  # how the names of a node's topics begin, after its prefix
_CLAIM: Final = "odf.node.v1"  # the topic in which a node claims its prefix


class TopicNames(tuple[str, ...]):
    """Names of topics, and patterns in which `*` matches any characters; empty: the source's own topic."""

    __slots__ = ()
    expected: ClassVar[str] = "names of topics separated by commas, * for any characters, or none"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read names; raises `ValueError`."""
        names = [] if text == NONE else [name.strip() for name in text.split(",")]
        if len(names) > MAX_TOPICS or not all(_NAME.fullmatch(name) for name in names):
            raise ValueError(text)
        return cls(dict.fromkeys(names))

    def __str__(self) -> str:
        """Return the names as `parse` reads them."""
        return ",".join(self) or NONE

    @property
    def exact(self) -> tuple[str, ...]:
        """Return the names without patterns."""
        return tuple(name for name in self if "*" not in name)

    @property
    def patterns(self) -> tuple[str, ...]:
        """Return the patterns."""
        return tuple(name for name in self if "*" in name)

    def among(self, topics: Iterable[str], reserved: "ReservedTopics") -> tuple[str, ...]:
        """Return the exact names, and those of `topics` that match a pattern and are not reserved."""
        matching = (
            name
            for name in topics
            if any(fnmatchcase(name, pattern) for pattern in self.patterns) and reserved.why(name) is None
        )
        return tuple(sorted({*self.exact, *matching}))


class TopicStart(str):
    """The position at which to start reading a topic: `earliest`, `latest`, or a time (RFC 3339)."""

    __slots__ = ()
    expected: ClassVar[str] = "earliest, latest, or a time such as 2026-03-04T00:00:00Z"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a start; raises `ValueError`."""
        if text in {EARLIEST, LATEST}:
            return cls(text)
        try:
            return cls(Timestamp.parse(text))
        except InvalidInput as error:
            raise ValueError(text) from error

    @property
    def ms(self) -> int | None:
        """Return the time in ms since the epoch; None if it is not a time."""
        return None if self in {EARLIEST, LATEST} else Timestamp.parse(self).ms


EARLIEST: Final = TopicStart("earliest")
LATEST: Final = TopicStart("latest")


class ReservedTopics:
    """The topics of a cluster that sources cannot read: Kafka's own, and those of nodes."""

    def __init__(self, own_prefix: str, topics: Collection[str] = ()) -> None:
        """Reserve the topics of this node, and of all nodes that have claimed a prefix among `topics`."""
        self._own = own_prefix
        self._others = {name.removesuffix(_CLAIM) for name in topics if name.endswith(_CLAIM)} - {own_prefix}

    def why(self, name: str) -> str | None:
        """Return the reason why a topic cannot be read; None if it can."""
        if name.startswith(_INTERNAL):
            return "is an internal topic of Kafka"
        if self.is_own(name):
            return "is a topic of this node"
        if any(name.startswith(prefix + _NODE) for prefix in self._others):
            return "is a topic of another node"
        return None

    def is_own(self, name: str) -> bool:
        """Return whether a topic belongs to this node."""
        return name.startswith(self._own + _NODE)


NOTE: Final = "sources"


MINUTE_MS: Final = 60_000
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS
MIN_INTERVAL_MS: Final = 1000  # between polls
MAX_INTERVAL_MS: Final = 366 * DAY_MS
MIN_RETENTION_MS: Final = MINUTE_MS
MAX_PARTITIONS: Final = 1000  # of one topic
_UNITS: Final = {"d": DAY_MS, "h": HOUR_MS, "m": MINUTE_MS, "s": 1000, "ms": 1}
_PARTS: Final = re.compile(r"(?:\d{1,9}(?:d|h|ms|m|s))+", re.ASCII)
_PART: Final = re.compile(r"(\d+)(d|h|ms|m|s)", re.ASCII)
_NONE: Final = "none"
MAX_ADDRESS_CHARACTERS: Final = 2048


class Milliseconds(int):
    """Milliseconds, written as `90s`, `30m`, `2h` or `1d12h`; negative: no limit, written as `none`."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a duration; raises `ValueError`."""
        if text == _NONE:
            return cls(-1)
        if text != "0" and _PARTS.fullmatch(text) is None:
            raise ValueError(text)
        return cls(sum(int(number) * _UNITS[unit] for number, unit in _PART.findall(text)))

    @property
    def is_limited(self) -> bool:
        """Return whether there is a limit."""
        return self >= 0

    def __str__(self) -> str:
        """Return the duration as `parse` reads it."""
        if self < 0:
            return _NONE
        rest, parts = int(self), []
        for unit, size in _UNITS.items():
            count, rest = divmod(rest, size)
            parts += [f"{count}{unit}"] if count else []
        return "".join(parts) or "0"


_WRITTEN: Final = (
    Milliseconds,
    TopicNames,
    TopicStart,
    ColumnNames,
    HeaderColumns,
)  # written and parsed as strings
OWN_TOPIC: Final = TopicNames()


NO_DELAY: Final = Milliseconds(0)
UNLIMITED: Final = Milliseconds(-1)
ONE_DAY: Final = Milliseconds(DAY_MS)


class BadRecords(StrEnum):
    """Treatment of a message or row that cannot be read as a record of the source."""

    AUTO = "auto"  # reject messages and rows of pushed files, refuse polled files
    DEAD_LETTER = "dead-letter"  # reject it, commit the others
    STOP = "stop"  # stop the source before it, until a user decides; refuse the file, or what was polled, with it


class EmptySnapshot(StrEnum):
    """Meaning of a snapshot without records."""

    AUTO = "auto"  # retracts every row, so the limit of retractions applies
    RETRACT = "retract"  # the source is empty, even without a byte: retract every row
    REFUSE = "refuse"  # treat it as an error of the producer


class FinerTimes(StrEnum):
    """Treatment of a time that has a finer fraction than its column."""

    CUT = "cut"  # towards the past
    REFUSE = "refuse"  # its record is not a record of the source


class Retractions(StrEnum):
    """Contents of the -R and -C of a changelog."""

    STRICT = "strict"  # all values of the record that they take back; else they are not records of the source
    COMPLETE = "complete"  # its key; the other values are those of the record


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSettings:
    """Policies of one source, with their defaults."""

    bad_records: BadRecords = BadRecords.AUTO
    max_rejected_share: float = 1.0
    """Maximum share (0–1) of a batch that may be rejected; otherwise the source stops at the batch."""
    finer_times: FinerTimes = FinerTimes.CUT
    retractions: Retractions = Retractions.STRICT
    empty_snapshot: EmptySnapshot = EmptySnapshot.AUTO
    max_retracted_share: float = 0.5
    """A snapshot that retracts more than this share (0–1) of the current rows is refused."""
    retraction_guard_rows: int = 10
    """A snapshot with records may retract up to this many rows, whatever their share."""
    watermark_delay: Milliseconds = NO_DELAY
    """Delay of the watermark after the greatest event time. Records that are out of order by less are not late."""
    max_future: Milliseconds = ONE_DAY
    """Event times that are further in the future than this do not raise the watermark."""
    idle_timeout: Milliseconds = UNLIMITED
    """A partition without a message for this time does not hold back the watermark."""
    poll_interval: Milliseconds = UNLIMITED
    """Interval between polls of a polling source; none: only on demand."""
    partitions: int = 1
    """Number of partitions of the source's own topic; it can only be increased."""
    retention: Milliseconds = UNLIMITED
    """Retention of the source's own topic; none: without limit."""
    topics: TopicNames = OWN_TOPIC
    """External topics that are read in place of the source's own; other applications own them."""
    topic_start: TopicStart = EARLIEST
    """Position at which to start reading these topics."""
    schema_registry: str = ""
    """Address of the schema registry of the messages; empty: messages have no schema ids."""
    schema_registry_user: str = ""
    schema_registry_password: Secret = NO_SECRET
    schema_registry_ca: str = ""
    """File of certificates (PEM) to trust instead of the system's."""
    message_format: MessageFormat = MessageFormat.SOURCE
    """Format of the values of messages."""
    envelope: Envelope = Envelope.NONE
    """Envelope around records in the values of messages."""
    key_columns: ColumnNames = NO_NAMES
    """Columns that are read from the message's key."""
    key_format: KeyFormat = KeyFormat.TEXT
    header_columns: HeaderColumns = NO_HEADERS
    """Headers of the message, and the columns that are read from them."""
    timestamp_column: ColumnNames = NO_NAMES
    """The column for the message's timestamp; at most one."""

    def __post_init__(self) -> None:
        for name in ("max_rejected_share", "max_retracted_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise InvalidInput(where=_key(name), text=f"expected 0 to 1, got {getattr(self, name)}")
        if self.poll_interval.is_limited and not MIN_INTERVAL_MS <= self.poll_interval <= MAX_INTERVAL_MS:
            text = f"expected 1s to 366d, or none, got {self.poll_interval}"
            raise InvalidInput(where=_key("poll_interval"), text=text)
        if self.retraction_guard_rows < 0:
            raise InvalidInput(where=_key("retraction_guard_rows"), text="expected 0 or more")
        if not 1 <= self.partitions <= MAX_PARTITIONS:
            text = f"expected 1 to {MAX_PARTITIONS}, got {self.partitions}"
            raise InvalidInput(where=_key("partitions"), text=text)
        if self.retention.is_limited and self.retention < MIN_RETENTION_MS:
            raise InvalidInput(
                where=_key("retention"), text=f"expected 1m or more, or none, got {self.retention}"
            )
        if not self.watermark_delay.is_limited:
            raise InvalidInput(where=_key("watermark_delay"), text="expected a duration, such as 0 or 2h")
        _require_registry(self)

        if len(self.timestamp_column) > 1:
            raise InvalidInput(
                where=_key("timestamp_column"), text="expected the name of one column, or none"
            )
        _ = self.message_columns

    @property
    def message_columns(self) -> MessageColumns:
        """Return the columns that are read from keys, headers and timestamps; raises `InvalidInput` for a conflict."""
        return MessageColumns(
            keys=self.key_columns,
            key_format=self.key_format,
            headers=self.header_columns,
            timestamp=next(iter(self.timestamp_column), ""),
            has_schemas=bool(self.schema_registry),
            value_format=self.message_format,
            refuses_finer_times=self.refuses_finer_times,
            completes_retractions=self.completes_retractions,
            envelope=self.envelope,
        )

    @property
    def refuses_finer_times(self) -> bool:
        """Return whether a time with a finer fraction than its column is refused."""
        return self.finer_times is FinerTimes.REFUSE

    @property
    def completes_retractions(self) -> bool:
        """Return whether a -R or -C of a ChangelogStream gets the values of the current record of its key."""
        return self.retractions is Retractions.COMPLETE

    @classmethod
    def from_plain(cls, plain: Mapping[str, object]) -> Self:
        """Build from keys such as `badRecords`; raises `InvalidInput` for an unknown key or a wrong value."""
        names = {_key(field_.name): field_.name for field_ in fields(cls)}
        values: dict[str, object] = {}
        for key, value in plain.items():
            if key not in names:
                text = f"unknown setting of a source; choose from {', '.join(names)}"
                raise InvalidInput(where=key, text=text)
            values[names[key]] = _parse(key, str(value), getattr(DEFAULTS, names[key]))
        return cls(**values)  # type: ignore[arg-type]  # each was parsed to its default's type

    def plain(self) -> dict[str, object]:
        """Return all settings by key, as `from_plain` takes them."""
        plain = {_key(field.name): getattr(self, field.name) for field in fields(self)}
        return {key: str(value) if isinstance(value, _WRITTEN) else value for key, value in plain.items()}

    def non_default(self) -> dict[str, object]:
        """Return the settings that differ from the defaults, by key."""
        usual = DEFAULTS.plain()
        return {key: value for key, value in self.plain().items() if value != usual[key]}

    def shown(self) -> dict[str, str]:
        """Return all settings by key, with secrets masked."""
        return {
            key: MASK if isinstance(value, Secret) and value else str(value)
            for key, value in self.plain().items()
        }

    def with_changes(self, changes: Mapping[str, object]) -> Self:
        """Return the settings with some of them changed; raises `InvalidInput`."""
        return type(self).from_plain({**self.plain(), **changes})


def load_settings(blobs: BlobStore, dataset: DatasetId, source: str) -> SourceSettings:
    """Return the settings of a source, with defaults. Raises `InvalidInput` if they are damaged."""
    chosen = _read(blobs, dataset).get(source)
    return SourceSettings.from_plain(chosen) if chosen else DEFAULTS


def save_settings(blobs: BlobStore, dataset: DatasetId, source: str, settings: SourceSettings) -> None:
    """Store the settings of a source durably; defaults are not written."""
    own = settings.non_default()
    others = {name: settings for name, settings in _read(blobs, dataset).items() if name != source}
    sources = {**others, source: own} if own else others
    text = json.dumps(sources, indent=1, sort_keys=True) if sources else None
    blobs.set_note(dataset, NOTE, text)


def _read(blobs: BlobStore, dataset: DatasetId) -> dict[str, dict[str, object]]:
    text = blobs.note(dataset, NOTE)
    try:
        plain = {} if text is None else json.loads(text)
        return {str(name): dict(settings) for name, settings in plain.items()}
    except (ValueError, TypeError, AttributeError) as error:
        where = f"settings of the sources of {dataset}"
        raise InvalidInput(where=where, text=f"cannot be read: {error}") from error


def _require_registry(settings: SourceSettings) -> None:
    """Raise `InvalidInput` unless the settings of the schema registry are consistent."""
    where = _key("schema_registry")
    try:
        url = parse_url(settings.schema_registry)
    except LocationParseError:
        url = Url()
    if settings.schema_registry:
        is_address = url.scheme in {"http", "https"} and url.host and not (url.query or url.fragment)
        if not is_address or len(settings.schema_registry) > MAX_ADDRESS_CHARACTERS:
            raise InvalidInput(
                where=where, text="expected an address such as https://registry.example.com:8081"
            )
        if url.auth:
            text = "has credentials; set schemaRegistryUser and schemaRegistryPassword instead"
            raise InvalidInput(where=where, text=text)
    if settings.schema_registry and settings.message_format is MessageFormat.ARROW:
        raise InvalidInput(
            where=_key("message_format"), text="Arrow has its schema itself: unset schemaRegistry"
        )
    if settings.key_format is KeyFormat.REGISTRY and not settings.schema_registry:
        raise InvalidInput(where=_key("key_format"), text="registry needs the address in schemaRegistry")
    if settings.schema_registry_password and not settings.schema_registry_user:
        raise InvalidInput(where=_key("schema_registry_user"), text="is missing for the password")
    if ":" in settings.schema_registry_user:
        raise InvalidInput(
            where=_key("schema_registry_user"), text="must not have a colon (basic authentication)"
        )
    ca = settings.schema_registry_ca
    if ca and not PurePath(ca).is_absolute():
        raise InvalidInput(where=_key("schema_registry_ca"), text="expected the absolute path of a file")


def _parse(key: str, text: str, default: object) -> object:
    try:
        if isinstance(default, _WRITTEN):
            return type(default).parse(text)
        return type(default)(text)  # type: ignore[call-arg]  # a float, an integer or a choice
    except ValueError as error:
        raise InvalidInput(where=key, text=f"expected {_expectation(default)}, got {text!r}") from error


def _expectation(default: object) -> str:
    if isinstance(default, StrEnum):
        return f"one of {', '.join(type(default))}"
    if isinstance(default, Milliseconds):
        return "a duration such as 90s, 30m, 2h or 1d" + ("" if default == NO_DELAY else ", or none")
    if isinstance(default, TopicNames | TopicStart | ColumnNames | HeaderColumns):
        return default.expected
    return "a number"


def _key(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(name.capitalize() for name in others)


DEFAULTS: Final = SourceSettings()
