"""Accounts, tokens and roles in `access.db`, a private database of sync; and the format of tokens.

A token is `odf_` and 36 bytes in Crockford's base32: id, secret, and a checksum. So a mistyped token is rejected, and a
leaked one recognized, without a query.

Rows about a dataset belong to one creation of it (`Incarnation`), so a dataset that is created later with the same id
inherits nothing. The rows stay when a dataset is deleted: datasets derived from a private dataset stay private.

While the database cannot be read, every call fails, so no request is allowed.
"""

import base64
import hashlib
import secrets
import sqlite3
import zlib
from dataclasses import dataclass
from hmac import compare_digest
from pathlib import Path
from typing import Any, Final, Self

from odf_common.errors import AlreadyExists, Damaged, NotFound
from odf_common.identity.dataset_refs import DatasetId, Name
from odf_common.ports.store import Incarnation, id_of
from odf_sync.access.rules import Account, Role, Scope, Visibility
from odf_sync.private_database import PrivateDatabase

PREFIX: Final = "odf_"
ID_BYTES: Final = 8
TOKEN_SECRET_BYTES: Final = 24
_STANDARD: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
_CROCKFORD: Final = "0123456789abcdefghjkmnpqrstvwxyz"
_ENCODE: Final = str.maketrans(_STANDARD, _CROCKFORD)
_DECODE: Final = str.maketrans(_CROCKFORD, _STANDARD)
_TOKEN_CHARACTERS: Final = 58  # characters of 36 bytes, without padding
_PADDING: Final = "======"


@dataclass(frozen=True, slots=True, repr=False)
class Token:
    """An access token. Its text is shown once; only its hash is stored."""

    raw: bytes

    @classmethod
    def new(cls) -> Self:
        """Return a new random token."""
        return cls(secrets.token_bytes(ID_BYTES + TOKEN_SECRET_BYTES))

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Return the token with this text, or None if the text is not a valid token."""
        body = text.removeprefix(PREFIX)
        if len(body) != _TOKEN_CHARACTERS or body == text or not set(body) <= set(_CROCKFORD):
            return None
        raw = base64.b32decode(body.translate(_DECODE) + _PADDING)
        token = cls(raw[: ID_BYTES + TOKEN_SECRET_BYTES])
        return token if compare_digest(token.text(), text) else None

    def text(self) -> str:
        """Return the text of the token, which only its owner may see."""
        encoded = base64.b32encode(self.raw + zlib.crc32(self.raw).to_bytes(4)).decode()
        return PREFIX + encoded.rstrip("=").translate(_ENCODE)

    @property
    def id(self) -> str:
        """Return the public id, by which the token is listed and revoked."""
        return self.raw[:ID_BYTES].hex()

    @property
    def hash(self) -> bytes:
        """Return the stored hash of the token. 24 random bytes need neither a salt nor a slow hash."""
        return hashlib.sha3_256(self.raw).digest()

    def __repr__(self) -> str:
        """Return the id, without the secret."""
        return f"Token({self.id})"


FILE: Final = "access.db"
TABLES: Final = """
CREATE TABLE accounts (
    id TEXT PRIMARY KEY, name TEXT NOT NULL, key TEXT NOT NULL UNIQUE, password TEXT) STRICT;
CREATE TABLE tokens (
    id TEXT PRIMARY KEY, account TEXT NOT NULL REFERENCES accounts ON DELETE CASCADE, hash BLOB NOT NULL,
    label TEXT NOT NULL, scope TEXT NOT NULL, dataset TEXT, created_ms INTEGER NOT NULL, expires_ms INTEGER) STRICT;
CREATE TABLE datasets (id TEXT PRIMARY KEY, visibility TEXT NOT NULL) STRICT;
CREATE TABLE roles (
    dataset TEXT NOT NULL, account TEXT NOT NULL REFERENCES accounts ON DELETE CASCADE, role INTEGER NOT NULL,
    PRIMARY KEY (dataset, account)) STRICT;
