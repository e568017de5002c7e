"""Slices whose bytes match their name, but whose records differ from what the block declares."""

import threading
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from odf_testing.builders import a_chain, a_seed
from odf_testing.memory_store import MemoryBlobStore

from odf_common.codec.flatbuffers import decode_block
from odf_common.data import slices
from odf_common.data.columns import TIMESTAMP
from odf_common.data.schema_evolution import schema_to_event
from odf_common.data.slices import SliceFile, write_slice
from odf_common.hashing.multihash import Multihash
from odf_common.metadata.events import AddData, DataSlice, KnownEvent, OffsetInterval
from odf_common.ports.store import ObjectKind
from odf_sync.repositories import RemoteFolder
from odf_sync.transfer import objects
from odf_sync.transfer.objects import (
    ObjectDiffers,
    RecordsRefused,
    RemoteObject,
    by_object,
    declared_objects,
    fetch,
)
from odf_sync.transfer.remote_chain import RemoteBlock

COLUMNS = {
    "offset": pa.array([0, 1], pa.uint64()),
    "op": pa.array([0, 0], pa.uint8()),
    "system_time": pa.array([1, 1], TIMESTAMP),
    "event_time": pa.array([1, 1], TIMESTAMP),
    "city": pa.array(["Oslo", "Rome"]),
}
WHOLE = pa.table(COLUMNS)


def remote(folder: Path, table: pa.Table, logical: Multihash | None = None) -> RemoteObject:
    """Write a repository's slice and the blocks that declare it with the schema of `WHOLE`."""
    (folder / "data").mkdir(parents=True)
    written: SliceFile = write_slice(table, folder / "slice")
    (folder / "slice").rename(folder / "data" / str(written.physical_hash))
    data = DataSlice(
        logical_hash=logical or written.logical_hash,
        physical_hash=written.physical_hash,
        offset_interval=OffsetInterval(start=0, end=1),
        size=written.size,
    )
    events: tuple[KnownEvent, ...] = (a_seed(), schema_to_event(WHOLE.schema), AddData(new_data=data))
    blocks = [
        RemoteBlock(hash=one.hash, raw=one.raw, decoded=decode_block(one.raw))
        for one in a_chain(*events).blocks
    ]
    (found,) = declared_objects(None, blocks)
    return found


def fetched(
    folder: Path,
    one: RemoteObject,
    *others: RemoteObject,
    blobs: MemoryBlobStore | None = None,
    trusts_records: bool = False,
) -> MemoryBlobStore:
    is_there = blobs is not None
    blobs = blobs or MemoryBlobStore()
    try:
        fetch(
            blobs,
            RemoteFolder(folder.as_uri()),
            a_seed().dataset_id,
            (one, *others),
            folder / "downloads",
            trusts_records=trusts_records,
        )
    except RecordsRefused:
        assert blobs.has(a_seed().dataset_id, ObjectKind.DATA, one.name) == is_there
        raise
    return blobs


def test_a_slice_that_is_as_declared_is_stored(tmp_path: Path) -> None:
    one = remote(tmp_path, WHOLE)
    assert fetched(tmp_path, one).has(a_seed().dataset_id, ObjectKind.DATA, one.name)


@pytest.mark.parametrize(
    ("column", "values", "why"),
    [
        ("op", pa.array([0, 2], pa.uint8()), "a -C without a"),
        ("op", pa.array([0, 9], pa.uint8()), "operations from 0 to 9"),
        ("offset", pa.array([0, 5], pa.uint64()), "record 2 has 5"),
        ("city", pa.array([1, 2]), "column city int64"),
    ],
)
def test_records_that_are_not_as_declared_are_refused(
    tmp_path: Path, column: str, values: pa.Array, why: str
) -> None:
    one = remote(tmp_path, pa.table({**COLUMNS, column: values}))
    with pytest.raises(RecordsRefused, match=why) as caught:
        fetched(tmp_path, one)
    assert caught.value.sequence_number == 2
    assert str(one.name) in str(caught.value)


