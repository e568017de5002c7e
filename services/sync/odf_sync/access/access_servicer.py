"""Accounts, tokens, roles and logins over gRPC, for the commands `odf account`, `token`, `access` and `login`."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Final, TypeVar

import grpc

from odf_common.errors import InvalidInput, NotFound, Refused, Unavailable
from odf_common.identity.dataset_refs import Name, parse_alias
from odf_common.ports.store import Catalog, CatalogEntry, require_entry
from odf_common.proto.odf.node.v1 import access_pb2 as pb
from odf_common.proto.odf.node.v1 import access_pb2_grpc
from odf_sync.access.access_store import StoredToken
from odf_sync.access.account_resources import AccountAnnouncements, DescribedByResource
from odf_sync.access.directory import Directory
from odf_sync.access.remote_login import RemoteLogins, origin_of, require_encrypted
from odf_sync.access.rules import Account, Role, Scope, Visibility

T = TypeVar("T", Scope, Visibility)
NAME: Final = pb.DESCRIPTOR.services_by_name["Access"].full_name
GIVEN: Final = (Role.READER, Role.EDITOR, Role.MAINTAINER)


class AccountInUse(Refused):
    """An account cannot be removed because it owns datasets."""


class AlreadyOwner(Refused):
    """A role was granted to the owner of a dataset, who has all permissions anyway."""


UNKNOWN: Final = "unknown"  # the visibility of a dataset while a chain that decides it cannot be read


class AccessServicer(access_pb2_grpc.AccessServicer):
    """Serves the commands that manage accounts, tokens, access and logins; its callers are trusted."""

    def __init__(
        self,
        directory: Directory,
        logins: RemoteLogins,
        catalog: Catalog,
        announcements: AccountAnnouncements | None = None,
    ) -> None:
        self._directory = directory
        self._announcements = announcements
        self._store = directory.store
        self._logins = logins
        self._catalog = catalog

    def AddAccount(self, request: pb.AddAccountRequest, _: grpc.ServicerContext) -> pb.AccountItem:
        """Add an account."""
        password = request.password if request.HasField("password") else None
        account = self._directory.add_account(Name(request.name), password)
        if self._announcements is not None:
            self._announcements.add(account)
        return _account(account)

    def ListAccounts(self, _request: pb.ListAccountsRequest, _: grpc.ServicerContext) -> pb.ListAccountsReply:
        """Return all accounts."""
        return pb.ListAccountsReply(
            accounts=[_account(account) for account in self._store.accounts()],
            is_multi_tenant=self._directory.is_multi_tenant,
        )

    def SetPassword(self, request: pb.SetPasswordRequest, _: grpc.ServicerContext) -> pb.AccountItem:
        """Replace or remove the password of an account."""
        name = Name(request.name)
        if self._announcements is not None:
            self._announcements.resources.require_undescribed(self._store.account(name))
        self._directory.set_password(name, request.password if request.HasField("password") else None)
        return _account(self._store.account(name))

    def RemoveAccount(self, request: pb.RemoveAccountRequest, _: grpc.ServicerContext) -> pb.AccountItem:
        """Remove an account.

        Raises `AccountInUse` if it owns datasets, as a later account of that name would own them.
        """
        account = self._store.account(Name(request.name))
        for entry in self._catalog.entries():
            if parse_alias(entry.alias).account == account.name:
                raise AccountInUse(
                    text=f"account {account.name} owns {entry.alias}; delete or rename it first"
                )
        if self._announcements is not None:
            self._announcements.resources.remove(account)
        with suppress(NotFound):  # its controller may have been first
            self._store.remove_account(account.name)
        return _account(account)

    def CreateToken(self, request: pb.CreateTokenRequest, _: grpc.ServicerContext) -> pb.CreateTokenReply:
        """Create a token."""
        token, stored = self._directory.create_token(
            Name(request.account),
            label=request.label,
            scope=_parse(Scope, request.scope or Scope.MANAGE.value, "scope"),
            dataset=require_entry(self._catalog, request.dataset).incarnation if request.dataset else None,
            seconds=request.seconds if request.HasField("seconds") else None,
        )
        return pb.CreateTokenReply(token=token.text(), item=_token(stored))

    def ListTokens(self, _request: pb.ListTokensRequest, _: grpc.ServicerContext) -> pb.ListTokensReply:
        """Return all tokens that have not been revoked."""
        return pb.ListTokensReply(tokens=[_token(token) for token in self._store.tokens()])

    def RevokeToken(self, request: pb.RevokeTokenRequest, _: grpc.ServicerContext) -> pb.RevokeTokenReply:
        """Revoke a token."""
        self._store.revoke(request.id)
        return pb.RevokeTokenReply()

    def ShowAccess(self, request: pb.ShowAccessRequest, _: grpc.ServicerContext) -> pb.DatasetAccess:
        """Return the visibility of a dataset, and the accounts that have a role on it."""
        entry = require_entry(self._catalog, request.ref)
        return self._access(entry, with_derivatives=request.with_derivatives)

    def ChangeAccess(self, request: pb.ChangeAccessRequest, _: grpc.ServicerContext) -> pb.DatasetAccess:
        """Set the visibility of a dataset, or grant or revoke a role.

        Raises `AlreadyOwner` for a role of the owner, and `NotFound` if the account has no role to revoke.
        """
        entry = require_entry(self._catalog, request.ref)
        if request.visibility:
            visibility = _parse(Visibility, request.visibility, "visibility")
            if visibility is Visibility.PRIVATE:
                self._require_not_given(entry, account=None)
            self._directory.set_visibility(entry.incarnation, visibility)
        if request.account:
            account = self._store.account(Name(request.account))
            self._require_not_given(entry, account)
            role = _role(request.role) if request.role else None
            if role is not None and parse_alias(entry.alias).account == account.name:
                raise AlreadyOwner(
                    text=f"{account.name} owns {entry.alias} and may do everything; roles are for other accounts"
                )
            if not self._store.set_role(entry.incarnation, account, role):
                raise NotFound(what=f"a role of {account.name} on {entry.alias}")
        return self._access(entry, with_derivatives=bool(request.visibility))

    def _require_not_given(self, entry: CatalogEntry, account: Account | None) -> None:
        """Raise `DescribedByResource` if a resource makes a dataset readable, or gives an account a role on it."""
        subject = "" if account is None else str(account.id)
        for one in self._directory.rights.on(entry.dataset_id):
            if one.account == subject:
                whom = "" if account is None else f" {account.name}"
                raise DescribedByResource(text=f"Relations:{one.by} gives{whom} {one.right} on {entry.alias}")

    def LogIn(self, request: pb.LogInRequest, context: grpc.ServicerContext) -> Iterator[pb.LogInProgress]:
        """Log in to another node, and stream the progress: first the page to open, if any, and then the account."""
        origin = self._origin(request.url, request)
        match request.WhichOneof("with"):
            case "password":
                credentials = request.password
                token = self._logins.with_password(origin, credentials.login, credentials.password)
            case "token":
                token = request.token
            case _:
                origin = self._origin(self._logins.api_of(origin), request)
                login = self._logins.begin(origin)
                yield pb.LogInProgress(open=login.open)
                token = self._logins.wait(origin, login, context.is_active)
        account = self._logins.keep(origin, token)
        yield pb.LogInProgress(done=pb.LogInItem(origin=origin, account=account))

    @staticmethod
    def _origin(url: str, request: pb.LogInRequest) -> str:
        """Return the origin of a URL.

        Raises `InvalidInput` unless it is encrypted, local, or allowed to be insecure.
        """
        origin = origin_of(url)
        if not request.insecure:
            require_encrypted(origin)
        return origin

    def LogOut(self, request: pb.LogOutRequest, _: grpc.ServicerContext) -> pb.LogInItem:
        """Delete the stored token for another node."""
        origin = origin_of(request.url)
        self._logins.forget(origin)
        return pb.LogInItem(origin=origin)

    def ListLogIns(self, _request: pb.ListLogInsRequest, _: grpc.ServicerContext) -> pb.ListLogInsReply:
        """Return the origins for which a token is stored."""
        return pb.ListLogInsReply(origins=self._store.origins())

    def _access(self, entry: CatalogEntry, *, with_derivatives: bool) -> pb.DatasetAccess:
        owner = parse_alias(entry.alias).account
        roles = {"" if owner is None else str(owner): Role.OWNER}
        granted = self._store.roles(entry.incarnation)  # even of the owner, if the dataset was renamed
        roles |= {str(account.name): role for account, role in granted.items() if account.name != owner}
        with self._directory.one_moment():
            private_origins = list[str]()
            with suppress(Unavailable):
                private_origins = self._directory.private_origins(entry.incarnation)
            return pb.DatasetAccess(
                dataset=entry.alias,
                visibility=self._visibility(entry),
                roles=[
                    pb.DatasetAccess.Role(account=name, role=role.name.lower())
                    for name, role in roles.items()
                    if name
                ],
                published_origins=self._directory.published_origins(entry.incarnation),
                private_origins=private_origins,
                derivatives=self._derivatives(entry) if with_derivatives else (),
                by_resources=self._by_resources(entry),
            )

    def _by_resources(self, entry: CatalogEntry) -> Iterator[pb.DatasetAccess.ResourceRight]:
        names = {str(account.id): str(account.name) for account in self._store.accounts()}
        for one in self._directory.rights.on(entry.dataset_id):
            if not one.account or one.account in names:
                account = names.get(one.account, "")
                yield pb.DatasetAccess.ResourceRight(account=account, right=one.right, by=one.by)

    def _derivatives(self, entry: CatalogEntry) -> Iterator[pb.DatasetAccess.Derivative]:
        for derived in self._directory.derivatives(entry.dataset_id):
            yield pb.DatasetAccess.Derivative(dataset=derived.alias, visibility=self._visibility(derived))

    def _visibility(self, entry: CatalogEntry) -> str:
        """Return the visibility, or `unknown` while a chain that it depends on cannot be read."""
        try:
            return self._directory.visibility(entry.incarnation).value
        except Unavailable:
            return UNKNOWN


def _account(account: Account) -> pb.AccountItem:
    return pb.AccountItem(name=str(account.name), id=str(account.id))


def _token(token: StoredToken) -> pb.TokenItem:
    return pb.TokenItem(
        id=token.id,
        account=str(token.account.name),
        label=token.label,
        scope=token.scope.value,
        dataset="" if token.dataset is None else token.dataset.partition("#")[0],
        created=token.created_ms,
        expires=token.expires_ms,
    )


def _parse(kind: type[T], text: str, where: str) -> T:
    try:
        return kind(text)
    except ValueError as error:
        choices = ", ".join(choice.value for choice in kind)
        raise InvalidInput(where=where, text=f"expected one of {choices}, got {text!r}") from error


def _role(text: str) -> Role:
    for role in GIVEN:
        if role.name.lower() == text:
            return role
    choices = ", ".join(role.name.lower() for role in GIVEN)
    raise InvalidInput(where="role", text=f"expected one of {choices}, got {text!r}")
