"""The eleven types of resources: their specs, from which schemas are generated (RFC-018).

A field that refers to a resource has the reference in both forms of a spec: as a user writes it, and with the id when
it is stored. Fields without a default are required.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType
from typing import Annotated, Final

from odf_common.codec.model_schema import Tagged
from odf_common.metadata.data_schema import (
    DataTypeDecimal,
    DataTypeDuration,
    DataTypeTime,
    DataTypeTimestamp,
    TimeUnit,
)
from odf_common.metadata.events import (
    DatasetKind,
    DatasetVocabulary,
    KnownEvent,
    MergeStrategy,
    ReadStep,
    ReadStepCsv,
    ReadStepJson,
    ReadStepNdJson,
    Transform,
    TransformInput,
)
from odf_common.metadata.fetching import (
    FetchStepContainer,
    FetchStepEthereumLogs,
    FetchStepFilesGlob,
    FetchStepMqtt,
    FetchStepUrl,
    MqttQos,
    MqttTopicSubscription,
    PrepStep,
)
from odf_common.metadata.scalars import Strings
from odf_common.resources.scalar_formats import TypeUri
from odf_common.resources.spec_values import (
    EXTENSIONS,
    AccountDid,
    AnyReference,
    Count,
    CredentialReference,
    Cron,
    DatasetDid,
    DurationText,
    Email,
    Events,
    EventTypeName,
    Json,
    SecretValue,
    SelectedDatasets,
    SelectedResources,
    Size,
    SourceReference,
    Uri,
    ValueReference,
    Variable,
    VolumeReference,
    WebhookReference,
)

# --- auth ---------------------------------------------------------------------------------------------------------


class AccountType(IntEnum):
    """A person or a program, or a group of accounts."""

    User = 0
    Organization = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountSpec:
    """An account of this node."""

    did: AccountDid | None = None
    account_type: AccountType = AccountType.User
    display_name: str | None = None
    email: Email
    avatar_url: Uri | None = None
    password: SecretValue | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """A relation of one resource to another, such as the role of an account on a dataset."""

    subject: AnyReference
    relation: str
    value: Json = None
    object: AnyReference


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribute:
    """A named value of one resource, such as its visibility."""

    object: AnyReference
    name: str
    value: Json


@dataclass(frozen=True, slots=True, kw_only=True)
class RelationsSpec:
    """Permissions: relations between resources, and attributes of them."""

    relations: tuple[Relation, ...] = ()
    attributes: tuple[Attribute, ...] = ()


# --- config -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class VariableSetSpec:
    """Values by name, which sources and other resources use."""

    variables: Mapping[str, Variable]


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretSetSpec:
    """Values by name that the node stores encrypted."""

    secrets: Mapping[str, SecretValue]


# --- dataset ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetSpec:
    """A dataset: its kind, and the events that its chain shall have in effect."""

    did: DatasetDid | None = None
    kind: DatasetKind
    metadata: tuple[KnownEvent, ...]
    volume: VolumeReference | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectionSpec:
    """A state that is computed from the history of datasets and kept for fast reads."""

    inputs: tuple[TransformInput, ...]
    project: Transform


# --- source -------------------------------------------------------------------------------------------------------


class OverflowPolicy(IntEnum):
    """Treatment of a record that finds the buffer full."""

    Reject = 0
    DropOldest = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class IngressBufferMemory:
    """A buffer of a number of records."""

    buffer_size: Count = 10_000
    overflow_policy: OverflowPolicy = OverflowPolicy.Reject


IngressBuffer = Annotated[IngressBufferMemory, Tagged("IngressBuffer")]


@dataclass(frozen=True, slots=True, kw_only=True)
class IngressUrl(FetchStepUrl):
    """Fetches from a URL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IngressFilesGlob(FetchStepFilesGlob):
    """Reads files that match a pattern."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IngressContainer(FetchStepContainer):
    """Runs a container and reads its output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IngressMqtt(FetchStepMqtt):
    """Subscribes to topics of an MQTT broker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IngressEvmLogs(FetchStepEthereumLogs):
    """Reads logs of a node of an EVM chain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IngressRestEndpoint:
    """Takes records that are posted to the node."""

    buffer: IngressBuffer | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class IngressKafkaTopic:
    """Reads topics of Kafka that other applications own."""

    topics: Strings | None = None
    start: str | None = None
    key_columns: Strings | None = None
    key_format: str | None = None
    header_columns: Mapping[str, str] | None = None
    timestamp_column: str | None = None
    message_format: str | None = None
    envelope: str | None = None
    registry: Uri | None = None
    bad_records: str | None = None
    finer_times: str | None = None
    retractions: str | None = None
    watermark_delay: str | None = None
    max_future: str | None = None
    idle_timeout: str | None = None


