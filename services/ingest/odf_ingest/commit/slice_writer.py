"""From prepared records to the events of one proposal, and their slice (wire-facts §5.1, §5.4)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from odf_common.chain.build_blocks import add_data_event, build_blocks, next_system_time
from odf_common.chain.rules.data_events import is_without_change
from odf_common.chain.state import ChainState
from odf_common.data.columns import as_stored, normalize_timestamps, stored_schema, with_system_columns
from odf_common.data.schema_evolution import (
    align_to_schema,
    check_evolution,
    schema_of_event,
    schema_to_event,
)
from odf_common.data.slices import SliceFile, write_slice
from odf_common.errors import InvalidInput
from odf_common.hashing.multihash import Multihash
from odf_common.metadata.events import DatasetVocabulary, DataSlice, KnownEvent, OffsetInterval, SetDataSchema
from odf_common.metadata.scalars import CLOCK_TOLERANCE_MS, Timestamp
from odf_common.ports.clock import Clock
from odf_common.ports.store import BlobStore, ObjectKind, scratch_folder
from odf_ingest.commit.position import Position
from odf_ingest.commit.watermark import (
    NONE_LATE,
    Lateness,
    NewWatermark,
    future_of,
    lateness_of,
    watermark_of,
)
from odf_ingest.history.align_columns import align_columns, data_columns, without_dictionaries
from odf_ingest.history.indexes import SliceRecords
from odf_ingest.merge.interface import History, MergeResult
from odf_ingest.merge.strategies import key_columns, merge
from odf_ingest.prepare.event_time import fill_event_time
from odf_ingest.prepare.preparer import PreparedRecords
from odf_ingest.source_settings import EmptySnapshot, SourceSettings, load_settings

BLANK: Final = (
    "the batch has no bytes, and a snapshot says that it is empty: [] in Json, or a header line alone in Csv; "
    "with `odf source set DATASET emptySnapshot=retract` no bytes are an empty snapshot as well"
)
DEFAULT_SETTINGS: Final = SourceSettings()


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A proposal: its events, and the chain's state before and after them. Without events there is nothing to commit.

    `slice` is the name and the records of the appended slice; None if no records are appended.
    """

    before: ChainState
    after: ChainState
    events: tuple[KnownEvent, ...]
    system_time: Timestamp
    slice: tuple[Multihash, SliceRecords] | None = None
    late: Lateness = NONE_LATE

    @property
    def count(self) -> int:
        """Return the number of appended records."""
        return 0 if self.slice is None else len(self.slice[1].records)


