"""The accounts of a node, their tokens and their roles; and the visibility of datasets.

On a single-tenant node, every account owns every dataset. On a multi-tenant one, the account in a dataset's name owns
it, and others have the roles granted to them.

A dataset derived from a private dataset of this node is private until a user publishes it. That is computed from the
chains for each request, so it does not depend on the order of events (ADR 0070). The chosen visibility is also noted
next to the data, so it survives if the database is lost or was not in a backup.
"""

import hashlib
import re
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from hmac import compare_digest
from typing import Final

import structlog

from odf_common.adapters.system_clock import SYSTEM_CLOCK
from odf_common.dataset.node_datasets import NodeDatasets
from odf_common.errors import InvalidInput, NotFound, OdfError, Unavailable
from odf_common.identity.dataset_refs import Alias, DatasetId, Name, parse_alias
from odf_common.identity.keys import generate
from odf_common.ports.clock import Clock
from odf_common.ports.store import (
    CREATION_BYTES,
    NAME_RECORD,
    PRIVATE_MARK,
    PUBLIC_MARK,
    CatalogEntry,
    Incarnation,
    id_of,
    incarnation,
    new_creation,
)
from odf_common.resources.passwords import hash_password, is_password
from odf_common.resources.registry import require_account_name
from odf_sync.access.access_store import AccessStore, StoredToken, Token
from odf_sync.access.lineage import Ancestor, Lineage
from odf_sync.access.resource_rights import ResourceRights
from odf_sync.access.rules import Account, Caller, Role, Scope, Visibility

log = structlog.stdlib.get_logger(__name__)

LOGIN_SECONDS: Final = 24 * 3600
LOGIN_LABEL: Final = "login"
MAX_LABEL_CHARACTERS: Final = 100
NODE_ACCOUNT: Final = Name("odf")
"""The owner that other nodes are told for datasets without an account."""


class LoginRefused(OdfError):
    """The login or the password is wrong."""


