"""Apply, as a function of manifests and one state of the store (RFC-018).

match → resolve → order → prepare → compare → changes. Each step looks at all manifests before the next one starts, so
an answer has all errors of a step. Nothing is written here.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from odf_common.errors import Conflict, InvalidInput, NotFound, OdfError, Refused
from odf_common.resources.labels import merge_labels
from odf_common.resources.references import AccountHandle, AccountRef, Handle
from odf_common.resources.registry import (
    ACCOUNT,
    DATASET,
    RELATIONS,
    ResourceType,
    Types,
)
from odf_common.resources.resource_manifests import InvalidManifests, Problem, ResourceManifest
from odf_common.resources.scalar_formats import Did, ResourceId
from odf_common.resources.selectors import ALL_ACCOUNTS
from odf_coordinator.resources import documents
from odf_coordinator.resources.account_checks import check_account
from odf_coordinator.resources.changes import Outcome, outcome_of
from odf_coordinator.resources.dataset_identity import DatasetInputs, did_of
from odf_coordinator.resources.documents import type_id
from odf_coordinator.resources.draft import Desired, ImmutableField, ManifestDraft, Prepare, problem_of
from odf_coordinator.resources.lookups import (
    ExistingDatasets,
    Lookups,
    RememberedReads,
    account_named,
    account_of,
    find_account,
    handle_of,
    is_account,
    name_conflict,
)
from odf_coordinator.resources.ordering import in_order
from odf_coordinator.resources.relations import check_relations
from odf_coordinator.resources.resolution import Resolver, selectors_of_all_accounts
from odf_coordinator.resources.store import (
    Snapshot,
    StoredResource,
    TypeId,
)


class IdentityMismatch(Conflict):
    """The id belongs to a resource of another type or account."""

    MESSAGE = "{id} is the {type} {account}/{name}"
    ADVICE = "remove `id` to create a resource, or correct it"

    id: str
    type: str
    account: str
    name: str


class ResourceNotFound(NotFound):
    """No resource has this id or name."""

    ADVICE = "{hint}"

    hint: str = ""


class ResourceGone(ResourceNotFound):
    """A resource of this id or name was deleted, or is being deleted."""

    MESSAGE = "{what} does not exist any more: it was deleted"


def account_not_found(ref: object) -> ResourceNotFound:
    """Return the error for an account that owns nothing here."""
    return ResourceNotFound(what=f"account {ref}", hint="`odf get Account` prints those that have resources")


class BeingDeleted(Conflict):
    """The deletion of the resource was requested; it takes no changes."""

    MESSAGE = "{what} is being deleted"
    ADVICE = "wait until it is gone, and apply again"

    what: str


class DuplicateInBatch(InvalidInput):
    """Two manifests of a batch mean the same resource."""


class Forbidden(Refused):
    """The caller may not do this."""

    ADVICE = "use a token of that account, or ask its owner for a role"


def require_grantor(caller: "Caller", schema: str) -> None:
    """Raise `Forbidden` for a change of an account or of Relations by a token that gives no rights."""
    if schema in {str(ACCOUNT.uri), str(RELATIONS.uri)} and not caller.may_grant:
        raise Forbidden(text="the token does not allow to give rights, which needs the scope manage")


class Caller(Protocol):
    """The account on whose behalf manifests are applied."""

    @property
    def account(self) -> StoredResource:
        """The account whose token was sent."""

    @property
    def is_admin(self) -> bool:
        """Return whether the caller administers the node."""

    @property
    def may_grant(self) -> bool:
        """Return whether the caller may change accounts and Relations."""

    def may_write(self, account: ResourceId) -> bool:
        """Return whether the caller may change resources of an account."""

    def may_read(self, resource: StoredResource) -> bool:
        """Return whether the caller may see a resource."""

    def may_use(self, target: StoredResource) -> bool:
        """Return whether the caller may refer to a resource."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of a batch."""

    account: AccountRef | None = None
    """The account of manifests that name none; None: that of the caller."""
    is_rebinding: bool = False
    """Whether names may mean other resources than before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """Functions and values that a plan needs besides the store."""

    types: Types
    prepare: Prepare
    new_id: Callable[[], ResourceId]
    new_did: Callable[[], Did]
    """Returns the DID of a new key."""
    datasets: ExistingDatasets
    now_ms: int


def plan(
    manifests: Sequence[ResourceManifest], state: Snapshot, caller: Caller, options: Options, tools: Tools
) -> tuple[Outcome, ...]:
    """Return the effects of manifests, in the order in which they depend on each other.

    Raises `InvalidManifests` with all errors of the first step that has any; then nothing may be stored.
    """
    return _Batch(state, caller, options, tools).plan(manifests)


class _Batch:
    def __init__(self, state: Snapshot, caller: Caller, options: Options, tools: Tools) -> None:
        self._state = RememberedReads(state)
        self._caller, self._options, self._tools = caller, options, tools
        self._types = tools.types
        self._drafts: list[ManifestDraft] = []
        self._problems: list[Problem] = []
        self._owners: dict[AccountRef | None, AccountHandle] = {}
        self._renamed = frozenset[str]()

    def plan(self, manifests: Sequence[ResourceManifest]) -> tuple[Outcome, ...]:
        """Return the outcome of each manifest."""
        accounts = [manifest for manifest in manifests if manifest.type is ACCOUNT]
        self._match_all(accounts)  # owners first
        others = [manifest for manifest in manifests if manifest.type is not ACCOUNT]
        self._read_existing(others)
        self._renamed = frozenset(self._renamed_datasets(others))
        self._match_all(others)
        self._require_distinct()
        self._require_free_names()
        self._end_step()
        by_position = {id(manifest): n for n, manifest in enumerate(manifests)}
        self._drafts.sort(key=lambda draft: by_position[id(draft.manifest)])
        targets = _Targets(self._state, self._drafts, self._types, self._caller)
        for draft in self._drafts:
            self._resolve(draft, targets)
        self._end_step()
        ordered = in_order(self._drafts, self._state, self._types)
        for draft in ordered:
            self._attempt(draft.manifest, partial(self._prepare, draft))
        self._end_step()
        return tuple(self._outcome(draft) for draft in ordered)

    def _match_all(self, manifests: Sequence[ResourceManifest]) -> None:
        for manifest in manifests:
            self._attempt(manifest, partial(self._match_into_drafts, manifest))

    def _match_into_drafts(self, manifest: ResourceManifest) -> None:
        self._drafts.append(self._match(manifest))

    def _read_existing(self, manifests: Sequence[ResourceManifest]) -> None:
        """Read the resources that manifests name, by a query for each type and account."""
        self._state.read_ids([manifest.id for manifest in manifests if manifest.id is not None])
        names = defaultdict[tuple[TypeId, ResourceId], list[str]](list)
        for manifest in manifests:
            with suppress(OdfError):  # of an owner: it is refused when the manifest is matched
                names[type_id(manifest.type.uri), self._owner(manifest).id].append(manifest.name.text)
        for (kind, owner), texts in names.items():
            self._state.read_names(kind, owner, texts)

    def _renamed_datasets(self, manifests: Sequence[ResourceManifest]) -> Iterator[str]:
        """Yield the DIDs of datasets to which manifests give other names."""
        for manifest in manifests:
            if manifest.type is DATASET and manifest.id is not None:
                found = self._state.by_id(manifest.id)
                if found is not None and found.did and found.name.lower() != manifest.name.key:
                    yield found.did

    def _attempt(self, manifest: ResourceManifest, step: Callable[[], object]) -> None:
        try:
            step()
        except OdfError as error:
            self._problems.append(problem_of(manifest, error))

    def _end_step(self) -> None:
        if self._problems:
            raise InvalidManifests(problems=tuple(self._problems))

    def _match(self, manifest: ResourceManifest) -> ManifestDraft:
        """Find the resource that a manifest means, and the account that owns it."""
        new = self._tools.new_id()
        require_grantor(self._caller, str(manifest.type.uri))
        if manifest.type is ACCOUNT:
            found = self._account(manifest)
            if not self._caller.is_admin:
                raise Forbidden(text="only administrators of the node change accounts")
            check_account(manifest, found, self._state)
            identity = new if found is None else found.id
            own = self._did(manifest, found) or self._new_did(manifest)
            did: Did | None = own
            owner = AccountHandle(id=identity, did=own, name=manifest.name)
            if manifest.account is not None and not is_account(owner, manifest.account):
                raise InvalidInput(text="an account owns itself", where="headers.account", hint="remove it")
        else:
            owner = self._owner(manifest)
            found = self._existing(manifest, owner.id)
            identity, did = (new if found is None else found.id), self._did(manifest, found)
        if not self._caller.may_write(owner.id):
            raise Forbidden(text=f"you may not change resources of the account {owner.name}")
        if found is not None and found.deleted_ms is not None:
            raise BeingDeleted(what=f"{manifest.type.short_name} {manifest.name}")
        if manifest.type is DATASET:
            datasets, renamed = self._tools.datasets, self._renamed
            did = did_of(manifest, owner, did, self._state, datasets=datasets, renamed=renamed)
            did = did or self._tools.new_did()
        return ManifestDraft(manifest=manifest, owner=owner, stored=found, id=identity, did=did)

    def _account(self, manifest: ResourceManifest) -> StoredResource | None:
        return (
            account_named(self._state, manifest.name.text) if manifest.id is None else self._by_id(manifest)
        )

    def _did(self, manifest: ResourceManifest, stored: StoredResource | None) -> Did | None:
        """Return the DID of an account or a dataset that is stored; None for others."""
        if stored is None or stored.did is None:
            return None
        given = manifest.spec.get("did")
        if given is not None and Did.parse(given) != stored.did:
            raise ImmutableField(text=f"it is {stored.did}; a DID cannot change", where="spec.did")
        return Did(stored.did)

    def _new_did(self, manifest: ResourceManifest) -> Did:
        given = manifest.spec.get("did")
        return self._tools.new_did() if given is None else Did.parse(given)

    def _owner(self, manifest: ResourceManifest) -> AccountHandle:
        ref = manifest.account or self._options.account
        if ref not in self._owners:
            self._owners[ref] = self._account_that_owns(ref)
        return self._owners[ref]

    def _account_that_owns(self, ref: AccountRef | None) -> AccountHandle:
        if ref is None:
            return account_of(self._caller.account)
        for draft in self._drafts:
            if draft.manifest.type is ACCOUNT and is_account(draft.owner, ref):
                return draft.owner
        account = find_account(self._state, ref)
        if account is None:
            raise account_not_found(ref)
        return account_of(account)

    def _existing(self, manifest: ResourceManifest, owner: ResourceId) -> StoredResource | None:
        if manifest.id is None:
            return self._state.by_name(type_id(manifest.type.uri), owner, manifest.name.text)
        found = self._by_id(manifest)
        if found.account != owner:
            raise self._mismatch(found)
        return found

    def _unknown_id(self, manifest: ResourceManifest) -> ResourceNotFound:
        hint = "remove `id`: the node gives new resources their ids"
        return ResourceNotFound(what=f"a resource with the id {manifest.id}", hint=hint)

    def _by_id(self, manifest: ResourceManifest) -> StoredResource:
        assert manifest.id is not None
        found = self._state.by_id(manifest.id)
        if found is None or not self._caller.may_read(found):
            raise self._unknown_id(manifest)
        if found.type != type_id(manifest.type.uri):
            raise self._mismatch(found)
        return found

    def _mismatch(self, found: StoredResource) -> IdentityMismatch:
        account = found.document["headers"]["account"].get("name", "")
        kind = self._types.of_schema(found.schema).short_name
        return IdentityMismatch(id=found.id, type=kind, account=account, name=found.name)

    def _require_distinct(self) -> None:
        seen: dict[object, ManifestDraft] = {}
        for draft in self._drafts:
            name = (draft.manifest.type.uri.identity, draft.owner.id, draft.manifest.name.key)
            for key in (draft.id, name, draft.did or draft.id):
                other = seen.setdefault(key, draft)
                if other is not draft:
                    number = other.manifest.written.number
                    error = DuplicateInBatch(
                        text=f"document {number} means the same resource", where="headers.name"
                    )
                    self._problems.append(problem_of(draft.manifest, error))
                    break

    def _require_free_names(self) -> None:
        """Note a problem for each name of a resource that keeps it after the batch."""
        drafted = {draft.id for draft in self._drafts}
        for draft in self._drafts:
            manifest = draft.manifest
            conflict = name_conflict(self._state, manifest.type, draft.owner, manifest.name, drafted)
            if conflict is not None:
                self._problems.append(problem_of(manifest, conflict))

    def _resolve(self, draft: ManifestDraft, targets: "_Targets") -> None:
        problems: list[InvalidInput] = []
        kind = draft.manifest.type
        stored: dict[str, Any] = {}
        if draft.stored is not None and kind.spec is not None:
            in_stored = documents.references_in(kind.spec, draft.stored.document["spec"])
            stored = {path: plain for path, (_, plain) in in_stored.items()}
        resolver = Resolver(
            types=self._types,
            targets=targets,
            account=draft.owner,
            stored=stored,
            is_rebinding=self._options.is_rebinding,
            problems=problems,
        )
        draft.spec = dict(resolver.resolve(kind, draft.manifest.spec))
        draft.warnings, draft.rebound = resolver.warnings, resolver.rebound
        inputs = DatasetInputs(self._drafts, self._state, self._tools.datasets, self._caller)
        draft.warnings += inputs.check(draft, problems)
        self._problems += [problem_of(draft.manifest, error) for error in problems]
        if kind is RELATIONS and not problems:
            refused = check_relations(draft.spec, draft.owner)
            self._problems += [problem_of(draft.manifest, error) for error in refused]
        if not self._caller.is_admin:
            self._problems += [
                replace(problem_of(draft.manifest, _of_all_accounts(path)), code=Forbidden.__name__)
                for path in selectors_of_all_accounts(kind, draft.spec)
            ]

    def _prepare(self, draft: ManifestDraft) -> None:
        prepared = self._tools.prepare(
            Desired(
                type=draft.manifest.type,
                id=draft.id,
                account=draft.owner.name,
                did=draft.did,
                spec=draft.spec,
                stored=draft.stored,
            )
        )
        try:
            merge_labels(draft.manifest.labels or {}, prepared.labels, self._types.uri_of)
        except InvalidInput as error:
            raise error.with_facts(where=f"headers.labels.{error.where}") from error
        draft.warnings += prepared.warnings
        draft.prepared = prepared

    def _outcome(self, draft: ManifestDraft) -> Outcome:
        assert draft.prepared is not None
        return outcome_of(draft, draft.prepared, self._types, self._tools.now_ms, self._caller.account.id)


def _of_all_accounts(path: str) -> InvalidInput:
    text = f"only administrators of the node select resources of all accounts ({ALL_ACCOUNTS})"
    return InvalidInput(text=text, where=path, hint="leave the account out to select your own")


class _Targets:
    """The store and the batch as one: what references may name."""

    def __init__(self, state: Lookups, drafts: Sequence[ManifestDraft], types: Types, caller: Caller) -> None:
        self._state, self._types, self._caller = state, types, caller
        self._drafts = {draft.id: draft for draft in drafts}
        self._accounts = [draft for draft in drafts if draft.manifest.type is ACCOUNT]
        self._dids = {(draft.manifest.type.short_name, draft.did): draft for draft in drafts}
        self._names = {
            (draft.manifest.type.uri.identity, draft.owner.id, draft.manifest.name.key): draft
            for draft in drafts
        }

    def account(self, ref: AccountRef) -> Handle | None:
        for draft in self._accounts:
            if is_account(draft.owner, ref):
                return draft.handle
        found = find_account(self._state, ref)
        return None if found is None else handle_of(found)

    def by_id(self, id: ResourceId) -> Handle | None:
        if id in self._drafts:
            return self._drafts[id].handle
        return self._living(self._state.by_id(id))

    def by_did(self, kind: ResourceType, did: str) -> Handle | None:
        draft = self._dids.get((kind.short_name, Did(did)))
        if draft is not None:
            return draft.handle
        return self._living(self._state.by_did(type_id(kind.uri), did))

    def by_name(self, kind: ResourceType, account: AccountHandle, name: str) -> Handle | None:
        draft = self._names.get((kind.uri.identity, account.id, name.lower()))
        if draft is not None:
            return draft.handle
        found = self._state.by_name(type_id(kind.uri), account.id, name)
        if found is not None and ResourceId(found.id) in self._drafts:
            return None  # the batch gives it another name
        return self._living(found)

    def may_use(self, target: Handle) -> bool:
        if target.id in self._drafts or target.type.identity == ACCOUNT.uri.identity:
            return True
        found = None if target.id is None else self._state.by_id(target.id)
        return found is not None and self._caller.may_use(found)

    @staticmethod
    def _living(found: StoredResource | None) -> Handle | None:
        return None if found is None or found.deleted_ms is not None else handle_of(found)
