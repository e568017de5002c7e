"""Runs one transform step of a derivative: selects new input data, calls the engine, and commits the result.

A step covers all blocks of the inputs since the last step, up to their current heads, unless an input's schema or
vocabulary changes in between. The chain is the only state between steps; a repeated step produces the same records.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Final

import prometheus_client
import structlog

from odf_common.adapters.local.faults import translating_os_errors
from odf_common.chain.compare_chains import BlockIndex
from odf_common.chain.state import InputProgress, progress_after
from odf_common.chain.transform_steps import (
    InputSlices,
    build_request,
    has_work,
    input_of,
    input_until_change,
    is_no_op,
    next_event,
    plan_inputs,
)
from odf_common.chain.walk import ChainBroken, blocks_between
from odf_common.dataset.replay import input_source, request_files
from odf_common.errors import HeadMoved, InvalidInput, NotFound, OdfError
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.engine_messages import TransformRequest, TransformResponseSuccess
from odf_common.metadata.events import DataEvent, ExecuteTransformInput, KnownEvent, MetadataBlock
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.engine import Engine, EngineProgress, FailingRecord, QueryFailed
from odf_common.ports.store import BlobStore, DatasetUnknown, scratch_folder
from odf_coordinator.catalog.datasets import DatasetHandle, Datasets
from odf_coordinator.commit.committer import Committer, require_committed
from odf_coordinator.errors import InputDiverged
from odf_coordinator.storage import why_missing
from odf_coordinator.transforms.engine_output import store, validate
from odf_coordinator.transforms.held_records import record_held

log = structlog.stdlib.get_logger(__name__)

NOTE: Final = "late"
COUNT_END: Final = 1 << 63
LATE: Final = prometheus_client.Counter(
    "odf_transform_late_records_total",
    "Late records: a derivative dropped them because their windows had ended.",
    ("dataset",),
)


def late_rows(blobs: BlobStore, dataset: DatasetId) -> int:
    """Return the number of rows that all transforms of a derivative have dropped because they were too late."""
    with suppress(ValueError):
        counted = int(blobs.note(dataset, NOTE) or 0)
        return counted if 0 <= counted < COUNT_END else 0
    return 0


def forget_late(alias: str) -> None:
    """Remove the metric of a deleted dataset."""
    with suppress(KeyError):
        LATE.remove(alias)


def count_late(blobs: BlobStore, handle: DatasetHandle, more: int) -> None:
    """Add the late rows that a committed transform has dropped. A failure to write the note is only logged."""
    if more:
        LATE.labels(handle.alias).inc(more)
        try:
            blobs.set_note(handle.id, NOTE, str(late_rows(blobs, handle.id) + more))
        except OdfError as error:
            log.warning("cannot record late rows", **handle.log_facts, rows=more, why=str(error))


REPORT_AFTER_SECONDS: Final = 1.0  # shorter transforms are not reported
SILENCE_SECONDS: Final = 10.0  # without a report; the engine sends one per second
Announce = Callable[[DatasetId, EngineProgress], None]
Clock = Callable[[], float]  # seconds


class RunningTransform:
    """A running transform, and the engine's last report on it."""

    def __init__(self, announce: Callable[[EngineProgress], None], clock: Clock) -> None:
        self.now = EngineProgress()
        self._announce = announce
        self._clock = clock
        self._begun = self._heard = clock()
        self._is_reported = False

    def note(self, now: EngineProgress) -> None:
        """Record a report of the engine. It is announced if the transform has run for `REPORT_AFTER_SECONDS`."""
        self.now = now
        self._heard = self._clock()
        if self._heard - self._begun >= REPORT_AFTER_SECONDS:
            self._is_reported = True
            self._announce(now)

    @property
    def silence(self) -> float:
        """Return the seconds since the last report."""
        return self._clock() - self._heard

    @property
    def is_silent(self) -> bool:
        """Return whether the engine has sent no report for `SILENCE_SECONDS`."""
        return self.silence >= SILENCE_SECONDS

    def end(self) -> None:
        """Announce the end of the transform, if its progress was announced."""
        if self._is_reported:
            self._announce(EngineProgress())


