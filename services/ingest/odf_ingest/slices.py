"""From prepared records to the events of one proposal, and the slice they name (wire-facts §5.1, §5.4)."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import pyarrow as pa

from odf_common.chain.build import build_blocks
from odf_common.data.columns import normalize_timestamps, with_system_columns
from odf_common.data.continuing import continued
from odf_common.data.schema import check_evolution, schema_of_event, schema_to_event
from odf_common.data.slices import write_slice
from odf_common.errors import InvalidInput
from odf_common.metadata.chain_state import ChainState
from odf_common.metadata.events import (
    AddData,
    DataSlice,
    KnownEvent,
    OffsetInterval,
    SetDataSchema,
    SourceState,
)
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.clock import Clock
from odf_common.ports.store import BlobStore, ObjectKind
from odf_ingest.conform import conformed
from odf_ingest.event_time import filled, greatest
from odf_ingest.merge import History, Merged, merge
from odf_ingest.position import KIND, SourcePosition
from odf_ingest.prepare import Prepared

HELD: Final = "held"
# A watermark: milliseconds; None, the greatest event time of a batch's records; or it stays where it is.
Reached = int | Literal["held"] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A proposal: its events, and the state of the chain when they are committed to `before`."""

    before: ChainState
    after: ChainState
    events: tuple[KnownEvent, ...]
    system_time: Timestamp
    merged: Merged

    @property
    def count(self) -> int:
        """Return how many records are appended."""
        return len(self.merged.records)


class Drafter:
    """Writes slices and drafts what announces them."""

    def __init__(self, blobs: BlobStore, clock: Clock, *, block_version: int, is_signed: bool) -> None:
        """Write slices into `blobs`; `is_signed` begins datasets with the reference's signed types."""
        self._blobs = blobs
        self._clock = clock
        self._block_version = block_version
        self._is_signed = is_signed

    def merged(self, state: ChainState, prepared: Prepared, history: History) -> Merged:
        """Return the records to append, every one with an event time. Raises `InvalidInput`."""
        if prepared.records is None:
            return Merged(records=pa.table({}))
        vocab = state.vocabulary
        taken = {vocab.offset_column, vocab.system_time_column} & set(prepared.records.column_names)
        if taken:
            raise InvalidInput(where=f"column {min(taken)}", text="the name belongs to a system column")
        records = prepared.records
        if state.schema is not None:
            # Before merging: what is compared and taken back are whole records of the dataset.
            records = conformed(records, schema_of_event(state.schema), vocab)
        merged = merge(prepared.source.merge, records, history, vocab)
        records = filled(merged.records, vocab.event_time_column, prepared.moment)
        return Merged(records=records, ops=merged.ops, keys=merged.keys)

    def draft(
        self,
        state: ChainState,
        merged: Merged,
        *,
        source: str,
        position: SourcePosition,
        watermark: Reached,
    ) -> Draft:
        """Write the slice, durably, and return the proposal; `watermark` is the one that the source has reached."""
        system_time = Timestamp.from_ms(max(self._clock.now().ms, state.system_time.ms + 1))
        events: list[KnownEvent] = []
        data: DataSlice | None = None
        if len(merged.records):
            table = self._table(state, merged, system_time)
            events += _schema_change(state, table)
            data = self._write(state, table)
            if watermark is None:
                watermark = greatest(merged.records, state.vocabulary.event_time_column)
        added = AddData(
            prev_checkpoint=None if state.checkpoint is None else state.checkpoint.physical_hash,
            prev_offset=state.last_offset,
            new_data=data,
            new_watermark=state.watermark if watermark == HELD else _latest(state.watermark, watermark),
            new_source_state=SourceState(source_name=source, kind=KIND, value=position.text()),
        )
        return self._checked(state, (*events, added), system_time, merged)

    def _checked(
        self, state: ChainState, events: Sequence[KnownEvent], system_time: Timestamp, merged: Merged
    ) -> Draft:
        _, after = build_blocks(state, events, system_time=system_time, version=self._block_version)
        return Draft(before=state, after=after, events=tuple(events), system_time=system_time, merged=merged)

    def _table(self, state: ChainState, merged: Merged, system_time: Timestamp) -> pa.Table:
        table = with_system_columns(
            normalize_timestamps(merged.records),
            ops=merged.ops,
            first_offset=state.next_offset,
            system_time=system_time,
            vocab=state.vocabulary,
            signed=self._is_signed,
        )
        if state.schema is None:
            return table
        return continued(table, schema_of_event(state.schema), state.vocabulary)

    def _write(self, state: ChainState, table: pa.Table) -> DataSlice:
        folder = self._blobs.scratch()
        try:
            file = folder / "slice.parquet"
            written = write_slice(table, file)
            self._blobs.put_file(state.dataset_id, ObjectKind.DATA, written.physical_hash, file)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        first = state.next_offset
        return DataSlice(
            logical_hash=written.logical_hash,
            physical_hash=written.physical_hash,
            offset_interval=OffsetInterval(start=first, end=first + len(table) - 1),
            size=written.size,
        )


def _schema_change(state: ChainState, table: pa.Table) -> list[SetDataSchema]:
    """Return the event that announces the table's schema, where it is new."""
    if state.schema is None or check_evolution(schema_of_event(state.schema), table.schema):
        return [schema_to_event(table.schema)]
    return []


def _latest(before: Timestamp | None, reached: int | None) -> Timestamp | None:
    if reached is None:
        return before
    new = Timestamp.from_ms(reached)
    return new if before is None or new > before else before
