"""Damage to a chain that another implementation wrote is found and named; the whole chain is valid."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from odf_testing.chains import flip, flipped

from odf_common.adapters.local.exported_dataset import FolderDataset
from odf_common.codec.flatbuffers import decode_block
from odf_common.data.slices import write_slice
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.events import AddData, DataSlice, OffsetInterval
from odf_common.ports.store import ObjectKind
from odf_verifier.integrity import check_chain, check_objects
from odf_verifier.targets import Damage, Problem, Tally, Target, seed_of

VECTORS = Path(__file__).parents[3] / "tests" / "vectors" / "datasets"


@pytest.fixture(params=["cities.population", "polled.weather"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    copy = tmp_path / str(request.param)
    shutil.copytree(VECTORS / request.param, copy)
    return copy


def target_of(folder: Path, dataset: DatasetId | None = None) -> Target:
    store = FolderDataset(folder)
    return Target(name=folder.name, dataset=dataset or seed_of(store), reader=store, is_local=False)


def problems_of(folder: Path, *, reads_records: bool = True) -> tuple[list[Problem], Tally]:
    tally = Tally()
    target = target_of(folder)
    links, problems = check_chain(target)
    steps: list[tuple[int, int]] = []
    for done, total, found in check_objects(target, links, tally, reads_records=reads_records):
        steps.append((done, total))
        problems += found
    assert steps == [(n + 1, len(steps)) for n in range(len(steps))]
    return problems, tally


def head_of(folder: Path) -> str:
    return (folder / "refs" / "head").read_text()


def declaring_block(folder: Path, slice_name: str) -> tuple[str, int]:
    for file in (folder / "blocks").iterdir():
        block = decode_block(file.read_bytes()).block
        event = block.event
        if isinstance(event, AddData) and event.new_data and str(event.new_data.physical_hash) == slice_name:
            return file.name, block.sequence_number
    raise AssertionError(slice_name)


def test_dataset_of_another_implementation_is_valid(folder: Path) -> None:
    problems, tally = problems_of(folder)
    assert problems == []
    assert tally.bytes == sum(file.stat().st_size for file in (folder / "data").iterdir())


def test_every_flipped_slice_is_named_with_its_block(folder: Path) -> None:
    for file in sorted((folder / "data").iterdir()):
        flip(file)
        (problem,), _ = problems_of(folder)
        assert problem.kind is Damage.PHYSICAL_HASH_MISMATCH
        assert str(problem.object) == file.name
        assert (str(problem.block), problem.sequence_number) == declaring_block(folder, file.name)
        flip(file)


def test_every_flipped_block_is_named(folder: Path) -> None:
    for file in sorted((folder / "blocks").iterdir()):
        number = decode_block(file.read_bytes()).block.sequence_number
        flip(file)
        problem = problems_of_blocks(folder)
        assert problem.kind is Damage.BLOCK_HASH_MISMATCH
        assert str(problem.block) == file.name
        # No other block states the sequence number of the head.
        assert problem.sequence_number == (None if file.name == head_of(folder) else number)
        flip(file)


def test_the_store_is_read_and_not_what_this_node_has_copied_from_it(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = tmp_path / "stored"
    shutil.copytree(folder, stored)
    monkeypatch.setattr(
        FolderDataset, "open_stored", lambda _, kind, name: (stored / kind / str(name)).open("rb")
    )
    assert problems_of(folder)[0] == []
    head = head_of(folder)
    for file, kind in (
        (next((stored / "data").iterdir()), Damage.PHYSICAL_HASH_MISMATCH),
        (stored / "blocks" / head, Damage.BLOCK_HASH_MISMATCH),
    ):
        with flipped(file):
            problems, _ = problems_of(folder)
        assert [(problem.kind, str(problem.object)) for problem in problems] == [(kind, file.name)]


def problems_of_blocks(folder: Path) -> Problem:
    # The seed may be the damaged block, so the id is given.
    _, problems = check_chain(target_of(folder, DatasetId.of_key(bytes(32))))
    return problems[0]


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text[:-1] + ("0" if text[-1] != "0" else "1"),
        lambda text: text + "\n",
        lambda text: "",
        lambda text: "no hash at all",
    ],
)
def test_a_changed_head_is_noticed(folder: Path, change: Callable[[str], str]) -> None:
    (folder / "refs" / "head").write_text(change(head_of(folder)))
    _, problems = check_chain(target_of(folder))
    assert [problem.kind for problem in problems] in ([Damage.HEAD_UNREADABLE], [Damage.BLOCK_MISSING])


def test_a_missing_slice_is_named(folder: Path) -> None:
    file = min((folder / "data").iterdir())
    file.unlink()
    (problem,), _ = problems_of(folder)
    assert (problem.kind, str(problem.object)) == (Damage.OBJECT_MISSING, file.name)


def test_a_folder_in_place_of_a_slice_is_named(folder: Path) -> None:
    file = next((folder / "data").iterdir())
    file.unlink()
    file.mkdir()
    (problem,), _ = problems_of(folder)
    assert (problem.kind, str(problem.object)) == (Damage.PHYSICAL_HASH_MISMATCH, file.name)
    assert problem.text.endswith("cannot be used: it is not a regular file")


@pytest.mark.parametrize("above", [0, 2])
def test_a_folder_in_place_of_a_block_is_named_with_its_place(folder: Path, above: int) -> None:
    chain = check_chain(target_of(folder))[0]
    lost = chain[-1 - above]
    file = folder / "blocks" / str(lost.hash)
    file.unlink()
    file.mkdir()
    links, (problem,) = check_chain(target_of(folder))
    assert (problem.kind, problem.block, problem.object) == (Damage.BLOCK_HASH_MISMATCH, lost.hash, lost.hash)
    assert problem.sequence_number == (lost.block.sequence_number if above else None)
    assert problem.text.endswith("cannot be used: it is not a regular file")
    assert links == chain[len(chain) - above :]


def test_a_missing_block_is_named_and_those_above_it_are_still_checked(folder: Path) -> None:
    chain = check_chain(target_of(folder))[0]
    lost = chain[1]
    (folder / "blocks" / str(lost.hash)).unlink()
    links, (problem,) = check_chain(target_of(folder))
    assert (problem.kind, problem.block) == (Damage.BLOCK_MISSING, lost.hash)
    assert problem.sequence_number == lost.block.sequence_number
    assert links == chain[2:]


def test_a_check_of_bytes_alone_does_not_cover_records(folder: Path) -> None:
    assert problems_of(folder, reads_records=False)[0] == []


def test_objects_are_read_by_name_only(folder: Path) -> None:
    store = FolderDataset(folder)
    absent = Multihash.sha3(bytes(32))
    assert not store.has(ObjectKind.DATA, absent)
    assert {str(name) for name in store.names(ObjectKind.DATA)} == {
        file.name for file in (folder / "data").iterdir()
    }


@pytest.mark.parametrize(("ops", "found"), [([2, 3], []), ([2, 0], [Damage.CORRECTION_INCOMPLETE])])
def test_half_a_correction_is_named(folder: Path, ops: list[int], found: list[Damage]) -> None:
    data = folder / "data"
    table = pa.table({"offset": pa.array([0, 1], pa.uint64()), "op": pa.array(ops, pa.uint8())})
    written = write_slice(table, data / "new")
    (data / "new").rename(data / str(written.physical_hash))
    added = AddData(
        new_data=DataSlice(
            logical_hash=written.logical_hash,
            physical_hash=written.physical_hash,
            offset_interval=OffsetInterval(start=0, end=1),
            size=written.size,
        )
    )
    target = target_of(folder)
    link = check_chain(target)[0][-1]
    link = replace(link, block=replace(link.block, event=added))
    ((_, _, problems),) = check_objects(target, [link], Tally(), reads_records=True)
    assert [problem.kind for problem in problems] == found
