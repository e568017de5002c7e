"""Stored transforms are replayed as they were, however their dataset and its inputs have changed since."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from odf_testing.builders import (
    AChain,
    a_chain,
    a_checkpoint,
    a_dataset,
    a_derivative,
    a_push_source,
    a_query,
    a_schema,
    a_seed,
    a_time,
    a_transform,
    some_data,
)
from odf_testing.memory_store import MemoryBlobStore, MemoryCatalog, MemoryRefStore
from odf_testing.passing_engine import PassingEngine

from odf_common.chain.state import ChainState, progress_after
from odf_common.chain.transform_steps import RequestFiles
from odf_common.chain.walk import fold
from odf_common.data.schema_evolution import schema_of_event
from odf_common.dataset.replay import (
    Replayer,
    StoredBlock,
    StoredTransform,
    _Inputs,
    input_source,
    migrate_request,
    request_files,
)
from odf_common.dataset.state_cache import ChainStates, NoStateCache
from odf_common.errors import InvalidInput, NotFound
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.data_schema import DataTypeOption, DataTypeString
from odf_common.metadata.engine_messages import TransformRequest, TransformResponseSuccess
from odf_common.metadata.events import (
    AddData,
    DatasetKind,
    ExecuteTransform,
    ExecuteTransformInput,
    SetInfo,
    SetTransform,
    SqlQueryStep,
    TransformInput,
)
from odf_common.ports.engine import (
    MigrateRequest,
    OnProgress,
)
from odf_common.ports.store import CatalogEntry, ObjectKind

A = a_dataset("a")
WIDE = a_schema(**{name: DataTypeOption(inner=DataTypeString()) for name in ("city", "country")})


class Asked(PassingEngine):
    """Records its requests, and the columns in each of them; adds no records."""

    def __init__(self) -> None:
        super().__init__()
        self.asked_columns: list[list[str]] = []

    def execute_transform(
        self, request: TransformRequest, on_progress: OnProgress | None = None
    ) -> TransformResponseSuccess:
        self.requests.append(request)
        self.asked_columns.append(pq.read_schema(request.query_inputs[0].schema_file).names[4:])
        return TransformResponseSuccess()

    def migrate(self, request: MigrateRequest) -> TransformResponseSuccess:
        self.migrations.append(request)
        return TransformResponseSuccess()


class World:
    """An input, a derivative, and the replay."""

    def __init__(self) -> None:
        self.source = a_chain(a_seed(dataset=A), a_push_source(), a_schema())
        self.output = a_derivative(A)
        self.engine = Asked()

    def query(self, text: str) -> SetTransform:
        new = replace(a_transform(A), transform=a_query(SqlQueryStep(query=text)))
        self.output.add(new)
        return new

    def execute(self) -> None:
        """Commit a transform that has read all new records."""
        past, head = self.output.state, self.source.state
        done = past.progress_of(A)
        is_new = done.last_block != head.head
        step = ExecuteTransformInput(
            dataset_id=A,
            prev_block_hash=done.last_block,
            new_block_hash=head.head if is_new else None,
            prev_offset=done.last_offset,
            new_offset=head.last_offset if head.last_offset != done.last_offset else None,
        )
        data = some_data(past)
        self.output.add(
            ExecuteTransform(
                query_inputs=(step,),
                prev_checkpoint=data.prev_checkpoint,
                prev_offset=data.prev_offset,
                new_data=data.new_data if is_new else None,
                new_checkpoint=a_checkpoint(past.sequence_number),
            )
        )

    def replayer(self) -> Replayer:
        refs = MemoryRefStore()
        blobs = MemoryBlobStore(refs)
        for chain in (self.source, self.output):
            self._store(blobs, chain)
        states = ChainStates(blobs, refs, NoStateCache())
        return Replayer(blobs=blobs, catalog=MemoryCatalog(), engine=self.engine, state_at=states.at)

    def _store(self, blobs: MemoryBlobStore, chain: AChain) -> None:
        dataset = chain.state.dataset_id
        for one in chain.blocks:
            blobs.put(dataset, ObjectKind.BLOCK, one.hash, one.raw)
            event = one.block.event
            if not isinstance(event, AddData | ExecuteTransform):
                continue
            if event.new_data is not None:
                blobs.put(dataset, ObjectKind.DATA, event.new_data.physical_hash, b"records")
            if event.new_checkpoint is not None:
                blobs.put(dataset, ObjectKind.CHECKPOINT, event.new_checkpoint.physical_hash, b"state")

    def replay(self, folder: Path, since: int = 0) -> list[StoredTransform]:
        """Replay all transforms after the block numbered `since` - 1."""
        replayer, state = self.replayer(), self.state_before(since)
        stored = [*replayer.transforms(self.blocks(since), state)]
        for number, one in enumerate(stored):
            scratch = folder / str(number)
            scratch.mkdir()
            replayer.run(one, alias="derivative", scratch=scratch)
        return stored

    def blocks(self, since: int) -> Iterator[StoredBlock]:
        return ((one.hash, one.block, 3) for one in self.output.blocks[since:])

    def state_before(self, number: int) -> ChainState | None:
        if number == 0:
            return None
        return fold(self.output.read, self.output.blocks[number - 1].hash)


@pytest.fixture
def world() -> World:
    return World()


def queries(requests: Sequence[TransformRequest]) -> list[str]:
    return [request.transform.queries[0].query for request in requests if request.transform.queries]


def test_each_transform_is_replayed_with_the_query_of_its_time(world: World, tmp_path: Path) -> None:
    world.source.add_data()
    world.execute()
    world.query("SELECT city FROM input_0")
    world.source.add_data()
    world.execute()

    world.replay(tmp_path)

    assert queries(world.engine.requests) == ["SELECT * FROM input_0", "SELECT city FROM input_0"]
    assert world.engine.migrations == []


def test_each_transform_gets_the_schema_of_its_time(world: World, tmp_path: Path) -> None:
    world.source.add_data()
    world.execute()
    world.source.add(WIDE).add_data()
    world.execute()

    world.replay(tmp_path)

    assert world.engine.asked_columns == [["city"], ["city", "country"]]


@pytest.mark.parametrize("since", [0, 5], ids=["the whole chain", "from the SetTransform on"])
def test_a_migration_is_migrated_again(world: World, tmp_path: Path, since: int) -> None:
    world.source.add_data()
    world.execute()
    old = world.output.state.transform
    new = world.query("SELECT count(*) FROM input_0")
    world.execute()
    world.source.add(WIDE).add_data()
    world.execute()

    stored = world.replay(tmp_path, since)

    assert [one.migrated for one in stored] == [*([None] if since == 0 else []), old, None]
    (asked,) = world.engine.migrations
    assert (asked.old, asked.new) == (old, new)
    assert asked.next_offset == 10
    assert [(one.name, one.schema.names[4:]) for one in asked.inputs] == [("input_0", ["city"])]
    assert asked.prev_checkpoint_path is not None
    assert a_checkpoint(2).physical_hash.digest.hex() in asked.prev_checkpoint_path


def test_a_transform_after_a_new_query_that_read_records_is_no_migration(
    world: World, tmp_path: Path
) -> None:
    world.source.add_data()
    world.execute()
    world.query("SELECT city FROM input_0")
    world.source.add_data()
    world.execute()

    assert [one.migrated for one in world.replay(tmp_path)] == [None, None]


def test_only_a_transform_directly_after_a_new_query_is_a_migration(world: World) -> None:
    world.source.add_data()
    world.execute()
    world.query("SELECT city FROM input_0")
    world.output.add(SetInfo(description="x"))
    world.execute()

    for since in (*range(1, len(world.output.blocks)), 0):
        before = world.state_before(since)
        found = [*world.replayer().transforms(world.blocks(since), before)]
        assert {one.migrated for one in found} == {None}


def test_a_replay_may_begin_after_any_block(world: World) -> None:
    world.source.add_data()
    world.execute()
    old = world.output.state.transform
    world.query("SELECT city FROM input_0")
    world.execute()
    whole = [*world.replayer().transforms(world.blocks(0), None)]
    assert [one.migrated for one in whole] == [None, old]

    for since in range(1, len(world.output.blocks)):
        found = [*world.replayer().transforms(world.blocks(since), world.state_before(since))]
        assert found == whole[len(whole) - len(found) :]


def test_an_input_is_named_as_it_is_now_and_its_schema_is_plain_parquet(world: World, tmp_path: Path) -> None:
    world.source.add_data()
    world.execute()
    replayer, (stored,) = world.replayer(), world.replay(tmp_path)
    replayer._catalog.add(CatalogEntry(alias="towns", dataset_id=A))
    replayer.run(stored, alias="derivative", scratch=tmp_path)

    ((before,), (after,)) = (request.query_inputs for request in world.engine.requests)
    assert (before.dataset_alias, after.dataset_alias) == (str(A), "towns")
    assert b"ARROW:schema" not in (pq.read_metadata(after.schema_file).metadata or {})


def test_an_input_is_read_once_and_continued_from_there(world: World, tmp_path: Path) -> None:
    for _ in range(3):
        world.source.add_data()
        world.execute()
    replayer, asked = world.replayer(), list[Multihash]()
    inputs, before = replayer._inputs, replayer._inputs._state_at

    def state_at(dataset: DatasetId, block: Multihash) -> ChainState:
        asked.append(block)
        return before(dataset, block)

    inputs._state_at = state_at
    first, *others = (one.event for one in replayer.transforms(world.blocks(0), None))
    for event in others:
        inputs.advance(event)
    assert asked == [first.query_inputs[0].new_block_hash]

    inputs.advance(others[0])
    assert asked == [first.query_inputs[0].new_block_hash] * 2


def test_an_input_without_a_schema_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="the schema of towns"):
        input_source(MemoryBlobStore(), "towns", a_chain(a_seed(dataset=A)).state, tmp_path)


def test_inputs_that_swap_names_cannot_be_told_apart(world: World, tmp_path: Path) -> None:
    world.source.add_data()
    world.execute()
    b = a_dataset("b")
    states = {A: world.source.state, b: replace(world.source.state, dataset_id=b)}

    with pytest.raises(InvalidInput, match="use different aliases"):
        migrate_request(
            world.output.state,
            a_transform(A, b),
            a_transform(b, A),
            states,
            system_time=world.output.state.system_time,
            files=request_files(MemoryBlobStore(), a_chain(a_seed(DatasetKind.Root)).state, tmp_path),
        )


def test_an_input_without_a_block_is_not_found(world: World) -> None:
    inputs = _Inputs(MemoryBlobStore(), MemoryCatalog(), lambda *_: world.source.state)
    step = ExecuteTransformInput(dataset_id=A)
    with pytest.raises(NotFound, match=f"a block of {A}"):
        inputs.advance(ExecuteTransform(query_inputs=(step,)))


def test_an_input_is_replayed_only_up_to_the_end_of_the_step(world: World, tmp_path: Path) -> None:
    world.source.add_data()
    world.execute()
    before = world.source.state.head
    world.source.add(WIDE)

    (stored,) = world.replay(tmp_path)

    assert [progress_after(step).last_block for step in stored.event.query_inputs] == [before]
    assert world.engine.asked_columns == [["city"]]
    assert DatasetId.parse(str(world.engine.requests[0].query_inputs[0].dataset_id)) == A


B = a_dataset("b")
FILES = RequestFiles(prev_checkpoint=None, new_checkpoint="checkpoint", new_data="data")


def read(dataset: DatasetId, *, has_schema: bool = True) -> ChainState:
    """Return the state of an input."""
    events = (a_seed(dataset=dataset), a_push_source(), *((a_schema(),) if has_schema else ()))
    return a_chain(*events).state


def query(*inputs: tuple[DatasetId, str | None]) -> SetTransform:
    """Return a query of datasets by their aliases."""
    named = tuple(TransformInput(dataset_ref=str(dataset), alias=alias) for dataset, alias in inputs)
    return replace(a_transform(A), inputs=named)


def request(
    old: SetTransform, new: SetTransform, inputs: Mapping[DatasetId, ChainState] | None = None
) -> MigrateRequest:
    known = {A: read(A), B: read(B)} if inputs is None else inputs
    return migrate_request(a_chain().state, old, new, known, system_time=a_time(), files=FILES)


def test_the_inputs_of_both_versions_are_named_once() -> None:
    found = request(query((A, "one"), (B, None)), query((B, None), (A, "ONE"), (A, "two"))).inputs

    assert [one.name for one in found] == ["one", str(B), "two"]
    state = read(A)
    assert state.schema is not None
    assert found[0].schema == schema_of_event(state.schema)
    assert found[0].vocab == state.vocabulary


def test_an_alias_is_not_used_for_another_input_than_before() -> None:
    with pytest.raises(InvalidInput, match=f"one was the alias of {A} and is now that of {B}"):
        request(query((A, "One")), query((B, "one")))


@pytest.mark.parametrize("inputs", [{}, {A: read(A, has_schema=False)}])
def test_an_input_of_a_migration_without_a_schema_is_not_found(
    inputs: Mapping[DatasetId, ChainState],
) -> None:
    with pytest.raises(NotFound, match="the schema of one"):
        request(query((A, "one")), query((A, "one")), inputs)
