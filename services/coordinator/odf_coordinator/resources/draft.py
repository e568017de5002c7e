"""Manifests of a batch on their way to changes: what they mean, and the specs that are stored."""

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from odf_common.errors import InvalidInput, OdfError
from odf_common.identity.dataset_refs import Name
from odf_common.resources.references import AccountHandle, Handle
from odf_common.resources.registry import ResourceType
from odf_common.resources.resource_manifests import InvalidManifests, Problem, ResourceManifest
from odf_common.resources.scalar_formats import Did, ResourceId
from odf_coordinator.resources.documents import Json
from odf_coordinator.resources.resolution import ApplyWarning
from odf_coordinator.resources.store import (
    StoredResource,
)


class ImmutableField(InvalidInput):
    """The field cannot change after the resource was created."""

    ADVICE = "delete the resource and create it with the other value"


class UnsupportedType(InvalidInput):
    """This node has no controller for resources of the type."""

    ADVICE = "`odf types` prints the types"


@dataclass(frozen=True, slots=True, kw_only=True)
class Desired:
    """The spec of a manifest, with handles in place of references."""

    type: ResourceType
    id: ResourceId
    account: Name
    """The account that owns the resource."""
    did: Did | None
    """Of an account or a dataset."""
    spec: Json
    stored: StoredResource | None
    """The resource before; None: it is new."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A spec as its main controller has it stored."""

    spec: Json
    labels: Mapping[str, Any] = field(default_factory=dict)
    """Labels of the system, by the key that is printed."""
    warnings: Sequence[ApplyWarning] = ()


Prepare = Callable[[Desired], Prepared]
"""Checks and rewrites a spec, without a call to anything outside; raises `InvalidInput`."""


@dataclass(slots=True, kw_only=True)
class ManifestDraft:
    """A manifest on its way through the steps."""

    manifest: ResourceManifest
    owner: AccountHandle
    stored: StoredResource | None
    id: ResourceId
    did: Did | None
    """Of an account or a dataset; a new one has got it before its spec is prepared."""
    spec: Json = field(default_factory=dict)
    prepared: Prepared | None = None
    warnings: list[ApplyWarning] = field(default_factory=list)
    rebound: list[str] = field(default_factory=list)

    @property
    def handle(self) -> Handle:
        """The resource as others will refer to it."""
        return Handle(
            type=self.manifest.type.uri,
            id=self.id,
            did=self.did,
            name=self.manifest.name,
            account=self.owner,
        )


def problem_of(manifest: ResourceManifest, error: OdfError) -> Problem:
    """Return an error of a manifest with its place."""
    if isinstance(error, InvalidInput):
        return manifest.written.problem(error)
    where = InvalidInput(text=str(error), where="headers", hint=error.advice())
    return replace(manifest.written.problem(where), code=error.code)


def require_controllers(manifests: Sequence[ResourceManifest], controlled: Container[str]) -> None:
    """Raise `InvalidManifests` for those of types whose `$schema` no controller has."""
    problems = [
        problem_of(
            manifest, UnsupportedType(where="$schema", text=f"this node does not carry out {name} yet")
        )
        for manifest in manifests
        if (name := manifest.type.short_name)
        and manifest.type.spec is not None
        and str(manifest.type.uri) not in controlled
    ]
    if problems:
        raise InvalidManifests(problems=tuple(problems))
