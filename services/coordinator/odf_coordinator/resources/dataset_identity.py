"""Datasets that manifests mean: those that they declare, and those that their queries read (RFC-018)."""

from collections.abc import Container, Iterator, Sequence
from typing import Protocol

from odf_common.errors import InvalidInput
from odf_common.identity.dataset_refs import Name
from odf_common.resources.references import AccountHandle
from odf_common.resources.registry import DATASET
from odf_common.resources.resource_manifests import ResourceManifest
from odf_common.resources.scalar_formats import Did, ResourceId
from odf_coordinator.resources.documents import type_id
from odf_coordinator.resources.draft import ManifestDraft
from odf_coordinator.resources.lookups import (
    NODE_ACCOUNT,
    ExistingDatasets,
    Lookups,
    account_named,
    dataset_alias,
    dataset_named,
    input_alias,
    require_free_alias,
)
from odf_coordinator.resources.resolution import ApplyWarning, dataset_inputs
from odf_coordinator.resources.store import StoredResource


def did_of(
    manifest: ResourceManifest,
    owner: AccountHandle,
    stored: Did | None,
    state: Lookups,
    *,
    datasets: ExistingDatasets,
    renamed: Container[str],
) -> Did | None:
    """Return the DID of a declared dataset: the stored one, or that of one to adopt; None: it will be new.

    `renamed` has the DIDs of datasets to which the batch gives other names.

    Raises `InvalidInput` if the name belongs to another dataset, or if the one to adopt cannot be.
    """
    alias, given = dataset_alias(owner.name, manifest.name.text), manifest.spec.get("did")
    named = datasets.id_of(alias)
    if named in renamed:
        named = None
    did = stored or (None if given is None else Did.parse(given)) or (None if named is None else Did(named))
    if named is not None:
        require_free_alias(datasets, alias, did)
    if stored is None and did is not None:
        _require_adoptable(manifest, did, alias, datasets)
        _require_undeclared(did, state)
    return did


def _require_adoptable(manifest: ResourceManifest, did: Did, alias: str, datasets: ExistingDatasets) -> None:
    """Raise `InvalidInput` unless a dataset of the account exists, and is of the kind."""
    named, kind = datasets.alias_of(did), datasets.kind_of(did)
    if named is None or kind is None or account_in(named) != account_in(alias):
        hint = "remove `did` to create a dataset, or pull that one first"
        raise InvalidInput(text=f"this node has no dataset {did}", where="spec.did", hint=hint)
    if kind != manifest.spec["kind"]:
        hint = f"write `kind: {kind}`, or choose another name"
        raise InvalidInput(text=f"the dataset {named} exists and is {kind}", where="spec.kind", hint=hint)


def _require_undeclared(did: Did, state: Lookups) -> None:
    """Raise `InvalidInput` if another resource declares a dataset."""
    other = state.by_did(type_id(DATASET.uri), did)
    if other is not None and other.deleted_ms is None:
        hint = f"remove `did`, or apply with `id: {other.id}`"
        raise InvalidInput(text=f"Dataset:{other.name} declares it already", where="spec.did", hint=hint)


def account_in(alias: str) -> Name:
    """Return the account that an alias names; that of the node if it names none."""
    account = alias.rpartition("/")[0]
    return Name(account) if account else NODE_ACCOUNT


class Reader(Protocol):
    """The account whose rights decide which datasets a query may read."""

    def may_write(self, account: ResourceId) -> bool:
        """Return whether it may do anything with resources of an account."""

    def may_use(self, target: StoredResource) -> bool:
        """Return whether it may refer to a resource."""


class DatasetInputs:
    """Checks the inputs of queries against the batch, the store and the catalog."""

    def __init__(
        self, drafts: Sequence[ManifestDraft], state: Lookups, datasets: ExistingDatasets, reader: Reader
    ) -> None:
        """Look inputs up in what is applied together, and in what exists."""
        self._drafts = [draft for draft in drafts if draft.manifest.type is DATASET]
        self._state, self._datasets, self._reader = state, datasets, reader

    def check(self, draft: ManifestDraft, problems: list[InvalidInput]) -> Iterator[ApplyWarning]:
        """Return warnings about inputs that do not exist yet; append a problem for each that may not be read.

        Data of other accounts must not be readable through a query. What must not be read is as if it did not exist.
        """
        for where, ref in dataset_inputs(draft.manifest.type, draft.spec):
            alias = self._alias(input_alias(ref, draft.owner.name))
            if not self._is_readable(alias, draft.owner):
                problems.append(InvalidInput(text=f"the dataset {ref} does not exist", where=where))
            elif alias is None or not self._exists(alias):
                yield ApplyWarning(code="UnresolvedReference", path=where, message=f"{ref} does not exist")

    def _alias(self, ref: str) -> str | None:
        """Return the alias of an input; None for an id that is unknown here."""
        if not ref.startswith("did:"):
            return ref
        drafted = [_alias_of(draft) for draft in self._drafts if draft.did == ref]
        return drafted[0] if drafted else self._datasets.alias_of(ref)

    def _exists(self, alias: str) -> bool:
        is_drafted = any(_alias_of(draft).lower() == alias.lower() for draft in self._drafts)
        return is_drafted or self._datasets.id_of(alias) is not None

    def _is_readable(self, alias: str | None, owner: AccountHandle) -> bool:
        if alias is not None and account_in(alias) == owner.name:
            return True
        account = None if alias is None else account_named(self._state, account_in(alias).text)
        if self._reader.may_write(ResourceId("" if account is None else account.id)):
            return True
        found = None if alias is None else dataset_named(self._state, alias)
        return found is not None and self._reader.may_use(found)


def _alias_of(draft: ManifestDraft) -> str:
    return dataset_alias(draft.owner.name, draft.manifest.name.text)
