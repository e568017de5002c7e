"""Accounts as resources: manifests of accounts are carried into `access.db`, and accounts of commands are announced.

An account that a manifest describes has its name, its password and its end from there, so commands about it are
refused. An account that a command has added is announced to the coordinator, so that Relations can refer to it.
"""

import json
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from odf_common.adapters.grpc.client import calling, channel
from odf_common.adapters.grpc.peer_credentials import PeerCredentials
from odf_common.errors import AlreadyExists, Conflict, NotFound, OdfError, Refused
from odf_common.identity.dataset_refs import DatasetId, Name, parse_alias
from odf_common.ports.store import Catalog
from odf_common.proto.odf.node.v1 import resources_pb2 as pb
from odf_common.proto.odf.node.v1.resources_pb2_grpc import ResourcesStub
from odf_common.resources.failures import DependencyNotReady
from odf_common.resources.node_accounts import NODE_ACCOUNT, NODE_DID, is_implied
from odf_common.resources.registry import ACCOUNT
from odf_sync.access.access_store import AccessStore
from odf_sync.access.rules import Account

log = structlog.stdlib.get_logger(__name__)

ACCOUNT_CALL_SECONDS: Final = 10.0
ANNOUNCE_SECONDS: Final = (
    30.0  # between attempts, for accounts that were added while the coordinator was away
)
GONE_POLL_SECONDS: Final = 0.05
COORDINATOR: Final = "coordinator"
Json = dict[str, Any]


class DescribedByResource(Refused):
    """A resource says what the command would change."""

    ADVICE = "change the manifest and apply it, or `odf delete` the resource"


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountController:
    """Makes the accounts of `access.db` what their manifests say."""

    store: AccessStore
    catalog: Catalog

    def reconcile(self, resource: Json) -> Mapping[str, Json | None]:
        """Add an account, or change its name and password; raises `AlreadyExists` if another one has the name."""
        if not is_implied(resource) and not _is_node(resource):
            password = resource["spec"].get("password")
            self.store.put_account(_account_of(resource), None if password is None else password["value"])
        return {}

    def finalize(self, resource: Json) -> None:
        """Remove an account with its tokens and roles; raises `DependencyNotReady` while it owns datasets."""
        account = _account_of(resource)
        for entry in self.catalog.entries():
            if parse_alias(entry.alias).account == account.name:
                raise DependencyNotReady(
                    reason="in-use", text=f"the account {account.name} owns {entry.alias}"
                )
        with suppress(NotFound):
            if self.store.account(account.name).id == account.id:
                self.store.remove_account(account.name)


def _account_of(resource: Json) -> Account:
    return Account(id=DatasetId.parse(resource["spec"]["did"]), name=Name(resource["headers"]["name"]))


def _is_node(resource: Json) -> bool:
    return bool(resource["spec"]["did"] == NODE_DID)


class AccountResources:
    """The resources of accounts, as commands have to respect them; thread-safe. Calls raise `OdfError`."""

    def __init__(self, address: str, credentials: PeerCredentials = None) -> None:
        """Connect on the first call."""
        self._stub = ResourcesStub(channel(address, credentials))

    def announce(self, account: Account) -> None:
        """Announce an account; raises `Conflict` if a manifest describes another one of its name."""
        subject = pb.ResourceSubject(did=str(account.id), name=str(account.name))
        with calling(COORDINATOR):
            self._stub.ApplyResources(pb.ApplyResourcesRequest(subject=subject), timeout=ACCOUNT_CALL_SECONDS)

    def require_undescribed(self, account: Account) -> None:
        """Raise `DescribedByResource` if a manifest describes an account."""
        request = pb.GetResourceRequest(type=str(ACCOUNT.uri), ref=str(account.id))
        try:
            with calling(COORDINATOR):
                reply = self._stub.GetResource(request, timeout=ACCOUNT_CALL_SECONDS)
        except NotFound:
            return
        if not is_implied(json.loads(reply.json)):
            raise DescribedByResource(text=f"Account:{account.name} says what the account {account.name} is")

    def remove(self, account: Account) -> None:
        """Delete an account's resource, if there is one, so that its name is free; refused while it owns resources."""
        self.require_undescribed(account)
        resource = pb.GetResourceRequest(type=str(ACCOUNT.uri), ref=str(account.id), include_deleted=True)
        with suppress(NotFound), calling(COORDINATOR):
            self._stub.DeleteResource(
                pb.DeleteResourceRequest(resource=resource), timeout=ACCOUNT_CALL_SECONDS
            )
        until = time.monotonic() + ACCOUNT_CALL_SECONDS
        with suppress(NotFound), calling(COORDINATOR):
            while time.monotonic() < until:
                self._stub.GetResource(resource, timeout=ACCOUNT_CALL_SECONDS)
                time.sleep(GONE_POLL_SECONDS)


@dataclass(slots=True, kw_only=True)
class AccountAnnouncements:
    """Announces the accounts of commands, again until the coordinator has answered."""

    store: AccessStore
    resources: AccountResources
    _done: set[DatasetId] = field(default_factory=set)

    def run(self, stop: threading.Event) -> None:
        """Announce accounts until stopped."""
        while True:
            try:
                for account in self.store.accounts():
                    self._announce(account)
            except OdfError as error:
                log.info("accounts are announced later", code=error.code, why=str(error))
            if stop.wait(ANNOUNCE_SECONDS):
                return

    def _announce(self, account: Account) -> None:
        if account.id in self._done or account.name == NODE_ACCOUNT:  # its resource is that of the node
            return
        try:
            self.resources.announce(account)
        except Conflict as error:
            log.warning("an account has no resource", account=str(account.name), why=str(error))
        self._done.add(account.id)

    def add(self, account: Account) -> None:
        """Announce a new account; if another one has its name, remove it again and raise `AlreadyExists`."""
        try:
            self.resources.announce(account)
            self._done.add(account.id)
        except Conflict as error:
            self.store.remove_account(account.name)
            raise AlreadyExists(what=f"Account:{account.name}") from error
        except OdfError as error:
            log.info("an account is announced later", account=str(account.name), why=str(error))
