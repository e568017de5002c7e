"""Settles accepted pushes: each is committed or refused, one at a time per dataset, in the order of acceptance.

Receipts are durable files, `accepted/<dataset>/<id>.json`. The batch of a push is stored first, as
`<number>-<id>.batch`; then the receipt, which makes it accepted. Numbers show the order of acceptance. When a push is
settled, its batch is deleted; its receipt is kept for a week, so that a repeated push finds it.
"""

import hashlib
import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Final, Self

import structlog

from odf_common.adapters.local import durable
from odf_common.adapters.local.durable import try_lock
from odf_common.adapters.local.faults import (
    guarded_methods,
    naming,
    open_file,
    translate_os_errors,
    waiting_helps,
)
from odf_common.errors import Damaged, InvalidInput, NotFound, OdfError, StorageUnavailable, Unavailable
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.clock import Backoff
from odf_common.service.outages import PartSilent, SilentParts
from odf_ingest import metrics
from odf_ingest.commit.committer import CommitQueues, Outcome, position_of
from odf_ingest.commit.file_commit import FileCommit
from odf_ingest.commit.rejects import RejectPolicy
from odf_ingest.errors import KeyReused, NothingCommitted, TooManyPending, pauses_source
from odf_ingest.prepare.batch import FileBatch
from odf_ingest.prepare.preparer import Preparer
from odf_ingest.read.input_format import InputFormat

FOLDER: Final = "accepted"
MAX_PENDING_PUSHES: Final = 1000  # per dataset
KEPT_SECONDS: Final = 7 * 24 * 3600.0  # after which a settled receipt is forgotten
BATCH: Final = ".batch"
_RECEIPT: Final = ".json"
_LOCK: Final = "accept.lock"  # held while files of pushes are written or removed
_WORKER: Final = "worker.lock"  # held by the process that settles the dataset's pushes
_ID: Final = re.compile(r"[0-9a-f]{32}", re.ASCII)


