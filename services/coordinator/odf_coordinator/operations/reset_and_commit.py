"""Changes the chains of datasets: resets, single metadata events, and watermarks of roots."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import structlog

from odf_common.chain.build_blocks import add_data_event
from odf_common.chain.state import ChainState
from odf_common.chain.transform_steps import is_migration
from odf_common.chain.walk import iterate
from odf_common.codec.flatbuffers import decode_block
from odf_common.dataset.plain_credentials import require_no_plain_credentials
from odf_common.errors import DatasetInUse, InvalidInput, NotFound
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import HEAD
from odf_common.metadata.events import (
    AddData,
    DataEvent,
    DatasetSnapshot,
    DisablePollingSource,
    DisablePushSource,
    ExecuteTransform,
    KnownEvent,
    MetadataEvent,
    Seed,
    SetTransform,
    SetVocab,
    vocabulary_of,
)
from odf_common.metadata.normalize import normalize
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.store import ObjectKind
from odf_coordinator.catalog.datasets import DatasetHandle, Datasets, hold_inputs
from odf_coordinator.commit.committer import Committer, retry_on_conflict
from odf_coordinator.definitions.create import DatasetCreator
from odf_coordinator.definitions.declared_columns import require_fetchable, require_possible, sources_of
from odf_coordinator.definitions.diff import require_settable
from odf_coordinator.definitions.drafts import resolve
from odf_coordinator.definitions.query_validation import Validation
from odf_coordinator.errors import DerivativeWatermark, EventReserved, WatermarkDecreased

log = structlog.stdlib.get_logger(__name__)

_WRITTEN_WHEN: Final[Mapping[type, str]] = {
    AddData: "ingest commits it with the records it describes; push records, or use `odf ingest`",
    ExecuteTransform: "it is committed with the result of a transform; use `odf pull`",
    Seed: "it is the first event of a dataset, committed at creation; use `odf add`",
}
_PATH: Final = "content.metadata[0]"  # of the only event in a snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetEditor:
    """Changes the chains of datasets on request of users."""

    datasets: Datasets
    committer: Committer
    creator: DatasetCreator

    def reset(self, ref: str, head: Multihash, *, is_forced: bool = False) -> DatasetHandle:
        """Move a reference back to a block of its chain.

        Raises `Refused` if the reference is the head, and a derivative has read later blocks, unless `is_forced`. Then
        such derivatives stall until they are rolled back too.
        """
        handle = self.datasets.open_at(ref)
        if head == handle.state.head:
            return handle
        position = self._position(handle, head)
        if handle.ref == HEAD and not is_forced:
            self._require_unread(handle, position)
        state = self.datasets.states.state_at(handle.id, head)
        transform = state.transform if handle.ref == HEAD else None
        with (
            hold_inputs(self.datasets, handle.entry, (transform,)),
            self.committer.lock(handle.id),
        ):
            self.committer.move_ref(handle.id, expected=handle.state.head, state=state, ref=handle.ref)
        return replace(handle, state=state)

    def commit_event(self, ref: str, event: KnownEvent) -> DatasetHandle:
        """Append one metadata event, unless it changes nothing.

        Raises `Refused` for an event that only the node writes, and for a copy.
        """
        if isinstance(event, DataEvent | Seed):
            kind = type(event).__name__
            text = f"only the node writes {kind}: {_WRITTEN_WHEN[type(event)]}"
            raise EventReserved(text=text)
        return retry_on_conflict(lambda: self._commit_event(self.datasets.open_at(ref), event))

    def set_watermark(self, ref: str, watermark: Timestamp) -> DatasetHandle:
        """Raise the watermark of a root, unless it already has this value."""
        return retry_on_conflict(lambda: self._set_watermark(self.datasets.find(ref), watermark))

    def _commit_event(self, handle: DatasetHandle, event: KnownEvent) -> DatasetHandle:
        self.committer.require_owned(handle.id)
        normal = self._normalize(handle, event)
        if handle.state.definitions.replaced_by(normal) == normal:
            return handle
        require_no_plain_credentials(normal)
        require_fetchable(normal)
        require_settable(handle.state, normal)
        return self.creator.amend(handle, (normal,))

    def _set_watermark(self, handle: DatasetHandle, watermark: Timestamp) -> DatasetHandle:
        self.committer.require_owned(handle.id)
        state = handle.state
        if handle.is_derivative:
            text = f"{handle.alias} is a derivative: its watermark follows from its inputs"
            raise DerivativeWatermark(text=text)
        if watermark == state.watermark:
            return handle
        if state.watermark is not None and watermark < state.watermark:
            text = (
                f"the watermark of {handle.alias} is {state.watermark} and cannot be lowered to {watermark}"
            )
            raise WatermarkDecreased(text=text)
        event = add_data_event(state, new_data=None, watermark=watermark, source_state=None)
        return self.creator.amend(handle, (event,))

    def _require_unread(self, handle: DatasetHandle, position: int) -> None:
        """Raise `Refused` if a derivative has read blocks after `position`."""
        for dependant in self.datasets.dependants(handle.id):
            read = dependant.state.progress_of(handle.id).last_block
            if read is not None and self._sequence_number(handle, read) > position:
                text = (
                    f"{dependant.alias} has read past block {position} of {handle.alias}; reset it anyway "
                    f"with --force, then roll back and recompute its derivatives with "
                    f"`odf pull --reset-derivatives {handle.alias}`"
                )
                raise DatasetInUse(text=text)

    def _position(self, handle: DatasetHandle, head: Multihash) -> int:
        """Return the sequence number of a block; raises `InvalidInput` if it may not be the chain's head."""
        above: MetadataEvent | None = None
        for name, decoded, _ in iterate(self.datasets.reader(handle.id), handle.state.head):
            event = decoded.block.event
            if name == head:
                if isinstance(event, SetTransform) and isinstance(above, ExecuteTransform):
                    _require_unmigrated(head, event, above)
                return decoded.block.sequence_number
            above = event
        raise InvalidInput(text=f"{head} is not a block of the chain of {handle.alias}")

    def _sequence_number(self, handle: DatasetHandle, name: Multihash) -> int:
        try:
            raw = self.datasets.blobs.read(handle.id, ObjectKind.BLOCK, name)
        except NotFound:
            return 0
        return decode_block(raw).block.sequence_number

    def _normalize(self, handle: DatasetHandle, event: KnownEvent) -> KnownEvent:
        """Return the normalized event, after the engine has validated its queries."""
        if isinstance(event, DisablePollingSource | DisablePushSource):
            return event
        snapshot = DatasetSnapshot(name=handle.alias, kind=handle.state.kind, metadata=(event,))
        try:
            normal = normalize(snapshot).metadata[0]
        except InvalidInput as error:
            # The snapshot is only a wrapper: to the user, paths begin at the event.
            where = (error.where or "").removeprefix(_PATH).removeprefix(".")
            raise InvalidInput(text=error.text, where=where or None) from error
        validation = Validation(datasets=self.datasets, engine=self.creator.engine)
        if isinstance(normal, SetTransform):
            resolved = resolve(normal, {}, self.datasets.catalog)
            return validation.output(resolved, handle.state.vocabulary, handle.state).event
        _require_possible(normal, handle.state)
        validation.require_preprocess(normal, handle.state.vocabulary, handle.state)
        validation.require_dependants(normal, handle)
        return normal


def _require_unmigrated(head: Multihash, new: SetTransform, above: ExecuteTransform) -> None:
    """Raise `InvalidInput` if the block after the new head is the migration of its query, which needs that state."""
    if is_migration(above, new):
        text = (
            f"{head} sets a query, and the next block is its migration: reset to the block after or before it"
        )
        raise InvalidInput(text=text)


def _require_possible(event: KnownEvent, state: ChainState) -> None:
    """Raise `InvalidInput` if no record can fit the event, or an existing source with a new vocabulary."""
    if isinstance(event, SetVocab):
        require_possible(event, state.vocabulary)
        for source in sources_of(state):
            require_possible(source, vocabulary_of(event))
    else:
        require_possible(event, state.vocabulary)
