"""Polls a dataset: fetches new content, prepares it, and commits it file by file. One poll per dataset at a time."""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import structlog

from odf_common.adapters.local.faults import translating_os_errors
from odf_common.chain.state import DEFAULT_SOURCE, ChainState
from odf_common.errors import Conflict, InvalidInput, OdfError, Unavailable
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.events import (
    MergeStrategyAppend,
    MergeStrategyLedger,
    ReadStepCsv,
    ReadStepNdGeoJson,
    ReadStepNdJson,
    SetPollingSource,
)
from odf_common.metadata.fetching import (
    EventTimeSource,
    FetchStep,
    FetchStepFilesGlob,
    FetchStepMqtt,
    FetchStepUrl,
    PrepStepPipe,
)
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.clock import Clock
from odf_common.ports.store import BlobStore, block_reader, scratch_folder
from odf_ingest.commit.committer import CommitQueues, Outcome
from odf_ingest.commit.rejects import RejectPolicy
from odf_ingest.poll.event_time_source import event_time, usual_event_time
from odf_ingest.poll.fetch import Context, FetchedFile, FetchedMessages, Limits, Lines, Note, fetch
from odf_ingest.poll.poll_errors import FileRefused, ForeignSource, NotPolled, PollCancelled
from odf_ingest.poll.polled_batch import PolledBatch, as_push_source, position_of
from odf_ingest.poll.polled_position import ReadFiles, content_scope, last_content
from odf_ingest.poll.polled_source import PolledSource
from odf_ingest.poll.templates import Secrets, fill_in, has_template
from odf_ingest.poll.unpack import naming, prepare_fetched
from odf_ingest.prepare.plan import plan_of
from odf_ingest.prepare.preparer import Preparer
from odf_ingest.read.encoding import is_utf8

log = structlog.stdlib.get_logger(__name__)