def test_records_with_another_logical_hash_are_refused(tmp_path: Path) -> None:
    one = remote(tmp_path, WHOLE, logical=Multihash.arrow0(bytes(32)))
    with pytest.raises(RecordsRefused, match="records hash to"):
        fetched(tmp_path, one)


def test_records_that_are_trusted_are_not_read_but_their_file_is_checked(tmp_path: Path) -> None:
    one = remote(tmp_path, WHOLE, logical=Multihash.arrow0(bytes(32)))
    stored = fetched(tmp_path, one, trusts_records=True)
    assert stored.has(a_seed().dataset_id, ObjectKind.DATA, one.name)
    fetched(tmp_path, one, blobs=stored, trusts_records=True)
    for blobs in (None, stored):
        with pytest.raises(ObjectDiffers, match="bytes"):
            fetched(tmp_path, one, replace(one, size=one.size + 1), blobs=blobs, trusts_records=True)
    (tmp_path / "data" / str(one.name)).write_bytes(bytes(one.size))
    with pytest.raises(ObjectDiffers, match=f"{one.size} bytes"):
        fetched(tmp_path, one, trusts_records=True)


def test_an_object_that_is_stored_is_not_fetched_again(tmp_path: Path) -> None:
    one = remote(tmp_path, WHOLE)
    stored = fetched(tmp_path, one)
    (tmp_path / "data" / str(one.name)).unlink()
    assert fetched(tmp_path, one, blobs=stored) is stored


def test_an_object_is_checked_against_every_block_that_names_it(tmp_path: Path) -> None:
    one = remote(tmp_path, WHOLE)
    assert one.slice is not None
    interval = OffsetInterval(start=2, end=99)
    other = replace(one, slice=replace(one.slice, offset_interval=interval))
    with pytest.raises(RecordsRefused, match="declared 2–99"):
        fetched(tmp_path, one, other)
    with pytest.raises(RecordsRefused, match="declared 2–99"):
        fetched(tmp_path, other, blobs=fetched(tmp_path, one))
    for size in (one.size - 1, one.size + 1):
        with pytest.raises(ObjectDiffers, match="bytes"):
            fetched(tmp_path, one, replace(one, size=size))
    assert by_object([one, other]) == ((one, other),)


def test_a_slice_has_the_schema_that_was_set_last_in_an_earlier_copy_too() -> None:
    schema = schema_to_event(WHOLE.schema)
    chain = a_chain(a_seed(), schema)
    past = chain.state
    chain.add_data()
    blocks = [RemoteBlock(hash=one.hash, raw=one.raw, decoded=decode_block(one.raw)) for one in chain.blocks]
    assert [one.schema for one in declared_objects(past, blocks[-1:])] == [schema]
    assert [one.schema for one in declared_objects(None, blocks)] == [schema]
    assert [one.schema for one in declared_objects(None, blocks[-1:])] == [None]


def test_the_declaration_that_differs_is_named_whichever_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slices, "_HARMLESS_BYTES", 0)  # as if the slice were large
    one = remote(tmp_path, WHOLE)
    assert one.slice is not None
    shorter = replace(one.slice, offset_interval=OffsetInterval(start=0, end=0))
    other = replace(one, sequence_number=9, slice=shorter)
    for declared in ((one, other), (other, one)):
        with pytest.raises(RecordsRefused, match="declared 0–0") as refused:
            fetched(tmp_path, *declared)
        assert refused.value.sequence_number == 9


def test_only_some_slices_are_in_memory_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readers = threading.Lock()
    monkeypatch.setattr(objects, "READERS", readers)
    is_alone, read = [], slices.read_foreign_slice

    def read_alone(file: Path, records: int, most: int) -> pa.Table:
        is_alone.append(readers.locked())
        return read(file, records, most)

    monkeypatch.setattr(objects, "read_foreign_slice", read_alone)
    fetched(tmp_path, remote(tmp_path, WHOLE))
    assert is_alone == [True]
