"""Creates and removes datasets so that a process killed at any write leaves nothing that is not cleaned up.

A dataset is created in several steps: key, chain, topics, and last its name, which makes it exist. It is removed in
reverse: first its name, atomically, then everything else. In both cases the operation holds a claim on the dataset,
whose record lists what may have been created. Settling a claim, even an abandoned one, follows one rule: whatever the
record lists and no name refers to is removed. Topics are created and deleted while no other lock is held, since the
broker may be slow; whatever cannot be removed now is removed later (`Collector`).
"""

import hashlib
import itertools
import re
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, TypeVar

import structlog

from odf_common.adapters.local.process_files import Staging
from odf_common.adapters.reserve import Reserve
from odf_common.errors import AlreadyExists, OdfError, StorageUnavailable
from odf_common.identity.dataset_refs import HEAD, DatasetId, parse_alias
from odf_common.ports.bus import Topics
from odf_common.ports.clock import pause_after
from odf_common.ports.store import Catalog, CatalogEntry, Claim, DatasetUnknown, RefStore
from odf_common.resources.registry import require_free_path
from odf_coordinator.catalog.datasets import Datasets, KeyStore
from odf_coordinator.catalog.declarations import Declarations
from odf_coordinator.commit.committer import Committer
from odf_coordinator.commit.dataset_locks import DatasetBusy
from odf_coordinator.commit.head_publisher import Publisher

PREFIX: Final = "odf.push"
MAX_NAME_CHARACTERS: Final = 249  # Kafka's limit
DIGEST_DIGITS: Final = 8  # hex digits that distinguish topics whose names would collide
_OTHER: Final = re.compile(r"[^a-z0-9._-]")


def topic_name(alias: str, source: str, taken: Collection[str], *, prefix: str = "") -> str:
    """Return `[prefix]odf.push.[account.]dataset.source`, with a digest if that is taken or too long."""
    plain = prefix + ".".join(
        (PREFIX, *(_OTHER.sub("-", part.lower()) for part in (*alias.split("/"), source)))
    )
    if len(plain) <= MAX_NAME_CHARACTERS and plain not in taken:
        return plain
    names = (_append_digest(plain, f"{alias.lower()}\n{source}" + attempt) for attempt in _attempts())
    return next(name for name in names if name not in taken)


def _append_digest(name: str, identity: str) -> str:
    """Return a topic name, shortened if necessary, with a digest of what distinguishes it from similar ones."""
    digest = hashlib.sha256(identity.encode()).hexdigest()[:DIGEST_DIGITS]
    return f"{name[: MAX_NAME_CHARACTERS - DIGEST_DIGITS - 1]}-{digest}"


def _attempts() -> Iterator[str]:
    yield ""
    yield from (f"\n{number}" for number in itertools.count(2))


def topics_for(
    alias: str, sources: Iterable[str], taken: Collection[str], *, prefix: str = ""
) -> dict[str, str]:
    """Return a topic for each source."""
    topics: dict[str, str] = {}
    for source in sources:
        topics[source] = topic_name(alias, source, {*taken, *topics.values()}, prefix=prefix)
    return topics


def reserve_topics(
    catalog: Catalog, claim: Claim, alias: str, sources: Iterable[str], *, prefix: str
) -> Mapping[str, str]:
    """Record a topic for each source, unused by datasets and other claims; the caller holds the catalog's lock."""
    taken = {topic for entry in catalog.entries() for topic in entry.push_topics.values()}
    taken |= {topic for other in catalog.claims() for topic in other.push_topics}
    reserved = topics_for(alias, sources, taken, prefix=prefix)
    claim.write(CatalogEntry(alias=alias, dataset_id=claim.entry.dataset_id, push_topics=reserved))
    return reserved


def create_topics(topics: Topics, reserved: Mapping[str, str]) -> None:
    """Create the topics that are reserved for sources; the caller holds no lock, since the broker may be slow."""
    for topic in reserved.values():
        topics.create_push_topic(topic)


log = structlog.stdlib.get_logger(__name__)

