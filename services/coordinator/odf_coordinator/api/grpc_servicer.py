"""The gRPC service of the coordinator: datasets and references as replies."""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

import grpc

from odf_common.adapters.grpc.comparison import encode_comparison
from odf_common.chain.walk import iterate
from odf_common.codec.flatbuffers import encode_event
from odf_common.codec.times import time_message, time_message_or_none, time_of
from odf_common.dataset.node_datasets import StoredDataset
from odf_common.dataset.open_rejects import Rejects
from odf_common.dataset.plain_credentials import Credential, credentials_in, places_of
from odf_common.dataset.signature_check import stored_signature
from odf_common.errors import InvalidInput, name_dataset
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import DatasetId, is_pattern
from odf_common.ports.engine import EngineProgress
from odf_common.proto.odf.node.v1 import coordinator_pb2 as wire
from odf_common.proto.odf.node.v1.coordinator_pb2_grpc import (
    CoordinatorServicer,
    add_CoordinatorServicer_to_server,
)
from odf_coordinator.api.bus_handlers import known_event
from odf_coordinator.catalog.chain_problems import EarlierCredentials, chain_problem
from odf_coordinator.catalog.datasets import Activity, DatasetHandle, Datasets, Stall, Unreadable
from odf_coordinator.catalog.partitions import PartitionOwnership
from odf_coordinator.definitions.create import DatasetCreator
from odf_coordinator.definitions.drafts import Manifest
from odf_coordinator.definitions.first_schemas import FirstSchemas
from odf_coordinator.lifecycle import Collector
from odf_coordinator.operations.drop_and_rebuild import DataDropper
from odf_coordinator.operations.pull import Puller, PullProgress
from odf_coordinator.operations.query_problems import EngineUpgrade, EngineUpgrader, QueryProblems
from odf_coordinator.operations.read import RecordReader, ipc_chunks
from odf_coordinator.operations.references import Expected, Importer, Reference, References
from odf_coordinator.operations.rename_and_delete import DatasetNames
from odf_coordinator.operations.reset_and_commit import DatasetEditor
from odf_coordinator.storage import was_dropped
from odf_coordinator.transforms.runner import late_rows
from odf_coordinator.transforms.scheduler import Scheduler

NO_REJECTS: Final = Rejects()


def summary(
    handle: DatasetHandle,
    *,
    stall: Stall | None = None,
    data_size: int = 0,
    is_dropped: bool = False,
    late: int = 0,
    rejects: Rejects = NO_REJECTS,
) -> wire.DatasetSummary:
    """Return a dataset as a gRPC message."""
    state = handle.state
    return wire.DatasetSummary(
        alias=handle.alias,
        dataset_id=str(handle.id),
        kind=state.kind.name,
        head=str(state.head),
        blocks=state.sequence_number + 1,
        records=state.next_offset,
        watermark=time_message_or_none(state.watermark),
        system_time=time_message(state.system_time),
        push_topics=dict(handle.entry.push_topics),
        problem="" if stall is None else stall.reason,
        remedy="" if stall is None else name_dataset(stall.remedy, handle.alias),
        since=None if stall is None else stall.since.ns,
        data_size=data_size,
        inputs=[str(input_) for input_ in handle.inputs()],
        dropped=is_dropped,
        late=late,
        rejected=rejects.count,
        rejected_reason=rejects.reason,
        rejected_since=None if rejects.since is None else rejects.since.ns,
    )


def with_credentials(
    reply: wire.DatasetSummary,
    handle: DatasetHandle,
    has_key: Callable[[DatasetId], bool],
    earlier: str = "",
) -> wire.DatasetSummary:
    """Return the summary with the credentials that the chain contains in plain text, and the remedy.

    `earlier` lists the credentials of definitions that were replaced, but are still in the chain.
    """
    exposed = credentials_in(handle.state.polling_source)
    if exposed:
        reply.exposed_remedy = _remedy_of(handle, exposed, is_ours=has_key(handle.id))
    elif earlier:
        reply.exposed_remedy = (
            "the chain keeps them: have them replaced at the source; "
            f"`odf access set {handle.alias} --visibility private` keeps the chain from others"
        )
    reply.exposed = "; ".join(filter(None, (places_of(exposed) if exposed else "", earlier)))
    return reply


