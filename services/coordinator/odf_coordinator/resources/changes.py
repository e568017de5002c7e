"""Changes of stored resources: from manifests, new names, and references that were resolved."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from odf_common.codec.model_schema import Spelled
from odf_common.codec.plain_values import map_spelled
from odf_common.identity.dataset_refs import Name
from odf_common.resources.labels import TypeLookup, label_key, labels_by_key
from odf_common.resources.phases import Cause, Phase, next_phase
from odf_common.resources.references import Handle, ReferenceField
from odf_common.resources.registry import ACCOUNT, ResourceType, Types
from odf_common.resources.scalar_formats import ResourceId, TypeUri
from odf_coordinator.resources import documents
from odf_coordinator.resources.documents import FieldChange, Json, type_id
from odf_coordinator.resources.draft import ManifestDraft, Prepared
from odf_coordinator.resources.resolution import ApplyWarning
from odf_coordinator.resources.store import (
    Change,
    EventKind,
    NewEvent,
    ResourceReference,
    StoredResource,
)

CREATED, UPDATED, RENAMED, UNCHANGED, PRUNED = "created", "updated", "renamed", "unchanged", "pruned"
_STATUS: Final = {"phase": Phase.PENDING.value, "conditions": {}}
DELETION_POLICY: Final = str(TypeUri(context="resource", name="DeletionPolicy"))
"""The annotation about what a resource describes: `Retain` keeps it, `Force` deletes it although others need it."""
RETAIN, FORCED = "Retain", "Force"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The effect of one manifest."""

    type: ResourceType
    resource: StoredResource
    """As it will be; its revision is still that before."""
    outcome: str
    warnings: tuple[ApplyWarning, ...] = ()
    rebound: tuple[str, ...] = ()
    """Paths of references that name another resource than before."""
    diff: tuple[FieldChange, ...] = ()
    change: Change | None = None
    """The change to save; None: nothing has changed."""

    def plain(self) -> dict[str, object]:
        """Return the object of answers."""
        resource = self.resource
        return {
            "type": self.type.short_name,
            "id": resource.id if resource.revision else "(new)",
            "name": resource.name,
            "account": resource.document["headers"]["account"].get("name", ""),
            "outcome": self.outcome,
            "generation": resource.generation,
            "warnings": [one.plain() for one in self.warnings],
            "rebound": list(self.rebound),
            "diff": [one.plain() for one in self.diff],
            "etag": documents.etag(resource),
        }


def outcome_of(draft: ManifestDraft, prepared: Prepared, types: Types, now_ms: int, subject: str) -> Outcome:
    """Compare a draft with what is stored, and return the change."""
    kind, stored = draft.manifest.type, draft.stored
    before = None if stored is None else stored.document
    document = _document(draft, prepared, before, types, now_ms)
    kinds = _event_kinds(kind, before, document)
    outcome = _outcome_name(kinds)
    if before is not None and not kinds:
        assert stored is not None
        return Outcome(type=kind, resource=stored, outcome=UNCHANGED, warnings=tuple(draft.warnings))
    generation = 1 if stored is None else stored.generation + 1
    document["headers"]["generation"] = generation
    document["headers"]["updatedAt"] = documents.timestamp(now_ms)
    resource = _stored_resource(draft, document, types, now_ms)
    payload = {"headers": document["headers"], "spec": document["spec"]}
    events = [
        NewEvent(kind=one, subject=subject, time_ms=now_ms, payload=payload if n == 0 else None)
        for n, one in enumerate(kinds)
    ]
    diff = documents.field_changes(_diff_view(kind, before), _diff_view(kind, document))
    return Outcome(
        type=kind,
        resource=resource,
        outcome=outcome,
        warnings=tuple(draft.warnings),
        rebound=tuple(draft.rebound),
        diff=tuple(diff),
        change=Change(resource=resource, events=events, references=references_of(kind, document)),
    )


