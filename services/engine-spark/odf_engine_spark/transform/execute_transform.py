"""Executes one step of a transform: runs its query over new records of its inputs, and writes a slice (adr/0001)."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import structlog

from odf_common.data.columns import Operation, stored_schema, with_system_columns
from odf_common.data.slices import write_slice
from odf_common.data.time_format import first_unknown_year
from odf_common.errors import InvalidInput, InvalidQuery
from odf_common.metadata.engine_messages import (
    TransformRequest,
    TransformRequestInput,
    TransformResponseSuccess,
)
from odf_common.metadata.events import DatasetVocabulary, OffsetInterval, TransformSql
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.engine import PlannedInput, QueryFailed, QueryOutOfMemory
from odf_engine_spark.analysis.final_inputs import FinalStep
from odf_engine_spark.analysis.semantic_changes import FINER_TIMES, MILLISECOND
from odf_engine_spark.operators.changes import InvalidChange
from odf_engine_spark.plan.delta import Delta
from odf_engine_spark.plan.late_corrections import run_late
from odf_engine_spark.plan.prepared import PreparedTransform, prepare, require_same_results
from odf_engine_spark.plan.segments import Segment, Step, WatermarkRange
from odf_engine_spark.plan.stages import Stage
from odf_engine_spark.spark.jvm import Spark
from odf_engine_spark.spark.progress import Progress, ms_since
from odf_engine_spark.transform.checkpoint import State, read_state, write_state
from odf_engine_spark.transform.event_times import (
    MICROSECOND_NS,
    delta_of,
    event_times,
    highest,
    last_watermark,
    microseconds,
)
from odf_engine_spark.transform.failing_records import failure_on, locate_failure
from odf_engine_spark.transform.inputs import Input, min_watermark, read_input
from odf_engine_spark.values.operations import Numbers
from odf_engine_spark.values.spark_types import OTHER_YEARS

log = structlog.stdlib.get_logger(__name__)

MAX_CACHED_TRANSFORMS: Final = 64  # prepared ones, in memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of a step before it is written: records, their operations, and the new state."""

    records: pa.Table
    operations: Numbers
    state: State


