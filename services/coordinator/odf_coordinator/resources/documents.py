"""Canonical documents of resources: what is stored and returned (RFC-018)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from odf_common.codec.model_schema import Shape, Spelled
from odf_common.codec.plain_values import map_spelled
from odf_common.codec.yaml_syntax import child
from odf_common.identity.dataset_refs import Name
from odf_common.metadata.scalars import Timestamp
from odf_common.resources.references import AccountHandle, Handle, ReferenceField
from odf_common.resources.registry import ResourceType
from odf_common.resources.scalar_formats import Did, ResourceId, TypeUri
from odf_common.resources.secret_text import MASK
from odf_common.resources.selectors import Candidate
from odf_common.resources.specs import BLOCK_DEFAULTS
from odf_coordinator.resources.store import StoredResource, TypeId

Json = dict[str, Any]


def type_id(uri: TypeUri) -> TypeId:
    """Return the identity of a type, as the store has it."""
    return TypeId(f"{uri.base}/{uri.context}/{uri.name}")


def selectable(resource: StoredResource) -> Candidate:
    """Return a resource as selectors see it."""
    uri = TypeUri.parse(resource.schema)
    return Candidate(
        type=uri.identity,
        id=resource.id,
        name=Name(resource.name),
        did=None if resource.did is None else Did(resource.did),
        account=AccountHandle.from_plain(resource.document["headers"]["account"]),
        labels=resource.labels,
        is_deleted=resource.deleted_ms is not None,
    )


def etag(resource: StoredResource) -> str:
    """Return the version of a resource: its generation and its revision, which also counts changes of its status."""
    return f'"{resource.generation}.{resource.revision}"'


def timestamp(ms: int) -> str:
    """Return a time of a document."""
    return str(Timestamp.from_ms(ms))


def comparable_spec(kind: ResourceType, spec: Any) -> object:
    """Return a value by which specs are compared: with defaults, references by their ids, without order in maps."""
    if kind.spec is None:
        return spec
    typed = kind.read_spec(map_spelled(kind.spec, spec, _identifying), [])
    return with_defaults(typed)


def _identifying(shape: Spelled, plain: Any, _: str) -> Any:
    """Return a reference with nothing but what decides."""
    if not isinstance(shape.detail, ReferenceField) or not isinstance(plain, Mapping) or "id" not in plain:
        return plain
    return {key: plain[key] for key in ("type", "id", "path") if key in plain and key in _keys(shape.detail)}


def _keys(field: ReferenceField) -> tuple[str, ...]:
    return (*(("type",) if field.writes_type else ()), "id", *(("path",) if field.has_path else ()))


def with_defaults(value: Any) -> Any:
    """Return a typed spec in which an omitted default is as if it was written."""
    if isinstance(value, tuple):
        return tuple([with_defaults(item) for item in value])
    if isinstance(value, dict):
        return {key: with_defaults(item) for key, item in value.items()}
    if not is_dataclass(value) or isinstance(value, type):
        return value
    defaults = BLOCK_DEFAULTS.get(type(value), {})
    changes = {}
    for field in fields(value):
        content = getattr(value, field.name)
        changes[field.name] = defaults.get(field.name) if content is None else with_defaults(content)
    return replace(value, **changes)


def input_view(kind: ResourceType, document: Mapping[str, Any]) -> Json:
    """Return the manifest to apply again: without what the node writes, and with references instead of handles."""
    headers = document["headers"]
    kept = {
        key: headers[key] for key in ("id", "name", "account", "labels", "annotations") if headers.get(key)
    }
    spec = document["spec"]
    if kind.spec is not None:
        spec = map_spelled(kind.spec, spec, _as_reference)
    return {"$schema": document["$schema"], "headers": kept, "spec": spec}


def _as_reference(shape: Spelled, plain: Any, _: str) -> Any:
    field = shape.detail
    if not isinstance(field, ReferenceField) or not isinstance(plain, Mapping):
        return plain
    return Handle.from_plain(plain).reference().plain(field)


def mask_secrets(kind: ResourceType, spec: Any) -> Any:
    """Return a spec whose secrets are masked."""
    if kind.spec is None:
        return spec
    return map_spelled(kind.spec, spec, lambda shape, plain, _: MASK if shape.name == "Secret" else plain)


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldChange:
    """A difference between two documents; `before` or `after` is None for a field that is absent there."""

    path: str
    before: object = None
    after: object = None

    def plain(self) -> Json:
        """Return the object of answers."""
        return {"path": self.path, "before": self.before, "after": self.after}


def field_changes(before: object, after: object, path: str = "") -> Iterator[FieldChange]:
    """Return the differences of two plain values, by path; lists are compared as a whole unless they are as long."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in dict.fromkeys((*before, *after)):
            yield from field_changes(before.get(key), after.get(key), child(path, key))
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for n, (old, new) in enumerate(zip(before, after, strict=True)):
            yield from field_changes(old, new, child(path, n))
    elif before != after:
        yield FieldChange(path=path, before=before, after=after)


def references_in(shape: Shape, spec: Any) -> dict[str, tuple[ReferenceField, Any]]:
    """Return the field and the plain value of each reference in a spec, by its path."""
    found: dict[str, tuple[ReferenceField, Any]] = {}

    def note(spelled: Spelled, plain: Any, where: str) -> Any:
        if isinstance(spelled.detail, ReferenceField):
            found[where] = (spelled.detail, plain)
        return plain

    map_spelled(shape, spec, note, "spec")
    return found


def with_current_names(
    kind: ResourceType,
    document: Mapping[str, Any],
    by_ids: Callable[[Sequence[ResourceId]], Mapping[ResourceId, StoredResource]],
) -> Json:
    """Return a document whose handles have the names that their targets have now; those of deleted ones stay."""
    if kind.spec is None:
        return dict(document)
    handles = [plain for _, plain in references_in(kind.spec, document["spec"]).values()]
    found = by_ids([ResourceId(plain["id"]) for plain in handles if "id" in plain])

    def renew(shape: Spelled, plain: Any, _: str) -> Any:
        target = found.get(plain.get("id")) if isinstance(shape.detail, ReferenceField) else None
        return plain if target is None else {**plain, "name": target.name}

    return {**document, "spec": map_spelled(kind.spec, document["spec"], renew, "spec")}