def _document(
    draft: ManifestDraft, prepared: Prepared, before: Mapping[str, Any] | None, types: Types, now_ms: int
) -> Json:
    headers = before["headers"] if before is not None else {}
    manifest = draft.manifest
    former_labels = _user_labels(headers.get("labels", {}), prepared, types.uri_of)
    labels = former_labels if manifest.labels is None else dict(manifest.labels)
    annotations = headers.get("annotations", {}) if manifest.annotations is None else manifest.annotations
    owner = draft.owner
    return {
        "$schema": str(manifest.type.uri),
        "headers": {
            "id": draft.id,
            "name": manifest.name.text,
            "account": owner.plain(),
            "labels": {**labels, **prepared.labels},
            "annotations": dict(annotations),
            "generation": headers.get("generation", 0),
            "createdAt": headers.get("createdAt", documents.timestamp(now_ms)),
            "updatedAt": headers.get("updatedAt", documents.timestamp(now_ms)),
            **({"ownerReferences": headers["ownerReferences"]} if "ownerReferences" in headers else {}),
        },
        "spec": prepared.spec,
        "status": _pending(before["status"]) if before is not None else dict(_STATUS),
    }


def _user_labels(labels: Mapping[str, Any], prepared: Prepared, lookup: TypeLookup) -> Json:
    system = labels_by_key(prepared.labels, lookup)
    return {key: value for key, value in labels.items() if label_key(key, lookup) not in system}


def _pending(status: Mapping[str, Any]) -> Json:
    """Return the status after a change."""
    return {**status, "phase": next_phase(Phase(status["phase"]), Cause.CHANGED)}


def _event_kinds(kind: ResourceType, before: Mapping[str, Any] | None, after: Json) -> list[EventKind]:
    if before is None:
        return [EventKind.CREATED]
    old, new = before["headers"], after["headers"]
    kinds = []
    if documents.comparable_spec(kind, before["spec"]) != documents.comparable_spec(kind, after["spec"]):
        kinds.append(EventKind.SPEC_CHANGED)
    if old["name"] != new["name"]:
        kinds.append(EventKind.RENAMED)
    if (old["labels"], old["annotations"]) != (new["labels"], new["annotations"]):
        kinds.append(EventKind.HEADERS_CHANGED)
    return kinds


def _outcome_name(kinds: Sequence[EventKind]) -> str:
    if EventKind.CREATED in kinds:
        return CREATED
    return RENAMED if EventKind.RENAMED in kinds else UPDATED


def _diff_view(kind: ResourceType, document: Mapping[str, Any] | None) -> Json:
    """Return the parts that a diff compares: those that users write, with secrets masked."""
    if document is None:
        return {}
    kept = ("name", "labels", "annotations")
    headers = {key: document["headers"][key] for key in kept if document["headers"][key]}
    return {"headers": headers, "spec": documents.mask_secrets(kind, document["spec"])}


def _stored_resource(draft: ManifestDraft, document: Json, types: Types, now_ms: int) -> StoredResource:
    before, headers = draft.stored, document["headers"]
    return StoredResource(
        id=draft.id,
        type=type_id(draft.manifest.type.uri),
        schema=document["$schema"],
        account=draft.owner.id,
        name=headers["name"],
        did=draft.did,
        document=document,
        labels=labels_by_key(headers["labels"], types.uri_of),
        generation=headers["generation"],
        phase=document["status"]["phase"],
        finalizers=() if before is None else before.finalizers,
        created_ms=now_ms if before is None else before.created_ms,
        updated_ms=now_ms,
        revision=0 if before is None else before.revision,
    )


def references_of(kind: ResourceType, document: Mapping[str, Any]) -> list[ResourceReference]:
    """Return the references of a document, as the store finds resources by them."""
    if kind.spec is None:
        return []
    found = []
    for path, (_, plain) in documents.references_in(kind.spec, document["spec"]).items():
        handle = Handle.from_plain(plain)
        found.append(
            ResourceReference(
                path=path,
                type=type_id(handle.type),
                id=handle.id,
                account=None if handle.account is None else handle.account.id,
                name=None if handle.name is None else handle.name.text,
                did=handle.did,
            )
        )
    return found