class RunningTransforms:
    """The running transforms of this process, by dataset."""

    def __init__(self, announce: Announce = lambda *_: None, clock: Clock = time.monotonic) -> None:
        """Begin without transforms. `announce` is called with the progress of transforms that take longer."""
        self._announce = announce
        self._clock = clock
        self._guard = threading.Lock()
        self._running: dict[DatasetId, RunningTransform] = {}

    @contextmanager
    def track(self, dataset: DatasetId) -> Iterator[RunningTransform]:
        """Register a running transform during the `with` block."""
        work = RunningTransform(partial(self._announce, dataset), self._clock)
        with self._guard:
            self._running[dataset] = work
        try:
            yield work
        finally:
            with self._guard:
                self._running.pop(dataset, None)
            work.end()

    def progress_of(self, dataset: DatasetId) -> EngineProgress | None:
        """Return the progress of a dataset's transform; None if no transform of the dataset is running."""
        with self._guard:
            work = self._running.get(dataset)
            return None if work is None else work.now

    def has_silence(self) -> bool:
        """Return whether the engine is silent on any running transform. Then it cannot run other transforms either."""
        with self._guard:
            return any(work.is_silent for work in self._running.values())

    def silent_since(self, dataset: DatasetId) -> Timestamp | None:
        """Return the time since which the engine is silent on a dataset's transform; None if it is not silent."""
        with self._guard:
            work = self._running.get(dataset)
        if work is None or not work.is_silent:
            return None
        return Timestamp(time.time_ns() - int(work.silence * 1e9))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInputs:
    """The inputs of the next step."""

    inputs: tuple[InputSlices, ...]
    sources: Mapping[DatasetId, DatasetHandle]
    """Each input, at the last block that the step reads."""
    is_whole: bool = True
    """Whether the step reaches the heads of all inputs, so that no further step is needed."""

    @property
    def steps(self) -> tuple[ExecuteTransformInput, ...]:
        """Return the intervals of blocks that the step reads, one per input, in the order of the SetTransform."""
        return tuple(input_.step for input_ in self.inputs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transformer:
    """Plans and runs the transform steps of derivatives."""

    datasets: Datasets
    committer: Committer
    engine: Engine
    blobs: BlobStore
    commit_first_schemas: Callable[[Iterable[DatasetHandle]], None]
    """Commits the schemas of inputs without records, if their sources declare them."""
    running: RunningTransforms = field(default_factory=RunningTransforms)

    @translating_os_errors
    def plan(self, handle: DatasetHandle) -> StepInputs | None:
        """Return the next step of a derivative; None if there is nothing to do.

        Raises `DatasetUnknown` if an input is missing, and `InputDiverged` if an input no longer has the blocks that
        were read.
        """
        if handle.state.transform is None:
            return None
        sources = self._sources(handle)
        steps = plan_inputs(handle.state, {dataset: source.state for dataset, source in sources.items()})
        if steps is None:
            return None
        inputs = tuple(self._new_in(step, handle) for step in steps)
        if not has_work(handle.state, inputs):
            return None
        seen = {
            input_.step.dataset_id: self._where(sources[input_.step.dataset_id], input_.step)
            for input_ in inputs
        }
        return StepInputs(inputs=inputs, sources=seen, is_whole=seen == sources)

    def cause(self, handle: DatasetHandle, plan: StepInputs) -> object:
        """Return the transform and the schemas of its inputs.

        While they stay the same, a query that has failed would fail again, whatever records are added.
        """
        return handle.state.transform, tuple(source.state.schema for source in plan.sources.values())

    @translating_os_errors
    def perform(self, handle: DatasetHandle, plan: StepInputs) -> None:
        """Run a step, and commit it if it changes anything.

        Raises `InvalidQuery` for user errors, `Unavailable` while the engine is unreachable, `HeadMoved` if the
        derivative received a commit or an input was reset in the meantime, `Refused` if the result breaks a rule,
        `DataDropped` if needed data was dropped. If the query fails on a record, the blocks before that record's are
        transformed and committed before the error is raised.
        """
        with scratch_folder(self.blobs) as scratch:
            try:
                self._perform(handle, plan, scratch)
            except NotFound as error:
                raise why_missing(self.datasets, (handle, *plan.sources.values()), error) from error
            except QueryFailed as error:
                before = self._before(handle, plan, error.records)
                if before is not None:
                    self.perform(handle, before)
                raise

    def _perform(self, handle: DatasetHandle, plan: StepInputs, scratch: Path) -> None:
        state = handle.state
        # Chosen before the engine runs, since the engine writes it into each record.
        system_time = self.committer.next_system_time(state)
        files = request_files(self.blobs, state, scratch)
        sources = {
            dataset: input_source(self.blobs, source.alias, source.state, scratch)
            for dataset, source in plan.sources.items()
        }
        request = build_request(
            state, plan.inputs, sources, alias=handle.alias, system_time=system_time, files=files
        )
        response, work = self._execute(handle, request)
        written = validate(state, response, scratch)
        event = next_event(
            state, plan.steps, response, new_data=written.data, new_checkpoint=written.checkpoint
        )
        events: list[KnownEvent] = [] if written.schema is None else [written.schema]
        if not is_no_op(state, event):
            events.append(event)
        if not events:
            if not plan.is_whole:
                raise InvalidInput(
                    text="an input changes its schema, and the engine produced neither records nor a checkpoint nor a "
                    "watermark before that, so the chain cannot record how far the input was read"
                )
            return
        # Checked again although the plan was made from these inputs: the engine may have run for minutes.
        self._require_kept(plan)
        # Before the commit, so that no block names an object that a crash has kept from being stored.
        store(self.blobs, state.dataset_id, written, scratch)
        outcome = self.committer.commit(
            state.dataset_id, expected_head=state.head, events=events, system_time=system_time
        )
        after = require_committed(state.dataset_id, outcome).state
        count_late(self.blobs, handle, work.late)
        record_held(self.blobs, after, work)
        records = after.next_offset - state.next_offset
        log.info("transformed", **handle.log_facts, block=str(after.head), records=records)

    def _execute(
        self, handle: DatasetHandle, request: TransformRequest
    ) -> tuple[TransformResponseSuccess, EngineProgress]:
        """Return the engine's response, and its last report, which counts late and held records."""
        begun = time.monotonic()
        with self.running.track(handle.id) as work:
            response = self.engine.execute_transform(request, work.note)
        interval = response.new_offset_interval
        log.debug(
            "transform computed",
            **handle.log_facts,
            records=0 if interval is None else interval.records,
            late=work.now.late,
            ms=round((time.monotonic() - begun) * 1000),
        )
        return response, work.now

    def _sources(self, handle: DatasetHandle) -> Mapping[DatasetId, DatasetHandle]:
        """Return the inputs. If one has a schema or watermark, declared schemas of the others are committed first."""
        sources = {dataset: self._input(dataset) for dataset in handle.state.inputs}
        for dataset, source in sources.items():
            _require_still_defined(handle, source, handle.state.progress_of(dataset))
        states = [source.state for source in sources.values()]
        has_begun = any(state.schema is not None or state.watermark is not None for state in states)
        if not has_begun or all(state.schema is not None for state in states):
            return sources
        self.commit_first_schemas(sources.values())
        return {dataset: self._input(dataset) for dataset in sources}

    def _input(self, dataset: DatasetId) -> DatasetHandle:
        handle = self.datasets.by_id(dataset)
        if handle is None:
            raise DatasetUnknown(what=str(dataset))
        return handle

    def _before(
        self, handle: DatasetHandle, plan: StepInputs, failing: Iterable[FailingRecord]
    ) -> StepInputs | None:
        """Return the part of a plan before the blocks of these records; None if it is empty, or the whole plan."""
        first = {record.dataset: record.first for record in failing}
        inputs = tuple(self._new_in(step, handle, first.get(step.dataset_id)) for step in plan.steps)
        before = replace(plan, inputs=inputs)
        if before.steps == plan.steps or not has_work(handle.state, inputs):
            return None
        return before

    def _new_in(
        self, step: ExecuteTransformInput, handle: DatasetHandle, end: int | None = None
    ) -> InputSlices:
        """Return the part of an input that a step reads; with `end`, only before the block of the record at it."""
        if step.new_block_hash is None:
            return input_of(step, ())
        read = self.datasets.reader(step.dataset_id)
        links = blocks_between(read, step.new_block_hash, step.prev_block_hash)
        blocks = takewhile(
            lambda block: end is None or not _has_offset(block[1], end),
            ((name, decoded.block) for name, decoded, _ in links),
        )
        try:
            return input_until_change(step, blocks)
        except ChainBroken as error:
            before = None if step.prev_block_hash is None else str(step.prev_block_hash)
            if (error.kind, error.block) != ("missing", before):
                raise
            name = self._input(step.dataset_id).alias
            raise InputDiverged(dataset=handle.alias, input=name, block=error.block) from error

    def _require_kept(self, plan: StepInputs) -> None:
        """Raise `HeadMoved` if an input was reset while the engine was running."""
        for dataset, source in plan.sources.items():
            head = self._input(dataset).state.head
            block = source.state.head
            if head != block and not BlockIndex(self.datasets.reader(dataset), head).contains(block):
                raise HeadMoved(dataset=str(dataset), expected=str(block), actual=str(head))

    def _where(self, handle: DatasetHandle, step: ExecuteTransformInput) -> DatasetHandle:
        """Return an input at the end of its step."""
        end = progress_after(step).last_block
        if end is None or end == handle.state.head:
            return handle
        return replace(handle, state=self.datasets.states.state_at(handle.id, end))


def _has_offset(block: MetadataBlock, offset: int) -> bool:
    """Return whether a block has the record at this offset or a later record."""
    data = block.event.new_data if isinstance(block.event, DataEvent) else None
    return data is not None and data.offset_interval.end >= offset


def _require_still_defined(handle: DatasetHandle, source: DatasetHandle, done: InputProgress) -> None:
    """Raise `InputDiverged` if an input that was read has no schema any more: it was reset to before its first one."""
    if done.last_block is not None and source.state.schema is None:
        raise InputDiverged(dataset=handle.alias, input=source.alias, block=str(done.last_block))
