"""Fragments of events that say how data is fetched, when it happened, and how it is unpacked (spec: Fragments).

Field order is slot order and union order is discriminator order (wire-facts §1.4–1.6).
"""

from dataclasses import dataclass
from enum import IntEnum

from odf_common.metadata.scalars import Int32, UInt64
from odf_common.metadata.steps import Strings


class SourceOrdering(IntEnum):
    """In which order files of a glob are taken."""

    ByEventTime = 0
    ByName = 1


class CompressionFormat(IntEnum):
    """How fetched data is packed."""

    Gzip = 0
    Zip = 1


class MqttQos(IntEnum):
    """Delivery promise of an MQTT subscription."""

    AtMostOnce = 0
    AtLeastOnce = 1
    ExactlyOnce = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class EventTimeSourceFromMetadata:
    """Event time is what the source says of its last change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventTimeSourceFromPath:
    """Event time stands in the file's path."""

    pattern: str
    timestamp_format: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EventTimeSourceFromSystemTime:
    """Event time is the time of ingestion."""


EventTimeSource = EventTimeSourceFromMetadata | EventTimeSourceFromPath | EventTimeSourceFromSystemTime


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceCachingForever:
    """Fetched once, never again."""


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
    """Fetch files matching a pattern."""

    path: str
    event_time: EventTimeSource | None = None
    cache: SourceCaching | None = None
    order: SourceOrdering | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchStepContainer:
    """Fetch what a container prints."""

    image: str
    command: Strings | None = None
    args: Strings | None = None
    env: tuple[EnvVar, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MqttTopicSubscription:
    """One topic of a broker."""

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
    """Fetch logs of an Ethereum node."""

    chain_id: UInt64 | None = None
    node_url: str | None = None
    filter: str | None = None
    signature: str | None = None


FetchStep = FetchStepUrl | FetchStepFilesGlob | FetchStepContainer | FetchStepMqtt | FetchStepEthereumLogs


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepStepDecompress:
    """Unpack, taking `sub_path` out of an archive."""

    format: CompressionFormat
    sub_path: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepStepPipe:
    """Pass through a command."""

    command: Strings


PrepStep = PrepStepDecompress | PrepStepPipe
