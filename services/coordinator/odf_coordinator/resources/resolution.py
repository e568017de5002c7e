"""References of manifests → handles with ids (RFC-018). Pure but for what it looks up."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from odf_common.codec.model_schema import Spelled
from odf_common.codec.plain_values import map_spelled
from odf_common.errors import InvalidInput
from odf_common.resources.references import (
    AccountHandle,
    AccountRef,
    Handle,
    Reference,
    ReferenceField,
    disagreements,
    type_warning,
)
from odf_common.resources.registry import ACCOUNT, ResourceType, Types
from odf_common.resources.scalar_formats import ResourceId
from odf_common.resources.selectors import ALL_ACCOUNTS, Selector

SELECTORS: Final = ("ResourceSelector", "DatasetSelector")


class UnknownId(InvalidInput):
    """No resource has this id, and none can get it later."""

    ADVICE = "refer to the resource by its name, or correct the id"


class AmbiguousReference(InvalidInput):
    """The name belongs to another resource than the one that was referred to."""

    ADVICE = "give the id of the one that is meant, or apply with `--rebind`"


class Targets(Protocol):
    """The resources of the store and of the batch, as they will be afterwards."""

    def account(self, ref: AccountRef) -> Handle | None:
        """Return an account."""

    def by_id(self, id: ResourceId) -> Handle | None:
        """Return a resource; None if it does not exist, or its deletion was requested."""

    def by_did(self, kind: ResourceType, did: str) -> Handle | None:
        """Return the resource of a type that has a DID."""

    def by_name(self, kind: ResourceType, account: AccountHandle, name: str) -> Handle | None:
        """Return the resource of a type that has a name."""

    def may_use(self, target: Handle) -> bool:
        """Return whether the caller may refer to a resource."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyWarning:
    """A warning about a manifest that is applied nevertheless."""

    code: str
    path: str
    message: str

    def plain(self) -> dict[str, str]:
        """Return the object of answers."""
        return {"code": self.code, "path": self.path, "message": self.message}


@dataclass(slots=True, kw_only=True)
class Resolver:
    """Resolves the references of one manifest; what it has to tell is in `warnings` and `rebound`."""

    types: Types
    targets: Targets
    account: AccountHandle
    """The account of the manifest, in which names are looked up."""
    stored: Mapping[str, Any]
    """The handles of the stored spec, by path."""
    is_rebinding: bool
    problems: list[InvalidInput]
    warnings: list[ApplyWarning] = field(default_factory=list)
    rebound: list[str] = field(default_factory=list)
    """Paths of references that name another resource than before."""

    def resolve(self, kind: ResourceType, spec: Any) -> Any:
        """Return the spec with handles in place of references."""
        return spec if kind.spec is None else map_spelled(kind.spec, spec, self._change, "spec")

    def _change(self, shape: Spelled, plain: Any, where: str) -> Any:
        if not isinstance(shape.detail, ReferenceField):
            return plain
        try:
            reference = Reference.parse(plain, shape.detail)
            warning = type_warning(reference, shape.detail)
            if warning is not None:
                self._warn("UnusualReference", where, warning)
            return self._handle(reference, where).plain()
        except InvalidInput as error:
            self.problems.append(error.with_facts(where=where))
            return plain

    def _handle(self, reference: Reference, where: str) -> Handle:
        kind = self.types.of_ref(reference.type)
        before = self._before(where)
        target = self._target(kind, reference, before, where)
        if target is not None and not self.targets.may_use(target):
            if reference.id is not None and (before is None or before.id != reference.id):
                raise _unknown_id(kind, reference.id)
            target = None
        if target is None:
            return self._unresolved_handle(kind, reference, where)
        for warning in disagreements(reference, target):
            self._warn("ReferenceMismatch", where, warning)
        if before is not None and before.id is not None and before.id != target.id:
            self.rebound.append(where)
            self._warn("Rebound", where, f"{reference} is now {target.id}, not {before.id}")
        return Handle(
            type=kind.uri,
            id=target.id,
            did=target.did,
            name=target.name,
            account=target.account,
            path=reference.path,
        )

    def _before(self, where: str) -> Handle | None:
        plain = self.stored.get(where)
        return None if plain is None else Handle.from_plain(plain)

    def _target(
        self, kind: ResourceType, reference: Reference, before: Handle | None, where: str
    ) -> Handle | None:
        if reference.id is not None:
            target = self.targets.by_id(reference.id)
            if target is None and before is not None and before.id == reference.id:
                return before  # its target was deleted; the handle stays
            if target is None or target.type.identity != kind.uri.identity:
                raise _unknown_id(kind, reference.id)
            return target
        if reference.did is not None:
            return self.targets.by_did(kind, reference.did)
        if kind is ACCOUNT and reference.name is not None:
            return self.targets.account(AccountRef(name=reference.name))  # it is in no other account
        account = self._account_of(reference)
        if account is None or reference.name is None:
            return None
        target = self.targets.by_name(kind, account, reference.name.text)
        return self._same_or_new(target, before, reference, account)

    def _same_or_new(
        self, target: Handle | None, before: Handle | None, reference: Reference, account: AccountHandle
    ) -> Handle | None:
        """Return the target of a name, unless the resource that it named before still exists under another."""
        if before is None or before.id is None or (target is not None and target.id == before.id):
            return target
        former = self.targets.by_id(before.id)
        was_in = None if before.account is None else before.account.id
        named_so = before.name == reference.name and was_in == account.id
        if former is None or not named_so or self.is_rebinding:
            return target
        text = f"{reference} named {before.id} before, which is {former.name} now"
        raise AmbiguousReference(text=text)

    def _account_of(self, reference: Reference) -> AccountHandle | None:
        if reference.account is None:
            return self.account
        found = self.targets.account(reference.account)
        return None if found is None or not isinstance(found.account, AccountHandle) else found.account

    def _unresolved_handle(self, kind: ResourceType, reference: Reference, where: str) -> Handle:
        self._warn("UnresolvedReference", where, f"{reference} does not exist")
        return Handle(
            type=kind.uri,
            did=reference.did,
            name=reference.name,
            account=None if kind is ACCOUNT else self._account_of(reference) or reference.account,
            path=reference.path,
        )

    def _warn(self, code: str, where: str, message: str) -> None:
        self.warnings.append(ApplyWarning(code=code, path=where, message=message))


def _unknown_id(kind: ResourceType, id: ResourceId) -> UnknownId:
    return UnknownId(text=f"no {kind.short_name} has the id {id}")


def selectors_of_all_accounts(kind: ResourceType, spec: Any) -> list[str]:
    """Return the paths of selectors over all accounts."""
    found = list[str]()

    def note(shape: Spelled, plain: Any, where: str) -> Any:
        read = shape.read(plain) if shape.name in SELECTORS else None
        if isinstance(read, Selector) and read.account == ALL_ACCOUNTS:
            found.append(where)
        return plain

    if kind.spec is not None:
        map_spelled(kind.spec, spec, note, "spec")
    return found


def dataset_inputs(kind: ResourceType, spec: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return path and text of the datasets that a Dataset's query or a Projection reads."""
    inputs = []
    if kind.uri.name == "Projection":
        inputs = [("spec.inputs", spec.get("inputs", ()))]
    elif kind.uri.name == "Dataset":
        inputs = [
            (f"spec.metadata[{n}].inputs", event.get("inputs", ()))
            for n, event in enumerate(spec.get("metadata", ()))
            if event.get("kind") == "SetTransform"
        ]
    return [
        (f"{where}[{n}].datasetRef", entry["datasetRef"])
        for where, entries in inputs
        for n, entry in enumerate(entries)
    ]
