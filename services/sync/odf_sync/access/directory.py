"""The accounts of a node: whose a token is, who may log in, and which role an account has; and who may read a dataset.

On a single-tenant node, every account owns every dataset. On a multi-tenant one, the account in a dataset's name owns
it, and others have the roles granted to them.

What comes from a private dataset of this node is private, too, until someone publishes it: that follows from the
chains whenever it is asked, so no order of events leaves it out (ADR 0070). A choice of visibility is also noted next
to the data: if the database is lost, or was not in a backup, it stays.
"""

import hashlib
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
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
from odf_sync.access.rules import Account, Caller, Role, Scope, Visibility


@dataclass(frozen=True, slots=True, kw_only=True)
class Ancestor:
    """A dataset as its readers see it: what it reads, and what it was published with."""

    inputs: tuple[DatasetId, ...] = ()
    is_private: bool = False
    """By choice or by default, whatever it reads."""
    is_known: bool = True
    """False if its chain or its head is damaged or lost: it may read what is private."""
    published: frozenset[DatasetId] = frozenset()


class Lineage:
    """The ancestry of a node's datasets at one point in time; each dataset is loaded at most once."""

    def __init__(self, load: Callable[[DatasetId], Ancestor]) -> None:
        """Load datasets by `load`; all methods raise its errors."""
        self._load = load
        self._seen: dict[DatasetId, Ancestor] = {}
        self._sources: dict[DatasetId, frozenset[DatasetId]] = {}

    def sources(self, dataset: DatasetId) -> frozenset[DatasetId]:
        """Return the private datasets that `dataset` is derived from on a path on which they were not published.

        Datasets whose inputs are unknown count as private, `dataset` included.
        """
        if dataset not in self._sources:
            self._solve(dataset)
        return self._sources[dataset]

    def to_publish(self, dataset: DatasetId) -> frozenset[DatasetId]:
        """Return the private datasets that `dataset` comes from, published or not; damage cannot be published."""
        self.sources(dataset)
        reached = frozenset[DatasetId]().union(*map(self._origins, self._seen[dataset].inputs))
        return frozenset(origin for origin in reached if self._seen[origin].is_private)

    def _solve(self, dataset: DatasetId) -> None:
        new = dict(self._visit_new(dataset))
        self._seen.update(new)
        self._sources.update(dict.fromkeys(new, frozenset()))
        is_changed = True
        while is_changed:  # some rounds, since readers mostly come before what they read; more for circles
            is_changed = False
            for current in reversed(new):
                found = self._private_origins(current)
                is_changed |= found != self._sources[current]
                self._sources[current] = found

    def _visit_new(self, dataset: DatasetId) -> Iterator[tuple[DatasetId, Ancestor]]:
        seen, waiting = set(self._sources), [dataset]
        while waiting:
            if (current := waiting.pop()) not in seen:
                seen.add(current)
                ancestor = self._load(current)
                yield current, ancestor
                waiting.extend(ancestor.inputs)

    def _private_origins(self, dataset: DatasetId) -> frozenset[DatasetId]:
        ancestor = self._seen[dataset]
        reached = frozenset[DatasetId]().union(*map(self._origins, ancestor.inputs))
        # What was published with a dataset was known then; while it is damaged, it is unknown what it reads now.
        reached -= {origin for origin in ancestor.published & reached if self._seen[origin].is_known}
        return reached if ancestor.is_known else reached | {dataset}

    def _origins(self, dataset: DatasetId) -> frozenset[DatasetId]:
        """Return the private origins that reach readers of `dataset`."""
        sources = self._sources[dataset]
        return sources | {dataset} if self._seen[dataset].is_private else sources


log = structlog.stdlib.get_logger(__name__)

LOGIN_SECONDS: Final = 24 * 3600
LOGIN_LABEL: Final = "login"
MAX_LABEL_CHARACTERS: Final = 100
NODE_ACCOUNT: Final = Name("odf")
"""Owner of the datasets without an account, in answers to other nodes."""


class LoginRefused(OdfError):
    """The login or the password is wrong."""


