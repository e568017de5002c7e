"""One step of one derivative: what is new in its inputs, through the engine, into its chain.

Plans are made on current heads, so whatever came since the last step is one step, unless an input got another schema
or vocabulary on the way. Nothing is kept between steps but the chain; a step that is repeated gives the same records.
"""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import structlog

from odf_common.chain.chain import blocks_between
from odf_common.chain.state import ChainState
from odf_common.chain.transforms import (
    InputSlices,
    build_request,
    has_work,
    input_ids,
    input_of,
    input_until_change,
    is_no_op,
    last_block,
    next_event,
    plan_inputs,
)
from odf_common.data.checks import RecordsDiffer, check_records
from odf_common.data.continuing import continued, continued_schema
from odf_common.data.schema import check_evolution, schema_of_event, schema_to_event
from odf_common.data.slices import read_slice, slice_schema, write_slice
from odf_common.errors import InvalidInput, NotFound
from odf_common.hashing.logical import logical_hash
from odf_common.hashing.physical import physical_hash
from odf_common.identity.did import DatasetId
from odf_common.metadata.engine import TransformResponseSuccess
from odf_common.metadata.events import (
    Checkpoint,
    DataSlice,
    ExecuteTransformInput,
    KnownEvent,
    OffsetInterval,
    SetDataSchema,
)
from odf_common.metadata.scalars import Timestamp
from odf_common.metadata.vocabulary import DatasetVocabulary
from odf_common.ports.clock import Clock
from odf_common.ports.engine import Engine
from odf_common.ports.store import BlobStore, ObjectKind
from odf_common.runtime.replay import input_source, request_files
from odf_coordinator.committer import Committer
from odf_coordinator.datasets import Datasets, DatasetUnknown, Known
from odf_coordinator.outcomes import require_committed

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What the next step sees, each source as it is where the step ends.

    A step that failed for the user's fault fails again while `cause` is the same. `is_whole`: nothing is left for a
    further step.
    """

    inputs: tuple[InputSlices, ...]
    sources: Mapping[DatasetId, Known]
    is_whole: bool = True

    @property
    def steps(self) -> tuple[ExecuteTransformInput, ...]:
        """Return the intervals, in SetTransform order."""
        return tuple(one.step for one in self.inputs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step that is committed: the state after it, and what it added."""

    state: ChainState
    blocks: int
    records: int

    def followed_by(self, step: "Step") -> "Step":
        """Return both steps as one."""
        return Step(state=step.state, blocks=self.blocks + step.blocks, records=self.records + step.records)


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What the engine wrote, checked and hashed, still in the scratch folder."""

    data: DataSlice | None
    checkpoint: Checkpoint | None
    schema: SetDataSchema | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Transformer:
    """Performs steps."""

    datasets: Datasets
    committer: Committer
    engine: Engine
    blobs: BlobStore
    clock: Clock

    def plan(self, known: Known) -> Plan | None:
        """Return what is new for a derivative; None when there is nothing to do. Raises when an input is missing."""
        if known.state.transform is None:
            return None
        sources = {dataset: self._input(dataset) for dataset in input_ids(known.state.transform)}
        steps = plan_inputs(known.state, {dataset: one.state for dataset, one in sources.items()})
        if steps is None:
            return None
        inputs = tuple(self._new_in(step) for step in steps)
        if not has_work(known.state, inputs):
            return None
        seen = {one.step.dataset_id: self._where(sources[one.step.dataset_id], one.step) for one in inputs}
        return Plan(inputs=inputs, sources=seen, is_whole=seen == sources)

    def cause(self, known: Known, plan: Plan) -> object:
        """Return what a query's fate depends on besides the records: the transform and its inputs' schemas."""
        return known.state.transform, tuple(one.state.schema for one in plan.sources.values())

    def perform(self, known: Known, plan: Plan) -> Step | None:
        """Run and commit a step, None when it changes nothing.

        Raises `InvalidQuery` for the user's fault, `Unavailable` while the engine is out of reach, `HeadMoved` when
        the derivative was committed to meanwhile, `Refused` when the result breaks a rule.
        """
        scratch = self.blobs.scratch()
        try:
            return self._perform(known, plan, scratch)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def _perform(self, known: Known, plan: Plan, scratch: Path) -> Step | None:
        state = known.state
        system_time = max(self.clock.now(), Timestamp.from_ms(state.system_time.ms + 1))
        files = request_files(self.blobs, state, scratch)
        sources = {
            dataset: input_source(self.blobs, one.alias, one.state, scratch)
            for dataset, one in plan.sources.items()
        }
        request = build_request(
            state, plan.inputs, sources, alias=known.alias, system_time=system_time, files=files
        )
        response = self.engine.execute_transform(request)
        written = examine(state, response, scratch)
        event = next_event(
            state, plan.steps, response, new_data=written.data, new_checkpoint=written.checkpoint
        )
        events: list[KnownEvent] = [] if written.schema is None else [written.schema]
        if not is_no_op(state, event):
            events.append(event)
        if not events:
            if not plan.is_whole:
                raise InvalidInput(
                    text="an input changes its schema, and the engine gave neither records nor a checkpoint nor a "
                    "watermark before that, so the chain cannot say how far the input was read"
                )
            return None
        self._store(state.dataset_id, written, scratch)
        outcome = self.committer.commit(
            state.dataset_id, expected_head=state.head, events=events, system_time=system_time
        )
        after = require_committed(state.dataset_id, outcome).state
        records = after.next_offset - state.next_offset
        log.info("transformed", dataset=known.alias, block=str(after.head), records=records)
        return Step(state=after, blocks=len(events), records=records)

    def _input(self, dataset: DatasetId) -> Known:
        known = self.datasets.by_id(dataset)
        if known is None:
            raise DatasetUnknown(what=str(dataset))
        return known

    def _new_in(self, step: ExecuteTransformInput) -> InputSlices:
        if step.new_block_hash is None:
            return input_of(step, ())
        read = self.datasets.reader(step.dataset_id)
        links = blocks_between(read, step.new_block_hash, step.prev_block_hash)
        return input_until_change(step, ((name, decoded.block) for name, decoded, _ in links))

    def _where(self, known: Known, step: ExecuteTransformInput) -> Known:
        """Return an input as it is at the end of its step."""
        end = last_block(step)
        if end is None or end == known.state.head:
            return known
        return replace(known, state=self.datasets.states.aside(known.id, end))

    def _store(self, dataset: DatasetId, written: Written, scratch: Path) -> None:
        """Move data and checkpoint into the store, durably, before any block names them."""
        if written.data is not None:
            self.blobs.put_file(dataset, ObjectKind.DATA, written.data.physical_hash, scratch / "data")
        if written.checkpoint is not None:
            name = written.checkpoint.physical_hash
            self.blobs.put_file(dataset, ObjectKind.CHECKPOINT, name, scratch / "checkpoint")


def examine(state: ChainState, response: TransformResponseSuccess, scratch: Path) -> Written:
    """Return what the engine wrote, read back and hashed; raises `InvalidInput` when it breaks its contract.

    Requests do not say which types the dataset began with, so records that have others are written anew.
    """
    data, checkpoint = scratch / "data", scratch / "checkpoint"
    if data.exists() and state.schema is not None:
        _go_on(data, schema_of_event(state.schema), state.vocabulary)
    return Written(
        data=_slice(data, response.new_offset_interval),
        checkpoint=_checkpoint(checkpoint) if checkpoint.exists() else None,
        schema=_new_schema(state, data) if data.exists() else None,
    )


def _go_on(file: Path, known: pa.Schema, vocab: DatasetVocabulary) -> None:
    """Write the records anew if the dataset has them in another form; without any, its schema is all that counts."""
    found = slice_schema(file)
    if continued_schema(found, known, vocab).equals(found):
        return
    records = continued(read_slice(file), known, vocab)
    file.unlink()
    if len(records):
        write_slice(records, file)
    else:
        pq.write_table(records, file, store_schema=False)


def _slice(file: Path, interval: OffsetInterval | None) -> DataSlice | None:
    if interval is None:
        return None
    try:
        table = read_slice(file)
    except NotFound as error:
        raise InvalidInput(text="the engine wrote no data, but answers with offsets") from error
    try:
        check_records(table, interval, None)
    except RecordsDiffer as error:
        raise InvalidInput(text=f"the engine wrote records that cannot be committed: {error}") from error
    with file.open("rb") as content:
        name = physical_hash(content)
    return DataSlice(
        logical_hash=logical_hash(table),
        physical_hash=name,
        offset_interval=interval,
        size=file.stat().st_size,
    )


def _checkpoint(file: Path) -> Checkpoint:
    with file.open("rb") as content:
        return Checkpoint(physical_hash=physical_hash(content), size=file.stat().st_size)


def _new_schema(state: ChainState, file: Path) -> SetDataSchema | None:
    """Return the event for a schema that is new, or has changed compatibly; raises `InvalidInput` if it may not."""
    found = slice_schema(file)
    if state.schema is None or check_evolution(schema_of_event(state.schema), found):
        return schema_to_event(found)
    return None