WAIT_SECONDS: Final = 0.2  # between checks whether a caller still waits for another poll
NOTE: Final = "poll"
SCOPE_NOTE: Final = "polled"
PASSING: Final = (Unavailable, Conflict, PollCancelled)
"""Errors that are not caused by the content of a file."""
Report = Callable[[str], None]
IsWanted = Callable[[], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class PollSummary:
    """The result of a poll."""

    blocks: int = 0
    records: int = 0
    skipped: str = ""
    """The location of a skipped file, which was recorded as read without its records, and the reason; else empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """The result of the last poll of a dataset."""

    ended: Timestamp
    ended_monotonic: float
    """Time of the end in seconds (monotonic)."""
    error: OdfError | None = None
    failures: int = 0
    """Consecutive failed polls up to this one."""
    failing_since: Timestamp | None = None
    """Time at which the first of these failed polls ended."""


@dataclass(slots=True)
class _Dataset:
    """State between polls of a dataset; used by the poll that holds the lock, except `last`."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    read_files: ReadFiles | None = None
    last: Attempt | None = None


@dataclass(frozen=True, slots=True)
class _Caller:
    """The caller that waits for a poll."""

    report: Report
    is_wanted: IsWanted


@dataclass(eq=False, kw_only=True)
class Poller:
    """Polls datasets; thread-safe.

    Commit through `queues`; keep fetched files in folders of `blobs`; fill in templates from `environ`.
    """

    queues: CommitQueues
    preparer: Preparer
    rejecting: RejectPolicy
    blobs: BlobStore
    clock: Clock
    limits: Limits
    environ: Mapping[str, str]

    def __post_init__(self) -> None:
        self._datasets: defaultdict[tuple[DatasetId, str], _Dataset] = defaultdict(_Dataset)
        self._mutex = threading.Lock()

    @translating_os_errors
    def poll(
        self,
        dataset: DatasetId,
        report: Report,
        is_wanted: IsWanted,
        *,
        skips: bool = False,
        source: PolledSource | None = None,
    ) -> PollSummary:
        """Fetch and commit all new content, and return a summary; `report` is called with descriptions of the progress.

        Without a source, the chain's own is polled.

        With `skips`, the first file that is refused is recorded as read, without its records, and the poll ends.

        A running poll of the same dataset is awaited first, because it may not see content that is new now. Raises
        errors of the source or its files; blocks that were committed before are kept. Raises `PollCancelled` once
        `is_wanted` returns False.
        """
        kept = self._dataset_state(dataset, DEFAULT_SOURCE if source is None else source.name)
        with _hold(kept.lock, report, is_wanted):
            try:
                polled = self._poll(dataset, source, kept, _Caller(report, is_wanted), skips=skips)
            except PollCancelled:
                raise
            except OdfError as error:
                kept.last = self._attempt_after(kept.last, error)
                raise
            kept.last = self._attempt_after(kept.last, None)
            return polled

    def last_attempt(self, dataset: DatasetId) -> Attempt | None:
        """Return the result of this process's last poll of a dataset; None before the first one."""
        return self._dataset_state(dataset).last

    def failing(self) -> Sequence[DatasetId]:
        """Return the datasets whose last poll by this process failed."""
        with self._mutex:
            attempts = [(dataset, kept.last) for dataset, kept in self._datasets.items()]
        return [dataset for (dataset, _), last in attempts if last is not None and last.error is not None]

    def is_polling(self, dataset: DatasetId) -> bool:
        """Return whether this process is polling a dataset."""
        return self._dataset_state(dataset).lock.locked()

    def _dataset_state(self, dataset: DatasetId, source: str = DEFAULT_SOURCE) -> _Dataset:
        with self._mutex:
            return self._datasets[dataset, source]

    def _attempt_after(self, before: Attempt | None, error: OdfError | None) -> Attempt:
        now = self.clock.now()
        if error is None:
            return Attempt(ended=now, ended_monotonic=time.monotonic())
        failures, since = (0, None) if before is None else (before.failures, before.failing_since)
        return Attempt(
            ended=now,
            ended_monotonic=time.monotonic(),
            error=error,
            failures=failures + 1,
            failing_since=since or now,
        )

    def _poll(
        self,
        dataset: DatasetId,
        source: PolledSource | None,
        kept: _Dataset,
        caller: _Caller,
        *,
        skips: bool,
    ) -> PollSummary:
        state = self.queues.state(dataset)
        polled = source or PolledSource(
            definition=_polling_source_of(state), fill=partial(fill_in, environ=self.environ)
        )
        defined = polled.definition
        self._require_trusted(dataset, defined)
        if isinstance(defined.fetch, FetchStepMqtt) and defined.prepare:
            raise InvalidInput(where="prepare", text="messages have no prepare steps; remove them")
        step, secrets = polled.fill(defined.fetch)

        def masked(stage: str) -> None:
            log.debug("poll", dataset_id=str(dataset), stage=secrets.mask(stage))
            caller.report(secrets.mask(stage))

        with _masking(secrets), scratch_folder(self.blobs) as folder:
            context = self._context(state, polled, kept, folder, _Caller(masked, caller.is_wanted))
            with closing(fetch(step, context)) as results:
                done = self._commit(state, polled, kept, context, results, skips=skips)
        self._note_scope(dataset, polled)
        return done

    def _commit(
        self,
        state: ChainState,
        polled: PolledSource,
        kept: _Dataset,
        context: Context,
        results: Iterator[FetchedFile | FetchedMessages],
        *,
        skips: bool,
    ) -> PollSummary:
        done, fault = PollSummary(), None
        for fetched in results:
            context.require_wanted()
            try:
                outcome = self._commit_fetched(state, polled, kept, context, fetched)
            except OdfError as error:
                if not isinstance(fetched, FetchedFile) or isinstance(error, PASSING):
                    raise
                if skips:
                    empty = replace(fetched, is_empty=True, fault=None)
                    self._commit_fetched(state, polled, kept, context, empty)
                    return replace(done, blocks=done.blocks + 1, skipped=str(error))
                if error is not fetched.fault:
                    raise
                fault = fault or error
            else:
                done = PollSummary(blocks=done.blocks + outcome.is_new, records=done.records + outcome.count)
        log.info("polled", dataset_id=str(state.dataset_id), blocks=done.blocks, records=done.records)
        if fault is not None:
            raise fault
        return done

    def _commit_fetched(
        self,
        state: ChainState,
        polled: PolledSource,
        kept: _Dataset,
        context: Context,
        fetched: FetchedFile | FetchedMessages,
    ) -> Outcome:
        """Commit what was fetched; raises why it is not read, or not committed."""
        if polled.is_in_chain:
            polled = replace(polled, definition=_polling_source_of(state))
        defined = polled.definition
        is_file = isinstance(fetched, FetchedFile)
        if isinstance(fetched, FetchedFile) and fetched.fault is not None:
            raise fetched.fault
        steps = () if isinstance(fetched, FetchedFile) and fetched.is_empty else defined.prepare or ()
        try:
            batch = PolledBatch(
                polled,
                prepare_fetched(steps, fetched, context),
                read_files=kept.read_files,
                preparer=self.preparer,
                rejecting=self.rejecting,
                is_wanted=context.is_wanted,
            )
            with naming(fetched):
                outcome = self.queues.commit(state.dataset_id, batch, merge=defined.merge)
        except InvalidInput as error:
            if type(error) is not InvalidInput or not is_file:
                raise
            alias = self.rejecting.name_of(state.dataset_id)
            raise FileRefused(text=error.text, where=error.where, dataset=alias) from error
        self.rejecting.announce(outcome.state, batch.source, batch.rejected)
        context.report(f"{fetched.label}: {outcome.count} records")
        return outcome

    def _context(
        self, state: ChainState, polled: PolledSource, kept: _Dataset, folder: Path, caller: _Caller
    ) -> Context:
        defined = polled.definition
        read = block_reader(self.blobs, state.dataset_id)
        step = defined.fetch
        if isinstance(step, FetchStepFilesGlob):
            kept.read_files = kept.read_files or ReadFiles(read, polled.name)
        else:
            kept.read_files = None
        is_cached = getattr(step, "cache", None) is not None
        is_append = isinstance(defined.merge, MergeStrategyAppend)
        dataset = state.dataset_id
        return Context(
            dataset=dataset,
            name=self.rejecting.name_of(dataset),
            environ=self.environ,
            folder=folder,
            note=Note(
                read=lambda: self.blobs.note(dataset, _note_name(NOTE, polled)),
                write=lambda text: self.blobs.set_note(dataset, _note_name(NOTE, polled), text),
            ),
            takes_whole_batches=plan_of(state, as_push_source(defined)).takes_whole_batches,
            position=position_of(state, kept.read_files, polled.name),
            last=last_content(state, read, step, polled.name)
            if self._is_same_scope(dataset, polled)
            else None,
            is_append=is_append,
            is_ledger=isinstance(defined.merge, MergeStrategyLedger),
            is_reread=not is_append and not is_cached,
            is_continued=is_append and not is_cached,
            lines=_lines(defined),
            limits=self.limits,
            report=caller.report,
            is_wanted=caller.is_wanted,
            event_time=self._event_time,
        )

    def _is_same_scope(self, dataset: DatasetId, polled: PolledSource) -> bool:
        """Return whether the source polls the same content as before; the chain says so of its own source."""
        if polled.is_in_chain:
            return True
        return self.blobs.note(dataset, _note_name(SCOPE_NOTE, polled)) == _scope_of(polled)

    def _note_scope(self, dataset: DatasetId, polled: PolledSource) -> None:
        if not polled.is_in_chain and not self._is_same_scope(dataset, polled):
            self.blobs.set_note(dataset, _note_name(SCOPE_NOTE, polled), _scope_of(polled))

    def _require_trusted(self, dataset: DatasetId, defined: SetPollingSource) -> None:
        """Raise `ForeignSource` if a source of another node wants to use this one's commands, files or variables."""
        wants = [type(step).__name__ for step in defined.prepare or () if isinstance(step, PrepStepPipe)]
        step = defined.fetch
        if not _is_remote(step):
            wants.append(type(step).__name__)
        if has_template(step):
            wants.append("env")
        if wants and not self.limits.is_trusted(dataset):
            what = ", ".join(name.removeprefix("FetchStep").removeprefix("PrepStep") for name in wants)
            raise ForeignSource(text=f"the polling source was defined on another node, and uses {what}")

    def _event_time(self, source: EventTimeSource | None, path: str, modified: Timestamp | None) -> Timestamp:
        now = self.clock.now()
        return usual_event_time(modified, now) if source is None else event_time(source, path, modified, now)


def _note_name(name: str, polled: PolledSource) -> str:
    return name if polled.is_in_chain else f"{name}-{polled.name}"


def _scope_of(polled: PolledSource) -> str:
    """Return the scope within which validators of content are comparable, without what templates stand for."""
    return content_scope(polled.definition.fetch) or ""


def _polling_source_of(state: ChainState) -> SetPollingSource:
    if state.polling_source is None:
        raise NotPolled(text="the dataset has no polling source")
    return state.polling_source


def _lines(defined: SetPollingSource) -> Lines | None:
    """Return the line format of a fetched file; None if records are not lines, or their newline is not one byte."""
    match defined.read:
        case _ if defined.prepare:
            return None
        case ReadStepCsv(encoding=encoding) | ReadStepNdJson(encoding=encoding) if not is_utf8(encoding):
            return None
        case ReadStepCsv(header=True, quote=quote):
            return Lines(header_quote=(quote or '"').encode())
        case ReadStepCsv() | ReadStepNdJson() | ReadStepNdGeoJson():
            return Lines()
        case _:
            return None


def _is_remote(step: FetchStep) -> bool:
    """Return whether a step only uses the network, whose addresses are checked."""
    if isinstance(step, FetchStepUrl):
        return urlsplit(step.url).scheme.lower() in ("http", "https", "ftp")
    return isinstance(step, FetchStepMqtt)


@contextmanager
def _hold(lock: threading.Lock, report: Report, is_wanted: IsWanted) -> Iterator[None]:
    while not lock.acquire(timeout=WAIT_SECONDS):
        report("waiting for another poll")
        if not is_wanted():
            raise PollCancelled
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _masking(secrets: Secrets) -> Iterator[None]:
    """Raise errors without values that were filled in; such errors lose their cause, which may have them too."""
    try:
        yield
    except OdfError as error:
        masked = secrets.mask_error(error)
        if masked is error:
            raise
        raise masked from None