class Transforms:
    """Executes requests for transforms, and caches prepared transforms."""

    def __init__(self, spark: Spark, *, is_signed: bool) -> None:
        """Use a warm session; `is_signed` selects signed types for the offset and operation columns of new slices."""
        self._spark = spark
        self._is_signed = is_signed
        self._ready: OrderedDict[Hashable, PreparedTransform] = OrderedDict()
        self._guard = threading.Lock()

    def execute(
        self, request: TransformRequest, progress: Progress | None = None, number: int | None = None
    ) -> TransformResponseSuccess:
        """Write the slice and the checkpoint of a request. After an error, both files must be ignored.

        Raises `InvalidInput`, `InvalidQuery` for a query that is refused, and `QueryFailed`, which names the records,
        for one that fails while it runs. Raises `ResultsChanged` if results may differ from those of the semantics
        `number`.
        """
        progress, begun = progress or Progress(), time.monotonic()
        progress.report("reading")
        inputs = [read_input(input_) for input_ in request.query_inputs]
        prepared = self.prepare(request.transform, [input_.planned for input_ in inputs], request.vocab)
        if number is not None:
            require_same_results(prepared, request.transform, number)
        state = read_state(
            None if request.prev_checkpoint_path is None else Path(request.prev_checkpoint_path)
        )
        progress.report("computing", total=sum(len(input_.records) for input_ in inputs))
        compute = partial(self._compute, request, prepared)
        try:
            result, table = compute(inputs, state, progress)
        except QueryFailed as error:
            if isinstance(error, QueryOutOfMemory) or error.records:
                raise
            attempt = partial(_failure, compute, progress)
            raise locate_failure(error, request.query_inputs, inputs, state, attempt) from error
        if prepared.last.waits:
            _check_not_before(result.records, state.watermark, request.vocab)
        progress.report("writing", total=len(table))
        write_records(table, Path(request.new_data_path))
        write_state(result.state, Path(request.new_checkpoint_path))
        log.debug(
            "transform executed",
            inputs={input_.name: len(input_.records) for input_ in inputs},
            records=len(result.records),
            slice_bytes=Path(request.new_data_path).stat().st_size,
            checkpoint_bytes=Path(request.new_checkpoint_path).stat().st_size,
            ms=ms_since(begun),
        )
        last = request.next_offset + len(table) - 1
        watermark = result.state.watermark
        return TransformResponseSuccess(
            new_offset_interval=OffsetInterval(start=request.next_offset, end=last) if len(table) else None,
            new_watermark=None if watermark is None else Timestamp(watermark),
        )

    def prepare(
        self, transform: TransformSql, inputs: Sequence[PlannedInput], vocab: DatasetVocabulary
    ) -> PreparedTransform:
        """Return a checked transform that is ready to run; raises `InvalidQuery` or `InvalidInput`."""
        key = (transform, vocab, tuple((i.name, i.schema.serialize().to_pybytes(), i.vocab) for i in inputs))
        with self._guard:
            if key in self._ready:
                self._ready.move_to_end(key)
                log.debug("prepared transform reused", cached=len(self._ready))
                return self._ready[key]
        begun = time.monotonic()
        # Outside of the lock, since it may take long: if two threads prepare the same transform, one result is dropped.
        prepared = prepare(self._spark, transform, inputs, vocab)
        stages = [type(stage).__name__ for stage in prepared.stages]
        log.debug("transform prepared", stages=stages, ms=ms_since(begun))
        with self._guard:
            self._ready[key] = prepared
            if len(self._ready) > MAX_CACHED_TRANSFORMS:
                self._ready.popitem(last=False)
        return prepared

    def _compute(
        self,
        request: TransformRequest,
        prepared: PreparedTransform,
        inputs: Sequence[Input],
        state: State,
        progress: Progress,
    ) -> tuple[Result, pa.Table]:
        """Return the result for these records, and the table for the slice; raises `QueryFailed`."""
        with _query_accepted():
            result = run(prepared, request, inputs, state, progress)
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
        return result, table


def _failure(
    compute: Callable[[Sequence[Input], State, Progress], object],
    progress: Progress,
    inputs: Sequence[Input],
    state: State,
) -> QueryFailed | None:
    """Return the error of the query for these records, None if it succeeds; late records are not counted again."""
    progress.report("searching", total=sum(len(input_.records) for input_ in inputs))
    try:
        compute(inputs, state, Progress())
    except QueryFailed as error:
        if isinstance(error, QueryOutOfMemory):
            raise
        return error
    except InvalidChange:  # a change of the request takes back a record that was left out
        return None
    return None


@contextmanager
def _query_accepted() -> Iterator[None]:
    """Convert an `InvalidQuery` to `QueryFailed`: the query has passed all checks, so its records cause the error."""
    try:
        yield
    except (QueryFailed, InvalidChange):
        raise
    except InvalidQuery as error:
        raise QueryFailed(text=error.text, where=error.where) from error


def write_records(table: pa.Table, file: Path) -> None:
    """Write a slice; without records, the file has only the schema."""
    if len(table):
        write_slice(table, file)
    else:
        pq.write_table(stored_schema(table.schema).empty_table(), file, version="2.6", store_schema=False)


