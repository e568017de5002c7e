"""Settles accepted pushes: per dataset one at a time, in the order of acceptance, each committed or refused."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from typing import Final

import structlog

from odf_common.adapters.local.faults import waiting_helps
from odf_common.errors import OdfError, StorageUnavailable, Unavailable
from odf_common.identity.did import DatasetId
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.clock import Backoff
from odf_common.service.outages import PartSilent, SilentParts
from odf_ingest import metrics
from odf_ingest.accept.receipts import PendingPush, Receipt, Receipts, State, refuse
from odf_ingest.commit.commit_queue import CommitQueues
from odf_ingest.commit.committer import Outcome, position_of
from odf_ingest.commit.file_commit import FileCommit
from odf_ingest.commit.rejects import RejectPolicy
from odf_ingest.errors import NothingCommitted, pauses_source
from odf_ingest.prepare.batch import FileBatch
from odf_ingest.prepare.preparer import Preparer
from odf_ingest.read.input_format import InputFormat

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
    """The components that settling needs."""

    receipts: Receipts
    queues: CommitQueues
    preparer: Preparer
    rejecting: RejectPolicy
    pool: Executor
    silent: SilentParts = field(default_factory=SilentParts)


class AcceptedPushes:
    """The pushes accepted by this process, and those left by a killed one; thread-safe."""

    def __init__(self, parts: Parts) -> None:
        """Settle on the threads of `parts.pool`, once `run` was started."""
        self._parts = parts
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._settled = threading.Condition()
        self._working: dict[DatasetId, bool] = {}  # whether there may be more than the worker has seen
        self._delays: dict[str | DatasetId, OdfError] = {}  # of a push by its receipt, or of all of a dataset

    @property
    def receipts(self) -> Receipts:
        """Return the receipts."""
        return self._parts.receipts

    def run(self, stop: threading.Event) -> None:
        """Settle pushes accepted before this start, and those left by other processes, until stopped."""
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
        """Settle the pushes of a dataset soon."""
        with self._lock:
            is_new = dataset not in self._working
            # A worker that is running may have listed the pushes before this one came: it has to look once more.
            self._working[dataset] = not is_new
        if is_new:
            self._parts.pool.submit(self._work, dataset)

    def await_settled(
        self, dataset: DatasetId, id_: str, seconds: float, is_there: Callable[[], bool]
    ) -> Receipt | None:
        """Return a receipt once it is settled, after `seconds` in any state, or at once if the caller is gone.

        A receipt whose push waits for the disk is returned at once, too, with the error, and after `PATIENCE_SECONDS`
        one whose commit needs a part of the node that does not answer.
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
        """Commit a push, as often as it takes, and store the outcome; leave it if the service stops."""
        tries = bugs = 0
        while not self._stop.is_set():
            try:
                with waiting_helps():
                    done = self._commit(dataset, push)
            except OdfError as error:
                if self._stop.is_set():
                    return
                if _may_pass(error):
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
        """Wait for some seconds, but no longer than until a part that does not answer now does again."""
        silent, until = self._parts.silent, time.monotonic() + seconds
        if silent.find(NEEDED) is None:
            self._stop.wait(seconds)
        while silent.find(NEEDED) is not None and time.monotonic() < until and not self._stop.is_set():
            self._stop.wait(SILENCE_POLL_SECONDS)

    def _delay(self, dataset: DatasetId, push: PendingPush, error: OdfError, *, is_first: bool) -> None:
        """Record why a push is tried again, if it is the disk: those who wait for its outcome are told."""
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


def _may_pass(error: OdfError) -> bool:
    """Return whether another attempt may succeed although the push stays the same."""
    return isinstance(error, Unavailable | NothingCommitted) or pauses_source(error)


def _code(error: OdfError) -> str:
    return str(getattr(error, "reason", error.code))
