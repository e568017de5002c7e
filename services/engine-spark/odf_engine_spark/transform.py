"""One step of a transformation: what is new in the inputs, through the query, into a slice (design: §8)."""

import threading
from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from odf_common.data.columns import Operation, with_system_columns
from odf_common.data.slices import write_slice
from odf_common.data.types import stored_schema
from odf_common.errors import InvalidInput, InvalidQuery
from odf_common.metadata.engine import TransformRequest, TransformResponseSuccess
from odf_common.metadata.events import OffsetInterval
from odf_common.metadata.scalars import Timestamp
from odf_common.metadata.steps import TransformSql
from odf_common.metadata.vocabulary import DatasetVocabulary
from odf_engine_spark.changelog import Numbers, carried_operations, netted
from odf_engine_spark.inputs import Input, min_watermark, read_input
from odf_engine_spark.jvm import Spark
from odf_engine_spark.prepared import ROW, PlannedInput, Prepared, prepare
from odf_engine_spark.progress import Progress
from odf_engine_spark.state import InputState, State, read_state, write_state
from odf_engine_spark.windows import (
    MS,
    event_times,
    floor_watermark,
    highest,
    is_late,
    last_watermark,
    window_ends,
)

CHUNK: Final = 1 << 18  # records that pass Spark at once in row-wise queries
CACHED: Final = 64  # transforms kept ready


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a request comes to, before it is written."""

    records: pa.Table
    operations: Numbers
    state: State


class Transforms:
    """Executes transform requests; keeps the last transforms ready to run again."""

    def __init__(self, spark: Spark, *, is_signed: bool) -> None:
        """Use a warm session; `is_signed` decides the types of offset and operation in new slices."""
        self._spark = spark
        self._is_signed = is_signed
        self._ready: OrderedDict[Hashable, Prepared] = OrderedDict()
        self._guard = threading.Lock()

    def execute(
        self, request: TransformRequest, progress: Progress | None = None
    ) -> TransformResponseSuccess:
        """Write the request's slice and checkpoint; raises `InvalidQuery` or `InvalidInput`, then nothing counts."""
        progress = progress or Progress()
        progress.report("reading")
        inputs = [read_input(each) for each in request.query_inputs]
        prepared = self.prepare(request.transform, [each.planned for each in inputs], request.vocab)
        state = read_state(
            None if request.prev_checkpoint_path is None else Path(request.prev_checkpoint_path)
        )
        rows = sum(len(each.records) for each in inputs)
        progress.report("computing", total=rows)
        run = run_windows if prepared.is_windowed else run_rows
        result = run(prepared, inputs, state, request.vocab)
        progress.report("writing", total=len(result.records))
        return self._write(request, result)

    def prepare(
        self, transform: TransformSql, inputs: Sequence[PlannedInput], vocab: DatasetVocabulary
    ) -> Prepared:
        """Return a transform checked and ready to run; raises `InvalidQuery` or `InvalidInput`."""
        key = (transform, vocab, tuple((i.name, i.schema.serialize().to_pybytes(), i.vocab) for i in inputs))
        with self._guard:
            if key in self._ready:
                self._ready.move_to_end(key)
                return self._ready[key]
        prepared = prepare(self._spark, transform, inputs, vocab)
        with self._guard:
            self._ready[key] = prepared
            if len(self._ready) > CACHED:
                self._ready.popitem(last=False)
        return prepared

    def _write(self, request: TransformRequest, result: Result) -> TransformResponseSuccess:
        try:
            table = with_system_columns(
                result.records,
                ops=pa.array(result.operations, pa.int64()).cast(pa.uint8()),
                first_offset=request.next_offset,
                system_time=request.system_time,
                vocab=request.vocab,
                signed=self._is_signed,
            )
        except InvalidInput as error:
            raise InvalidQuery(text=str(error)) from error
        write_records(table, Path(request.new_data_path))
        write_state(result.state, Path(request.new_checkpoint_path))
        last = request.next_offset + len(table) - 1
        watermark = result.state.watermark
        return TransformResponseSuccess(
            new_offset_interval=OffsetInterval(start=request.next_offset, end=last) if len(table) else None,
            new_watermark=None if watermark is None else Timestamp(watermark),
        )


def write_records(table: pa.Table, file: Path) -> None:
    """Write a slice; without records still a file, which carries the schema."""
    if len(table):
        write_slice(table, file)
    else:
        pq.write_table(stored_schema(table.schema).empty_table(), file, version="2.6", store_schema=False)