def _remedy_of(handle: DatasetHandle, exposed: Sequence[Credential], *, is_ours: bool) -> str:
    """Return the remedy for credentials that a chain contains in plain text."""
    if not is_ours:
        private = f"`odf access set {handle.alias} --visibility private` keeps this copy from others"
        return f"its owner should have them replaced at the source; {private}"
    return (
        "the chain keeps them: have them replaced at the source, and commit the polling source without them, `odf "
        f"commit {handle.alias} FILE`; {exposed[0].path}: {exposed[0].instead}"
    )


def unheard(handle: DatasetHandle, has_key: Callable[[DatasetId], bool]) -> Stall | None:
    """Return the problem of an owned dataset whose push sources have no topic, for example after `odf key import`."""
    missing = handle.state.push_sources.keys() - handle.entry.push_topics.keys()
    if not missing or not has_key(handle.id):
        return None
    return Stall(
        reason=f"push source {', '.join(sorted(missing))} has no topic here: nothing can be published to it",
        remedy=f"`odf pull {handle.alias}` creates it",
        since=handle.state.system_time,
    )


def unreadable_summary(dataset: Unreadable) -> wire.DatasetSummary:
    """Return the summary of a dataset whose chain cannot be read."""
    entry = dataset.entry
    return wire.DatasetSummary(
        alias=entry.alias,
        dataset_id=str(entry.dataset_id),
        push_topics=dict(entry.push_topics),
        problem=f"cannot be read: {dataset.why}",
        remedy=name_dataset(dataset.remedy, entry.alias),
        since=None if dataset.since is None else dataset.since.ns,
    )


def ref_item(reference: Reference) -> wire.RefItem:
    """Return a reference as a gRPC message."""
    compared = reference.compared
    return wire.RefItem(
        name=reference.name,
        block="" if reference.block is None else str(reference.block),
        sequence_number=reference.sequence_number,
        compared=None if compared is None else encode_comparison(compared.relation, compared.common),
        problem=reference.problem,
    )


NAME = "odf.node.v1.Coordinator"
WAITING_SECONDS: Final = 60.0  # a caller that waits for a dataset retries more often


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependencies:
    """The components of a coordinator."""

    datasets: Datasets
    ownership: PartitionOwnership
    first_schemas: FirstSchemas
    collector: Collector
    importer: Importer
    creator: DatasetCreator
    editor: DatasetEditor
    names: DatasetNames
    record_reader: RecordReader
    references: References
    puller: Puller
    scheduler: Scheduler
    dropper: DataDropper
    upgrader: EngineUpgrader


