"""Each declaration of a chain about a slice is checked against the slice; the chain itself breaks no rule."""

from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pytest
from odf_testing.builders import AChain, a_block, a_chain, a_dataset, a_push_source, a_seed, a_time
from odf_testing.verifier import Story

from odf_common.codec.flatbuffers import block_hash, encode_block
from odf_common.data.columns import TIMESTAMP
from odf_common.data.schema_evolution import schema_to_event
from odf_common.data.slices import write_slice
from odf_common.dataset.node_datasets import StoredDataset
from odf_common.hashing.multihash import Multihash, physical_hash_of
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.events import AddData, Checkpoint, DataSlice, OffsetInterval, SetInfo
from odf_common.ports.store import ObjectKind
from odf_verifier.integrity import check_chain
from odf_verifier.targets import Damage, Target, targets
from odf_verifier.verification import INTEGRITY, Verdict, VerificationOptions, VerificationProgress

RECORDS = pa.table(
    {
        "offset": pa.array([0, 1], pa.uint64()),
        "op": pa.array([0, 0], pa.uint8()),
        "system_time": pa.array([1, 1], TIMESTAMP),
        "event_time": pa.array([1, 1], TIMESTAMP),
        "city": pa.array(["Oslo", "Rome"]),
    }
)
OTHER = RECORDS.set_column(4, "city", pa.array([1, 2]))


@pytest.fixture
def declared(story: Story) -> DataSlice:
    """A stored slice, and its correct declaration."""
    return stored_slice(story, RECORDS)


def stored_slice(story: Story, records: pa.Table) -> DataSlice:
    file = story.blobs.scratch() / "slice"
    written = write_slice(records, file)
    story.blobs.put_file(a_seed().dataset_id, ObjectKind.DATA, written.physical_hash, file)
    offsets = records["offset"].to_pylist()
    return DataSlice(
        logical_hash=written.logical_hash,
        physical_hash=written.physical_hash,
        offset_interval=OffsetInterval(start=offsets[0], end=offsets[-1]),
        size=written.size,
    )


def chain_of(story: Story, data: DataSlice, schema: pa.Schema = RECORDS.schema) -> AChain:
    made = a_chain(a_seed(), a_push_source(), schema_to_event(schema), AddData(new_data=data))
    story.put(made, name="cities")
    return made


def test_a_slice_that_is_as_declared_is_valid(story: Story, declared: DataSlice) -> None:
    assert story.verify(chain_of(story, declared), VerificationOptions()).is_valid


@pytest.mark.parametrize(
    ("damage", "change"),
    [
        (Damage.SIZE_MISMATCH, {"size": 1}),
        (Damage.LOGICAL_HASH_MISMATCH, {"logical_hash": Multihash.arrow0(bytes(32))}),
        (Damage.OFFSETS_MISMATCH, {"offset_interval": OffsetInterval(start=0, end=2)}),
        (Damage.OBJECT_MISSING, {"physical_hash": Multihash.sha3(bytes(32))}),
    ],
)
def test_a_single_wrong_declaration_is_found(
    story: Story, declared: DataSlice, damage: Damage, change: dict[str, object]
) -> None:
    data = replace(declared, **change)  # type: ignore[arg-type]
    (problem,) = story.verify(chain_of(story, data), VerificationOptions()).problems
    assert (problem.kind, problem.sequence_number) == (damage, 3)
    assert problem.object == data.physical_hash


def test_records_of_another_schema_are_found(story: Story, declared: DataSlice) -> None:
    (problem,) = story.verify(chain_of(story, declared, OTHER.schema), VerificationOptions()).problems
    assert problem.kind is Damage.SCHEMA_MISMATCH


def test_each_slice_has_to_have_the_schema_that_is_set_before_it(story: Story, declared: DataSlice) -> None:
    wider = RECORDS.append_column("country", pa.array([None, None], pa.string())).set_column(
        0, "offset", pa.array([2, 3], pa.uint64())
    )
    data = stored_slice(story, wider)
    chain = chain_of(story, declared).add(
        schema_to_event(wider.schema), AddData(prev_offset=1, new_data=data)
    )
    story.put(chain)

    assert story.verify(chain, VerificationOptions()).is_valid