class Directory:
    """Accounts with their tokens and roles, and the visibility of datasets; thread-safe."""

    def __init__(
        self,
        store: AccessStore,
        *,
        is_multi_tenant: bool,
        datasets: NodeDatasets | None = None,
        clock: Clock = SYSTEM_CLOCK,
        rights: ResourceRights | None = None,
    ) -> None:
        """Use a store, and rights that resources give in addition.

        Without `datasets`, no visibility is noted next to the data, and no dataset has inputs.
        """
        self.store = store
        self.rights = rights or ResourceRights()
        self._datasets = datasets
        self._moment = threading.local()
        self.is_multi_tenant = is_multi_tenant
        self._clock = clock

    def add_account(self, name: Name, password: str | None) -> Account:
        """Add an account, with a password if it may log in with one; raises `AlreadyExists`, `InvalidInput`."""
        require_account_name(name)
        hashed = None if password is None else hash_password(password)
        account = Account(id=generate().dataset_id, name=name)
        self.store.add_account(account, hashed)
        return account

    def set_password(self, name: Name, password: str | None) -> None:
        """Replace or remove the password of an account; its tokens stay valid. Raises `NotFound` and `InvalidInput`."""
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
        """Create a token that is valid for `seconds`, or until revoked if None.

        Raises `NotFound` and `InvalidInput`.
        """
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
        """Return a token that is valid for a day.

        Raises `LoginRefused`, after the same time whether or not the account exists.
        """
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
        """Return the caller that a bearer token identifies; for an invalid or expired token, one without an account."""
        token = Token.parse(text)
        for stored in () if token is None else self.store.tokens(id=token.id):
            assert token is not None
            if compare_digest(stored.hash, token.hash) and not stored.has_expired(self._clock.now().ms):
                return Caller(
                    account=stored.account, scope=stored.scope, only=stored.dataset, token_id=token.id
                )
        return Caller(has_invalid_token=True, token_id="" if token is None else token.id)

    def role(self, account: Account, entry: CatalogEntry) -> Role | None:
        """Return the role of an account on a dataset, or None."""
        if not self.is_multi_tenant or parse_alias(entry.alias).account == account.name:
            return Role.OWNER
        roles = (
            self.store.role(entry.incarnation, account),
            self.rights.role(entry.dataset_id, account),
            Role.READER if self._is_readable_by_accounts(entry) else None,
        )
        return max((role for role in roles if role is not None), default=None)

    def _is_readable_by_accounts(self, entry: CatalogEntry) -> bool:
        """Return whether each account may read a dataset; not what derives from private data."""
        if not self.rights.is_readable_by_accounts(entry.dataset_id):
            return False
        return not self._lineage().sources(entry.dataset_id)

    def visibility(self, dataset: Incarnation) -> Visibility:
        """Return the visibility of a dataset: private if that was chosen, or if it has `private_origins`.

        By default it is private on a multi-tenant node, and public on a single-tenant one. Raises `Unavailable` while a
        chain that it depends on cannot be read.
        """
        is_private = self._own_visibility(dataset) is Visibility.PRIVATE or self._lineage().sources(
            id_of(dataset)
        )
        return Visibility.PRIVATE if is_private else Visibility.PUBLIC

    def private_origins(self, dataset: Incarnation) -> list[str]:
        """Return the names of the private datasets of this node whose content keeps a dataset private.

        Making a dataset public also publishes what its query shows of the private datasets that it is derived from at
        that time; such datasets are not returned. Private datasets that become inputs later are, and so are datasets
        whose chain or head is damaged, because their inputs are unknown.
        """
        return sorted(map(self._name, self._lineage().sources(id_of(dataset))))

    def published_origins(self, dataset: Incarnation) -> list[str]:
        """Return the names of the private datasets whose content was published with a dataset."""
        return sorted(map(self._name, self._published_origins(dataset)))

    @contextmanager
    def one_moment(self) -> Iterator[None]:
        """Cache the ancestry of datasets during the `with` block, so that many decisions load each dataset once."""
        before = getattr(self._moment, "lineage", None)
        self._moment.lineage = before or Lineage(self._load_ancestor)
        try:
            yield
        finally:
            self._moment.lineage = before

    def _lineage(self) -> Lineage:
        lineage: Lineage | None = getattr(self._moment, "lineage", None)
        return lineage or Lineage(self._load_ancestor)

    def _load_ancestor(self, dataset: DatasetId) -> Ancestor:
        datasets = self._datasets
        if datasets is None:
            return Ancestor()
        entry = datasets.catalog.by_id(dataset)
        is_private = self._is_private_by_itself(dataset, entry)
        try:
            inputs = self._inputs(datasets, dataset, entry)
        except Unavailable:
            raise
        except OdfError:
            return Ancestor(is_private=is_private, is_known=False)
        if inputs is None:
            return Ancestor(is_private=is_private)
        published = frozenset[DatasetId]() if entry is None else self._published_origins(entry.incarnation)
        # Without its name, what is here is private where that is the default.
        is_private |= entry is None and self.is_multi_tenant
        return Ancestor(inputs=inputs, is_private=is_private, published=published)

    def _is_private_by_itself(self, dataset: DatasetId, entry: CatalogEntry | None) -> bool:
        """Return whether a dataset is private by choice or default, regardless of its inputs.

        Without an entry the dataset was deleted or lost. It counts as private if it ever was: what others have derived
        from it stays private.
        """
        if entry is not None:
            return self._own_visibility(entry.incarnation) is Visibility.PRIVATE
        return self.is_marked(dataset) or self.store.was_private(dataset)

    @staticmethod
    def _inputs(
        datasets: NodeDatasets, dataset: DatasetId, entry: CatalogEntry | None
    ) -> tuple[DatasetId, ...] | None:
        """Return the inputs of a dataset, None if this node does not have it; raises `NotFound` if its head is lost."""
        state = datasets.states.current(dataset)
        if state is not None:
            return state.inputs
        if entry is not None or datasets.blobs.note(dataset, NAME_RECORD) is not None:
            raise NotFound(what=f"the head of {dataset if entry is None else entry.alias}")
        return None

    def _name(self, dataset: DatasetId) -> str:
        entry = None if self._datasets is None else self._datasets.catalog.by_id(dataset)
        return str(dataset) if entry is None else entry.alias

    def derivatives(self, dataset: DatasetId) -> Iterator[CatalogEntry]:
        """Yield the datasets that are derived from `dataset`, directly or indirectly; unreadable datasets are skipped.

        This reads the chain state of every dataset.
        """
        if self._datasets is None:
            return
        inputs = list[tuple[CatalogEntry, tuple[DatasetId, ...]]]()
        for entry in self._datasets.catalog.entries():
            with suppress(OdfError):
                inputs.append((entry, self._inputs(self._datasets, entry.dataset_id, entry) or ()))
        known = {dataset}
        while new := [
            entry for entry, read in inputs if entry.dataset_id not in known and not known.isdisjoint(read)
        ]:
            yield from new
            known.update(entry.dataset_id for entry in new)

    def _own_visibility(self, dataset: Incarnation) -> Visibility:
        """Return the chosen visibility of a dataset, or the default, regardless of its inputs.

        A note that says private, which is stored next to the data, overrides the database, because the database may
        have been restored from an older backup.
        """
        if self.rights.is_public(id_of(dataset)):
            return Visibility.PUBLIC
        visibility = self.store.visibility(dataset)
        if self._marks_of(dataset):
            return Visibility.PRIVATE
        if visibility is not None:
            return visibility
        is_public = not self.is_multi_tenant or self._publication(dataset) is not None
        return Visibility.PUBLIC if is_public else Visibility.PRIVATE

    def set_visibility(self, dataset: Incarnation, visibility: Visibility) -> None:
        """Set the visibility of an existing dataset.

        No intermediate state is more public than the states before and after.
        """
        published = self._to_publish(dataset, visibility)
        with self._choosing(dataset):
            self._choose(dataset, visibility, published)

    def _to_publish(self, dataset: Incarnation, visibility: Visibility) -> frozenset[DatasetId]:
        if visibility is Visibility.PRIVATE:
            return frozenset()
        return self._lineage().to_publish(id_of(dataset))

    def _choosing(self, dataset: Incarnation) -> AbstractContextManager[object]:
        """Lock the notes of a dataset, as concurrent changes could leave the database and the notes inconsistent."""
        return nullcontext() if self._datasets is None else self._datasets.blobs.lock_notes(id_of(dataset))

    def _choose(self, dataset: Incarnation, visibility: Visibility, published: frozenset[DatasetId]) -> None:
        if visibility is Visibility.PRIVATE:
            self._mark(dataset)
            self.store.set_visibility(dataset, visibility)
            self._set_note(dataset, PUBLIC_MARK, None)
        else:
            self.store.set_visibility(dataset, visibility)
            self._set_note(dataset, PUBLIC_MARK, "\n".join((dataset, *map(str, published))))
            self._set_marks(
                dataset, self._marked_incarnations(id_of(dataset)) - self._outdated_marks(dataset)
            )

    def _marked_incarnations(self, dataset: DatasetId) -> set[str]:
        """Return the incarnations of a dataset that are marked as private; any other text marks all of them."""
        note = self._note(incarnation(dataset, ""), PRIVATE_MARK)
        return set() if note is None else set(note.split("\n"))

    def _marks_of(self, dataset: Incarnation) -> set[str]:
        """Return the marks that apply to an incarnation: its own mark, and marks without a creation id.

        To an incarnation that has lost its creation id, all marks apply.
        """
        id_, _, creation = dataset.partition("#")
        of_others = re.compile(f"{re.escape(id_)}#[0-9a-f]{{{2 * CREATION_BYTES}}}")
        marked = self._marked_incarnations(id_of(dataset))
        return {mark for mark in marked if not creation or mark == dataset or not of_others.fullmatch(mark)}

    def _outdated_marks(self, dataset: Incarnation) -> set[str]:
        """Return the marks to remove when an incarnation becomes public: all of them if it is the existing dataset."""
        entry = None if self._datasets is None else self._datasets.catalog.by_id(id_of(dataset))
        is_here = entry is not None and entry.incarnation == dataset
        return self._marked_incarnations(id_of(dataset)) if is_here else self._marks_of(dataset)

    def _mark(self, dataset: Incarnation) -> None:
        self._set_marks(dataset, self._marked_incarnations(id_of(dataset)) | {dataset})

    def _set_marks(self, dataset: Incarnation, marks: set[str]) -> None:
        self._set_note(dataset, PRIVATE_MARK, "\n".join(sorted(marks)) if marks else None)

    def _publication(self, dataset: Incarnation) -> list[str] | None:
        """Return the ids of the datasets that this incarnation was published with; None if it was not made public."""
        made_public, *published = (self._note(dataset, PUBLIC_MARK) or "").split("\n")
        return published if made_public == dataset else None

    def _published_origins(self, dataset: Incarnation) -> frozenset[DatasetId]:
        with suppress(InvalidInput):
            return frozenset(map(DatasetId.parse, self._publication(dataset) or ()))
        return frozenset()

    def make_private_by_default(self, dataset: Incarnation) -> None:
        """Make a dataset private unless its visibility was chosen."""
        if self._is_chosen(dataset):
            return
        with self._choosing(dataset):
            if not self._is_chosen(dataset):
                self._choose(dataset, Visibility.PRIVATE, frozenset())

    def _is_chosen(self, dataset: Incarnation) -> bool:
        return self.store.visibility(dataset) is not None or self._publication(dataset) is not None

    def is_marked(self, dataset: DatasetId) -> bool:
        """Return whether a note marks any incarnation of a dataset as private.

        Such a note may be left by a dataset that has lost its name, or by a creation whose process was killed. As these
        cannot be distinguished, a dataset created now should be private unless its visibility is chosen.
        """
        return bool(self._marked_incarnations(dataset))

    @contextmanager
    def creating(self, dataset: DatasetId, visibility: Visibility) -> Iterator[str]:
        """Yield a creation id with which the created dataset has the visibility from the start.

        The visibility is set for this creation id only, so that can be done before the dataset exists. A process that
        is killed leaves a row in the database, and for a private dataset a mark. Until a dataset with this id exists,
        they apply to datasets derived from it. The mark also makes the next dataset with this id private unless its
        visibility is chosen.
        """
        creation = new_creation()
        created = incarnation(dataset, creation)
        if visibility is Visibility.PRIVATE:
            with self._choosing(created):
                self._mark(created)
        self.store.set_visibility(created, visibility)
        try:
            yield creation
        except Unavailable:  # without a reply, it may still be created
            raise
        except OdfError:
            self._forget(created, visibility)
            raise
        try:
            published = self._to_publish(created, visibility)
            with self._choosing(created):
                # Whoever has chosen since it has its name is right.
                if self.store.visibility(created) is visibility:
                    self._choose(created, visibility, published)
        except OdfError as error:  # it is created; a mark of a former one may keep it private
            log.warning("a choice of visibility is not noted", dataset_id=str(dataset), why=str(error))

    def _forget(self, refused: Incarnation, visibility: Visibility) -> None:
        """Remove the rows and marks of a creation that was refused; an error is logged, so as not to hide the refusal.

        Remaining rows and marks make no dataset public.
        """
        try:
            self.store.forget(refused)
            if visibility is Visibility.PRIVATE:
                with self._choosing(refused):
                    self._set_marks(refused, self._marked_incarnations(id_of(refused)) - {refused})
        except OdfError as error:
            log.warning("a refused creation leaves notes", dataset_id=str(id_of(refused)), why=str(error))

    def _note(self, dataset: Incarnation, name: str) -> str | None:
        """Return a note; empty if the note is damaged, which makes a dataset private."""
        if self._datasets is None:
            return None
        try:
            return self._datasets.blobs.note(id_of(dataset), name)
        except Unavailable:
            raise
        except OdfError:
            return ""

    def _set_note(self, dataset: Incarnation, name: str, text: str | None) -> None:
        if self._datasets is not None:
            self._datasets.blobs.set_note(id_of(dataset), name, text)

    def owner(self, alias: Alias) -> Account:
        """Return the account that owns a dataset; if it does not exist, one whose id is derived from its name."""
        name = alias.account or NODE_ACCOUNT
        try:
            return self.store.account(name)
        except NotFound:
            return Account(id=DatasetId.of_key(hashlib.sha3_256(name.key.encode()).digest()), name=name)
