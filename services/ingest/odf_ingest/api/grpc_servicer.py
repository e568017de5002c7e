"""The gRPC service `Ingest`: pushes of files, drains of push topics, operations on sources."""

import json
import queue
import shutil
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import grpc

from odf_common.adapters.local.faults import translating_os_errors
from odf_common.adapters.local.process_files import Staging
from odf_common.chain.state import DEFAULT_SOURCE
from odf_common.codec.times import time_of
from odf_common.errors import InvalidInput, advice_while_retried, name_dataset
from odf_common.identity.dataset_refs import DatasetId
from odf_common.ports.bus import StoredLetter
from odf_common.ports.clock import Clock
from odf_common.ports.store import Catalog, CatalogEntry, require_entry
from odf_common.proto.odf.node.v1 import ingest_pb2, ingest_pb2_grpc
from odf_ingest.api.lookup import PushTargets, staged_file
from odf_ingest.commit.committer import CommitQueues, Outcome
from odf_ingest.commit.file_commit import FileCommit, IsWanted, PushesInFlight, Target, chosen_source
from odf_ingest.commit.rejects import RejectPolicy
from odf_ingest.commit.watermark import Lateness, proposed_delay
from odf_ingest.control.drain import Drains
from odf_ingest.control.rejected_messages import MessageLocation, RejectedMessages
from odf_ingest.control.source_commands import SourceCommands
from odf_ingest.control.source_control import means_polling_source
from odf_ingest.poll.poller import Poller
from odf_ingest.poll.schedule import PollSchedule
from odf_ingest.prepare.batch import FileBatch
from odf_ingest.prepare.preparer import Preparer
from odf_ingest.push.lifecycle.assigned_sources import AssignedSources
from odf_ingest.read.arrow_ipc import row_text
from odf_ingest.read.input_format import InputFormat
from odf_ingest.sampling import out_of_order, read_sample
from odf_ingest.source_settings import Milliseconds
from odf_ingest.sources.source_ingestion import SourceIngestion

NAME = "odf.node.v1.Ingest"
KEEP_ALIVE_SECONDS: Final = 5.0  # after which a poll's last report is repeated


