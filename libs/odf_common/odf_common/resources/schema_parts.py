"""JSON Schemas of what all types of resources share: headers, status, references, selectors, values of sets.

The grammars of names, references, selectors and filters are enforced by their parsers; here they are only a `format`.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

from odf_common.codec.json_schema import Schema, closed_object
from odf_common.resources import conditions
from odf_common.resources.phases import Phase
from odf_common.resources.scalar_formats import CORE_BASE, TypeUri

_V1: Final = "v1alpha1"


def schema_uri(context: str, name: str) -> str:
    """Return the `$id` of a schema of the specification."""
    version = "v0" if context == "legacy" else _V1
    return f"{CORE_BASE}/{context}/{version}/{name}"


def describe(schema: Schema, text: str) -> Schema:
    """Return a schema with its description, which comes first."""
    return {"description": text} | schema | {"description": text}


def _ref(context: str, name: str, text: str) -> Schema:
    return describe({"$ref": schema_uri(context, name)}, text)


def _text(format: str, text: str) -> Schema:
    return describe({"type": "string", **({"format": format} if format else {})}, text)


def _struct_or_string(properties: dict[str, Any], required: Iterable[str] = ()) -> Schema:
    closed = closed_object(properties, required)
    return {"format": "struct-or-string", "oneOf": [{"type": "string"}, closed]}


_TYPE_REF: Final = _text("type-ref", "Type of the resource: its URI or a short name.")
_ID: Final = _text("resource-id", "Id of the resource in this node: a UUID of version 4.")
_DID: Final = _text("did", "Identity of an account or a dataset in all nodes.")
_NAME: Final = _text("resource-name", "Name of the resource, unique for its type in an account.")
_ACCOUNT: Final = _ref("auth", "AccountRef", "Account that owns the resource.")
_ACCOUNT_DID: Final = _text("account-id", "Identity of the account in all nodes.")
_PATH: Final = _text("", "Key of the set, and names within its value, joined by dots.")
_REF: Final = {"type": _TYPE_REF, "id": _ID, "did": _DID, "name": _NAME, "account": _ACCOUNT}
_HANDLE: Final = {
    "type": _text("type-uri", "URI of the type of the resource."),
    "id": describe(_ID, "Id of the resource; absent while no such resource exists."),
    "did": _DID,
    "name": describe(_NAME, "Name of the resource when the reference was resolved."),
    "account": {
        "description": "Account that owns the resource; a reference while no such account exists.",
        "anyOf": [
            {"$ref": schema_uri("auth", "AccountHandle")},
            closed_object({"id": _ID, "did": _ACCOUNT_DID, "name": _NAME}, ()),
        ],
    },
}
_ACCOUNT_KEYS: Final = {
    "id": _text("resource-id", "Id of the account's resource."),
    "did": _ACCOUNT_DID,
    "name": _text("account-name", "Name of the account."),
}
_SELECTED: Final = {
    "account": describe(
        _ACCOUNT, "Account of the resources; that of the resource with the selector if it is absent."
    ),
    "id": _ID,
    "name": _text("", "Pattern of names; `%` stands for any characters."),
    "labels": _ref("resource", "LabelFilter", "Filter over labels and headers."),
}
_MAP: Final[Schema] = {"type": "object", "additionalProperties": True}
_COUNT: Final[Schema] = {"type": "integer", "format": "uint64"}
_USER_HEADERS: Final = {
    "id": _text("resource-id", "Id of the resource, given by the node when it is created."),
    "name": _NAME,
    "account": describe(_ACCOUNT, "Account that owns the resource; that of the caller if it is absent."),
    "labels": _ref("resource", "ResourceLabels", "Values by which resources are selected."),
    "annotations": _ref("resource", "ResourceAnnotations", "Values for people and tools."),
}
_HEADERS: Final = {
    **_USER_HEADERS,
    "account": _ref("auth", "AccountHandle", "Account that owns the resource."),
    "generation": describe(_COUNT, "Number of changes of headers and spec, from 1."),
    "createdAt": _text("date-time", "Time of the first apply."),
    "updatedAt": _text("date-time", "Time of the last change, also of the status."),
    "deletedAt": _text("date-time", "Time when the deletion was requested."),
    "ownerReferences": {
        "description": "Resources without which this one is removed.",
        "type": "array",
        "items": {"$ref": schema_uri("resource", "ResourceHandle")},
    },
}
_STATUS: Final = {
    "phase": _ref("resource", "ResourcePhase", "Progress of the controller."),
    "observedGeneration": describe(_COUNT, "Generation of the last attempt that ended."),
    "reconciledAt": _text("date-time", "Time when it ended."),
    "conditions": _ref(
        "resource", "ResourceConditions", "What controllers observed, by the URI of the condition."
    ),
}
_CONDITION: Final = {
    "value": _text("", "State of the condition."),
    "code": _text("", "Kind of the cause."),
    "message": _text("", "The cause, for people."),
    "observedGeneration": describe(_COUNT, "Generation that was observed."),
    "lastTransitionTime": _text("date-time", "Time when value or code changed last."),
    "retryAt": _text("date-time", "Time of the next attempt."),
    "details": describe(_MAP, "Facts for programs."),
}


def _envelope(headers: str, *, has_status: bool) -> Schema:
    properties: dict[str, Any] = {
        "$schema": _text("type-uri", "URI of the type."),
        "headers": _ref("resource", headers, "Identity and ownership."),
        "spec": describe(_MAP, "Desired state."),
    }
    if has_status:
        properties["status"] = _ref("resource", "ResourceStatus", "Observed state.")
    return closed_object(properties, properties)


_CONDITIONS: Final = {
    conditions.RECONCILIATION_ERROR: "The last attempt failed.",
    conditions.DELETION_BLOCKED: "The resource cannot be removed yet.",
    conditions.NOTICE: "Something that is no failure.",
    conditions.WEBHOOK_TARGET_STATUS: "Whether deliveries succeed.",
    conditions.SOURCE_ACTIVITY: "What a source has ingested.",
    conditions.CHAIN_STATE: "The head of the chain of a dataset.",
    conditions.FLOW_ACTIVITY: "What a flow has executed.",
    conditions.VOLUME_USAGE: "The size of the datasets on a volume.",
    conditions.PROJECTION_STATE: "What a projection has read.",
}


def _condition(key: TypeUri, text: str) -> Schema:
    """Return the schema of a condition."""
    value = _CONDITION["value"] | {"enum": [*conditions.values_of(key)]}
    codes = conditions.codes_of(key)
    code = _CONDITION["code"] | ({"enum": [*codes]} if codes else {})
    return describe(closed_object({**_CONDITION, "value": value, "code": code}, ("value",)), text)


_PARTS: Final[dict[str, Schema]] = {
    "auth/AccountRef": describe(_struct_or_string(_ACCOUNT_KEYS), "An account: its id, DID or name."),
    "auth/AccountHandle": describe(closed_object(_ACCOUNT_KEYS, _ACCOUNT_KEYS), "An account of this node."),
    "config/Secret": describe(
        _struct_or_string(
            {
                "value": _text("", "The value, in clear or encrypted."),
                "contentEncoding": describe(
                    {"type": "string", "enum": ["jwe", "argon2id"]},
                    "`jwe`: it is encrypted; `argon2id`: it is the hash of a password; absent: it is in clear.",
                ),
            },
            ("value",),
        ),
        "A secret, which the node stores encrypted.",
    ),
    "config/Variable": describe(
        _struct_or_string({"value": _text("", "The value.")}, ("value",)), "A value; numbers are in quotes."
    ),
    "config/ValueRef": describe(
        _struct_or_string(
            {**{key: _REF[key] for key in ("type", "id", "name", "account")}, "path": _PATH}, ("type",)
        ),
        "A value of a set, such as `SecretSet:keys#password`.",
    ),
    "config/ValueHandle": describe(
        closed_object(
            {**{key: _HANDLE[key] for key in ("type", "id", "name", "account")}, "path": _PATH}, ("type",)
        ),
        "A value of a set, as it is stored.",
    ),
    "dataset/DatasetSelector": describe(
        _struct_or_string({**_SELECTED, "kind": _ref("dataset", "DatasetKind", "Kind of the datasets.")}),
        "Datasets that meet all conditions, such as `sales.%`.",
    ),
    "event/EventFilter": describe(
        _MAP, "Values of the fields of events, with `$in`, `$like`, `$or`, `$not`."
    ),
    "resource/ResourceRef": describe(
        _struct_or_string(_REF, ("type",)), "A resource, such as `Dataset:sales` or `Dataset:account/sales`."
    ),
    "resource/ResourceHandle": describe(closed_object(_HANDLE, ("type",)), "A resource, as it is stored."),
    "resource/ResourceSelector": describe(
        _struct_or_string({"type": _TYPE_REF, **_SELECTED}, ("type",)),
        "Resources of a type that meet all conditions, such as `Dataset:sales.%`.",
    ),
    "resource/LabelFilter": describe(
        _MAP, "Values of labels, with `$in`, `$like`, `$exists`, `$or`, `$and`, `$not`."
    ),
    "resource/ResourceLabels": describe(_MAP, "Values by the URI or the short name of their schema."),
    "resource/ResourceAnnotations": describe(_MAP, "Values by the URI or the short name of their schema."),
    "resource/ResourceConditions": describe(
        {"type": "object", "additionalProperties": closed_object(_CONDITION, ("value",))},
        "Conditions by the URI of their schema.",
    ),
    "resource/ResourceHeadersInput": describe(
        {
            "canonicalType": schema_uri("resource", "ResourceHeaders"),
            **closed_object(_USER_HEADERS, ("name",)),
        },
        "Identity and ownership of a resource, as a user gives them.",
    ),
    "resource/ResourceHeaders": describe(
        closed_object(_HEADERS, (key for key in _HEADERS if key not in {"deletedAt", "ownerReferences"})),
        "Identity and ownership of a resource.",
    ),
    "resource/ResourcePhase": describe(
        {"type": "string", "enum": [phase.value for phase in Phase]}, "Progress of the controller."
    ),
    "resource/ResourceStatus": describe(
        closed_object(_STATUS, ("phase", "conditions")), "Observed state of a resource."
    ),
    "resource/ResourceInput": describe(
        _envelope("ResourceHeadersInput", has_status=False), "A manifest of any type."
    ),
    "resource/Resource": describe(_envelope("ResourceHeaders", has_status=True), "A resource of any type."),
    "storage/PersistentVolumeRef": describe(
        _struct_or_string({key: _REF[key] for key in ("id", "name", "account")}),
        "A volume: its name, or `account/name`.",
    ),
}
SHARED_SCHEMAS: Final[Mapping[str, Schema]] = MappingProxyType(
    {
        **{schema_uri(*name.split("/")): schema for name, schema in _PARTS.items()},
        **{str(key): _condition(key, text) for key, text in _CONDITIONS.items()},
    }
)
"""The shared schemas by `$id`, without that."""
