"""A coordinator, and an ingest that proposes to it, in one process and without a bus."""

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

from odf_common.codec.envelopes import Body, Envelope, envelope
from odf_common.identity.dataset_refs import DatasetId
from odf_common.ports.engine import Engine
from odf_common.service.request_reply import Replies
from odf_coordinator.api.bus_handlers import Commands
from odf_ingest.commit.committer import BatchCommitter, CommitQueues, Pools, Proposals
from odf_ingest.commit.file_commit import FileCommit
from odf_ingest.commit.rejects import RejectPolicy
from odf_ingest.commit.slice_writer import Drafter
from odf_ingest.prepare.batch import FileBatch
from odf_ingest.prepare.preparer import Preparer
from odf_ingest.prepare.preprocess import Preprocessor
from odf_testing.coordinator import Coordinator


class IngestNode(Coordinator):
    """Port `Replies` of its own ingest."""

    def __init__(self, home: Path, pool: ThreadPoolExecutor, *, is_signed: bool = False) -> None:
        super().__init__(home=home)
        drafter = Drafter(self.blobs, self.clock, block_version=3, is_signed=is_signed)
        batches = BatchCommitter(self.states, drafter, Proposals(cast("Replies", self)))
        self.queues = CommitQueues(self.blobs, self.states, batches, Pools.with_one_pool(pool))
        self.preparer = Preparer(Preprocessor(cast("Engine", self.engine), self.blobs.scratch))
        self.rejecting = RejectPolicy(cast("Any", self.bus), self.blobs)
        self._commands = Commands(committer=self.committer, importer=self.importer).handle

    def request(self, topic: str, dataset: DatasetId, body: Body, *, timeout: float) -> Envelope | None:
        del topic, timeout
        (outgoing,) = self._commands(envelope(dataset, body))
        return outgoing.envelope

    def ingest_row(self, ref: str, row: Mapping[str, object], key: str | None = None) -> None:
        """Commit one record; by default the push has the key of its time."""
        file = self.home / "batch"
        file.write_text(json.dumps(row) + "\n")
        batch = FileBatch(file=file, event_time=self.clock.now(), key=key or str(self.clock.now()))
        work = FileCommit("default", batch, self.preparer, self.rejecting, lambda: True)
        assert work.commit(self.queues, self.find(ref).id).count == 1
