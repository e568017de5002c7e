"""Datasets as their resources declare them (RFC-018, spec: Resources): created, changed, renamed and deleted."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from odf_common.adapters.local.key_files import NoPrivateKey
from odf_common.errors import DatasetInUse, NotFound
from odf_common.identity.dataset_refs import DatasetId, Name
from odf_common.identity.keys import PrivateKey, generate
from odf_common.metadata.events import (
    AddPushSource,
    DatasetSnapshot,
    KnownEvent,
    SetAttachments,
    SetInfo,
    SetLicense,
    SetPollingSource,
    SetTransform,
    SetVocab,
)
from odf_common.ports.store import DatasetUnknown
from odf_common.resources.conditions import CHAIN_STATE, NOTICE, RECONCILIATION_ERROR, TRUE, condition_code
from odf_common.resources.failures import DependencyMissing, DependencyNotReady
from odf_common.resources.scalar_formats import ResourceId
from odf_coordinator.catalog.datasets import DatasetHandle, Datasets
from odf_coordinator.definitions.create import DatasetCreator
from odf_coordinator.definitions.diff import changed_events, kept_events
from odf_coordinator.definitions.drafts import Draft, resolve
from odf_coordinator.operations.rename_and_delete import DatasetNames
from odf_coordinator.resources.attempts import IN_USE
from odf_coordinator.resources.changes import DELETION_POLICY, FORCED, RETAIN
from odf_coordinator.resources.dataset_checks import locate_in_spec, snapshot_of
from odf_coordinator.resources.dataset_status import DatasetStatus, chain_condition
from odf_coordinator.resources.documents import Json
from odf_coordinator.resources.lookups import dataset_alias, input_alias

# Definitions that no event takes back; a schema may also be the engine's.
_NOT_REMOVABLE: Final = (SetAttachments, SetInfo, SetLicense, SetVocab, SetPollingSource, AddPushSource)


class DatasetGone(NotFound):
    """The dataset of a resource existed, and is not on this node any more."""

    MESSAGE = "dataset {what} is gone from this node"
    ADVICE = "restore it from a backup, or delete the resource and apply its manifest again: the dataset is empty then"


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """A dataset as its resource declares it."""

    resource: ResourceId
    account: Name
    alias: str
    dataset: DatasetId
    spec: Json
    is_observed: bool
    """Whether it has existed before."""
    is_settled: bool
    """Whether it was as declared after the attempt before."""

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> "Declared":
        """Read the document of a resource."""
        headers, spec, status = document["headers"], document["spec"], document["status"]
        account = Name(headers["account"]["name"])
        return cls(
            resource=ResourceId(headers["id"]),
            account=account,
            alias=dataset_alias(account, headers["name"]),
            dataset=DatasetId.parse(spec["did"]),
            spec=spec,
            is_observed=str(CHAIN_STATE) in status["conditions"],
            is_settled=status.get("observedGeneration") == headers["generation"]
            and str(RECONCILIATION_ERROR) not in status["conditions"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetController:
    """Makes datasets what their resources declare; each change is one commit, and may be repeated."""

    creator: DatasetCreator
    names: DatasetNames
    status: DatasetStatus

    @property
    def _datasets(self) -> Datasets:
        return self.creator.datasets

    def reconcile(self, resource: Json) -> Mapping[str, Json | None]:
        """Create a dataset, or rename it and append what differs; raises `DependencyMissing` for an unknown input."""
        declared = Declared.read(resource)
        self.status.end_wait(declared.resource)
        entry = self._datasets.catalog.by_id(declared.dataset)
        if entry is None and declared.is_observed:
            raise DatasetGone(what=declared.alias)
        if entry is not None and entry.alias != declared.alias:
            self.names.rename(str(declared.dataset), declared.alias)
        with locate_in_spec():
            snapshot = self._resolve_inputs(declared)
            key = self._key(declared) if entry is None else generate()
            draft = Draft(written=None, snapshot=snapshot, dataset_id=declared.dataset, key=key)
            before = self._datasets.by_id(declared.dataset) if declared.is_settled else None
            handle = self.creator.put(draft)
        if entry is None:
            self.status.wake_due()
        notices = [
            *_drift(before, handle, snapshot.metadata),
            *_list_kept_definitions(handle, snapshot.metadata),
        ]
        return {str(CHAIN_STATE): chain_condition(handle), str(NOTICE): _notice(notices)}

    def finalize(self, resource: Json) -> None:
        """Delete the dataset with its data and key, unless the resource says to retain it."""
        declared = Declared.read(resource)
        self.status.end_wait(declared.resource)
        policy = resource["headers"]["annotations"].get(DELETION_POLICY)
        if policy == RETAIN:
            return
        if self._datasets.catalog.by_id(declared.dataset) is None:
            self.creator.keys.remove(declared.dataset)
            return
        readers = [reader.id for reader in self._datasets.dependants(declared.dataset)]
        try:
            self.names.delete(str(declared.dataset), is_forced=policy == FORCED)
        except DatasetInUse as error:
            self.status.wait(declared.resource, partial(self._is_unread, declared.dataset))
            raise DependencyNotReady(reason=IN_USE, text=str(error)) from error
        self.status.wake(readers)

    def _key(self, declared: Declared) -> PrivateKey:
        try:
            return self.creator.keys.load(declared.dataset)
        except NoPrivateKey as error:
            raise DatasetGone(what=declared.alias) from error

    def _is_unread(self, dataset: DatasetId) -> bool:
        return not self._datasets.dependants(dataset)

    def _resolve_inputs(self, declared: Declared) -> DatasetSnapshot:
        """Return the snapshot with the ids of inputs, which keep the names as written as their aliases."""
        snapshot = snapshot_of(declared.spec, declared.alias)
        events = tuple(
            self._with_ids(event, declared) if isinstance(event, SetTransform) else event
            for event in snapshot.metadata
        )
        return replace(snapshot, metadata=events)

    def _with_ids(self, event: SetTransform, declared: Declared) -> SetTransform:
        inputs = tuple(
            replace(input_, dataset_ref=input_alias(input_.dataset_ref, declared.account))
            for input_ in event.inputs
        )
        try:
            return resolve(replace(event, inputs=inputs), {}, self._datasets.catalog)
        except DatasetUnknown as error:
            missing = error.what
            self.status.wait(declared.resource, partial(self._exists, missing))
            text = f"the input {missing} does not exist"
            raise DependencyMissing(text=text) from error

    def _exists(self, ref: str) -> bool:
        try:
            self._datasets.entry(ref)
        except DatasetUnknown:
            return False
        return True


def _drift(
    before: DatasetHandle | None, handle: DatasetHandle, events: Sequence[KnownEvent]
) -> Iterator[tuple[str, str]]:
    """Return a notice if a chain had other definitions than the manifest, although it had those once."""
    if before is not None and before.state.head != handle.state.head:
        names = [type(event).__name__ for event in changed_events(before.state, events)]
        changed = ", ".join(dict.fromkeys(names))
        yield "DriftCorrected", f"the chain had another {changed} than the manifest; it is as declared again"


def _list_kept_definitions(handle: DatasetHandle, events: Sequence[KnownEvent]) -> Iterator[tuple[str, str]]:
    """Return a notice of definitions that the manifest does not have any more, and the chain keeps."""
    kept = kept_events(handle.state, events)
    names = [type(event).__name__ for event in kept if isinstance(event, _NOT_REMOVABLE)]
    if names:
        what = f"the chain keeps {', '.join(dict.fromkeys(names))}, which the manifest does not have"
        yield "MetadataNotRemovable", f"{what}: no event removes it; write an empty one to blank it"


def _notice(notices: Sequence[tuple[str, str]]) -> Json | None:
    """Return the condition with all notices, and the code of the first one."""
    if not notices:
        return None
    message = "; ".join(text for _, text in notices)
    return {"value": TRUE, "code": condition_code(notices[0][0]), "message": message}