def test_only_bytes_are_hashed_if_records_are_not_to_be_read(story: Story, declared: DataSlice) -> None:
    chain = chain_of(story, replace(declared, logical_hash=Multihash.arrow0(bytes(32))))

    assert story.verify(chain, VerificationOptions(reads_records=False)).is_valid
    assert not story.verify(chain, VerificationOptions()).is_valid


def test_all_bytes_that_were_hashed_are_counted(story: Story, declared: DataSlice) -> None:
    content = b"a checkpoint"
    name = physical_hash_of(content)
    story.blobs.put(a_seed().dataset_id, ObjectKind.CHECKPOINT, name, content)
    chain = chain_of(story, declared).add(
        AddData(prev_offset=1, new_checkpoint=Checkpoint(physical_hash=name, size=len(content)))
    )
    story.put(chain)

    verdict = story.verify(chain, VerificationOptions())

    assert (verdict.is_valid, verdict.tally.bytes) == (True, declared.size + len(content))


def test_every_slice_of_a_long_chain_is_checked(story: Story) -> None:
    chain = a_chain().add_data(30)
    story.put(chain)
    verdict = story.verify(chain, VerificationOptions(replay=False))
    assert [problem.block for problem in verdict.problems] == [block.hash for block in chain.blocks[3:]]


def test_progress_is_reported_while_a_long_chain_is_checked(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = a_chain(a_seed(), a_push_source(), schema_to_event(RECORDS.schema))
    for offset in range(20):
        records = RECORDS.slice(0, 1).set_column(0, "offset", pa.array([offset], pa.uint64()))
        chain.add(AddData(prev_offset=chain.state.last_offset, new_data=stored_slice(story, records)))
    story.put(chain, name="cities")
    opened, open_stored = list[Multihash](), story.blobs.open_stored

    def noted(dataset: DatasetId, kind: ObjectKind, name: Multihash) -> BinaryIO:
        if kind is ObjectKind.DATA:
            opened.append(name)
        return open_stored(dataset, kind, name)

    monkeypatch.setattr(story.blobs, "open_stored", noted)
    (target,) = targets(story.datasets, ("cities",), every=False, recursive=False)
    first, *others, verdict = (
        (item, len(opened)) for item in story.verifier.verify(target, VerificationOptions(replay=False))
    )

    assert first[0] == VerificationProgress(phase=INTEGRITY, done=1, total=20)
    assert first[1] < 20
    assert [item for item, _ in others] == [
        VerificationProgress(phase=INTEGRITY, done=done, total=20) for done in range(2, 21)
    ]
    assert isinstance(verdict[0], Verdict)
    assert verdict[0].is_valid


def test_a_slice_added_since_the_last_verdict_has_to_have_the_schema_from_before_it(
    story: Story, declared: DataSlice, tmp_path: Path
) -> None:
    options = VerificationOptions(incremental=True)
    chain = chain_of(story, declared)
    assert story.verify(chain, options).is_valid
    written = write_slice(OTHER.set_column(0, "offset", pa.array([2, 3], pa.uint64())), tmp_path / "slice")
    story.blobs.put_file(a_seed().dataset_id, ObjectKind.DATA, written.physical_hash, tmp_path / "slice")
    interval = OffsetInterval(start=2, end=3)
    data = DataSlice(
        logical_hash=written.logical_hash,
        physical_hash=written.physical_hash,
        offset_interval=interval,
        size=written.size,
    )
    chain.add(AddData(prev_offset=1, new_data=data))
    story.put(chain)

    verdict = story.verify(chain, options)

    assert verdict.tally.blocks == 1
    assert [problem.kind for problem in verdict.problems] == [Damage.SCHEMA_MISMATCH]


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        (Multihash.sha3(b"x" * 32), Damage.PHYSICAL_HASH_MISMATCH),
        (physical_hash_of(b"PAR"), Damage.LOGICAL_HASH_MISMATCH),
    ],
)
def test_bytes_that_are_no_slice_are_found(story: Story, name: Multihash, damage: Damage) -> None:
    data = DataSlice(
        logical_hash=Multihash.arrow0(bytes(32)),
        physical_hash=name,
        offset_interval=OffsetInterval(start=0, end=1),
        size=3,
    )
    story.blobs.put(a_seed().dataset_id, ObjectKind.DATA, name, b"PAR")
    (problem,) = story.verify(chain_of(story, data), VerificationOptions()).problems
    assert (problem.kind, problem.object) == (damage, name)


