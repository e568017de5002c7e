"""Rights on datasets that Relations resources give, as the coordinator streams them.

They are in memory only: the resources are where they are kept. Without a message of the coordinator for
`MAX_AGE_SECONDS` none is in effect any more, since one of them may have been taken back. Roles and visibility that
commands have set are in `access_store`, and do not depend on the coordinator.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Final

import structlog

from odf_common.adapters.grpc.client import calling, channel
from odf_common.adapters.grpc.peer_credentials import PeerCredentials
from odf_common.errors import OdfError
from odf_common.identity.dataset_refs import DatasetId
from odf_common.proto.odf.node.v1 import resources_pb2 as pb
from odf_common.proto.odf.node.v1.resources_pb2_grpc import ResourcesStub
from odf_sync.access.rules import Account, Role

log = structlog.stdlib.get_logger(__name__)

MAX_AGE_SECONDS: Final = 30.0
RECONNECT_SECONDS: Final = 1.0
COORDINATOR: Final = "coordinator"
PUBLIC_READ, ANONYMOUS_READ = "allowPublicRead", "allowAnonymousRead"
_ROLES: Final = {role.name.lower(): role for role in (Role.READER, Role.EDITOR, Role.MAINTAINER)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceRight:
    """A right on a dataset that a Relations resource gives."""

    account: str
    """DID of the account that has the role; empty: an attribute of the dataset."""
    right: str
    by: str
    """Account and name of the resource."""


class ResourceRights:
    """The rights in effect; thread-safe."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Start without any."""
        self._monotonic = monotonic
        self._rights: Mapping[str, tuple[ResourceRight, ...]] = {}
        self._confirmed: float | None = None

    def replace(self, grants: Iterable[pb.DatasetGrantItem]) -> None:
        """Put other rights into effect."""
        found = defaultdict[str, list[ResourceRight]](list)
        for one in grants:
            found[one.dataset].append(ResourceRight(account=one.account, right=one.right, by=one.by))
        self._rights = {dataset: tuple(rights) for dataset, rights in found.items()}
        self.confirm()

    def confirm(self) -> None:
        """Record that the rights are still those of the resources."""
        self._confirmed = self._monotonic()

    def on(self, dataset: DatasetId) -> tuple[ResourceRight, ...]:
        """Return the rights on a dataset; none if the coordinator was not heard for `MAX_AGE_SECONDS`."""
        confirmed = self._confirmed
        if confirmed is None or self._monotonic() - confirmed > MAX_AGE_SECONDS:
            return ()
        return self._rights.get(str(dataset), ())

    def role(self, dataset: DatasetId, account: Account) -> Role | None:
        """Return the highest role that an account was given on a dataset, or None."""
        own = (one.right for one in self.on(dataset) if one.account == str(account.id))
        return max((_ROLES[right] for right in own if right in _ROLES), default=None)

    def is_readable_by_accounts(self, dataset: DatasetId) -> bool:
        """Return whether each account may read a dataset, unless it derives from private ones."""
        return PUBLIC_READ in self._attributes(dataset)

    def is_public(self, dataset: DatasetId) -> bool:
        """Return whether everyone may read a dataset, unless it derives from private ones."""
        return self._attributes(dataset) >= {PUBLIC_READ, ANONYMOUS_READ}

    def _attributes(self, dataset: DatasetId) -> set[str]:
        return {one.right for one in self.on(dataset) if not one.account}


class GrantWatch:
    """Keeps the rights as the coordinator streams them."""

    def __init__(self, rights: ResourceRights, address: str, credentials: PeerCredentials = None) -> None:
        """Connect when it runs."""
        self._rights = rights
        self._stub = ResourcesStub(channel(address, credentials))

    def run(self, stop: threading.Event) -> None:
        """Follow the stream until stopped; while it is broken, the rights grow old."""
        while not stop.is_set():
            try:
                with closing(self._messages(stop)) as messages:
                    for message in messages:
                        if message.has_changed:
                            self._rights.replace(message.grants)
                        else:
                            self._rights.confirm()
            except OdfError as error:
                log.warning("rights of resources cannot be watched now", code=error.code, why=str(error))
            stop.wait(RECONNECT_SECONDS)

    def _messages(self, stop: threading.Event) -> Generator[pb.DatasetGrants, None, None]:
        with calling(COORDINATOR):
            call = self._stub.WatchDatasetGrants(pb.WatchDatasetGrantsRequest())
            try:
                for message in call:
                    if stop.is_set():
                        return
                    yield message
            finally:
                call.cancel()