class State(StrEnum):
    """The states of an accepted push."""

    ACCEPTED = "accepted"
    COMMITTED = "committed"
    UNCHANGED = "unchanged"  # it appended nothing
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """The receipt of an accepted push; `state` and the fields after it are the outcome."""

    id: str
    source: str
    key: str
    is_key_generated: bool
    input_format: str
    event_time: str
    """The event time of records that have none (RFC 3339)."""
    digest: str
    """The digest of the batch, as in the source state."""
    size: int
    """Size of the batch in bytes."""
    accepted_at: int
    """Time of acceptance in milliseconds since the epoch."""
    state: State = State.ACCEPTED
    head: str = ""
    records: int | None = None
    """Number of appended records; None if it is unknown, because the process was killed after the commit."""
    rejected: int = 0
    """Number of rows that became dead letters; 0 if it is unknown, as for `records`."""
    rejected_reason: str = ""
    """The reason of the first rejected row."""
    code: str = ""
    text: str = ""
    advice: str = ""

    @property
    def is_settled(self) -> bool:
        """Return whether the state is final."""
        return self.state is not State.ACCEPTED

    @classmethod
    def parse(cls, text: bytes) -> Self:
        """Read a receipt's file; raises `ValueError` or `TypeError`."""
        plain = json.loads(text)
        return cls(**{**plain, "state": State(plain["state"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingPush:
    """A push that is not settled yet, and the file with its batch."""

    receipt: Receipt
    batch: Path


def id_of(target: DatasetId | str, source: str, key: str) -> str:
    """Return the id of a push to a dataset, or a Source's id; pushes with the same key have the same id."""
    return hashlib.blake2b("\0".join((str(target), source, key)).encode(), digest_size=16).hexdigest()


@guarded_methods
class Receipts:
    """The receipts in a node's home folder, which several processes may use."""

    def __init__(self, home: Path) -> None:
        self._folder = home / FOLDER

    def find(self, dataset: DatasetId, id_: str) -> Receipt | None:
        """Return a receipt; None if it does not exist. Raises `InvalidInput` unless `id_` is a valid id."""
        if _ID.fullmatch(id_) is None:
            raise InvalidInput(text=f"not a receipt: {id_[:64]!r}")
        file = self._folder_of(dataset) / f"{id_}{_RECEIPT}"
        try:
            return Receipt.parse(file.read_bytes())
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError) as error:
            name = f"{FOLDER}/{dataset.folder}/{file.name}"
            raise Damaged(file=name, why=f"it is not a receipt: {error}") from error

    def accept(self, dataset: DatasetId, receipt: Receipt, batch: Path) -> Receipt:
        """Store the receipt and its batch durably and return the receipt, or that of an earlier push with the same key.

        The file `batch` is not moved. The key of a refused push may be used again. Raises `KeyReused` if the key was
        used with other content, and `TooManyPending`.
        """
        folder = self._folder_of(dataset)
        with durable.lock_file(folder / _LOCK):
            earlier = self.find(dataset, receipt.id)
            if earlier is not None and earlier.state is not State.REFUSED:
                if earlier.digest != receipt.digest:
                    text = "other content was pushed with this idempotency key; nothing of this push was accepted"
                    raise KeyReused(text=text, key=receipt.key)
                return earlier
            self._drop_batches(folder, receipt.id)
            numbers = [int(name.partition("-")[0]) for name in self._batches(folder)]
            if len(numbers) >= MAX_PENDING_PUSHES:
                raise TooManyPending(what=f"{len(numbers)} pushes of this dataset")
            _link(batch, folder / f"{max(numbers, default=0) + 1:09d}-{receipt.id}{BATCH}")
            try:
                self._write(folder, receipt)
            except BaseException:
                # It may have its name already. Without a batch it would be found by each repeat and never settled.
                (folder / f"{receipt.id}{_RECEIPT}").unlink(missing_ok=True)
                self._drop_batches(folder, receipt.id)
                raise
        return receipt

    def pending(self, dataset: DatasetId) -> Sequence[PendingPush]:
        """Return the pushes to settle, in the order of acceptance. The caller must hold `working`."""
        folder = self._folder_of(dataset)
        pushes = []
        with durable.lock_file(folder / _LOCK):
            for name in self._batches(folder):
                receipt = self.find(dataset, name.partition("-")[2].removesuffix(BATCH))
                if receipt is None or receipt.is_settled:
                    (folder / name).unlink()  # left by a kill between the two steps of `accept` or `settle`
                else:
                    pushes.append(PendingPush(receipt=receipt, batch=folder / name))
        return pushes

    def settle(self, dataset: DatasetId, receipt: Receipt) -> None:
        """Store the outcome of a push, and delete its batch."""
        folder = self._folder_of(dataset)
        # Once the outcome is stored, a refused push may be accepted again: its new batch has to stay.
        with durable.lock_file(folder / _LOCK):
            self._write(folder, receipt)
            self._drop_batches(folder, receipt.id)

    @contextmanager
    def working(self, dataset: DatasetId) -> Iterator[bool]:
        """Hold the lock for settling a dataset's pushes in the `with` block; yield False if another process has it."""
        with translate_os_errors():  # the class guards no entry into a context
            handle = try_lock(self._folder_of(dataset) / _WORKER, os.O_CREAT)
        try:
            yield handle is not None
        finally:
            if handle is not None:
                os.close(handle)

    def datasets(self) -> Sequence[DatasetId]:
        """Return the datasets that have pushes to settle."""
        return [dataset for dataset in self._all() if self._batches(self._folder_of(dataset))]

    def tidy(self) -> None:
        """Remove settled receipts and unfinished writes older than a week."""
        oldest = time.time() - KEPT_SECONDS
        for dataset in self._all():
            folder = self._folder_of(dataset)
            with durable.lock_file(folder / _LOCK):
                for file in folder.glob(f"*{_RECEIPT}"):
                    if (
                        file.stat().st_mtime < oldest
                        and (receipt := self.find(dataset, file.stem))
                        and receipt.is_settled
                    ):
                        file.unlink()
            durable.sweep(folder, oldest)

    def _all(self) -> list[DatasetId]:
        try:
            return [DatasetId.parse(f"did:odf:{folder.name}") for folder in self._folder.iterdir()]
        except FileNotFoundError:
            return []

    def _folder_of(self, dataset: DatasetId) -> Path:
        return self._folder / dataset.folder

    def _batches(self, folder: Path) -> list[str]:
        return sorted(file.name for file in folder.glob(f"*{BATCH}"))

    def _drop_batches(self, folder: Path, id_: str) -> None:
        for file in folder.glob(f"*-{id_}{BATCH}"):
            file.unlink()

    def _write(self, folder: Path, receipt: Receipt) -> None:
        text = json.dumps(asdict(receipt), indent=1, sort_keys=True)
        durable.write(folder / f"{receipt.id}{_RECEIPT}", text.encode())


def _link(source: Path, target: Path) -> None:
    """Give a file a second name, durably, because a receipt must never exist without its batch."""
    try:
        with open_file(source) as content, naming(source):
            os.fsync(content.fileno())
        os.link(source, target)
        durable.sync_folder(target.parent)
    except FileNotFoundError as error:
        raise NotFound(what=f"staged file {source.name}") from error


def refuse(receipt: Receipt, *, code: str, text: str, advice: str) -> Receipt:
    """Return the receipt of a push that was refused."""
    return replace(receipt, state=State.REFUSED, code=code, text=text, advice=advice)


log = structlog.stdlib.get_logger(__name__)

SCAN_SECONDS: Final = 5.0  # between looks for pushes that another process has left behind
TIDY_SECONDS: Final = 3600.0
RECEIPT_POLL_SECONDS: Final = 0.2  # between looks at a receipt that another process may settle
MAX_ATTEMPTS_AFTER_BUG: Final = 3  # attempts at a push that fails because of a bug
PATIENCE_SECONDS: Final = 1.0  # a part that is restarted may answer soon
SILENCE_POLL_SECONDS: Final = 0.2  # between looks whether it answers again
NEEDED: Final = ("kafka", "coordinator")  # to commit
PUSH_BACKOFF: Final = Backoff(first=0.2, most=5.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The components that are needed to settle pushes."""

    receipts: Receipts
    queues: CommitQueues
    preparer: Preparer
    rejecting: RejectPolicy
    pool: Executor
    silent: SilentParts = field(default_factory=SilentParts)


class AcceptedPushes:
    """Settles the pushes that this process has accepted, and those that a killed process has left; thread-safe."""

    def __init__(self, parts: Parts) -> None:
        """Settle pushes on the threads of `parts.pool`, after `run` was started."""
        self._parts = parts
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._settled = threading.Condition()
        self._working: dict[
            DatasetId, bool
        ] = {}  # with a worker; True if it has to look for pushes once more
        self._delays: dict[
            str | DatasetId, OdfError
        ] = {}  # why they wait: a push by its receipt, or all pushes of a dataset

    @property
    def receipts(self) -> Receipts:
        """Return the receipts."""
        return self._parts.receipts

    def run(self, stop: threading.Event) -> None:
        """Settle all accepted pushes, including those of earlier and other processes, until `stop` is set."""
        self._stop = stop
        tidy_due = 0.0
        while not stop.is_set():
            try:
                for dataset in self.receipts.datasets():
                    self.wake(dataset)
                if time.monotonic() >= tidy_due:
                    tidy_due = time.monotonic() + TIDY_SECONDS
                    self.receipts.tidy()
            except OdfError as error:
                log.warning("cannot look for accepted pushes, retrying", why=str(error))
            stop.wait(SCAN_SECONDS)

    def wake(self, dataset: DatasetId) -> None:
        """Settle the pushes of a dataset in the background."""
        with self._lock:
            is_new = dataset not in self._working
            # A worker that is running may have listed the pushes before this one came: it has to look once more.
            self._working[dataset] = not is_new
        if is_new:
            self._parts.pool.submit(self._work, dataset)

    def await_settled(
        self, dataset: DatasetId, id_: str, seconds: float, is_there: Callable[[], bool]
    ) -> Receipt | None:
        """Wait until a push is settled, for at most `seconds`, and return its receipt; None if it does not exist.

        Returns earlier if the caller is gone, if the push waits for the disk (with the error), and after
        `PATIENCE_SECONDS` if the commit needs a part of the node that does not answer.
        """
        begun = time.monotonic()
        until = begun + seconds
        with self._settled:
            while True:
                receipt = self.receipts.find(dataset, id_)
                left = until - time.monotonic()
                if receipt is None or receipt.is_settled or left <= 0 or not is_there():
                    return receipt
                delay = self._delays.get(id_) or self._delays.get(dataset)
                if delay is None and time.monotonic() - begun >= PATIENCE_SECONDS:
                    delay = self._parts.silent.find(NEEDED)
                if delay is not None:
                    kind = PartSilent if isinstance(delay, PartSilent) else StorageUnavailable
                    return replace(receipt, code=kind.__name__, text=str(delay))
                self._settled.wait(min(left, RECEIPT_POLL_SECONDS))

    def _work(self, dataset: DatasetId) -> None:
        try:
            with waiting_helps(), self.receipts.working(dataset) as is_ours:
                pushes = self.receipts.pending(dataset) if is_ours else ()
                self._delays.pop(dataset, None)
                for push in pushes:
                    self._settle(dataset, push)
        except OdfError as error:
            log.warning("cannot settle accepted pushes, retrying", dataset_id=str(dataset), why=str(error))
            with self._settled:
                self._delays[dataset] = error
                self._settled.notify_all()
        except Exception:
            log.exception("cannot settle accepted pushes because of a bug", dataset_id=str(dataset))
        with self._lock:
            has_more = self._working.pop(dataset)
        if has_more and not self._stop.is_set():
            self.wake(dataset)

    def _settle(self, dataset: DatasetId, push: PendingPush) -> None:
        """Commit a push and store the outcome. Transient errors are retried until the service stops."""
        tries = bugs = 0
        while not self._stop.is_set():
            try:
                with waiting_helps():
                    done = self._commit(dataset, push)
            except OdfError as error:
                if self._stop.is_set():
                    return
                if _is_transient(error):
                    tries += 1
                    self._delay(dataset, push, error, is_first=tries == 1)
                    self._pause(PUSH_BACKOFF.pause(tries))
                    continue
                done = refuse(push.receipt, code=_code(error), text=str(error), advice=error.advice())
            except Exception as error:
                bugs += 1
                log.exception("cannot commit an accepted push because of a bug", dataset_id=str(dataset))
                if bugs < MAX_ATTEMPTS_AFTER_BUG:
                    continue
                text = f"a bug in the node: {type(error).__name__}; its log has the details"
                done = refuse(push.receipt, code="Bug", text=text, advice="")
            self.receipts.settle(dataset, done)
            self._delays.pop(done.id, None)
            metrics.PUSHES.labels(done.state).inc()
            log.info(
                "push settled", dataset_id=str(dataset), receipt=done.id, state=done.state, why=done.text
            )
            with self._settled:
                self._settled.notify_all()
            return

    def _pause(self, seconds: float) -> None:
        """Wait for some seconds, or until a part of the node that did not answer is available again."""
        silent, until = self._parts.silent, time.monotonic() + seconds
        if silent.find(NEEDED) is None:
            self._stop.wait(seconds)
        while silent.find(NEEDED) is not None and time.monotonic() < until and not self._stop.is_set():
            self._stop.wait(SILENCE_POLL_SECONDS)

    def _delay(self, dataset: DatasetId, push: PendingPush, error: OdfError, *, is_first: bool) -> None:
        """Record why a push is retried, if the cause is the disk, and notify the callers that wait for its outcome."""
        if is_first:
            log.warning("accepted push is retried", dataset_id=str(dataset), why=str(error))
        with self._settled:
            if isinstance(error, StorageUnavailable) or isinstance(error.__cause__, StorageUnavailable):
                self._delays[push.receipt.id] = error
            else:
                self._delays.pop(push.receipt.id, None)
            self._settled.notify_all()

    def _commit(self, dataset: DatasetId, push: PendingPush) -> Receipt:
        receipt = push.receipt
        event_time = Timestamp.parse(receipt.event_time)
        batch = FileBatch(
            file=push.batch,
            event_time=event_time,
            fills_event_times=event_time.ms != receipt.accepted_at,
            key=receipt.key,
            is_key_generated=receipt.is_key_generated,
            format=InputFormat.parse(receipt.input_format),
            label=f"push {receipt.id}",
        )
        parts = self._parts
        work = FileCommit(
            receipt.source, batch, parts.preparer, parts.rejecting, lambda: not self._stop.is_set()
        )
        return _with_outcome(receipt, work.commit(parts.queues, dataset))


def _with_outcome(receipt: Receipt, outcome: Outcome) -> Receipt:
    head = str(outcome.state.head)
    if outcome.rejected:
        receipt = replace(receipt, rejected=len(outcome.rejected), rejected_reason=outcome.rejected[0].reason)
    if outcome.is_new and outcome.count:
        return replace(receipt, state=State.COMMITTED, head=head, records=outcome.count)
    is_earlier = not outcome.is_new and position_of(outcome.state, receipt.source).has_receipt(receipt.key)
    if is_earlier:
        return replace(receipt, state=State.COMMITTED, head=head, records=None)
    return replace(receipt, state=State.UNCHANGED, head=head, records=0)


def _is_transient(error: OdfError) -> bool:
    """Return whether another attempt to commit the same push may succeed."""
    return isinstance(error, Unavailable | NothingCommitted) or pauses_source(error)


def _code(error: OdfError) -> str:
    return str(getattr(error, "reason", error.code))