@pytest.mark.parametrize(
    ("column", "values", "damage", "text"),
    [
        ("op", pa.array([0, 4], pa.uint8()), Damage.OPERATION_INVALID, "operations from 0 to 4"),
        ("op", pa.array([0, None], pa.uint8()), Damage.SYSTEM_COLUMN_NULL, "column op has 1 null"),
        (
            "event_time",
            pa.array([None, 1], TIMESTAMP),
            Damage.SYSTEM_COLUMN_NULL,
            "column event_time has 1 null",
        ),
    ],
)
def test_odd_values_in_a_system_column_are_found(
    story: Story, column: str, values: pa.Array, damage: Damage, text: str
) -> None:
    records = RECORDS.set_column(RECORDS.column_names.index(column), column, values)
    (problem,) = story.verify(chain_of(story, stored_slice(story, records)), VerificationOptions()).problems
    assert (problem.kind, text in problem.text) == (damage, True), problem


def test_a_block_that_has_its_hash_and_cannot_be_decoded_is_found(story: Story) -> None:
    chain = a_chain()
    name = block_hash(b"no block")
    story.put(chain)
    story.blobs.put(chain.state.dataset_id, ObjectKind.BLOCK, name, b"no block")
    story.refs.compare_and_set(chain.state.dataset_id, expected=chain.state.head, new=name)
    (problem,) = story.verify(chain, VerificationOptions()).problems
    assert (problem.kind, problem.block) == (Damage.BLOCK_UNREADABLE, name)


def test_a_block_that_breaks_a_rule_is_found(story: Story) -> None:
    chain = a_chain()
    late = encode_block(a_block(chain.state, SetInfo(description="x"), system_time=a_time(-1)), 3)
    chain.store[block_hash(late)] = late
    story.put(chain, to=block_hash(late))
    (problem,) = story.verify(chain, VerificationOptions()).problems
    assert (problem.kind, problem.block) == (Damage.RULE_VIOLATED, block_hash(late))
    assert "system_time_never_decreases" in problem.text


def test_a_chain_of_another_dataset_is_found(story: Story) -> None:
    chain, other = a_chain(), a_dataset("other")
    for name, raw in chain.store.items():
        story.blobs.put(other, ObjectKind.BLOCK, name, raw)
    story.refs.compare_and_set(other, expected=None, new=chain.state.head)
    target = Target(
        name="other", dataset=other, reader=StoredDataset(other, story.blobs, story.refs), is_local=True
    )
    _, (problem,) = check_chain(target)
    assert problem.kind is Damage.RULE_VIOLATED
    assert problem.text == f"the seed has the id {chain.state.dataset_id}, the folder {other}"


def test_all_blocks_above_a_lost_one_are_checked_and_the_lost_one_is_named(story: Story) -> None:
    chain = a_chain().add_data(4)
    story.put(chain)
    lost = chain.blocks[4].hash
    story.blobs.remove(chain.state.dataset_id, ObjectKind.BLOCK, [lost])
    missing, *others = story.verify(chain, VerificationOptions(replay=False)).problems
    assert (missing.kind, missing.block) == (Damage.BLOCK_MISSING, lost)
    assert [problem.block for problem in others] == [block.hash for block in chain.blocks[5:]]
