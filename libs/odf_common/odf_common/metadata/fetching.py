"""Fragments of events: how data is fetched and unpacked, and where its event time comes from (spec: Fragments).

The order of fields is slot order, the order of union members is discriminator order (wire-facts §1.4–1.6).
"""

from dataclasses import dataclass
from enum import IntEnum

from odf_common.metadata.scalars import Int32, Strings, UInt64


class SourceOrdering(IntEnum):
    """The order in which files of a glob are read."""

    ByEventTime = 0
    ByName = 1


class CompressionFormat(IntEnum):
    """Compression of fetched data."""

    Gzip = 0
    Zip = 1


class MqttQos(IntEnum):
    """Delivery guarantee of an MQTT subscription."""

    AtMostOnce = 0
    AtLeastOnce = 1
    ExactlyOnce = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class EventTimeSourceFromMetadata:
    """Event time is the source's time of last modification."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventTimeSourceFromPath:
    """Event time is in the file's path."""

    pattern: str
    timestamp_format: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EventTimeSourceFromSystemTime:
    """Event time is the time of ingestion."""


EventTimeSource = EventTimeSourceFromMetadata | EventTimeSourceFromPath | EventTimeSourceFromSystemTime


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceCachingForever:
    """Data is fetched once and never again."""


SourceCaching = SourceCachingForever


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestHeader:
    """A header sent with a request."""

    name: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvVar:
    """An environment variable of a container."""

    name: str
    value: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchStepUrl:
    """Fetch from a URL."""

    url: str
    event_time: EventTimeSource | None = None
    cache: SourceCaching | None = None
    headers: tuple[RequestHeader, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchStepFilesGlob:
    """Fetch files that match a glob pattern."""

    path: str
    event_time: EventTimeSource | None = None
    cache: SourceCaching | None = None
    order: SourceOrdering | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchStepContainer:
    """Fetch the output of a container."""

    image: str
    command: Strings | None = None
    args: Strings | None = None
    env: tuple[EnvVar, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MqttTopicSubscription:
    """A topic of an MQTT broker."""

    path: str
    qos: MqttQos | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchStepMqtt:
    """Fetch from an MQTT broker."""

    host: str
    port: Int32
    username: str | None = None
    password: str | None = None
    topics: tuple[MqttTopicSubscription, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchStepEthereumLogs:
    """Fetch logs from an Ethereum node."""

    chain_id: UInt64 | None = None
    node_url: str | None = None
    filter: str | None = None
    signature: str | None = None


FetchStep = FetchStepUrl | FetchStepFilesGlob | FetchStepContainer | FetchStepMqtt | FetchStepEthereumLogs


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepStepDecompress:
    """Decompress, reading `sub_path` of an archive."""

    format: CompressionFormat
    sub_path: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepStepPipe:
    """Pipe through a command."""

    command: Strings


PrepStep = PrepStepDecompress | PrepStepPipe
