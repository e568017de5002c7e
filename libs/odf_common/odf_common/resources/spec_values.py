"""Values in the specs of resources, each with the way in which it is written."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Annotated, Any, Final

from odf_common.codec.model_schema import Spelled
from odf_common.errors import InvalidInput
from odf_common.identity.dataset_refs import DatasetId
from odf_common.resources import references
from odf_common.resources.filters import Filter
from odf_common.resources.node_events import EventType, parse_event_filter
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
from odf_common.resources.schedule import CronSchedule
from odf_common.resources.secret_text import WrittenSecret
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


def _read_secret(plain: object) -> WrittenSecret:
    parts = _read_value(plain, ("value", "contentEncoding"))
    encoding = parts.get("contentEncoding")
    if encoding not in {None, "jwe", "argon2id"}:
        text = f"unknown encoding {encoding!r}; expected jwe, or none for a clear value"
        raise InvalidInput(where="contentEncoding", text=text)
    return WrittenSecret(value=parts["value"], content_encoding=encoding)


Count = Annotated[int, Spelled("uint64", parse_uint64)]
AccountDid = Annotated[Did, Spelled("account-id", _string(Did.parse))]
DatasetDid = Annotated[DatasetId, Spelled("dataset-id", _string(DatasetId.parse))]
Email = Annotated[str, Spelled("email", _string(parse_email))]
Uri = Annotated[str, Spelled("uri", _string(parse_uri))]
DurationText = Annotated[Duration, Spelled("duration", _string(Duration.parse))]
Size = Annotated[ByteSize, Spelled("byte-size", ByteSize.parse)]
SecretValue = Annotated[WrittenSecret, Spelled("Secret", _read_secret)]
Variable = Annotated[str, Spelled("Variable", lambda plain: _read_value(plain, ("value",))["value"])]
Json = Annotated[Any, Spelled("json", lambda plain: plain)]
AnyReference = Annotated[Reference, _reference("ResourceRef", references.ANY_RESOURCE)]
SourceReference = Annotated[Reference, _reference("ResourceRef", references.SOURCE_FIELD)]
WebhookReference = Annotated[Reference, _reference("ResourceRef", references.WEBHOOK_FIELD)]
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
EventTypeName = Annotated[EventType, Spelled("event-type", EventType.parse)]
Cron = Annotated[CronSchedule, Spelled("cron", _string(CronSchedule))]