@dataclass(eq=False, kw_only=True)
class IngestServicer(ingest_pb2_grpc.IngestServicer):
    """Serves ingest's calls; each returns once its effect is committed.

    Staged files are in `staging`; files that are received are stored in folders that `scratch` creates.
    """

    catalog: Catalog
    targets: PushTargets
    queues: CommitQueues
    preparer: Preparer
    drains: Drains
    poller: Poller
    sources: SourceIngestion
    schedule: PollSchedule
    owned: AssignedSources
    rejecting: RejectPolicy
    rejected: RejectedMessages
    commands: SourceCommands
    clock: Clock
    staging: Staging
    scratch: Callable[[], Path]

    def __post_init__(self) -> None:
        self._pushes = PushesInFlight()

    def register(self, server: grpc.Server) -> tuple[str, ...]:
        """Add the service to a server; return its name."""
        ingest_pb2_grpc.add_IngestServicer_to_server(self, server)
        return (NAME,)

    @translating_os_errors
    def Push(
        self, request_iterator: Iterator[ingest_pb2.PushPart], context: grpc.ServicerContext
    ) -> ingest_pb2.PushReply:
        """Commit one file; raises the error if nothing was committed."""
        first = next(request_iterator, None)
        if first is None or first.WhichOneof("part") != "header":
            raise InvalidInput(text="a push must start with its header")
        header = first.header
        entry = self.targets.find(header.ref)
        source = chosen_source(self.queues.state(entry.dataset_id), header.source_name)
        folder = self.scratch()
        try:
            file = folder / "batch"
            if header.staged:
                # The command may be killed at any time, so take the file over.
                shutil.move(staged_file(self.staging, header.staged), file)
            else:
                _receive(request_iterator, file)
            return self._commit(entry, source.source_name, header, file, context)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def Drain(
        self, request: ingest_pb2.DrainRequest, context: grpc.ServicerContext
    ) -> Iterator[ingest_pb2.DrainProgress]:
        """Yield the number of waiting messages until there are none; raises `SourceStopped`."""
        entry = self._entry(request.ref)
        for progress in self.drains.wait(entry):
            if not context.is_active():
                return
            yield ingest_pb2.DrainProgress(
                waiting=progress.waiting, done=progress.head is not None, head=str(progress.head or "")
            )

    def Poll(
        self, request: ingest_pb2.PollRequest, context: grpc.ServicerContext
    ) -> Iterator[ingest_pb2.PollProgress]:
        """Yield progress until all new data is committed; raises the error of the source."""
        dataset = self._entry(request.ref).dataset_id
        poll: Callable[[Callable[[str], None]], object]
        poll = partial(self.poller.poll, dataset, is_wanted=context.is_active)
        if request.source:
            poll = partial(
                self.sources.ingest,
                dataset,
                json.loads(request.source),
                is_wanted=context.is_active,
                consumers=[DatasetId.parse(text) for text in request.consumers],
            )
        yield from (ingest_pb2.PollProgress(stage=stage) for stage in reports_of(poll, "poll"))
        yield ingest_pb2.PollProgress(done=True)

    def CountSourceRecords(
        self, request: ingest_pb2.CountSourceRecordsRequest, context: grpc.ServicerContext
    ) -> ingest_pb2.CountSourceRecordsReply:
        """Return the numbers of records of a Source resource that datasets lack."""
        source = json.loads(request.source)
        datasets = map(DatasetId.parse, request.dataset_ids)
        return ingest_pb2.CountSourceRecordsReply(
            records=[self.sources.count(dataset, source) for dataset in datasets]
        )

    def Polls(self, request: ingest_pb2.PollsRequest, context: grpc.ServicerContext) -> ingest_pb2.PollsReply:
        """Return the datasets that this instance polls at an interval."""
        polls = [
            ingest_pb2.PollsReply.Poll(
                dataset_id=str(view.dataset),
                interval=view.interval,
                state=view.state,
                last=str(view.last or ""),
                next=str(view.next or ""),
            )
            for view in self.schedule.views()
        ]
        return ingest_pb2.PollsReply(polls=polls)

    def Stuck(self, request: ingest_pb2.StuckRequest, context: grpc.ServicerContext) -> ingest_pb2.StuckReply:
        """Return the stalled sources, each with the reason."""
        sources = [
            ingest_pb2.StuckReply.Source(
                dataset_id=str(key.dataset),
                source_name=key.source,
                why=str(why),
                advice=self._find(why.advice(), key.dataset),
                since=self.owned.stuck_since(key),
            )
            for key, why in self.owned.stuck().items()
        ]
        sources += [
            ingest_pb2.StuckReply.Source(
                dataset_id=str(view.dataset),
                source_name=DEFAULT_SOURCE,
                why=f"its polls fail: {view.error}",
                advice=""
                if view.error is None
                else self._find(advice_while_retried(view.error), view.dataset),
                since=None if view.since is None else view.since.ns,
            )
            for view in self.schedule.failing()
        ]
        return ingest_pb2.StuckReply(sources=sources)

    def Future(
        self, request: ingest_pb2.FutureRequest, context: grpc.ServicerContext
    ) -> ingest_pb2.FutureReply:
        """Return the sources that had records too far in the future, unless their settings now allow such times."""
        sources = []
        for (dataset, name), late in self.queues.late.future().items():
            entry = self.catalog.by_id(dataset)
            if entry is None or not self.rejecting.settings(dataset, name).max_future.is_limited:
                continue
            is_only = self.queues.state(dataset).push_sources.keys() <= {DEFAULT_SOURCE}
            sources.append(
                ingest_pb2.FutureReply.Source(
                    dataset_id=str(dataset),
                    alias=entry.alias,
                    name="" if is_only else name,
                    records=_future(late),
                )
            )
        return ingest_pb2.FutureReply(sources=sources)

    def CancelPush(
        self, request: ingest_pb2.CancelPushRequest, context: grpc.ServicerContext
    ) -> ingest_pb2.CancelPushReply:
        """Cancel a push. The call of the push itself returns the outcome."""
        return ingest_pb2.CancelPushReply(found=self._pushes.withdraw(request.idempotency_key))

    def Rejected(
        self, request: ingest_pb2.RejectedRequest, context: grpc.ServicerContext
    ) -> Iterator[ingest_pb2.RejectedPart]:
        """Yield the rejected messages that await a decision, then their numbers."""
        dataset = self._entry(request.ref).dataset_id
        count = 0
        for letter in self.rejected.open(dataset, [_location(location) for location in request.locations]):
            count += 1
            if not context.is_active():
                return
            if not request.limit or count <= request.limit:
                yield ingest_pb2.RejectedPart(message=_rejected_message(letter, request.value_bytes))
        counts = ingest_pb2.RejectedPart.Counts(open=self.rejected.count(dataset), found=count)
        yield ingest_pb2.RejectedPart(counts=counts)

    def SettleRejected(
        self, request: ingest_pb2.SettleRejectedRequest, context: grpc.ServicerContext
    ) -> ingest_pb2.SettleRejectedReply:
        """Retry rejected messages, or drop them."""
        dataset = self._entry(request.ref).dataset_id
        locations = [_location(location) for location in request.locations]
        match request.action:
            case ingest_pb2.SettleRejectedRequest.RETRY:
                settled = self.rejected.retry(dataset, locations)
            case ingest_pb2.SettleRejectedRequest.DROP:
                settled = self.rejected.drop(dataset, locations)
            case _:
                raise InvalidInput(text="specify whether to retry or drop rejected messages")
        return ingest_pb2.SettleRejectedReply(
            settled=settled.count,
            cut=settled.cut,
            open=settled.open,
            unfit=settled.unfit,
            unfit_reason=settled.why,
        )

    def ShowSources(
        self, request: ingest_pb2.SourceRequest, context: grpc.ServicerContext
    ) -> ingest_pb2.SourcesReply:
        """Return the state of a dataset's push sources."""
        return self._sources(self._entry(request.ref), request.source_name)

    def ResumeSource(
        self, request: ingest_pb2.ResumeSourceRequest, context: grpc.ServicerContext
    ) -> ingest_pb2.ResumeSourceReply:
        """Resume a stopped source; returns once a new position is committed."""
        done = self.commands.resume(
            self._entry(request.ref), request.source_name, request.start, request.topic
        )
        return ingest_pb2.ResumeSourceReply(
            source_name=done.source, head=str(done.head or ""), next=done.next
        )

    def SkipMessage(
        self, request: ingest_pb2.SourceRequest, context: grpc.ServicerContext
    ) -> ingest_pb2.SkipMessageReply:
        """Skip the message or file at which a source is stopped; returns once the new position is committed."""
        entry = self._entry(request.ref)
        if means_polling_source(self.queues.state(entry.dataset_id), request.source_name):
            done = self.poller.poll(entry.dataset_id, lambda _: None, context.is_active, skips=True)
            return ingest_pb2.SkipMessageReply(
                source_name=DEFAULT_SOURCE, skipped=bool(done.skipped), file=done.skipped
            )
        skipped = self.commands.skip(entry, request.source_name)
        if skipped.skipped is None:
            return ingest_pb2.SkipMessageReply(source_name=skipped.source)
        partition, offset = skipped.skipped
        return ingest_pb2.SkipMessageReply(
            source_name=skipped.source,
            skipped=True,
            topic=skipped.topic,
            partition=partition,
            offset=offset,
        )

    @translating_os_errors
    def Sample(
        self, request: ingest_pb2.SampleRequest, context: grpc.ServicerContext
    ) -> ingest_pb2.SampleReply:
        """Return the columns of a staged file, the options to read it, and how far out of order its times are."""
        file = staged_file(self.staging, request.staged)
        sample = read_sample(file, request.input_format, is_topic=bool(request.runs))
        # The event time of changes is in their envelopes.
        late = {} if sample.is_changes else out_of_order(sample.table, request.runs)
        return ingest_pb2.SampleReply(
            schema=sample.table.schema.serialize().to_pybytes(),
            records=len(sample.table),
            late={name: _late_message(value) for name, value in late.items()},
            options=sample.options,
            remarks=sample.remarks,
            is_changes=sample.is_changes,
        )

    def SetSource(
        self, request: ingest_pb2.SetSourceRequest, context: grpc.ServicerContext
    ) -> ingest_pb2.SourcesReply:
        """Change settings of a source; return its state."""
        entry = self._entry(request.ref)
        return self._sources(entry, self.commands.control.change(entry, request.source_name, request.changes))

    def _sources(self, entry: CatalogEntry, name: str) -> ingest_pb2.SourcesReply:
        sources = [
            ingest_pb2.SourcesReply.Source(
                name=source.name,
                topic=source.topic,
                state=source.state,
                since=source.since,
                why=source.why,
                advice=source.advice,
                next=source.next,
                next_poll=source.next_poll,
                waiting=source.waiting,
                settings=source.settings.shown(),
                late=_late(source.late),
                future=_future(source.late) if source.settings.max_future.is_limited else None,
                changed=source.settings.non_default(),
            )
            for source in self.commands.control.show(entry, name)
        ]
        return ingest_pb2.SourcesReply(sources=sources)

    def _commit(
        self,
        entry: CatalogEntry,
        source: str,
        header: ingest_pb2.PushHeader,
        file: Path,
        context: grpc.ServicerContext,
    ) -> ingest_pb2.PushReply:
        event_time = time_of(header.event_time) if header.HasField("event_time") else None
        is_generated = header.is_key_generated or not header.idempotency_key
        batch = FileBatch(
            file=file,
            event_time=event_time or self.clock.now(),
            fills_event_times=event_time is not None,
            key=header.idempotency_key or uuid.uuid4().hex,
            is_key_generated=is_generated,
            format=InputFormat.parse(header.input_format),
            label=header.label or "the file",
        )

        def commit(is_wanted: IsWanted) -> Outcome:
            work = FileCommit(source, batch, self.preparer, self.rejecting, is_wanted)
            return work.commit(self.queues, entry.dataset_id)

        outcome = self._pushes.run(
            Target(
                dataset=entry.dataset_id,
                source=source,
                event_time=event_time,
                input_format=header.input_format,
                size=file.stat().st_size,
            ),
            file,
            commit,
            key=batch.key,
            is_there=context.is_active,
            may_join=is_generated,
        )
        return ingest_pb2.PushReply(
            head=str(outcome.state.head),
            records=outcome.count,
            already=not outcome.is_new or outcome.count == 0,
            rejected=len(outcome.rejected),
            rejected_reason=outcome.rejected[0].reason if outcome.rejected else "",
            late=_late(outcome.late),
            future=_future(outcome.late),
        )

    def _find(self, text: str, dataset: DatasetId) -> str:
        """Return a text in which commands name the dataset."""
        entry = self.catalog.by_id(dataset)
        return text if entry is None else name_dataset(text, entry.alias)

    def _entry(self, ref: str) -> CatalogEntry:
        return require_entry(self.catalog, ref)