class Drafter:
    """Writes slices and drafts proposals."""

    def __init__(
        self,
        blobs: BlobStore,
        clock: Clock,
        *,
        block_version: int,
        is_signed: bool,
        clock_tolerance_ms: int = CLOCK_TOLERANCE_MS,
    ) -> None:
        """Write slices to `blobs`.

        `is_signed`: new datasets get signed integer types for system columns, as in the reference implementation.
        """
        self._blobs = blobs
        self._clock = clock
        self._clock_tolerance_ms = clock_tolerance_ms
        self._block_version = block_version
        self._is_signed = is_signed

    def settings(self, state: ChainState, source: str) -> SourceSettings:
        """Return the settings of a source; raises `InvalidInput` if they cannot be read."""
        return load_settings(self._blobs, state.dataset_id, source)

    def merge_records(
        self, state: ChainState, prepared: PreparedRecords, history: History, settings: SourceSettings
    ) -> MergeResult:
        """Return the records to append; each has an event time. Raises `InvalidInput`."""
        vocab = state.vocabulary
        records = prepared.records
        if records is None:
            # An empty batch retracts nothing, unless it is a snapshot: then all current rows are missing in it.
            if not prepared.is_state or state.schema is None:
                return MergeResult(records=pa.table({}))
            records = _no_records(schema_of_event(state.schema), vocab)
        conflicts = {vocab.offset_column, vocab.system_time_column} & set(records.column_names)
        if conflicts:
            raise InvalidInput(where=f"column {min(conflicts)}", text="the name belongs to a system column")
        # Before merging, because merging compares, indexes and retracts records as the dataset stores them.
        records = _in_stored_types(records)
        key = key_columns(prepared.source.merge)
        if key:
            # Merging compares and sorts keys, and each batch has its own dictionary.
            records = without_dictionaries(records)
        if state.schema is not None:
            schema = schema_of_event(state.schema)
            if key and vocab.operation_type_column in records.column_names:
                # A retraction gets the values of its record by merging, after which they are checked.
                schema = pa.schema(
                    [one if one.name in key else one.with_nullable(nullable=True) for one in schema]
                )
            records = align_columns(records, schema, vocab)
        merged = merge(prepared.source.merge, records, history, vocab, settings)
        if prepared.is_blank and len(merged.records) and settings.empty_snapshot is not EmptySnapshot.RETRACT:
            raise InvalidInput(text=BLANK)
        return replace(
            merged,
            records=fill_event_time(merged.records, vocab.event_time_column, prepared.default_event_time),
        )

    def draft(
        self,
        state: ChainState,
        merged: MergeResult,
        *,
        source: str,
        position: Position,
        watermark: NewWatermark,
        settings: SourceSettings = DEFAULT_SETTINGS,
    ) -> Draft:
        """Write the slice durably and return the proposal; `watermark` and `settings` are the source's.

        The slice is moved into the dataset last, so a proposal that the chain rules refuse leaves none. Raises
        `ClockBehind` if the last block is from the future.
        """
        now = self._clock.now()
        system_time = next_system_time(state, now, self._clock_tolerance_ms)
        column = state.vocabulary.event_time_column
        added = add_data_event(
            state,
            new_data=None,
            watermark=watermark_of(watermark, merged.records, column, settings, now),
            source_state=position.source_state(source),
        )
        if not len(merged.records):
            if is_without_change(state, added):
                return Draft(before=state, after=state, events=(), system_time=system_time)
            return self._proposal(state, (added,), system_time)
        table = self._table(state, merged, system_time)
        with scratch_folder(self._blobs) as folder:
            file = folder / "slice.parquet"
            data = _slice_of(state, table, write_slice(table, file))
            events: list[KnownEvent] = [*_schema_change(state, table), replace(added, new_data=data)]
            draft = self._proposal(state, events, system_time)
            self._blobs.put_file(state.dataset_id, ObjectKind.DATA, data.physical_hash, file)
        records = SliceRecords(records=table, keys=merged.keys)
        late = lateness_of(merged, column, state.watermark, now)
        late = late.plus(future_of(merged, column, settings, now, state.next_offset))
        return replace(draft, slice=(data.physical_hash, records), late=late)

    def _proposal(self, state: ChainState, events: Sequence[KnownEvent], system_time: Timestamp) -> Draft:
        """Return a proposal without its slice; raises `ChainRuleViolated` if the chain rules refuse it."""
        # With the coordinator's rules, so that what they would refuse is noticed before it is proposed.
        _, after = build_blocks(state, events, system_time=system_time, version=self._block_version)
        return Draft(before=state, after=after, events=tuple(events), system_time=system_time)

    def _table(self, state: ChainState, merged: MergeResult, system_time: Timestamp) -> pa.Table:
        """Return the table to write, in stored types."""
        table = with_system_columns(
            merged.records,
            ops=merged.ops,
            first_offset=state.next_offset,
            system_time=system_time,
            vocab=state.vocabulary,
            signed=self._is_signed,
        )
        if state.schema is not None:
            table = align_to_schema(table, schema_of_event(state.schema), state.vocabulary)
        return _in_stored_types(table)


def _slice_of(state: ChainState, table: pa.Table, written: SliceFile) -> DataSlice:
    first = state.next_offset
    return DataSlice(
        logical_hash=written.logical_hash,
        physical_hash=written.physical_hash,
        offset_interval=OffsetInterval(start=first, end=first + len(table) - 1),
        size=written.size,
    )


def _in_stored_types(records: pa.Table) -> pa.Table:
    """Return the records with stored values and types; times without a zone are UTC."""
    try:
        return as_stored(normalize_timestamps(records))
    except pa.ArrowException as error:
        raise InvalidInput(text=f"a time is out of the range that can be stored: {error}") from error


def _no_records(schema: pa.Schema, vocab: DatasetVocabulary) -> pa.Table:
    """Return an empty table of the event time and data columns."""
    stored = stored_schema(schema)
    columns = [stored.field(vocab.event_time_column), *data_columns(stored, vocab)]
    return pa.schema(columns).empty_table()


def _schema_change(state: ChainState, table: pa.Table) -> list[SetDataSchema]:
    """Return the event that sets the table's schema, if it differs from the chain's."""
    if state.schema is None or check_evolution(schema_of_event(state.schema), table.schema):
        return [schema_to_event(table.schema)]
    return []