T = TypeVar("T")
WAIT_SECONDS: Final = 15.0  # wait for another operation on the same dataset, which may wait for the broker
POLL_SECONDS: Final = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """Claims datasets while they are created, removed or given topics."""

    datasets: Datasets
    refs: RefStore
    committer: Committer
    topics: Topics
    publisher: Publisher
    keys: KeyStore
    reserve: Reserve
    declarations: Declarations = field(default_factory=Declarations)
    wait_seconds: float = WAIT_SECONDS

    @contextmanager
    def creating(self, dataset: DatasetId, alias: str, sources: Iterable[str]) -> Iterator[Mapping[str, str]]:
        """Yield a new topic for each source; afterwards the dataset has this name, or nothing of it exists.

        Raises `AlreadyExists` if the name is taken, `ReservedName`, and `DatasetBusy`.
        """

        def record(claim: Claim) -> Mapping[str, str]:
            self._require_free(alias)
            return self._reserve(claim, alias, sources)

        with self._claim(dataset, record) as topics:
            create_topics(self.topics, topics)
            yield topics

    @contextmanager
    def adding_topics(self, dataset: DatasetId, sources: Iterable[str]) -> Iterator[Mapping[str, str]]:
        """Yield a new topic for each source without one; topics that are not added to the entry are deleted afterwards.

        Raises `DatasetUnknown` and `DatasetBusy`.
        """

        def record(claim: Claim) -> Mapping[str, str]:
            entry = self.entry(dataset)
            return self._reserve(
                claim, entry.alias, [source for source in sources if source not in entry.push_topics]
            )

        with self._claim(dataset, record) as topics:
            create_topics(self.topics, topics)
            yield topics

    @contextmanager
    def importing(self, dataset: DatasetId, alias: str) -> Iterator[None]:
        """Claim a new copy; if the import fails its objects stay, since the next attempt continues from them.

        Raises `AlreadyExists` if the name is taken, `ReservedName`, and `DatasetBusy`.
        """

        def record(claim: Claim) -> None:
            self._require_free(alias)
            if (
                self._catalog.by_id(dataset) is not None
            ):  # imported under another name since its caller looked
                raise AlreadyExists(what=f"dataset {dataset}")
            claim.write(CatalogEntry(alias=alias, dataset_id=dataset))

        with self._claim(dataset, record, is_copy=True):
            self._drop_head(dataset)  # from an attempt that was killed before the name was taken
            yield

    def remove(self, dataset: DatasetId, require_removable: Callable[[CatalogEntry], None]) -> CatalogEntry:
        """Free a dataset's name and remove all of it, even if its chain cannot be read; return its last entry.

        Once the name is free the dataset is gone: the collector removes what cannot be removed at once. On a full disk
        the reserve has room for the record.
        """

        def record(claim: Claim) -> CatalogEntry:
            entry = self.entry(dataset)
            require_removable(entry)
            self._record_removal(claim, entry)
            self._catalog.remove(entry.alias)
            return entry

        with self._claim(dataset, record) as entry:
            return entry

    def settle(self, dataset: DatasetId, is_due: Callable[[CatalogEntry], bool]) -> bool:
        """Remove the remains of a killed operation; return False if it is held, or `is_due` denies its record."""
        claim = self._catalog.claim(dataset)
        if claim is None:
            return False
        try:
            with self._catalog.lock():
                if not is_due(claim.entry):
                    return False
                claim.write(claim.entry)
            self._settle(claim, is_copy=False)
        finally:
            claim.release()
        return True

    def entry(self, dataset: DatasetId) -> CatalogEntry:
        """Return the current entry; raises `DatasetUnknown`."""
        entry = self._catalog.by_id(dataset)
        if entry is None:
            raise DatasetUnknown(what=str(dataset))
        return entry

    @property
    def _catalog(self) -> Catalog:
        return self.datasets.catalog

    @contextmanager
    def _claim(
        self, dataset: DatasetId, record: Callable[[Claim], T], *, is_copy: bool = False
    ) -> Iterator[T]:
        """Claim a dataset, call `record` under the catalog's lock, and settle the claim afterwards in any case."""
        claim, recorded = self._take(dataset, record)
        try:
            try:
                yield recorded
            finally:
                self._settle(claim, is_copy=is_copy)
        finally:
            claim.release()

    def _take(self, dataset: DatasetId, record: Callable[[Claim], T]) -> tuple[Claim, T]:
        deadline = time.monotonic() + self.wait_seconds
        while True:
            with self._catalog.lock():
                claim = self._catalog.claim(dataset)
                if claim is not None:
                    return claim, _record_claim(claim, record)
            if time.monotonic() >= deadline:
                why = f"another operation has been creating or removing it for {self.wait_seconds:g} s"
                raise DatasetBusy(what=f"dataset {dataset}", why=why)
            time.sleep(POLL_SECONDS)

    def _settle(self, claim: Claim, *, is_copy: bool) -> None:
        """Remove what the claim records and no name refers to; errors are logged, never raised."""
        entry = claim.entry
        try:
            named = self._entry_of(entry)
            if named is None:
                self._remove(entry, is_copy=is_copy)
            in_use = () if named is None else named.push_topics.values()
            for topic in entry.push_topics:
                if topic not in in_use:
                    self.topics.delete_topic(topic)
            if named is None and not is_copy:
                self.publisher.announce_removal(entry.dataset_id, entry.alias)
            claim.settle()
        except OdfError as error:
            log.warning("remains of a dataset will be removed later", **entry.log_facts, why=str(error))

    def _entry_of(self, entry: CatalogEntry) -> CatalogEntry | None:
        """Return the dataset's entry; None if it has no name. The recorded name is checked first."""
        registered = self._catalog.by_alias(entry.alias) if entry.alias else None
        if registered is None or registered.dataset_id != entry.dataset_id:
            registered = self._catalog.by_id(entry.dataset_id)
        return registered

    def _remove(self, entry: CatalogEntry, *, is_copy: bool) -> None:
        dataset = entry.dataset_id
        with self.committer.lock(dataset):
            if is_copy:
                self._drop_head(dataset)
            else:
                self.datasets.blobs.delete_dataset(dataset)
            self.datasets.states.forget(dataset)
        if not is_copy and not self.declarations.is_declared(dataset):
            self.keys.remove(dataset)

    def _drop_head(self, dataset: DatasetId) -> None:
        if self.refs.head(dataset) is not None:
            self.committer.remove_ref(dataset, HEAD, expected=None)

    def _require_free(self, alias: str) -> None:
        require_free_path(parse_alias(alias))
        if self._catalog.by_alias(alias) is not None:
            raise AlreadyExists(what=f"dataset {alias}")

    def _record_removal(self, claim: Claim, entry: CatalogEntry) -> None:
        try:
            claim.write(entry)
        except StorageUnavailable:
            if not self.reserve.release():
                raise
            log.warning("released the reserve of disk space to delete a dataset", **entry.log_facts)
            claim.write(entry)

    def _reserve(self, claim: Claim, alias: str, sources: Iterable[str]) -> Mapping[str, str]:
        return reserve_topics(self._catalog, claim, alias, sources, prefix=self.topics.prefix)