def _receive(parts: Iterator[ingest_pb2.PushPart], file: Path) -> None:
    with file.open("xb") as sink:
        for part in parts:
            if part.WhichOneof("part") != "content":
                raise InvalidInput(text="a push has one header")
            sink.write(part.content)


def reports_of(work: Callable[[Callable[[str], None]], object], name: str) -> Iterator[str]:
    """Run `work` in a thread, and yield its reports until it ends; raises its errors.

    The thread releases the locks of `work` even if the caller stops iterating.
    """
    reports: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    failed: list[Exception] = []

    def run() -> None:
        try:
            work(reports.put)
        except Exception as error:  # noqa: BLE001 - raised below
            failed.append(error)
        finally:
            reports.put(None)

    threading.Thread(target=run, name=name, daemon=True).start()
    last: str = ""
    while True:
        try:
            report = reports.get(timeout=KEEP_ALIVE_SECONDS)
        except queue.Empty:
            yield last
            continue
        if report is None:
            break
        last = report
        yield report
    for error in failed:
        raise error


def _location(location: ingest_pb2.RejectedLocation) -> MessageLocation:
    return MessageLocation(source=location.source_name, location=location.location)


def _rejected_message(letter: StoredLetter, value_bytes: int) -> ingest_pb2.RejectedPart.Message:
    location = ingest_pb2.RejectedLocation(source_name=letter.source, location=letter.location)
    row = row_text(letter.value) if not letter.topic and letter.is_whole else None
    value, size = (letter.value, letter.size) if row is None else (row, len(row))
    return ingest_pb2.RejectedPart.Message(
        location=location,
        topic=letter.topic,
        reason=letter.reason,
        time=letter.ms,
        value=value[: value_bytes or None],
        size=size,
        is_cut=not letter.is_whole,
        header_bytes=letter.header_bytes,
    )


def _late(late: Lateness) -> ingest_pb2.LateRecords | None:
    return _late_message(late) if late.count else None


def _future(late: Lateness) -> ingest_pb2.FutureRecords | None:
    if late.first_future is None:
        return None
    return ingest_pb2.FutureRecords(
        records=late.future, offset=late.first_future.offset, time=str(late.first_future.time)
    )


def _late_message(late: Lateness) -> ingest_pb2.LateRecords:
    return ingest_pb2.LateRecords(
        records=late.count,
        most=str(Milliseconds(late.most)),
        proposed_delay="" if late.is_watermark_in_future else str(proposed_delay(late.most)),
    )