def run_rows(prepared: Prepared, inputs: Sequence[Input], state: State, vocab: DatasetVocabulary) -> Result:
    """Act on each new record by itself, in the order of inputs and offsets."""
    operations = np.concatenate([np.asarray(each.operations) for each in inputs]).astype(np.int64)
    parts = [
        _numbered(prepared, inputs, start, end) for start, end in _chunks(operations, CHUNK) if end > start
    ]
    table = pa.concat_tables(parts) if parts else _empty(prepared)
    rows = np.asarray(table.column(ROW))
    if len(rows) > 1 and (np.diff(rows) < 0).any():
        order = np.argsort(rows, kind="stable")
        table, rows = table.take(pa.array(order)), rows[order]
    kept = {
        each.name: InputState(watermark=last_watermark(each.watermarks, state.of(each.name).watermark))
        for each in inputs
    }
    watermark = min_watermark([each.watermark for each in kept.values()])
    return Result(
        records=table.select(prepared.schema.names).cast(prepared.schema, safe=False),
        operations=carried_operations(rows, operations),
        state=State(watermark=highest(watermark, state.watermark), inputs=kept),
    )


def _chunks(operations: Numbers, size: int) -> list[tuple[int, int]]:
    """Return where to cut the records: into parts of about `size`, never between the halves of a correction."""
    edges = [0]
    while edges[-1] < len(operations):
        end = min(edges[-1] + size, len(operations))
        if end < len(operations) and operations[end] == Operation.CORRECT_TO:
            end += 1
        edges.append(end)
    return list(pairwise(edges))


def _numbered(prepared: Prepared, inputs: Sequence[Input], start: int, end: int) -> pa.Table:
    """Run the query over the records numbered `start` to `end`, counted through all inputs."""
    first, tables = 0, {}
    for each in inputs:
        low, high = max(start - first, 0), max(min(end - first, len(each.records)), 0)
        part = each.records.slice(low, max(high - low, 0))
        numbers = np.arange(first + low, first + low + len(part), dtype=np.int64)
        tables[each.name.lower()] = part.append_column(ROW, pa.array(numbers))
        first += len(each.records)
    return prepared.run(tables)


def _empty(prepared: Prepared) -> pa.Table:
    return prepared.schema.empty_table().append_column(ROW, pa.array([], pa.int64()))


def run_windows(
    prepared: Prepared, inputs: Sequence[Input], state: State, vocab: DatasetVocabulary
) -> Result:
    """Run the query over the windows that close now; the records of open ones wait in the state."""
    size = (prepared.flow.size or 0) // 1000
    watermarks = {
        each.name: last_watermark(each.watermarks, state.of(each.name).watermark) for each in inputs
    }
    until = min_watermark(list(watermarks.values()))
    closing, kept = {}, {}
    for each in inputs:
        records = _on_time(each, state.of(each.name), size)
        ends = window_ends(records, each.vocab.event_time_column, size)
        closes = ends <= until // MS if until is not None else np.zeros(len(ends), dtype=bool)
        closing[each.name.lower()] = netted(records.filter(pa.array(closes)), each.vocab)
        waiting = records.filter(pa.array(~closes))
        kept[each.name] = InputState(watermark=watermarks[each.name], waiting=waiting)
    table = _closed(prepared, closing, vocab.event_time_column)
    _check_not_before(table, state.watermark, vocab)
    watermark = highest(floor_watermark(until, size), state.watermark)
    return Result(
        records=table,
        operations=np.zeros(len(table), dtype=np.int64),
        state=State(watermark=watermark, inputs=kept),
    )


def _on_time(given: Input, kept: InputState, size: int) -> pa.Table:
    """Return the input's waiting and new records, ascending by offset, without those that are late."""
    ends = window_ends(given.records, given.vocab.event_time_column, size)
    system_times = event_times(given.records, given.vocab.system_time_column)
    late = is_late(ends, system_times, given.watermarks, kept.watermark)
    new = given.records.filter(pa.array(~late)) if late.any() else given.records
    if kept.waiting is None:
        return new
    try:
        old = pa.concat_tables([new.schema.empty_table(), kept.waiting], promote_options="permissive")
        return pa.concat_tables([old.select(new.column_names).cast(new.schema), new])
    except (pa.ArrowException, KeyError) as error:
        raise InvalidInput(text=f"the checkpoint's records do not fit input {given.name}: {error}") from error


def _closed(prepared: Prepared, closing: Mapping[str, pa.Table], event_time: str) -> pa.Table:
    if not any(len(records) for records in closing.values()):
        return prepared.schema.empty_table()
    others = [name for name in prepared.schema.names if name != event_time]
    return prepared.run(closing, order_by=(event_time, *others)).cast(prepared.schema, safe=False)


def _check_not_before(table: pa.Table, watermark: int | None, vocab: DatasetVocabulary) -> None:
    """Refuse event times before the output's watermark: others have counted on none coming."""
    column = vocab.event_time_column
    if watermark is None or not len(table) or table.column(column).null_count:
        return
    first = int(event_times(table, column).min())
    if first * MS < watermark:
        raise InvalidQuery(
            text=f"{column} {Timestamp.from_ms(first)} is before the watermark {Timestamp(watermark)}: "
            "take it from the window, such as window.start"
        )