def _record_claim(claim: Claim, record: Callable[[Claim], T]) -> T:
    try:
        return record(claim)
    except BaseException:
        claim.release()
        raise


INTERVAL_SECONDS: Final = 60.0
UNFINISHED_SECONDS: Final = 600.0  # no write takes that long; a copy between file systems touches its file
# A copy has no name while it is downloaded, and an interrupted download continues from the objects it has.
GRACE_SECONDS: Final = 24 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Collector:
    """Removes leftovers in the background; datasets that have a name, or once had one, are never touched."""

    catalog: Catalog
    claims: Claims
    staging: Staging
    grace_seconds: float = GRACE_SECONDS
    now: Callable[[], float] = time.time
    cpu_seconds: Callable[[], float] = time.thread_time

    def run(self, stop: threading.Event) -> None:
        """Settle at startup and every minute, until stopped; keep disk space in reserve.

        What needs a look at each dataset is done every ten minutes, or less often if there are thousands.
        """
        self._attempt("cannot repair names for now", self.catalog.repair_names)
        due = self.now()
        while not stop.is_set():
            self.settle()
            self._attempt("cannot reserve disk space for now", self.claims.reserve.refill)
            if self.now() >= due:
                begun = self.cpu_seconds()
                self._attempt("cannot collect leftovers for now", self._collect_strays)
                self._attempt("cannot remove unfinished writes for now", self.sweep)
                due = self.now() + pause_after(self.cpu_seconds() - begun, at_least=UNFINISHED_SECONDS)
            stop.wait(INTERVAL_SECONDS)

    def collect(self) -> None:
        """Settle, and remove strays older than the grace period; a failure is logged and does not stop the rest."""
        self.settle()
        self._attempt("cannot collect leftovers for now", self._collect_strays)

    def settle(self) -> None:
        """Settle abandoned claims, finish deletions, and remove killed commands' files."""
        deletions = self.claims.datasets.blobs.finish_deletions
        self._attempt("cannot remove files of killed commands for now", self.staging.sweep)
        self._attempt("cannot finish deletions for now", deletions)
        self._attempt("cannot settle claims for now", self._settle_claims)

    def _settle_claims(self) -> None:
        unreadable = self.catalog.unreadable()
        for entry in self.catalog.claims():
            if unreadable and self.catalog.by_id(entry.dataset_id) is None:
                # One of the unreadable names may be this dataset's.
                log.warning("leftovers kept while names cannot be read", **entry.log_facts, names=unreadable)
                continue
            self._settle(entry.dataset_id, entry.alias, lambda record: bool(record.alias))

    def _collect_strays(self) -> None:
        if self.catalog.unreadable():
            return
        for dataset in self._strays():
            self._settle(dataset, "", lambda record: any(self._strays((record.dataset_id,))))

    def sweep(self) -> None:
        """Remove the unfinished writes of killed processes."""
        self.claims.datasets.blobs.sweep(self.now() - UNFINISHED_SECONDS)

    def _strays(self, among: Iterable[DatasetId] | None = None) -> tuple[DatasetId, ...]:
        return tuple(self.catalog.strays(self.now() - self.grace_seconds, among))

    def _settle(self, dataset: DatasetId, alias: str, is_due: Callable[[CatalogEntry], bool]) -> None:
        try:
            if self.claims.settle(dataset, is_due):
                log.info(
                    "leftovers of a killed operation settled", dataset=alias or None, dataset_id=str(dataset)
                )
        except OdfError as error:  # skip only this dataset
            log.warning("cannot remove leftovers for now", dataset_id=str(dataset), why=str(error))

    def _attempt(self, otherwise: str, action: Callable[[], None]) -> None:
        try:
            action()
        except OdfError as error:
            log.warning(otherwise, why=str(error))
