"""The accounts of a node: whose a token is, who may log in, and which role an account has.

On a single-tenant node, every account owns every dataset. On a multi-tenant one, the account in a dataset's name owns
it, and others have the roles granted to them.

A private dataset is also marked next to its data: if the database is lost, or was not in a backup, it stays private.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hmac import compare_digest
from typing import Final

from odf_common.adapters.system_clock import SYSTEM_CLOCK
from odf_common.errors import InvalidInput, NotFound, OdfError, Unavailable
from odf_common.identity.dataset_refs import Alias, Name, parse_alias
from odf_common.identity.did import DatasetId
from odf_common.identity.keys import generate
from odf_common.ports.clock import Clock
from odf_common.ports.store import (
    PRIVATE_MARK,
    PUBLIC_MARK,
    BlobStore,
    CatalogEntry,
    Incarnation,
    id_of,
    incarnation,
    new_creation,
)
from odf_sync.access.access_store import AccessStore, StoredToken
from odf_sync.access.passwords import hash_password, is_password
from odf_sync.access.rules import Account, Caller, Role, Scope, Visibility
from odf_sync.access.tokens import Token

LOGIN_SECONDS: Final = 24 * 3600
LOGIN_LABEL: Final = "login"
MAX_LABEL_CHARACTERS: Final = 100
NODE_ACCOUNT: Final = Name("odf")
"""Owner of the datasets without an account, in answers to other nodes."""


@dataclass(eq=False, kw_only=True)
class LoginRefused(OdfError):
    """The login or the password is wrong."""


class Directory:
    """Accounts, their tokens and their roles; thread-safe."""

    def __init__(
        self,
        store: AccessStore,
        *,
        is_multi_tenant: bool,
        blobs: BlobStore | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Use a store; without `blobs`, private datasets are not marked."""
        self.store = store
        self._blobs = blobs
        self.is_multi_tenant = is_multi_tenant
        self._clock = clock

    def add_account(self, name: Name, password: str | None) -> Account:
        """Add an account, with a password if it may log in with one; raises `AlreadyExists`, `InvalidInput`."""
        hashed = None if password is None else hash_password(password)
        account = Account(id=generate().dataset_id, name=name)
        self.store.add_account(account, hashed)
        return account

    def set_password(self, name: Name, password: str | None) -> None:
        """Replace or remove an account's password; its tokens stay valid; raises `NotFound`, `InvalidInput`."""
        self.store.set_password(name, None if password is None else hash_password(password))

    def create_token(
        self,
        name: Name,
        *,
        label: str,
        scope: Scope = Scope.MANAGE,
        dataset: Incarnation | None = None,
        seconds: int | None = LOGIN_SECONDS,
    ) -> tuple[Token, StoredToken]:
        """Create a token, valid for `seconds` (None: until revoked); raises `NotFound`, `InvalidInput`."""
        if len(label) > MAX_LABEL_CHARACTERS or not label.isprintable():
            raise InvalidInput(
                where="label", text=f"expected at most {MAX_LABEL_CHARACTERS} printable characters"
            )
        token, now = Token.new(), self._clock.now().ms
        stored = StoredToken(
            id=token.id,
            account=self.store.account(name),
            hash=token.hash,
            label=label,
            scope=scope,
            dataset=dataset,
            created_ms=now,
            expires_ms=None if seconds is None else now + seconds * 1000,
        )
        self.store.add_token(stored)
        return token, stored

    def log_in(self, login: str, password: str) -> Token:
        """Return a token for a day; raises `LoginRefused`, after the same time whether or not the account exists."""
        try:
            name = Name(login)
        except InvalidInput:
            name = None
        hashed = None if name is None else self.store.password(name)
        if not is_password(password, hashed) or name is None:
            raise LoginRefused
        try:
            return self.create_token(name, label=LOGIN_LABEL, seconds=LOGIN_SECONDS)[0]
        except NotFound as error:  # removed in the meantime
            raise LoginRefused from error

    def caller(self, text: str) -> Caller:
        """Return the caller that a bearer token identifies."""
        token = Token.parse(text)
        for stored in () if token is None else self.store.tokens(id=token.id):
            assert token is not None
            if compare_digest(stored.hash, token.hash) and not stored.has_expired(self._clock.now().ms):
                return Caller(
                    account=stored.account, scope=stored.scope, only=stored.dataset, token_id=token.id
                )
        return Caller(has_invalid_token=True, token_id="" if token is None else token.id)

    def role(self, account: Account, entry: CatalogEntry) -> Role | None:
        """Return the role of an account on a dataset."""
        if not self.is_multi_tenant or parse_alias(entry.alias).account == account.name:
            return Role.OWNER
        return self.store.role(entry.incarnation, account)

    def visibility(self, dataset: Incarnation) -> Visibility:
        """Return a dataset's visibility.

        By default it is private on a multi-tenant node, and public on a single-tenant one unless it is marked.
        """
        visibility = self.store.visibility(dataset)
        if visibility is not None:
            return visibility
        is_private = self.is_multi_tenant or self.is_marked(dataset)
        return Visibility.PRIVATE if is_private else Visibility.PUBLIC

    def set_visibility(self, dataset: Incarnation, visibility: Visibility) -> None:
        """Set the visibility of a dataset that exists; it is never less private in between."""
        if visibility is Visibility.PRIVATE:
            self._mark(dataset, PRIVATE_MARK)
            self.store.set_visibility(dataset, visibility)
            self._unmark(dataset, PUBLIC_MARK)
        else:
            self.store.set_visibility(dataset, visibility)
            self._mark(dataset, PUBLIC_MARK)
            self._unmark(dataset, PRIVATE_MARK)

    def make_private_by_default(self, dataset: Incarnation) -> None:
        """Make a dataset private unless someone has chosen its visibility."""
        if self.store.visibility(dataset) is None:
            self.set_visibility(dataset, Visibility.PRIVATE)

    @contextmanager
    def creating(self, dataset: DatasetId, visibility: Visibility) -> Iterator[str]:
        """Yield a creation whose dataset has the visibility from the start, if the creation succeeds.

        It counts for no other dataset with the id, so it may be set before the dataset exists. A process that is killed
        leaves a row that counts for none, and perhaps a mark, which keeps what is created later private.
        """
        creation = new_creation()
        created = incarnation(dataset, creation)
        is_new_mark = visibility is Visibility.PRIVATE and not self.is_marked(created)
        if is_new_mark:
            self._mark(created, PRIVATE_MARK)
        self.store.set_visibility(created, visibility)
        try:
            yield creation
        except Unavailable:  # without a reply, it may still be created
            raise
        except OdfError:
            self.store.forget(created)
            if is_new_mark:
                self._unmark(created, PRIVATE_MARK)
            raise
        self.set_visibility(created, visibility)

    def is_marked(self, dataset: Incarnation) -> bool:
        """Return whether a dataset is marked as private."""
        return self._blobs is not None and self._blobs.note(id_of(dataset), PRIVATE_MARK) is not None

    def _mark(self, dataset: Incarnation, mark: str) -> None:
        if self._blobs is not None:
            self._blobs.set_note(id_of(dataset), mark, "")

    def _unmark(self, dataset: Incarnation, mark: str) -> None:
        if self._blobs is not None:
            self._blobs.set_note(id_of(dataset), mark, None)

    def owner(self, alias: Alias) -> Account:
        """Return the account that owns a dataset; its id is derived from its name if no such account exists."""
        name = alias.account or NODE_ACCOUNT
        try:
            return self.store.account(name)
        except NotFound:
            return Account(id=DatasetId.of_key(hashlib.sha3_256(name.key.encode()).digest()), name=name)