def run(
    prepared: PreparedTransform,
    request: TransformRequest,
    inputs: Sequence[Input],
    state: State,
    progress: Progress,
) -> Result:
    """Run the stages of a transform in order, each over the new records of its streams, and return the result."""
    watermarks = {
        input_.name: last_watermark(input_.watermarks, state.inputs.get(input_.name)) for input_ in inputs
    }
    reached = min_watermark(list(watermarks.values()))
    before = min_watermark([state.inputs.get(input_.name) for input_ in inputs])
    step = Step(
        # Plans have names in lower case, since SQL names are not case-sensitive.
        streams={input_.name.lower(): delta_of(input_, state.inputs.get(input_.name)) for input_ in inputs},
        watermarks=WatermarkRange(before=microseconds(before), now=microseconds(reached)),
        old=state.tables,
        new={},
        progress=progress,
    )
    _require_never_retracted(prepared.final_steps, step.streams)
    for stage in prepared.stages:
        step.streams[stage.stream] = _run_stage(stage, step)
    out = run_late(prepared.last, step, prepared.keys) if prepared.last.late else prepared.last.run(step)
    records = out.records.cast(prepared.schema)
    _check_years(records, out, prepared.last, step, request.query_inputs)
    watermark = highest(_output_watermark(prepared, reached), state.watermark)
    return Result(
        records=records,
        operations=out.operations,
        state=State(watermark=watermark, inputs=watermarks, tables=step.new),
    )


def _require_never_retracted(steps: Mapping[str, FinalStep], streams: Mapping[str, Delta]) -> None:
    """Raise `InvalidChange` if a stream retracts or corrects records, but a step emits final rows from that stream."""
    for name, delta in streams.items():
        if name in steps and (delta.operations != int(Operation.APPEND)).any():
            first = int(np.flatnonzero(delta.operations)[0])
            raise InvalidChange(
                text=f"{delta.describe(first)} takes back a record, but rows of {steps[name].name} are final once the "
                f"watermark has passed: {steps[name].instead}"
            )


def _run_stage(stage: Stage, step: Step) -> Delta:
    """Run a stage, and return its output; the stage stores its new state in `step.new`."""
    earlier, begun = frozenset(step.new), time.monotonic()
    out = stage.run(step)
    log.debug(
        "stage executed",
        stage=type(stage).__name__,
        stream=stage.stream,
        records=len(out.records),
        kept=sum(
            len(table) for name, table in step.new.items() if name not in earlier
        ),  # rows of its new state
        ms=ms_since(begun),
    )
    return out


def _output_watermark(prepared: PreparedTransform, reached: int | None) -> int | None:
    """Return the watermark of the output, in nanoseconds, when that of the inputs is `reached`."""
    flow, event_time = prepared.last.flow, prepared.event_time
    if not prepared.is_stateful and event_time is not None and event_time.span.upper <= 1:
        return reached
    input_watermark = microseconds(reached)
    watermark = flow.watermark(
        event_time, None if input_watermark is None else input_watermark - prepared.last.late
    )
    if (
        watermark is not None and FINER_TIMES in prepared.changes
    ):  # cut like the event times that are still to come
        watermark = watermark // MILLISECOND * MILLISECOND
    return None if watermark is None else watermark * MICROSECOND_NS


def _check_years(
    records: pa.Table, out: Delta, last: Segment, step: Step, sources: Sequence[TransformRequestInput]
) -> None:
    """Raise `QueryFailed` for a timestamp that readers do not support.

    The error names the record if the timestamp was computed from one record alone.
    """
    found = first_unknown_year(records)
    if found is None:
        return
    row, error = found
    failed = QueryFailed(text=str(error), instead=OTHER_YEARS)
    record = None if out.numbers is None else last.record(step, int(out.numbers[row]))
    if record is not None:
        (source,) = (one for one in sources if one.query_alias == record[0].name)
        offset = record[0].offset(record[1])
        failed = failure_on(failed, [(source, offset, offset)])
    raise failed from error


def _check_not_before(table: pa.Table, watermark: int | None, vocab: DatasetVocabulary) -> None:
    """Raise `QueryFailed` for event times before the output's watermark, because readers rely on that not happening.

    The error names no records: not the records are wrong, but the query's event time.
    """
    column = vocab.event_time_column
    if watermark is None or not len(table) or table.column(column).null_count:
        return
    first = int(event_times(table, column).min())
    if first * MICROSECOND_NS < watermark:
        raise QueryFailed(
            text=f"{column} {Timestamp(first * MICROSECOND_NS)} is before the watermark {Timestamp(watermark)}",
            instead=f"take {column} from the window, such as window.start",
        )