class Servicer(CoordinatorServicer):
    """Serves the `odf` command and other services."""

    def __init__(self, parts: Dependencies) -> None:
        self._parts = parts
        self._queries = QueryProblems(parts.datasets, parts.creator.engine)
        self._earlier_credentials = EarlierCredentials(parts.datasets)

    def Add(self, request: wire.AddRequest, context: grpc.ServicerContext) -> wire.AddReply:
        """Create or replace datasets from manifests."""
        manifests = tuple(Manifest(name=manifest.name, text=manifest.text) for manifest in request.manifests)
        added = self._parts.creator.add(manifests, is_replacing=request.replace)
        results = [
            wire.AddReply.Result(
                alias=result.alias,
                dataset_id=str(result.dataset_id),
                head=str(result.head),
                outcome=result.outcome,
            )
            for result in added
        ]
        return wire.AddReply(results=results)

    def List(self, request: wire.ListRequest, context: grpc.ServicerContext) -> wire.ListReply:
        """Return all datasets, ordered by name."""
        datasets = self._parts.datasets.scan()
        return wire.ListReply(datasets=[self._summary_or_problem(dataset) for dataset in datasets])

    def Describe(self, request: wire.DescribeRequest, context: grpc.ServicerContext) -> wire.DatasetSummary:
        """Return one dataset, with the size of its data."""
        handle = self._parts.datasets.open_at(request.ref)
        size = sum(slice_.size for slice_ in self._parts.record_reader.slices.all(handle))
        return self._summary(handle, data_size=size)

    def Log(self, request: wire.LogRequest, context: grpc.ServicerContext) -> Iterator[wire.BlockItem]:
        """Yield the blocks of a dataset, newest first."""
        handle = self._parts.datasets.open_at(request.ref)
        datasets = self._parts.datasets
        stored = StoredDataset(handle.id, datasets.blobs, datasets.refs)
        blocks = iterate(stored.read_block, handle.state.head)
        for name, _, raw in islice(blocks, min(request.limit, sys.maxsize) or None):
            signature = None
            if request.with_signatures:
                signature = stored_signature(stored, name)
            yield wire.BlockItem(hash=str(name), content=raw, signature=signature)

    def LastEvent(self, request: wire.LastEventRequest, context: grpc.ServicerContext) -> wire.LastEventReply:
        """Return the last event of a kind in a chain."""
        handle = self._parts.datasets.open_at(request.ref)
        events = {kind.__name__: event for kind, event in handle.state.definitions.by_kind().items()}
        if request.kind not in events:
            raise InvalidInput(text=f"expected one of {', '.join(events)}, got {request.kind!r}")
        event = events[request.kind]
        return wire.LastEventReply(
            event=b"" if event is None else encode_event(event),
            alias=handle.alias,
            dataset_id=str(handle.id),
            kind=handle.state.kind.name,
        )

    def Tail(self, request: wire.TailRequest, context: grpc.ServicerContext) -> Iterator[wire.ArrowBytes]:
        """Yield the last records as parts of an Arrow stream."""
        table = self._parts.record_reader.tail(request.ref, request.records)
        return (wire.ArrowBytes(ipc=chunk) for chunk in ipc_chunks(table))

    def Query(self, request: wire.SqlRequest, context: grpc.ServicerContext) -> Iterator[wire.ArrowBytes]:
        """Yield the result of a query as parts of an Arrow stream."""
        chunks = self._parts.record_reader.query(request.sql, context.is_active)
        return (wire.ArrowBytes(ipc=chunk) for chunk in chunks)

    def Pull(self, request: wire.PullRequest, context: grpc.ServicerContext) -> Iterator[wire.PullItem]:
        """Pull datasets, and yield the progress."""
        pulling = self._parts.puller
        if request.HasField("set_watermark"):
            if request.all or not request.refs or any(is_pattern(ref) for ref in request.refs):
                raise InvalidInput(text="set a watermark on datasets by name, not by pattern or --all")
            steps = pulling.set_watermarks(request.refs, time_of(request.set_watermark))
        elif request.reset_derivatives:
            steps = pulling.derive_again(
                () if request.all else request.refs,
                is_recursive=request.recursive,
                is_wanted=context.is_active,
            )
        else:
            steps = pulling.pull(
                request.refs,
                is_all=request.all,
                is_recursive=request.recursive,
                is_wanted=context.is_active,
            )
        return map(_pull_item, steps)

    def Rename(self, request: wire.RenameRequest, context: grpc.ServicerContext) -> wire.DatasetSummary:
        """Rename a dataset."""
        return self._summary_or_problem(self._parts.names.rename(request.ref, request.new_alias))

    def Delete(self, request: wire.DeleteRequest, context: grpc.ServicerContext) -> wire.DeleteReply:
        """Remove a dataset."""
        self._parts.names.delete(request.ref)
        return wire.DeleteReply()

    def Reset(self, request: wire.ResetRequest, context: grpc.ServicerContext) -> wire.DatasetSummary:
        """Move a reference of a dataset back to an earlier block."""
        return self._summary(
            self._parts.editor.reset(request.ref, Multihash.parse(request.head), is_forced=request.force)
        )

    def DropData(self, request: wire.DropDataRequest, context: grpc.ServicerContext) -> wire.DropDataReply:
        """Remove the data of a derivative."""
        dropped = self._parts.dropper.drop(request.ref)
        return wire.DropDataReply(
            alias=dropped.handle.alias,
            slices=dropped.slices,
            checkpoints=dropped.checkpoints,
            size=dropped.size,
        )

    def CommitEvent(
        self,
        request: wire.CommitEventRequest,
        context: grpc.ServicerContext,
    ) -> wire.DatasetSummary:
        """Append one metadata event."""
        return self._summary(self._parts.editor.commit_event(request.ref, known_event(request.event)))

    def UpgradeEngine(
        self, request: wire.UpgradeEngineRequest, context: grpc.ServicerContext
    ) -> Iterator[wire.UpgradeEngineItem]:
        """Upgrade derivatives to the installed engine, and yield the result for each."""
        upgrades = self._parts.upgrader.upgrade(
            request.refs, is_all=request.all, is_restarted=request.from_start, is_dry=request.dry_run
        )
        return map(_upgrade_item, upgrades)

    def ListRefs(self, request: wire.ListRefsRequest, context: grpc.ServicerContext) -> wire.ListRefsReply:
        """Return the references of a dataset."""
        return wire.ListRefsReply(refs=[ref_item(ref) for ref in self._parts.references.all(request.ref)])

    def SetRef(self, request: wire.SetRefRequest, context: grpc.ServicerContext) -> wire.RefItem:
        """Create or move a reference."""
        expected = Expected(request.expected) if request.HasField("expected") else None
        return ref_item(self._parts.references.set(request.ref, request.block, expected))

    def DeleteRef(self, request: wire.DeleteRefRequest, context: grpc.ServicerContext) -> wire.DeleteRefReply:
        """Remove a reference."""
        expected = Expected(request.expected) if request.HasField("expected") else None
        self._parts.references.delete(request.ref, expected)
        return wire.DeleteRefReply()

    def FastForward(
        self, request: wire.FastForwardRequest, context: grpc.ServicerContext
    ) -> wire.DatasetSummary:
        """Move the head of a dataset forward to another of its references."""
        done = self._parts.references.fast_forward(request.ref)
        reply = self._summary(done.handle)
        reply.changes.extend(done.changes)
        return reply

    def Compare(self, request: wire.CompareRequest, context: grpc.ServicerContext) -> wire.Comparison:
        """Compare two chains."""
        compared = self._parts.references.compare(request.left, request.right)
        return encode_comparison(compared.relation, compared.common)

    def _summary_or_problem(self, dataset: DatasetHandle | Unreadable) -> wire.DatasetSummary:
        """Return the summary of a dataset, or its problem, so that one bad dataset does not fail the whole list."""
        if isinstance(dataset, Unreadable):
            return unreadable_summary(dataset)
        try:
            return self._summary(dataset)
        except Exception as error:  # noqa: BLE001 - any error concerns this dataset only
            return unreadable_summary(self._parts.datasets.unreadable(dataset.entry, error))

    def _summary(self, handle: DatasetHandle, *, data_size: int = 0) -> wire.DatasetSummary:
        reply = summary(
            handle,
            stall=chain_problem(self._parts.datasets, handle, self._parts.creator.committer.latest_time())
            or self._parts.scheduler.stall_of(handle.id)
            or self._parts.datasets.stalls.recent(handle.id, Activity.COMMIT, WAITING_SECONDS)
            or unheard(handle, self._parts.datasets.has_key)
            or self._queries.problem(handle),
            data_size=data_size,
            # Derivatives only: a listing opens no file of a root except its head.
            is_dropped=handle.is_derivative and was_dropped(self._parts.datasets, handle),
            late=late_rows(self._parts.datasets.blobs, handle.id) if handle.is_derivative else 0,
            rejects=self._parts.datasets.rejects(handle),
        )
        wait = None if reply.problem else self._parts.puller.waiting.wait_of(handle)
        if wait is not None:
            reply.waits_for, reply.waits_for_input, reply.waits_remedy = wait.text, wait.input, wait.remedy
        earlier = self._earlier_credentials.text_for(handle)
        return with_credentials(reply, handle, self._parts.datasets.has_key, earlier)


def register(server: grpc.Server, parts: Dependencies) -> tuple[str, ...]:
    """Add the service to a server, and return the service's full name."""
    add_CoordinatorServicer_to_server(Servicer(parts), server)
    return (NAME,)


def _upgrade_item(upgrade: EngineUpgrade) -> wire.UpgradeEngineItem:
    return wire.UpgradeEngineItem(
        alias=upgrade.alias,
        before=upgrade.before,
        after=upgrade.after,
        changes=upgrade.changes,
        outcome=upgrade.outcome,
        error=upgrade.error,
    )


def _pull_item(step: PullProgress) -> wire.PullItem:
    now = step.progress or EngineProgress()
    return wire.PullItem(
        alias=step.alias,
        state=step.state,
        new_blocks=step.new_blocks,
        new_records=step.new_records,
        error=step.error,
        head="" if step.head is None else str(step.head),
        stage=now.stage,
        rows=now.rows,
        total=now.total,
        late=now.late if step.progress else step.new_late,
        rejected=step.rejects.count,
        rejected_reason=step.rejects.reason,
        waits_for="" if step.wait is None else step.wait.text,
        waits_remedy="" if step.wait is None else step.wait.remedy,
    )
