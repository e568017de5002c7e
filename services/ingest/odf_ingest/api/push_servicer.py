"""The gRPC service `Push`: accepts pushes, and reports their outcomes."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import grpc

from odf_common.adapters.local.faults import translating_os_errors
from odf_common.adapters.local.process_files import Staging
from odf_common.codec.times import time_message, time_of
from odf_common.errors import NotFound, name_dataset
from odf_common.metadata.events import AddPushSource
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.clock import Clock
from odf_common.ports.store import Catalog, CatalogEntry, require_entry
from odf_common.proto.odf.node.v1 import push_pb2 as pb
from odf_common.proto.odf.node.v1 import push_pb2_grpc
from odf_ingest.accepted_pushes import AcceptedPushes, Receipt, State, id_of
from odf_ingest.api.arrow_streams import ArrowStreams
from odf_ingest.api.lookup import PushTargets, require_key, source_named, staged_file
from odf_ingest.commit.committer import CommitQueues
from odf_ingest.commit.file_commit import digest_of
from odf_ingest.read.input_format import InputFormat
from odf_ingest.sources.source_ingestion import SourceIngestion, SourcePush

NAME: Final = "odf.node.v1.Push"
MAX_WAIT_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PushServicer(push_pb2_grpc.PushServicer):
    """Serves the calls of clients that push data. Only `Show` and `Stream` wait for a commit."""

    catalog: Catalog
    queues: CommitQueues
    accepted: AcceptedPushes
    staging: Staging
    clock: Clock
    streams: ArrowStreams
    targets: PushTargets
    sources: SourceIngestion

    def register(self, server: grpc.Server) -> tuple[str, ...]:
        """Add the service to a server; return its name."""
        push_pb2_grpc.add_PushServicer_to_server(self, server)
        return (NAME,)

    def Check(self, request: pb.PushRequest, context: grpc.ServicerContext) -> pb.PushTarget:
        """Return the target of a push; raises the error because of which the push would not be accepted."""
        if request.source:
            require_key("idempotency key", request.idempotency_key)
            definition = self.sources.check(json.loads(request.source), request.input_format)
            return pb.PushTarget(source_name=definition.source_name)
        entry, source = self._target(request)
        return pb.PushTarget(dataset_id=str(entry.dataset_id), source_name=source.source_name)

    @translating_os_errors
    def Accept(self, request: pb.PushRequest, context: grpc.ServicerContext) -> pb.PushReceipt:
        """Store a push durably, and return its receipt."""
        if request.source:
            return self._accept_for_source(request, json.loads(request.source))
        entry, source = self._target(request)
        file = staged_file(self.staging, request.staged)
        now = self.clock.now()
        event_time = time_of(request.event_time) if request.HasField("event_time") else now
        receipt = Receipt(
            id=id_of(entry.dataset_id, source.source_name, request.idempotency_key),
            source=source.source_name,
            key=request.idempotency_key,
            is_key_generated=request.is_key_generated,
            input_format=request.input_format,
            event_time=str(event_time),
            digest=digest_of(file),
            size=file.stat().st_size,
            accepted_at=now.ms,
        )
        stored = self.accepted.receipts.accept(entry.dataset_id, receipt, file)
        self.accepted.wake(entry.dataset_id)
        return _message(stored, entry.alias)

    def _accept_for_source(self, request: pb.PushRequest, source: dict[str, Any]) -> pb.PushReceipt:
        require_key("idempotency key", request.idempotency_key)
        now = self.clock.now()
        push = SourcePush(
            receipt=id_of(source["headers"]["id"], "", request.idempotency_key),
            key=request.idempotency_key,
            file=staged_file(self.staging, request.staged),
            input_format=request.input_format,
            event_time=time_of(request.event_time) if request.HasField("event_time") else now,
            accepted_ms=now.ms,
        )
        accepted = self.sources.accept(source, push)
        return pb.PushReceipt(
            id=accepted.receipt,
            source_name=source["headers"]["name"],
            state=State.ACCEPTED,
            accepted_at=time_message(Timestamp.from_ms(accepted.accepted_ms)),
            size=accepted.size,
            records=accepted.records,
        )

    def Show(self, request: pb.ShowPushRequest, context: grpc.ServicerContext) -> pb.PushReceipt:
        """Return the receipt of a push, after waiting for the outcome if the request says so."""
        entry = require_entry(self.catalog, request.ref)
        seconds = min(request.wait_ms / 1000, MAX_WAIT_SECONDS)
        receipt = self.accepted.await_settled(entry.dataset_id, request.receipt, seconds, context.is_active)
        if receipt is None:
            raise NotFound(what=f"receipt {request.receipt} of {entry.alias}")
        return _message(receipt, entry.alias)

    def Stream(
        self, request_iterator: Iterator[pb.StreamPart], context: grpc.ServicerContext
    ) -> Iterator[pb.StreamAck]:
        """Commit batches one by one; acknowledge each."""
        return self.streams.serve(request_iterator, context.is_active)

    def _target(self, request: pb.PushRequest) -> tuple[CatalogEntry, AddPushSource]:
        entry = self.targets.find(request.ref)
        require_key("idempotency key", request.idempotency_key)
        source = source_named(self.queues.state(entry.dataset_id), request.source_name)
        InputFormat.parse(request.input_format).step(source.read)
        return entry, source


def _message(receipt: Receipt, alias: str) -> pb.PushReceipt:
    return pb.PushReceipt(
        id=receipt.id,
        source_name=receipt.source,
        state=receipt.state,
        accepted_at=time_message(Timestamp.from_ms(receipt.accepted_at)),
        size=receipt.size,
        head=receipt.head,
        records=receipt.records,
        rejected=receipt.rejected,
        rejected_reason=receipt.rejected_reason,
        code=receipt.code,
        text=name_dataset(receipt.text, alias),
        advice=name_dataset(receipt.advice, alias),
    )
