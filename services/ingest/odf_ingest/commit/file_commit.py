"""A file to commit: atomically, once per idempotency key."""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from odf_common.chain.state import ChainState
from odf_common.dataset.batch_keys import run_of
from odf_common.errors import InvalidInput, NotFound, StorageUnavailable
from odf_common.identity.did import DatasetId
from odf_common.metadata.events import AddPushSource, DatasetKind
from odf_common.ports.engine import QueryNotWanted
from odf_ingest.commit.commit_queue import CommitQueues
from odf_ingest.commit.committer import Outcome, position_of
from odf_ingest.commit.in_flight import cancelled
from odf_ingest.commit.position import SourcePosition
from odf_ingest.commit.watermark import NewWatermark
from odf_ingest.errors import AlreadyCommitted, KeyReused, NothingCommitted
from odf_ingest.prepare.batch import FileBatch
from odf_ingest.prepare.plan import Plan, plan_of
from odf_ingest.prepare.preparer import Prepared, Preparer


class FileCommit:
    """Port `Batch` for one file.

    If the client gave the key, even a file that appends nothing is committed, for its receipt: otherwise a late repeat
    could undo what was pushed in between.
    """

    def __init__(
        self, source: str, batch: FileBatch, preparer: Preparer, is_wanted: Callable[[], bool] = lambda: True
    ) -> None:
        """Read the file with `preparer`, again only if the source changes; stop once `is_wanted` returns False."""
        self.source = source
        self.may_be_empty = not batch.is_key_generated
        self._batch = batch
        self._preparer = preparer
        self._is_wanted = is_wanted
        self._read: tuple[Plan, Prepared] | None = None
        self._content = "" if batch.is_key_generated else digest_of(batch.file)
        self._is_proposed = False

    def position_in(self, state: ChainState) -> SourcePosition:
        """Return the source's position in a state of the chain."""
        return position_of(state, self.source)

    def check(self, position: SourcePosition) -> None:
        """Raise `AlreadyCommitted` if the key is among the receipts, `KeyReused` if it was another file's."""
        if position.has_receipt(self._batch.key):
            if position.contents.get(self._batch.key, self._content) != self._content:
                raise KeyReused(key=run_of(self._batch.key))
            raise AlreadyCommitted
        self._require_wanted()

    def prepare(self, state: ChainState) -> Prepared:
        """Return the file's records; raises `InvalidInput`."""
        source = chosen_source(state, self.source)
        plan = plan_of(state, replace(source, read=self._batch.format.step(source.read)))
        if self._read is None or self._read[0] != plan:
            try:
                self._read = plan, self._preparer.file(replace(plan, is_wanted=self._is_wanted), self._batch)
            except QueryNotWanted as error:
                raise cancelled() from error
        self._require_wanted()
        return self._read[1]

    def left_of(self, error: InvalidInput) -> Prepared:
        """Raise the error: a file is committed as a whole or not at all."""
        raise error

    def advance(self, position: SourcePosition, prepared: Prepared) -> tuple[SourcePosition, NewWatermark]:
        """Return the position with the batch's receipt."""
        self._require_wanted()
        return position.with_receipt(self._batch.key, self._content), None

    def before_proposal(self) -> None:
        """Raise `Refused` if no caller wants the batch any more."""
        self._require_wanted()
        self._is_proposed = True

    def commit(self, queues: CommitQueues, dataset: DatasetId) -> Outcome:
        """Commit the file; raises `NothingCommitted` if storage failed before the proposal."""
        try:
            return queues.commit(dataset, self)
        except StorageUnavailable as error:
            if self._is_proposed:
                raise
            raise NothingCommitted.because(error) from error

    def _require_wanted(self) -> None:
        if not self._is_wanted():
            raise cancelled()


def digest_of(file: Path) -> str:
    """Return a digest of a file, by which pushes with one key are compared."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, lambda: hashlib.blake2b(digest_size=8)).hexdigest()


def chosen_source(state: ChainState, name: str) -> AddPushSource:
    """Return the push source with a name, or the only one if the name is empty."""
    if state.kind is not DatasetKind.Root:
        raise InvalidInput(text="a derivative takes no pushed data")
    sources = state.push_sources
    if name:
        if name not in sources:
            raise NotFound(what=f"push source {name}")
        return sources[name]
    if not sources:
        raise InvalidInput(text="the dataset has no push source")
    if len(sources) > 1:
        known = ", ".join(sorted(sources))
        raise InvalidInput(
            text=f"the dataset has several push sources: {known}; name one (--source, ?sourceName=)"
        )
    return next(iter(sources.values()))