class Directory:
    """Accounts, their tokens and their roles; thread-safe."""

    def __init__(
        self,
        store: AccessStore,
        *,
        is_multi_tenant: bool,
        datasets: NodeDatasets | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Use a store; without `datasets`, no choice is noted next to the data, and no dataset reads another."""
        self.store = store
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
        """Return a dataset's visibility: what was chosen, and private if it comes from what is private.

        Without a choice it is private on a multi-tenant node, and else public. Raises `Unavailable` while a chain that
        decides it cannot be read.
        """
        is_private = self._own_visibility(dataset) is Visibility.PRIVATE or self._lineage().sources(
            id_of(dataset)
        )
        return Visibility.PRIVATE if is_private else Visibility.PUBLIC

    def private_origins(self, dataset: Incarnation) -> list[str]:
        """Return the names of private datasets of this node that a dataset comes from, but for published ones.

        Making a dataset public also publishes what its query shows of the private datasets that it is derived from at
        that time; those that it is derived from later count again. So does one whose chain or head is damaged, since
        what it reads is unknown.
        """
        return sorted(map(self._name, self._lineage().sources(id_of(dataset))))

    def published_origins(self, dataset: Incarnation) -> list[str]:
        """Return the names of the private datasets that a dataset was made public with."""
        return sorted(map(self._name, self._published_origins(dataset)))

    @contextmanager
    def one_moment(self) -> Iterator[None]:
        """Load each dataset at most once inside the block, which decides about many datasets."""
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
        """Return whether a dataset is private, whatever it reads; without an entry, even if it was before it was lost.

        What a deleted private dataset has left in others stays private, too.
        """
        if entry is not None:
            return self._own_visibility(entry.incarnation) is Visibility.PRIVATE
        return self.is_marked(dataset) or self.store.was_private(dataset)

    @staticmethod
    def _inputs(
        datasets: NodeDatasets, dataset: DatasetId, entry: CatalogEntry | None
    ) -> tuple[DatasetId, ...] | None:
        """Return the inputs of a dataset; None if it is not on this node. Raises `NotFound` if its head was lost."""
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
        """Yield what reads a dataset, directly or indirectly; all datasets that can be read are looked at."""
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
        """Return the visibility that was chosen for a dataset, or the default, regardless of its inputs.

        A mark as private, which is stored next to the data, overrides the database: that may have been restored from an
        older backup.
        """
        visibility = self.store.visibility(dataset)
        if self._marks_of(dataset):
            return Visibility.PRIVATE
        if visibility is not None:
            return visibility
        is_public = not self.is_multi_tenant or self._publication(dataset) is not None
        return Visibility.PUBLIC if is_public else Visibility.PRIVATE

    def set_visibility(self, dataset: Incarnation, visibility: Visibility) -> None:
        """Choose the visibility of a dataset that exists; it is never less private in between."""
        published = self._to_publish(dataset, visibility)
        with self._choosing(dataset):
            self._choose(dataset, visibility, published)

    def _to_publish(self, dataset: Incarnation, visibility: Visibility) -> frozenset[DatasetId]:
        if visibility is Visibility.PRIVATE:
            return frozenset()
        return self._lineage().to_publish(id_of(dataset))

    def _choosing(self, dataset: Incarnation) -> AbstractContextManager[object]:
        """Lock out other choices; two at once could leave the database and the notes with different ones."""
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
        """Return the incarnations of a dataset that are marked as private; any other text stands for all of them."""
        note = self._note(incarnation(dataset, ""), PRIVATE_MARK)
        return set() if note is None else set(note.split("\n"))

    def _marks_of(self, dataset: Incarnation) -> set[str]:
        """Return the marks that count for an incarnation: its own, and any without a creation.

        For one that has lost its creation, all of them.
        """
        id_, _, creation = dataset.partition("#")
        of_others = re.compile(f"{re.escape(id_)}#[0-9a-f]{{{2 * CREATION_BYTES}}}")
        marked = self._marked_incarnations(id_of(dataset))
        return {mark for mark in marked if not creation or mark == dataset or not of_others.fullmatch(mark)}

    def _outdated_marks(self, dataset: Incarnation) -> set[str]:
        """Return the marks that do not count once an incarnation is public: while it has the name, all of them."""
        entry = None if self._datasets is None else self._datasets.catalog.by_id(id_of(dataset))
        is_here = entry is not None and entry.incarnation == dataset
        return self._marked_incarnations(id_of(dataset)) if is_here else self._marks_of(dataset)

    def _mark(self, dataset: Incarnation) -> None:
        self._set_marks(dataset, self._marked_incarnations(id_of(dataset)) | {dataset})

    def _set_marks(self, dataset: Incarnation, marks: set[str]) -> None:
        self._set_note(dataset, PRIVATE_MARK, "\n".join(sorted(marks)) if marks else None)

    def _publication(self, dataset: Incarnation) -> list[str] | None:
        """Return the ids that a dataset was made public with; None if it was not, or was created since."""
        made_public, *published = (self._note(dataset, PUBLIC_MARK) or "").split("\n")
        return published if made_public == dataset else None

    def _published_origins(self, dataset: Incarnation) -> frozenset[DatasetId]:
        with suppress(InvalidInput):
            return frozenset(map(DatasetId.parse, self._publication(dataset) or ()))
        return frozenset()

    def make_private_by_default(self, dataset: Incarnation) -> None:
        """Make a dataset private unless someone has chosen its visibility."""
        if self._is_chosen(dataset):
            return
        with self._choosing(dataset):
            if not self._is_chosen(dataset):
                self._choose(dataset, Visibility.PRIVATE, frozenset())

    def _is_chosen(self, dataset: Incarnation) -> bool:
        return self.store.visibility(dataset) is not None or self._publication(dataset) is not None

    def is_marked(self, dataset: DatasetId) -> bool:
        """Return whether a note of this id says private, for a dataset that has lost its name or a killed creation.

        Nobody knows which, so what is created now should be private unless its visibility is chosen.
        """
        return bool(self._marked_incarnations(dataset))

    @contextmanager
    def creating(self, dataset: DatasetId, visibility: Visibility) -> Iterator[str]:
        """Yield a creation whose dataset has the visibility from the start, if the creation succeeds.

        It counts for no other dataset with the id, so it may be set before the dataset exists. A process that is killed
        leaves a row, and perhaps a mark: they count for what reads a dataset with this id while there is none, and with
        the mark, what is created next is private unless its visibility is chosen.
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
        """Remove what a refused creation leaves; what stays makes nothing public, and does not replace the refusal."""
        try:
            self.store.forget(refused)
            if visibility is Visibility.PRIVATE:
                with self._choosing(refused):
                    self._set_marks(refused, self._marked_incarnations(id_of(refused)) - {refused})
        except OdfError as error:
            log.warning("a refused creation leaves notes", dataset_id=str(id_of(refused)), why=str(error))

    def _note(self, dataset: Incarnation, name: str) -> str | None:
        """Return a note; empty if it is damaged, which leaves a dataset private."""
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
        """Return the account that owns a dataset; its id is derived from its name if no such account exists."""
        name = alias.account or NODE_ACCOUNT
        try:
            return self.store.account(name)
        except NotFound:
            return Account(id=DatasetId.of_key(hashlib.sha3_256(name.key.encode()).digest()), name=name)
