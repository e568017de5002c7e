"""gRPC `Ingest`: pushing whole batches, and waiting for the push topics to be drained."""

import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import grpc

from odf_common.errors import InvalidInput, NotFound
from odf_common.identity.did import PREFIX, DatasetId
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.clock import Clock
from odf_common.ports.store import Catalog, CatalogEntry
from odf_common.proto.odf.node.v1 import ingest_pb2, ingest_pb2_grpc
from odf_ingest.batch import FileBatch
from odf_ingest.prepare import Preparer
from odf_ingest.push.drain import Drains
from odf_ingest.push.file import FileCommit, chosen_source
from odf_ingest.push.lanes import Lanes
from odf_ingest.push.owned import OwnedSources

NAME = "odf.node.v1.Ingest"


class IngestServicer(ingest_pb2_grpc.IngestServicer):
    """Answers when what was asked for is committed."""

    def __init__(  # noqa: PLR0913 - all by name
        self,
        *,
        catalog: Catalog,
        lanes: Lanes,
        preparer: Preparer,
        drains: Drains,
        owned: OwnedSources,
        clock: Clock,
        staging: Path,
    ) -> None:
        """Find staged files in the folder `staging`."""
        self._catalog = catalog
        self._lanes = lanes
        self._preparer = preparer
        self._drains = drains
        self._owned = owned
        self._clock = clock
        self._staging = staging

    def register(self, server: grpc.Server) -> tuple[str, ...]:
        """Answer calls of the server."""
        ingest_pb2_grpc.add_IngestServicer_to_server(self, server)
        return (NAME,)

    def Push(  # noqa: N802 - gRPC's name
        self, request_iterator: Iterator[ingest_pb2.PushPart], context: grpc.ServicerContext
    ) -> ingest_pb2.PushReply:
        """Commit one batch; raises `InvalidInput` with the place of the first fault, and then nothing is committed."""
        first = next(request_iterator, None)
        if first is None or first.WhichOneof("part") != "header":
            raise InvalidInput(text="a push begins with its header")
        header = first.header
        entry = self._entry(header.ref)
        source = chosen_source(self._lanes.state(entry.dataset_id), header.source_name)
        if header.staged:
            reply = self._commit(entry, source.source_name, header, self._staged(header.staged))
            self._staged(header.staged).unlink(missing_ok=True)
            return reply
        folder = self._staging / f".{uuid.uuid4().hex}"
        folder.mkdir(parents=True)
        try:
            file = folder / "batch"
            _receive(request_iterator, file)
            return self._commit(entry, source.source_name, header, file)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def Drain(  # noqa: N802 - gRPC's name
        self, request: ingest_pb2.DrainRequest, context: grpc.ServicerContext
    ) -> Iterator[ingest_pb2.DrainProgress]:
        """Tell how many messages wait until none does; raises `SourceStopped`."""
        entry = self._entry(request.ref)
        for progress in self._drains.wait(entry):
            if not context.is_active():
                return
            yield ingest_pb2.DrainProgress(
                waiting=progress.waiting, done=progress.head is not None, head=str(progress.head or "")
            )

    def Stuck(  # noqa: N802 - gRPC's name
        self, request: ingest_pb2.StuckRequest, context: grpc.ServicerContext
    ) -> ingest_pb2.StuckReply:
        """Return which sources stand still or wait, and why."""
        sources = [
            ingest_pb2.StuckReply.Source(dataset_id=str(dataset), source_name=name, why=str(why))
            for (dataset, name), why in self._owned.stuck().items()
        ]
        return ingest_pb2.StuckReply(sources=sources)

    def _commit(
        self, entry: CatalogEntry, source: str, header: ingest_pb2.PushHeader, file: Path
    ) -> ingest_pb2.PushReply:
        batch = FileBatch(
            file=file,
            event_time=Timestamp(header.event_time) if header.HasField("event_time") else self._clock.now(),
            key=header.idempotency_key or uuid.uuid4().hex,
        )
        outcome = self._lanes.commit(entry.dataset_id, FileCommit(source, batch, self._preparer))
        return ingest_pb2.PushReply(
            head=str(outcome.state.head), records=outcome.count, already=not outcome.is_new
        )

    def _entry(self, ref: str) -> CatalogEntry:
        is_id = ref.startswith(PREFIX)
        entry = self._catalog.by_id(DatasetId.parse(ref)) if is_id else self._catalog.by_alias(ref)
        if entry is None:
            raise NotFound(what=f"dataset {ref}")
        return entry

    def _staged(self, name: str) -> Path:
        file = self._staging / name
        if Path(name).name != name or name in {".", ".."}:
            raise InvalidInput(text=f"not the name of a staged file: {name!r}")
        if not file.is_file():
            raise NotFound(what=f"staged file {name}")
        return file


def _receive(parts: Iterator[ingest_pb2.PushPart], file: Path) -> None:
    with file.open("xb") as sink:
        for part in parts:
            if part.WhichOneof("part") != "content":
                raise InvalidInput(text="a push has one header")
            sink.write(part.content)
