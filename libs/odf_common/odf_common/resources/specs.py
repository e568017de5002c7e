"""The eleven types of resources: their specs, from which schemas are generated (spec: RFC-018; resources §2).

A field that refers to a resource has the reference in both forms of a spec: as a user writes it, and with the id when
it is stored. Fields without a default are required.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType
from typing import Annotated, Any, Final

from odf_common.codec.model_schema import Spelled, Tagged
from odf_common.errors import InvalidInput
from odf_common.metadata.events import (
    DatasetKind,
    DatasetVocabulary,
    KnownEvent,
    MergeStrategy,
    ReadStep,
    Transform,
    TransformInput,
)
from odf_common.metadata.fetching import (
    FetchStepContainer,
    FetchStepEthereumLogs,
    FetchStepFilesGlob,
    FetchStepMqtt,
    FetchStepUrl,
    PrepStep,
)
from odf_common.metadata.scalars import Strings
from odf_common.resources import references
from odf_common.resources.filters import Filter
from odf_common.resources.node_events import parse_event_filter
from odf_common.resources.references import Reference, ReferenceField
from odf_common.resources.scalar_formats import (
    ByteSize,
    Did,
    Duration,
    TypeRef,
    TypeUri,
    parse_email,
    parse_uint64,
    parse_uri,
)
from odf_common.resources.selectors import DATASET_KIND, Selector

EXTENSIONS: Final = "https://node.odf.example/schemas"
"""Base of the types that this node adds; `.example` is a domain that nobody can own."""


CONTEXTS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "auth": ("Account", "Relations"),
        "config": ("VariableSet", "SecretSet"),
        "dataset": ("Dataset", "Projection"),
        "flow": ("Flow", "Task"),
        "sink": ("WebhookTarget",),
        "source": ("Source",),
        "storage": ("PersistentVolume",),
    }
)
_NAMED: Final = {
    **{name: TypeUri(context=context, name=name) for context, names in CONTEXTS.items() for name in names},
    "DatasetKind": DATASET_KIND,
}


def core_type(ref: TypeRef) -> TypeUri | None:
    """Return the URI that a short name of the specification stands for; a URI as it is."""
    return ref if isinstance(ref, TypeUri) else _NAMED.get(str(ref))


def _string(parse: Callable[[str], object]) -> Callable[[object], object]:
    """Return a reader of strings that `parse` accepts."""

    def read(plain: object) -> object:
        if not isinstance(plain, str):
            raise InvalidInput(text=f"expected a string, got {type(plain).__name__}; put it in quotes")
        return parse(plain)

    return read


def _reference(name: str, field: ReferenceField) -> Spelled:
    return Spelled(name, lambda plain: Reference.parse(plain, field), field)


@dataclass(frozen=True, slots=True, kw_only=True)
class Secret:
    """A secret in clear or, with `contentEncoding: jwe`, encrypted."""

    value: str
    content_encoding: str | None = None

    def __repr__(self) -> str:
        """Return no part of the value."""
        return f"Secret(value='***', content_encoding={self.content_encoding!r})"


def _read_value(plain: object, keys: tuple[str, ...]) -> dict[str, Any]:
    if isinstance(plain, str):
        return {"value": plain}
    if not isinstance(plain, Mapping) or not isinstance(plain.get("value"), str):
        raise InvalidInput(
            text=f"expected a string, or a mapping of {', '.join(keys)}; put numbers in quotes"
        )
    for key, content in plain.items():
        if key not in keys:
            raise InvalidInput(where=key, text=f"unknown key {key!r}")
        if not isinstance(content, str):
            raise InvalidInput(where=key, text="expected a string")
    return dict(plain)


def _read_secret(plain: object) -> Secret:
    parts = _read_value(plain, ("value", "contentEncoding"))
    encoding = parts.get("contentEncoding")
    if encoding not in {None, "jwe", "argon2id"}:
        text = f"unknown encoding {encoding!r}; expected jwe, or none for a clear value"
        raise InvalidInput(where="contentEncoding", text=text)
    return Secret(value=parts["value"], content_encoding=encoding)


Count = Annotated[int, Spelled("uint64", parse_uint64)]
AccountDid = Annotated[Did, Spelled("account-id", _string(Did.parse))]
Email = Annotated[str, Spelled("email", _string(parse_email))]
Uri = Annotated[str, Spelled("uri", _string(parse_uri))]
DurationText = Annotated[Duration, Spelled("duration", _string(Duration.parse))]
Size = Annotated[ByteSize, Spelled("byte-size", ByteSize.parse)]
SecretValue = Annotated[Secret, Spelled("Secret", _read_secret)]
Variable = Annotated[str, Spelled("Variable", lambda plain: _read_value(plain, ("value",))["value"])]
Json = Annotated[Any, Spelled("json", lambda plain: plain)]
AnyReference = Annotated[Reference, _reference("ResourceRef", references.ANY_RESOURCE)]
SourceReference = Annotated[Reference, _reference("ResourceRef", references.SOURCE)]
WebhookReference = Annotated[Reference, _reference("ResourceRef", references.WEBHOOK_TARGET)]
VolumeReference = Annotated[Reference, _reference("PersistentVolumeRef", references.VOLUME)]
ValueReference = Annotated[Reference, _reference("ValueRef", references.CONFIG_VALUE)]
CredentialReference = Annotated[Reference, _reference("ValueRef", references.CREDENTIAL)]
SelectedResources = Annotated[
    Selector, Spelled("ResourceSelector", lambda plain: Selector.parse(plain, core_type))
]
SelectedDatasets = Annotated[
    Selector, Spelled("DatasetSelector", lambda plain: Selector.parse_of_datasets(plain, core_type))
]
Events = Annotated[Filter, Spelled("EventFilter", parse_event_filter)]
Cron = Annotated[str, Spelled("cron", _string(str))]

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

    did: Annotated[Did, Spelled("dataset-id", _string(Did.parse))] | None = None
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
    """What a full buffer does with another record."""

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
    """Reads topics of Kafka that others own, or the source's own topic."""

    topics: Strings | None = None
    start: str | None = None
    partitions: Count | None = None
    retention: DurationText | None = None
    key_columns: Strings | None = None
    key_format: str | None = None
    header_columns: Mapping[str, str] | None = None
    timestamp_column: str | None = None
    message_format: str | None = None
    envelope: str | None = None
    registry: Uri | None = None


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
    events: Strings | None = None


FlowTrigger = Annotated[
    FlowTriggerSchedule | FlowTriggerEvent | FlowTriggerSource | FlowTriggerDataset, Tagged("FlowTrigger")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestParams:
    """How a task cuts what it ingests."""

    target_slice_records: Count | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionParams:
    """How large the slices of a compacted dataset may be."""

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
