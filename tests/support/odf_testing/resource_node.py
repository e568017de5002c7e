"""The resources of a home, without the processes of a node."""

from functools import partial
from pathlib import Path
from typing import Any

from odf_common.adapters.local.secret_key_files import drop_former_keys, load_secret_keys, rotate_secret_keys
from odf_common.adapters.system_clock import SYSTEM_CLOCK
from odf_common.resources.registry import CORE_TYPES
from odf_common.resources.resource_manifests import written_resources
from odf_common.resources.scalar_formats import ResourceId
from odf_common.resources.secret_encryption import SecretPlace, decrypt_at_rest
from odf_common.resources.secret_keys import SecretKeys
from odf_coordinator.resources.attempts import AttemptEnd, Attempts, Begun
from odf_coordinator.resources.callers import Subject
from odf_coordinator.resources.documents import input_view
from odf_coordinator.resources.pre_apply import PreApply
from odf_coordinator.resources.secret_rotation import SecretRotation
from odf_coordinator.resources.sql_store import SqlResourceStore
from odf_coordinator.resources.store import START, Query, StoredResource
from odf_coordinator.resources.use_cases import Batch, Resources


def node(home: Path) -> tuple[Resources, SecretRotation]:
    """Return the resources of a home, and the rotation of its keys; resources of all types can be applied."""
    store = SqlResourceStore.open(home)
    resources = Resources(
        store=store,
        clock=SYSTEM_CLOCK,
        pre_apply=lambda: PreApply(load_keys=lambda: load_secret_keys(home)),
        controlled=frozenset(str(kind.uri) for kind in CORE_TYPES),
    )
    rotation = SecretRotation(
        store=store,
        load=partial(load_secret_keys, home),
        add=partial(rotate_secret_keys, home),
        drop=partial(drop_former_keys, home),
    )
    return resources, rotation


def apply(resources: Resources, *texts: str) -> list[str]:
    """Apply manifests, and return the outcomes."""
    batch = Batch(written=written_resources("\n---\n".join(texts).encode()))
    return [one.outcome for one in resources.apply(Subject(), batch)]


def begin(attempts: Attempts, resource: str, *, holder: str = "test", ttl_ms: int = 60_000) -> Begun | None:
    """Begin an attempt at one resource; None if it is gone, or another controller has it."""
    begun, _ = attempts.begin([ResourceId(resource)], holder, ttl_ms=ttl_ms)
    return begun[0] if begun else None


def end(attempts: Attempts, begun: Begun, **facts: Any) -> int | None:
    """End an attempt; return the delay of the next one."""
    resource = begun.resource
    outcome = AttemptEnd(
        token=begun.token, generation=resource.generation, is_cleanup=begun.is_deleting, **facts
    )
    return attempts.end({resource.id: outcome}).get(resource.id)


def stored(resources: Resources) -> list[StoredResource]:
    """Return all resources."""
    with resources.store.read() as snapshot:
        return list(snapshot.find(Query()).resources)


def exported(resources: Resources) -> list[str]:
    """Return the manifest of each resource."""
    types = resources.types()
    return [str(input_view(types.of_schema(one.schema), one.document)) for one in stored(resources)]


def opened(resources: Resources, keys: SecretKeys) -> list[str]:
    """Return all secrets, also those in histories; raises `InvalidJwe` for one that does not open."""
    with resources.store.read() as snapshot:
        specs: list[tuple[str, Any]] = [(one.id, one.document["spec"]) for one in stored(resources)]
        payloads = [(event.resource, event.payload) for event in snapshot.events_after(START)]
    specs += [(id_, payload["spec"]) for id_, payload in payloads if payload and "spec" in payload]
    found: list[str] = []
    for id_, spec in specs:
        entries: dict[str, Any] = {f"secrets.{name}": one for name, one in spec.get("secrets", {}).items()}
        entries |= {"secret": spec["secret"]} if "secret" in spec else {}
        for path, entry in entries.items():
            place = SecretPlace(account="odf", resource=id_, path=f"spec.{path}")
            found.append(decrypt_at_rest(entry["value"], place, keys))
    return found