CREATE TABLE origins (origin TEXT PRIMARY KEY, token TEXT NOT NULL) STRICT;
"""


class AccessUnreadable(Damaged):
    """The database of accounts and roles cannot be read; no request is allowed until it is repaired."""

    file: str = FILE

    def advice(self) -> str:
        """Return the advice to restore or remove the database."""
        return (
            f"stop the node, restore {FILE} from a backup, or move it away: accounts, tokens and roles are then gone, "
            "what was made private or public stays so, and on a multi-tenant node everything else is private"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredToken:
    """A token as stored: the hash of its secret, its account, and its restrictions."""

    id: str
    account: Account
    hash: bytes
    label: str
    scope: Scope
    dataset: Incarnation | None
    """The only dataset that the token is valid for; None if it is valid for all."""
    created_ms: int
    expires_ms: int | None

    def has_expired(self, now_ms: int) -> bool:
        """Return whether the token has expired at `now_ms`, in ms since the epoch."""
        return self.expires_ms is not None and self.expires_ms <= now_ms


class AccessStore:
    """The database of accounts, tokens and roles; thread-safe."""

    def __init__(self, home: Path | None) -> None:
        """Use the database in the home of a node, opened on first use; without a home, a database in memory."""
        database = PrivateDatabase(home, FILE, TABLES, lambda why: AccessUnreadable(why=why))
        self._rows, self._change = database.rows, database.change

    def add_account(self, account: Account, password: str | None) -> None:
        """Add an account with the hash of its password, or None; raises `AlreadyExists`."""
        row = (str(account.id), str(account.name), account.name.key, password)
        try:
            self._change("INSERT INTO accounts VALUES (?, ?, ?, ?)", *row)
        except sqlite3.IntegrityError as error:
            raise AlreadyExists(what=f"account {account.name}") from error

    def set_password(self, name: Name, password: str | None) -> None:
        """Replace the hash of an account's password, or remove it with None; raises `NotFound`."""
        if not self._change("UPDATE accounts SET password = ? WHERE key = ?", password, name.key):
            raise NotFound(what=f"account {name}")

    def put_account(self, account: Account, password: str | None) -> None:
        """Add an account with the hash of its password, or replace the hash.

        Raises `AlreadyExists` if the name or the id belongs to another account.
        """
        row = (str(account.id), str(account.name), account.name.key, password)
        statement = (
            "INSERT INTO accounts VALUES (?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET "
            "name = excluded.name, password = excluded.password WHERE key = excluded.key"
        )
        try:
            is_written = self._change(statement, *row)
        except sqlite3.IntegrityError as error:
            raise AlreadyExists(what=f"account {account.name}") from error
        if not is_written:
            raise AlreadyExists(what=f"another account with the id {account.id}")

    def remove_account(self, name: Name) -> None:
        """Remove an account, its tokens and its roles; raises `NotFound`."""
        if not self._change("DELETE FROM accounts WHERE key = ?", name.key):
            raise NotFound(what=f"account {name}")

    def accounts(self) -> tuple[Account, ...]:
        """Return all accounts, ordered by name."""
        return tuple(_account(*row) for row in self._rows("SELECT id, name FROM accounts ORDER BY key"))

    def account(self, name: Name) -> Account:
        """Return the account with a name; raises `NotFound`."""
        for row in self._rows("SELECT id, name FROM accounts WHERE key = ?", name.key):
            return _account(*row)
        raise NotFound(what=f"account {name}")

    def password(self, name: Name) -> str | None:
        """Return the hash of an account's password; None if there is no password or no such account."""
        for (password,) in self._rows("SELECT password FROM accounts WHERE key = ?", name.key):
            return None if password is None else str(password)
        return None

    def add_token(self, token: StoredToken) -> None:
        """Add a token; expired tokens are deleted."""
        self._change("DELETE FROM tokens WHERE expires_ms <= ?", token.created_ms)
        self._change(
            "INSERT INTO tokens VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            *(token.id, str(token.account.id), token.hash, token.label, token.scope.value, token.dataset),
            *(token.created_ms, token.expires_ms),
        )

    def tokens(self, *, id: str | None = None) -> tuple[StoredToken, ...]:
        """Return all tokens, oldest first; with `id`, only the token with that id."""
        query = (
            "SELECT t.id, a.id, a.name, t.hash, t.label, t.scope, t.dataset, t.created_ms, t.expires_ms "
            "FROM tokens t JOIN accounts a ON a.id = t.account "
        )
        rows = (
            self._rows(query + "ORDER BY t.created_ms, t.id")
            if id is None
            else self._rows(query + "WHERE t.id = ?", id)
        )
        return tuple(_token(*row) for row in rows)

    def revoke(self, token: str) -> None:
        """Delete the token with an id; raises `NotFound`."""
        if not self._change("DELETE FROM tokens WHERE id = ?", token):
            raise NotFound(what=f"token {token}")

    def visibility(self, dataset: Incarnation) -> Visibility | None:
        """Return the visibility that was set for a dataset, None if it was never set.

        The name of a dataset that was restored after damage may have lost its creation id. Such a dataset is private if
        any dataset with its id was private.
        """
        for (text,) in self._rows("SELECT visibility FROM datasets WHERE id = ?", dataset):
            return Visibility(text)
        if "#" in dataset:
            return None
        return Visibility.PRIVATE if self.was_private(id_of(dataset)) else None

    def was_private(self, dataset: DatasetId) -> bool:
        """Return whether any creation of a dataset was private; deleted datasets count."""
        query = "SELECT 1 FROM datasets WHERE (id = ? OR id LIKE ?) AND visibility = ?"
        return bool(self._rows(query, str(dataset), f"{dataset}#%", Visibility.PRIVATE.value))

    def set_visibility(self, dataset: Incarnation, visibility: Visibility) -> None:
        """Set the visibility of a dataset, which need not exist yet."""
        self._change("INSERT OR REPLACE INTO datasets VALUES (?, ?)", dataset, visibility.value)

    def forget(self, dataset: Incarnation) -> None:
        """Delete the visibility and the roles of a dataset that was not created."""
        self._change("DELETE FROM datasets WHERE id = ?", dataset)
        self._change("DELETE FROM roles WHERE dataset = ?", dataset)

    def roles(self, dataset: Incarnation) -> dict[Account, Role]:
        """Return the roles granted on a dataset, ordered by account name."""
        query = (
            "SELECT a.id, a.name, r.role FROM roles r JOIN accounts a ON a.id = r.account "
            "WHERE r.dataset = ? ORDER BY a.key"
        )
        return {_account(id, name): Role(role) for id, name, role in self._rows(query, dataset)}  # noqa: A001

    def role(self, dataset: Incarnation, account: Account) -> Role | None:
        """Return the role granted to an account on a dataset, or None."""
        query = "SELECT role FROM roles WHERE dataset = ? AND account = ?"
        for (role,) in self._rows(query, dataset, str(account.id)):
            return Role(role)
        return None

    def set_role(self, dataset: Incarnation, account: Account, role: Role | None) -> bool:
        """Grant a role to an account, or revoke it with None; returns False if there was no role to revoke."""
        key = (dataset, str(account.id))
        if role is None:
            return self._change("DELETE FROM roles WHERE dataset = ? AND account = ?", *key) > 0
        self._change("INSERT OR REPLACE INTO roles VALUES (?, ?, ?)", *key, int(role))
        return True

    def origin_token(self, origin: str) -> str | None:
        """Return the stored token for another node, identified by its origin, or None."""
        for (token,) in self._rows("SELECT token FROM origins WHERE origin = ?", origin):
            return str(token)
        return None

    def origins(self) -> tuple[str, ...]:
        """Return the origins for which a token is stored."""
        return tuple(str(origin) for (origin,) in self._rows("SELECT origin FROM origins ORDER BY origin"))

    def set_origin_token(self, origin: str, token: str | None) -> bool:
        """Store the token for an origin, or delete it with None; returns whether anything changed."""
        if token is None:
            return self._change("DELETE FROM origins WHERE origin = ?", origin) > 0
        self._change("INSERT OR REPLACE INTO origins VALUES (?, ?)", origin, token)
        return True


def _account(id: str, name: str) -> Account:
    return Account(id=DatasetId.parse(id), name=Name(name))


def _token(*row: Any) -> StoredToken:  # noqa: ANN401 - SQLite's values
    id, account, name, hashed, label, scope, dataset, created, expires = row  # noqa: A001
    return StoredToken(
        id=id,
        account=_account(account, name),
        hash=hashed,
        label=label,
        scope=Scope(scope),
        dataset=None if dataset is None else Incarnation(dataset),
        created_ms=created,
        expires_ms=expires,
    )