KAFKA_TOPIC: Final = TypeUri(base=EXTENSIONS, context="source", name="KafkaTopic")
Ingress = Annotated[
    IngressUrl | IngressFilesGlob | IngressContainer | IngressMqtt | IngressEvmLogs | IngressRestEndpoint,
    Tagged("Ingress", ((str(KAFKA_TOPIC), IngressKafkaTopic),)),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSpec:
    """A way in for data: where it comes from, how it is read, and how it is merged."""

    config: Mapping[str, ValueReference] | None = None
    ingress: Ingress | None = None
    prepare: tuple[PrepStep, ...] | None = None
    read: ReadStep
    preprocess: Transform | None = None
    merge: MergeStrategy | None = None
    vocab: DatasetVocabulary | None = None


# --- storage and sink ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeCapacity:
    """The most that the datasets on a volume may take."""

    storage: Size | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AwsCredentials:
    """An access key; absent, the node uses what its environment gives it."""

    access_key: CredentialReference | None = None
    secret_key: CredentialReference | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PersistentVolumeS3:
    """A bucket, or the part of it below a prefix."""

    endpoint: Uri | None = None
    region: str | None = None
    bucket: str
    prefix: str | None = None
    capacity: VolumeCapacity | None = None
    credentials: AwsCredentials | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PersistentVolumeLocalFolder:
    """A folder on the node's machine."""

    path: str
    capacity: VolumeCapacity | None = None


LOCAL_FOLDER: Final = TypeUri(base=EXTENSIONS, context="storage", name="LocalFolder")
PersistentVolumeSpec = Annotated[
    PersistentVolumeS3,
    Tagged("PersistentVolume", ((str(LOCAL_FOLDER), PersistentVolumeLocalFolder),)),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookTargetSpec:
    """An address that events are posted to."""

    url: Uri
    secret: SecretValue | None = None


# --- flow ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowTriggerSchedule:
    """Starts the flow at the times of a cron expression, in UTC."""

    cron: Cron


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowTriggerEvent:
    """Starts the flow on events; during `cooldown`, further events are gathered into one more start at its end."""

    events: Events
    cooldown: DurationText | None = None
    cooldown_max_batch: Count | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowTriggerSource:
    """Starts the flow when a source has enough new records, or has waited long enough with some."""

    source: SourceReference
    min_records_to_await: Count | None = None
    max_await_interval: DurationText | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowTriggerDataset:
    """Starts the flow when datasets are updated."""

    dataset: SelectedDatasets
    events: tuple[EventTypeName, ...] | None = None


FlowTrigger = Annotated[
    FlowTriggerSchedule | FlowTriggerEvent | FlowTriggerSource | FlowTriggerDataset, Tagged("FlowTrigger")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestParams:
    """Parameters of an ingest task."""

    target_slice_records: Count | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionParams:
    """Limits of the slices of a compacted dataset."""

    max_slice_size: Size | None = None
    max_slice_records: Count | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskIngest:
    """Polls or drains a source into the target."""

    source: SourceReference
    params: IngestParams | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCompaction:
    """Merges small slices into a new history."""

    params: CompactionParams | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskGarbageCollection:
    """Removes files that no block names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskWebhookCall:
    """Posts a payload to a webhook target."""

    target: WebhookReference
    payload: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskTransform:
    """Brings a derivative up to date with its inputs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskVerify:
    """Verifies a dataset, by replay if it is a derivative."""

    with_replay: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPush:
    """Pushes a dataset to a repository or another node."""

    to: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPull:
    """Pulls a dataset from where it was copied."""

    source: str | None = None


_OWN_TASKS: Final = MappingProxyType(
    {"Transform": TaskTransform, "Verify": TaskVerify, "Push": TaskPush, "Pull": TaskPull}
)
TaskSpec = Annotated[
    TaskIngest | TaskCompaction | TaskGarbageCollection | TaskWebhookCall,
    Tagged(
        "Task",
        tuple(
            (str(TypeUri(base=EXTENSIONS, context="flow", name=name)), cls)
            for name, cls in _OWN_TASKS.items()
        ),
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowSpec:
    """Tasks that run one after another for each resource of a selector, when a trigger starts them."""

    target: SelectedResources
    triggers: tuple[FlowTrigger, ...]
    tasks: tuple[TaskSpec, ...]


# --- rules and defaults -------------------------------------------------------------------------------------------


def contradiction_in(part: object) -> str | None:
    """Return the error of a part whose fields are valid alone; None: it has none."""
    match part:
        case DataTypeDecimal(precision=precision, scale=scale) if scale > precision:
            return f"the scale {scale} is larger than the precision {precision}, the number of all digits"
        case _ if getattr(part, "schema", None) and getattr(part, "ddl_schema", None):
            return "`schema` and `ddlSchema` both declare the columns; leave out `ddlSchema`"
        case _:
            return None


_READ_DEFAULTS: Final = {"date_format": "rfc3339", "encoding": "utf8", "timestamp_format": "rfc3339"}
_UNIT_DEFAULT: Final = {"unit": TimeUnit.Millisecond}
# Defaults that the specification has for fields which are optional in blocks.
BLOCK_DEFAULTS: Final[Mapping[type, Mapping[str, object]]] = MappingProxyType(
    {
        ReadStepCsv: {
            **_READ_DEFAULTS,
            "separator": ",",
            "quote": '"',
            "escape": "\\",
            "header": False,
            "infer_schema": False,
            "null_value": "",
        },
        ReadStepJson: _READ_DEFAULTS,
        ReadStepNdJson: _READ_DEFAULTS,
        MqttTopicSubscription: {"qos": MqttQos.AtMostOnce},
        DataTypeDuration: _UNIT_DEFAULT,
        DataTypeTime: _UNIT_DEFAULT,
        DataTypeTimestamp: {**_UNIT_DEFAULT, "timezone": "UTC"},
    }
)
