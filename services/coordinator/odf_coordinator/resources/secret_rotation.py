"""Rotation of the keys for secrets: what is stored is encrypted by the current key, a few resources at a time.

Each transaction of `Resources.apply` reads the keys after it has begun, so once a later transaction runs, nothing is
stored by the former keys any more. A process that was killed meanwhile continues at its next start.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import structlog
from joserfc.jwk import OctKey

from odf_common.codec.model_schema import Spelled
from odf_common.codec.plain_values import map_spelled
from odf_common.errors import OdfError
from odf_common.resources.registry import WITH_SECRETS, ResourceType
from odf_common.resources.scalar_formats import ResourceId
from odf_common.resources.secret_encryption import JWE_ENCODING, InvalidJwe, SecretPlace, rewrap
from odf_common.resources.secret_keys import SecretKeys
from odf_coordinator.resources.documents import type_id
from odf_coordinator.resources.store import MAX_PAGE, Query, ResourceStore, StoredResource, Transaction

log = structlog.stdlib.get_logger(__name__)

BATCH: Final = 50  # resources of a transaction: others wait for it
RETRY_SECONDS: Final = 10.0
_KINDS: Final[Mapping[str, ResourceType]] = {str(kind.uri): kind for kind in WITH_SECRETS}


@dataclass(slots=True, kw_only=True)
class Rewrapped:
    """The result of a rotation."""

    keys: SecretKeys
    number: int = 0
    """Of secrets that were encrypted by another key before."""
    unreadable: list[str] = field(default_factory=list)
    """Resources with a secret that no key opens, as `Type:name`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretRotation:
    """Rotates the keys of a store."""

    store: ResourceStore
    load: Callable[[], SecretKeys]
    add: Callable[[], SecretKeys]
    """Adds new keys, and returns all."""
    drop: Callable[[], SecretKeys]
    """Drops all keys but the current ones, and returns those."""

    def rotate(self) -> Rewrapped:
        """Add new keys, and encrypt what is stored by them."""
        log.info("keys for secrets were added", kid=_current(self.add()))
        return self.rewrap()

    def rewrap(self) -> Rewrapped:
        """Encrypt what is stored by the current key; generations, revisions and events stay as they are."""
        with self.store.transaction() as transaction:  # after all that began with former keys
            result = Rewrapped(keys=self.load())
            ids = [resource.id for resource in _with_secrets(transaction)]
        for start in range(0, len(ids), BATCH):
            with self.store.transaction() as transaction:
                for resource in transaction.by_ids(ids[start : start + BATCH]).values():
                    _rewrap_resource(transaction, resource, result)
        return result

    def drop_former(self) -> Rewrapped:
        """Drop all keys but the current ones, after nothing that is stored needs them."""
        rewrapped = self.rewrap()
        while True:
            with self.store.transaction() as transaction:
                left = Rewrapped(keys=rewrapped.keys)
                for resource in tuple(_with_secrets(transaction)):
                    _rewrap_resource(transaction, resource, left)
                rewrapped.number += left.number
                if not left.number:  # no other transaction runs, so none is about to use a former key
                    rewrapped.keys = self.drop()
                    log.info("former keys for secrets were dropped", kid=_current(rewrapped.keys))
                    return rewrapped

    def resume(self, stop: threading.Event) -> None:
        """Finish a rotation that a former process has begun."""
        while not stop.is_set():
            try:
                if len(self.load().of_type(OctKey)) > 1:
                    self.rewrap()
            except OdfError as error:
                log.warning("secrets are still encrypted by former keys", code=error.code, why=str(error))
                stop.wait(RETRY_SECONDS)
            else:
                return


def _current(keys: SecretKeys) -> str | None:
    return keys.of_type(OctKey)[0].kid


def _with_secrets(transaction: Transaction) -> Iterator[StoredResource]:
    query = Query(types=[type_id(kind.uri) for kind in WITH_SECRETS], include_deleted=True, limit=MAX_PAGE)
    while True:
        page = transaction.find(query)
        yield from page.resources
        if page.next is None:
            return
        query = replace(query, after=page.next)


def _rewrap_resource(transaction: Transaction, resource: StoredResource, result: Rewrapped) -> None:
    """Rewrap the secrets in a resource and in its history; note those that no key opens."""
    kind = _KINDS[resource.schema]
    spec = _rewrap_spec(kind, resource.id, resource.document["spec"], result, kind.short_name, resource.name)
    if spec is not None:
        transaction.rewrite(replace(resource, document={**resource.document, "spec": spec}))
    for event in transaction.events_of(resource.id):
        if isinstance(event.payload, Mapping) and "spec" in event.payload:
            spec = _rewrap_spec(kind, resource.id, event.payload["spec"], result)
            if spec is not None:
                transaction.rewrite_payload(replace(event, payload={**event.payload, "spec": spec}))


def _rewrap_spec(kind: ResourceType, id: ResourceId, spec: Any, result: Rewrapped, *name: str) -> Any:
    """Return a spec with its secrets by the current key; None if they are by that already."""
    before = result.number

    def change(shape: Spelled, plain: Any, where: str) -> Any:
        if shape.name != "Secret" or not isinstance(plain, Mapping):
            return plain
        if plain.get("contentEncoding") != JWE_ENCODING:
            return plain
        try:
            value = rewrap(plain["value"], SecretPlace(account="", resource=id, path=where), result.keys)
        except InvalidJwe:
            if name and ":".join(name) not in result.unreadable:
                result.unreadable.append(":".join(name))
            return plain
        result.number += value != plain["value"]
        return {**plain, "value": value}

    assert kind.spec is not None
    changed = map_spelled(kind.spec, spec, change, "spec")
    return changed if result.number > before else None
