"""Transforms that ask for an unavailable engine are distinguished from those with a different result."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from odf_testing.builders import (
    AChain,
    a_block,
    a_chain,
    a_dataset,
    a_derivative,
    a_hash,
    a_push_source,
    a_query,
    a_schema,
    a_seed,
    a_transform,
)
from odf_testing.verifier import NOWHERE, Story

from odf_common.chain.state import ChainState
from odf_common.chain.transform_steps import InputMismatch
from odf_common.chain.walk import ChainBroken, fold, iterate
from odf_common.data.columns import with_system_columns
from odf_common.data.schema_evolution import schema_to_event
from odf_common.data.slices import write_slice
from odf_common.dataset import replay
from odf_common.dataset.replay import StoredBlock, StoredTransform
from odf_common.errors import Damaged, InvalidQuery, NotFound, OdfError
from odf_common.hashing.multihash import physical_hash_of
from odf_common.metadata.engine_messages import TransformRequest, TransformResponseSuccess
from odf_common.metadata.events import (
    Checkpoint,
    DatasetKind,
    DatasetVocabulary,
    DataSlice,
    ExecuteTransform,
    ExecuteTransformInput,
    OffsetInterval,
    SqlQueryStep,
)
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.engine import (
    Engine,
    EngineNotAvailable,
    EngineProgress,
    MigrateRequest,
    OnProgress,
    QueryFailed,
)
from odf_common.ports.store import ObjectKind
from odf_verifier.grpc_servicer import _message
from odf_verifier.integrity import Link
from odf_verifier.replay import Replay, _records_hash
from odf_verifier.targets import Damage, Problem, Tally, Target
from odf_verifier.verification import Verdict

INSTALLED = "new"
TARGET = Target(name="hourly", dataset=a_dataset(), reader=cast("Any", None), is_local=True)


@dataclass
class Transforms:
    """Transforms of one dataset, by the versions that they ask for; only `INSTALLED` can be run."""

    versions: tuple[str, ...]
    gives: TransformResponseSuccess | Exception
    seconds: float = 0.0
    """For which each runs, as the engine reports it."""
    is_one_query: bool = False

    def transforms(
        self, blocks: Iterable[StoredBlock], since: ChainState | None
    ) -> Iterator[StoredTransform]:
        event = ExecuteTransform(query_inputs=())
        for number, version in enumerate(self.versions):
            asked = a_transform(a_dataset(0 if self.is_one_query else number))
            asked = replace(asked, transform=replace(asked.transform, version=version))
            state = a_chain(a_seed(kind=DatasetKind.Derivative), asked).state
            yield StoredTransform(
                block_hash=a_hash(version),
                block=a_block(state, event),
                event=event,
                state=state,
            )

    def run(
        self, stored: StoredTransform, *, alias: str, scratch: Path, on_progress: OnProgress
    ) -> TransformResponseSuccess:
        assert stored.state.transform is not None
        version = stored.state.transform.transform.version
        if version != INSTALLED:
            raise EngineNotAvailable(text=f"the transform requires {version}, but this engine is {INSTALLED}")
        for stage in ("", "begun", "running"):
            on_progress(EngineProgress(stage=stage))
            time.sleep(self.seconds)
        if isinstance(self.gives, Exception):
            raise self.gives
        return self.gives


def replayed(
    *versions: str,
    gives: TransformResponseSuccess | Exception | None = None,
    most: float = 60.0,
    seconds: float = 0.0,
    is_one_query: bool = False,
) -> list[tuple[int, Problem | None]]:
    story = Story()
    replay = Replay(story.datasets, story.engine, TARGET, story.home / "keys", most)
    gives = gives or TransformResponseSuccess()
    replay._replayer = cast("Any", Transforms(versions, gives, seconds, is_one_query))
    return [(done, problem) for done, _, problem in replay.run([], None)]


def test_transforms_that_cannot_be_replayed_are_reported_once_and_the_rest_is_replayed() -> None:
    steps = replayed("old", "old", INSTALLED, "older", INSTALLED)
    assert [(done, problem and problem.kind) for done, problem in steps] == [
        (0, Damage.ENGINE_NOT_AVAILABLE),
        (1, None),
        (1, Damage.ENGINE_NOT_AVAILABLE),
        (2, None),
    ]
    problem = steps[0][1]
    assert problem is not None
    assert (
        problem.text == "cannot be replayed on this node: the transform requires old, but this engine is new"
    )


def test_a_different_result_is_found_after_a_transform_that_cannot_be_replayed() -> None:
    other = TransformResponseSuccess(new_offset_interval=OffsetInterval(start=0, end=0))
    kinds = [problem.kind for _, problem in replayed("old", INSTALLED, gives=other) if problem is not None]
    assert kinds == [Damage.ENGINE_NOT_AVAILABLE, Damage.REPLAY_MISMATCH]


@pytest.mark.parametrize(
    "fault",
    [
        NotFound(what="a slice"),
        Damaged(file="data/a", why="it is not a regular file"),
        InputMismatch(dataset="input", text="other offsets"),
        ChainBroken(kind="missing", block="b", sequence_number=1, text="is missing"),
    ],
    ids=lambda fault: type(fault).__name__,
)
def test_a_replay_ends_where_an_input_differs_from_what_the_transform_read(fault: OdfError) -> None:
    ((done, problem),) = replayed(INSTALLED, INSTALLED, gives=fault)
    assert (done, problem and problem.kind) == (1, Damage.INPUT_MISSING)
    assert problem is not None
    assert str(fault) in problem.text


def test_a_transform_that_does_not_end_is_reported_and_the_rest_is_replayed() -> None:
    steps = replayed(INSTALLED, "old", INSTALLED, most=0.001, seconds=0.01)
    problems = [problem for _, problem in steps if problem is not None]
    assert [problem.kind for problem in problems] == [
        Damage.ENGINE_NOT_AVAILABLE,
        Damage.REPLAY_FAILED,
        Damage.REPLAY_FAILED,
    ]
    assert problems[1].text == (
        "not checked: the replay of this block did not finish within 0.001 s; raise ODF_QUERY_TIMEOUT_MS if its query "
        "is meant to take so long"
    )


@pytest.mark.parametrize("times", [9, 10, 30])
def test_a_query_whose_replay_fails_ten_times_in_a_row_is_given_up(times: int) -> None:
    steps = replayed(*[INSTALLED] * times, gives=QueryFailed(text="overflow"), is_one_query=True)
    problems = [problem for _, problem in steps if problem is not None]
    assert len(steps) == min(times, 10) + len(problems)
    assert [problem.kind for problem in problems] == [Damage.REPLAY_FAILED] * 2
    is_given_up = "those after it are not replayed, since 10 in a row fail" in problems[1].text
    assert is_given_up == (times >= 10)


@pytest.mark.parametrize(
    ("kinds", "word"),
    [
        ((), "valid"),
        ((Damage.ENGINE_NOT_AVAILABLE,), "not-replayable"),
        ((Damage.ENGINE_NOT_AVAILABLE, Damage.REPLAY_REFUSED), "not-checked"),
        ((Damage.REPLAY_FAILED, Damage.ENGINE_NOT_AVAILABLE), "not-checked"),
        ((Damage.REPLAY_REFUSED, Damage.REPLAY_MISMATCH), "invalid"),
        ((Damage.REPLAY_FAILED, Damage.REPLAY_MISMATCH), "invalid"),
        ((Damage.ENGINE_NOT_AVAILABLE, Damage.REPLAY_MISMATCH), "invalid"),
        ((Damage.REPLAY_MISMATCH,), "invalid"),
        ((Damage.ENGINE_NOT_AVAILABLE, Damage.DATA_DROPPED), "dropped"),
    ],
)
def test_the_verdict_has_a_distinct_name(kinds: tuple[Damage, ...], word: str) -> None:
    verdict = Verdict(head=None, problems=tuple(Problem(kind=kind) for kind in kinds), tally=Tally())
    assert _message(TARGET, verdict).verdict.verdict == word


A = a_dataset("a")
MIGRATED = Target(name="derivative", dataset=a_dataset(), reader=cast("Any", None), is_local=True)


class Migrating:
    """Makes the checkpoint `executed` of a transform and `migrated` of a migration, no records of either."""

    def __init__(self, *, migrated: bytes | InvalidQuery, interval: OffsetInterval | None) -> None:
        self.migrated = migrated
        self.interval = interval

    def execute_transform(
        self, request: TransformRequest, _: OnProgress | None = None
    ) -> TransformResponseSuccess:
        Path(request.new_checkpoint_path).write_bytes(b"executed")
        return TransformResponseSuccess()

    def migrate(self, request: MigrateRequest) -> TransformResponseSuccess:
        assert request.prev_checkpoint_path is not None
        assert Path(request.prev_checkpoint_path).read_bytes() == b"executed"
        if isinstance(self.migrated, InvalidQuery):
            raise self.migrated
        Path(request.new_checkpoint_path).write_bytes(self.migrated)
        return TransformResponseSuccess(new_offset_interval=self.interval)


def checkpoint_of(content: bytes) -> Checkpoint:
    return Checkpoint(physical_hash=physical_hash_of(content), size=len(content))


def step_of(output: AChain, source: AChain) -> ExecuteTransformInput:
    done = output.state.progress_of(A)
    is_new = done.last_block != source.state.head
    return ExecuteTransformInput(
        dataset_id=A, prev_block_hash=done.last_block, new_block_hash=source.state.head if is_new else None
    )


def migrated_chain(source: AChain, after: int = 0) -> AChain:
    """A derivative of one transform, another query, its migration, and `after` transforms of that query."""
    output = a_derivative(A)
    first = checkpoint_of(b"executed")
    output.add(ExecuteTransform(query_inputs=(step_of(output, source),), new_checkpoint=first))
    new = replace(a_transform(A), transform=a_query(SqlQueryStep(query="SELECT city FROM input_0")))
    output.add(new)
    last = first
    for content in (b"migrated", *(b"executed" for _ in range(after))):
        output.add(
            ExecuteTransform(
                query_inputs=(step_of(output, source),),
                prev_checkpoint=last.physical_hash,
                new_checkpoint=checkpoint_of(content),
            )
        )
        last = checkpoint_of(content)
    return output


def replayed_migration(
    *,
    migrated: bytes | InvalidQuery,
    interval: OffsetInterval | None = None,
    since: int = 0,
    after: int = 0,
) -> list[Problem | None]:
    """Return the problems found in the blocks after the first `since`."""
    source = a_chain(a_seed(dataset=A), a_push_source(), a_schema())
    output = migrated_chain(source, after)
    story = Story(engine=cast("Engine", Migrating(migrated=migrated, interval=interval)))
    story.put(source)
    story.put(output)
    for content in (b"executed", b"migrated"):
        name = checkpoint_of(content).physical_hash
        story.blobs.put(output.state.dataset_id, ObjectKind.CHECKPOINT, name, content)
    links = [
        Link(hash=name, version=decoded.version, block=decoded.block)
        for name, decoded, _ in iterate(output.read, output.state.head)
    ]
    links.reverse()
    past = fold(output.read, links[since - 1].hash) if since else None
    return [
        problem
        for _, _, problem in Replay(story.datasets, story.engine, MIGRATED, NOWHERE).run(links[since:], past)
    ]


def test_a_migration_with_the_same_result_is_valid() -> None:
    assert replayed_migration(migrated=b"migrated") == [None, None]


def test_a_migration_is_repeated_as_one_also_if_its_query_was_verified_before() -> None:
    blocks = len(migrated_chain(a_chain(a_seed(dataset=A), a_push_source(), a_schema())).blocks)
    assert replayed_migration(migrated=b"migrated", since=blocks - 1) == [None]


@pytest.mark.parametrize(
    ("migrated", "interval", "what"),
    [
        (b"another", None, "checkpoint: declared"),
        (b"migrated", OffsetInterval(start=0, end=3), "offsets: declared None"),
    ],
)
def test_a_migration_with_a_different_result_is_found(
    migrated: bytes, interval: OffsetInterval | None, what: str
) -> None:
    first, problem = replayed_migration(migrated=migrated, interval=interval)

    assert first is None
    assert problem is not None
    assert problem.kind is Damage.REPLAY_MISMATCH
    assert problem.text.startswith(what)


def test_a_migration_that_is_refused_hides_no_block_of_the_new_query() -> None:
    """The replaced query may be refused, and the new one not."""
    first, problem, second = replayed_migration(
        migrated=InvalidQuery(text="reflect calls code: `odf engine upgrade DATASET --from-start`"), after=1
    )

    assert (first, second) == (None, None)
    assert problem is not None
    assert problem.kind is Damage.REPLAY_REFUSED
    assert problem.text == (
        "not checked: the engine refuses to migrate the query before: reflect calls code: "
        "`odf engine upgrade derivative --from-start`"
    )


INTERVAL = OffsetInterval(start=0, end=1)


def records(values: list[int | None], *, signed: bool) -> pa.Table:
    times = pa.array([0] * len(values)).cast(pa.timestamp("ms", "UTC"))
    return with_system_columns(
        pa.table({"event_time": times, "n": pa.array(values, pa.int64())}),
        ops=None,
        first_offset=0,
        system_time=Timestamp.from_ms(0),
        vocab=DatasetVocabulary(),
        signed=signed,
    )


def declared(table: pa.Table, folder: Path) -> tuple[ExecuteTransform, ChainState]:
    """Return the event of a slice and the state before it."""
    written = write_slice(table, folder / "declared")
    data = DataSlice(
        logical_hash=written.logical_hash,
        physical_hash=written.physical_hash,
        offset_interval=INTERVAL,
        size=written.size,
    )
    chain = a_chain(a_seed(kind=DatasetKind.Derivative), schema_to_event(table.schema))
    return ExecuteTransform(query_inputs=(), new_data=data), chain.state


def differences(event: ExecuteTransform, state: ChainState, given: pa.Table, folder: Path) -> list[str]:
    write_slice(given, folder / "data")
    response = TransformResponseSuccess(new_offset_interval=INTERVAL)
    stored = cast("StoredTransform", SimpleNamespace(event=event, state=state))
    records_hash = partial(_records_hash, state, folder / "data")
    return [text for text, _ in replay.differences(stored, response, records_hash, None)]


def test_an_engine_of_the_other_setting_gives_the_same_records(tmp_path: Path) -> None:
    event, state = declared(records([1, 2], signed=True), tmp_path)
    assert differences(event, state, records([1, 2], signed=False), tmp_path) == []


def test_other_values_are_a_difference(tmp_path: Path) -> None:
    event, state = declared(records([1, 2], signed=True), tmp_path)
    (text,) = differences(event, state, records([1, 3], signed=False), tmp_path)
    assert text.startswith("records: declared")


def test_a_null_where_the_dataset_requires_a_value_is_a_difference(tmp_path: Path) -> None:
    strict = records([1, 2], signed=False)
    strict = strict.cast(strict.schema.set(4, strict.schema.field("n").with_nullable(False)))
    event, state = declared(strict, tmp_path)
    (text,) = differences(event, state, records([1, None], signed=False), tmp_path)
    assert "column n: is required in this dataset" in text
