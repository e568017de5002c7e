"""Rights that Relations resources give: their vocabulary, who may give them, and those in effect (RFC-018).

An edge has an effect if the owner of its Relations owns the object too, or is the account of the node. That is decided
again whenever an edge is used, so references that are resolved later give nothing more. All resources together count;
none takes away what another one gives.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from odf_common.errors import InvalidInput, OdfError, Refused, nearest
from odf_common.resources.failures import DependencyMissing
from odf_common.resources.node_accounts import NODE_DID
from odf_common.resources.references import AccountHandle, Handle
from odf_common.resources.registry import (
    ACCOUNT,
    DATASET,
    PERSISTENT_VOLUME,
    RELATIONS,
    SECRET_SET,
    SOURCE,
    VARIABLE_SET,
    WEBHOOK_TARGET,
)
from odf_common.resources.scalar_formats import ResourceId
from odf_coordinator.resources.documents import Json, references_in, type_id
from odf_coordinator.resources.lookups import account_of
from odf_coordinator.resources.store import Query, ResourceStore, Snapshot, StoredResource

ROLE: Final = "role"
USER: Final = "user"
DATASET_ROLES: Final = ("reader", "editor", "maintainer")
PUBLIC_READ, ANONYMOUS_READ = "allowPublicRead", "allowAnonymousRead"
ATTRIBUTES: Final = (PUBLIC_READ, ANONYMOUS_READ)
_USED: Final = (SECRET_SET, VARIABLE_SET, PERSISTENT_VOLUME, WEBHOOK_TARGET, SOURCE)
_ROLES: Final = {
    DATASET.uri.identity: DATASET_ROLES,
    **{kind.uri.identity: (USER,) for kind in _USED},
}
_USED_TYPES: Final = frozenset(type_id(kind.uri) for kind in _USED)
_RELATIONS: Final = type_id(RELATIONS.uri)


class NotGrantable(Refused):
    """Only the owner of a resource gives rights on it."""

    ADVICE = "ask its owner; or as the node's user, apply it in the account odf"


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetGrant:
    """A right on a dataset."""

    dataset: str
    """DID of the dataset."""
    account: str = ""
    """DID of the account that has a role; empty for an attribute."""
    right: str
    """A role, or an attribute that is true."""
    by: str
    """Account and name of the Relations that gives it."""


def check_relations(spec: Mapping[str, Any], owner: AccountHandle) -> Iterator[OdfError]:
    """Yield what is wrong with the edges and attributes of a spec with handles, and which `owner` may not give."""
    for n, edge in enumerate(spec.get("relations", ())):
        yield from _add_place(_edge_errors(edge, owner), f"spec.relations[{n}]")
    for n, attribute in enumerate(spec.get("attributes", ())):
        yield from _add_place(_attribute_errors(attribute, owner), f"spec.attributes[{n}]")
    attributes = spec.get("attributes", ())
    readable = [one["object"] for one in attributes if one["name"] == PUBLIC_READ and one["value"] is True]
    for n, one in enumerate(attributes):
        if one["name"] == ANONYMOUS_READ and one["value"] is True and one["object"] not in readable:
            text = f"{ANONYMOUS_READ} needs {PUBLIC_READ}, which this resource does not set for the object"
            hint = f"add the attribute {PUBLIC_READ} with the value true"
            yield InvalidInput(text=text, where=f"spec.attributes[{n}]", hint=hint)


def _add_place(errors: Iterator[OdfError], place: str) -> Iterator[OdfError]:
    for error in errors:
        if isinstance(error, InvalidInput):
            yield error.with_facts(where=f"{place}.{error.where}")
        else:
            yield error


def _edge_errors(edge: Mapping[str, Any], owner: AccountHandle) -> Iterator[OdfError]:
    subject, target = Handle.from_plain(edge["subject"]), Handle.from_plain(edge["object"])
    if subject.type.identity != ACCOUNT.uri.identity:
        yield InvalidInput(text=f"expected an Account, got a {subject.type.name}", where="subject")
    roles = _ROLES.get(target.type.identity, ())
    if edge["relation"] != ROLE:
        yield _unknown("relation", edge["relation"], (ROLE,))
    elif not roles:
        yield InvalidInput(text=f"this node knows no role on a {target.type.name}", where="object")
    elif edge.get("value") not in roles:
        yield _unknown("value", edge.get("value"), roles)
    yield from _object_errors(target, owner)


def _attribute_errors(attribute: Mapping[str, Any], owner: AccountHandle) -> Iterator[OdfError]:
    target = Handle.from_plain(attribute["object"])
    if attribute["name"] not in ATTRIBUTES:
        yield _unknown("name", attribute["name"], ATTRIBUTES)
    elif target.type.identity != DATASET.uri.identity:
        yield InvalidInput(text=f"expected a Dataset, got a {target.type.name}", where="object")
    if not isinstance(attribute["value"], bool):
        yield InvalidInput(text=f"expected true or false, got {attribute['value']!r}", where="value")
    yield from _object_errors(target, owner)


def _object_errors(target: Handle, owner: AccountHandle) -> Iterator[OdfError]:
    """Yield `NotGrantable` for an object of another account; whether it exists makes no difference."""
    if owner.did == NODE_DID:
        return
    is_named = target.is_resolved or target.did is None
    if not is_named or not _is_of(target, owner):
        shown = target.name or target.did or target.id
        yield NotGrantable(text=f"{owner.name} does not own {target.type.name} {shown}")


def _unknown(where: str, given: object, words: tuple[str, ...]) -> InvalidInput:
    near = nearest(given, words) if isinstance(given, str) else None
    hint = f"did you mean {near}?" if near else ""
    return InvalidInput(text=f"unknown {given!r}; expected {', '.join(words)}", where=where, hint=hint)


def _is_of(target: Handle, owner: AccountHandle) -> bool:
    return isinstance(target.account, AccountHandle) and target.account.id == owner.id


def _may_grant(relations: StoredResource, target: StoredResource) -> bool:
    owner = account_of(relations)
    return owner.did == NODE_DID or owner.id == target.account


def granted_objects(resource: StoredResource) -> Iterator[ResourceId]:
    """Yield the ids of what a Relations resource lets others use."""
    if resource.type == _RELATIONS:
        for edge in resource.document["spec"].get("relations", ()):
            if (edge["relation"], edge.get("value")) == (ROLE, USER) and "id" in edge["object"]:
                yield ResourceId(edge["object"]["id"])


def is_user(snapshot: Snapshot, account: ResourceId, target: StoredResource) -> bool:
    """Return whether Relations let an account refer to a resource of another account."""
    if target.type not in _USED_TYPES:
        return False
    for relations in snapshot.referring_to(target.id):
        if relations.type != _RELATIONS or relations.deleted_ms is not None:
            continue
        if not _may_grant(relations, target):
            continue
        for edge in relations.document["spec"].get("relations", ()):
            given = (edge["relation"], edge.get("value"), edge["subject"].get("id"), edge["object"].get("id"))
            if given == (ROLE, USER, account, target.id):
                return True
    return False


def dataset_grants(snapshot: Snapshot) -> tuple[DatasetGrant, ...]:
    """Return the rights on datasets that are in effect; an edge whose account or dataset is gone gives none."""
    found: set[DatasetGrant] = set()
    query = Query(types=(_RELATIONS,))
    while True:
        page = snapshot.find(query)
        for relations in page.resources:
            found.update(_grants_of(snapshot, relations))
        if page.next is None:
            return tuple(sorted(found, key=lambda one: (one.dataset, one.account, one.right, one.by)))
        query = replace(query, after=page.next)


def _grants_of(snapshot: Snapshot, relations: StoredResource) -> Iterator[DatasetGrant]:
    spec, owner = relations.document["spec"], account_of(relations)
    by = f"{owner.name}/{relations.name}"
    living = _living(snapshot, relations)

    def dataset_of(plain: Mapping[str, Any]) -> str | None:
        target = living.get(plain.get("id", ""))
        is_dataset = target is not None and target.type == type_id(DATASET.uri)
        return target.did if target is not None and is_dataset and _may_grant(relations, target) else None

    for edge in spec.get("relations", ()):
        dataset, subject = dataset_of(edge["object"]), living.get(edge["subject"].get("id", ""))
        is_role = edge["relation"] == ROLE and edge.get("value") in DATASET_ROLES
        if dataset is not None and is_role and subject is not None and subject.type == type_id(ACCOUNT.uri):
            account = str(subject.did)
            yield DatasetGrant(dataset=dataset, account=account, right=edge["value"], by=by)
    for one in spec.get("attributes", ()):
        dataset = dataset_of(one["object"])
        if dataset is not None and one["name"] in ATTRIBUTES and one["value"] is True:
            yield DatasetGrant(dataset=dataset, right=one["name"], by=by)


def _living(snapshot: Snapshot, relations: StoredResource) -> dict[str, StoredResource]:
    """Return the existing targets of a Relations resource, by id."""
    ids = [ResourceId(plain["id"]) for plain in _references(relations.document).values() if "id" in plain]
    found = snapshot.by_ids(ids)
    return {id_: one for id_, one in found.items() if one.deleted_ms is None}


def _references(document: Mapping[str, Any]) -> dict[str, Json]:
    assert RELATIONS.spec is not None
    return {path: plain for path, (_, plain) in references_in(RELATIONS.spec, document["spec"]).items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class RelationsController:
    """Says which edges give nothing, since what they name does not exist; the others are in effect without it."""

    store: ResourceStore

    def reconcile(self, resource: Json) -> Mapping[str, Json | None]:
        """Raise `DependencyMissing` for a reference that is unresolved, or whose target is gone."""
        with self.store.read() as snapshot:
            stored = snapshot.by_id(ResourceId(resource["headers"]["id"]))
            living = {} if stored is None else _living(snapshot, stored)
        for path, plain in _references(resource).items():
            if plain.get("id") not in living:
                shown = plain.get("name") or plain.get("did") or plain.get("id")
                text = (
                    f"{path}: {plain['type'].rpartition('/')[2]} {shown} does not exist, so it gives nothing"
                )
                raise DependencyMissing(text=text)
        return {}

    def finalize(self, _: Json) -> None:
        """Do nothing: rights end when the deletion is requested."""