def rename(resource: StoredResource, name: Name, now_ms: int, subject: str) -> Change:
    """Return the change that gives a resource another name."""
    generation = resource.generation + 1
    headers = {
        **resource.document["headers"],
        "name": name.text,
        "generation": generation,
        "updatedAt": documents.timestamp(now_ms),
    }
    if resource.id == resource.account:
        headers["account"] = {**headers["account"], "name": name.text}
    status = _pending(resource.document["status"])
    changed = replace(
        resource,
        name=name.text,
        document={**resource.document, "headers": headers, "status": status},
        generation=generation,
        phase=status["phase"],
        updated_ms=now_ms,
    )
    payload = {"headers": headers}
    event = NewEvent(kind=EventKind.RENAMED, subject=subject, time_ms=now_ms, payload=payload)
    return Change(resource=changed, events=[event])


def request_deletion(found: StoredResource, now_ms: int, subject: str, *, is_forced: bool = False) -> Change:
    """Return the change by which a deletion is requested; a forced one unless its policy is to retain."""
    headers = {**found.document["headers"], "deletedAt": documents.timestamp(now_ms)}
    if is_forced and headers["annotations"].get(DELETION_POLICY) != RETAIN:
        headers["annotations"] = {**headers["annotations"], DELETION_POLICY: FORCED}
    resource = replace(
        found, document={**found.document, "headers": headers}, deleted_ms=now_ms, updated_ms=now_ms
    )
    event = NewEvent(kind=EventKind.DELETION_REQUESTED, subject=subject, time_ms=now_ms)
    return Change(resource=resource, events=[event])


def disown(resource: StoredResource, owner: ResourceId, now_ms: int, subject: str) -> Change:
    """Return the change by which a resource stays when its owner is deleted."""
    headers = dict(resource.document["headers"])
    left = [one for one in headers.pop("ownerReferences", ()) if one["id"] != owner]
    headers |= {"updatedAt": documents.timestamp(now_ms)} | ({"ownerReferences": left} if left else {})
    event = NewEvent(kind=EventKind.OWNER_CHANGED, subject=subject, time_ms=now_ms)
    document = {**resource.document, "headers": headers}
    return Change(resource=replace(resource, document=document, updated_ms=now_ms), events=[event])


def pin_references(
    types: Types, resource: StoredResource, target: Handle, now_ms: int, subject: str
) -> Change:
    """Return the change that gives unresolved references to a resource its id; the generation stays."""
    kind = types.of_schema(resource.schema)
    assert kind.spec is not None
    paths = []

    def pin(shape: Spelled, plain: Any, where: str) -> Any:
        if not isinstance(shape.detail, ReferenceField):
            return plain
        handle = Handle.from_plain(plain)
        if handle.is_resolved or not _means(handle, target):
            return plain
        paths.append(where)
        found = replace(target, type=handle.type, path=handle.path)
        return found.plain()

    spec = map_spelled(kind.spec, resource.document["spec"], pin, "spec")
    document = {**resource.document, "spec": spec}
    event = NewEvent(
        kind=EventKind.REFERENCE_PINNED, subject=subject, time_ms=now_ms, payload={"paths": paths}
    )
    return Change(
        resource=replace(resource, document=document, updated_ms=now_ms),
        events=[event],
        references=references_of(kind, document),
    )


def _means(handle: Handle, target: Handle) -> bool:
    if handle.type.identity != target.type.identity:
        return False
    if handle.did is not None:
        return handle.did == target.did
    if handle.type.identity == ACCOUNT.uri.identity:
        return handle.name == target.name
    if handle.account is None or target.account is None:
        return False
    return handle.name == target.name and handle.account.id == target.account.id
