"""Notes stored next to a dataset's objects, and the keys of its batches."""

from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest
from odf_testing.builders import a_chain, a_dataset, a_hash, a_push_source, a_schema, a_seed
from odf_testing.memory_store import MemoryBlobStore, MemoryRefStore

from odf_common.adapters.local.stores import LocalBlobStore
from odf_common.dataset.batch_keys import key_in_run, run_and_place, run_of
from odf_common.dataset.dataset_notes import (
    COMPLETE,
    DROPPED,
    NOTE,
    RemoteAliases,
    change_aliases,
    complete_until,
    drop_noted,
    dropped_blocks,
    forget_drop,
    note_complete,
    note_drop,
    remote_aliases,
)
from odf_common.dataset.node_datasets import StoredDataset, require_readable_block, require_stored_block
from odf_common.errors import Damaged, HeadMoved, OdfError, Unavailable
from odf_common.ports.store import ObjectKind

ID = a_dataset()
HEAD = a_hash("head")
MOVED = HeadMoved(dataset="cities", expected=None, actual=str(HEAD))
SHARED, COPY = "https://example.org/shared", "https://example.org/copy"


class NotedStore(MemoryBlobStore):
    """Counts how often a note is written."""

    def __init__(self) -> None:
        super().__init__()
        self.writes = 0

    def set_note(self, dataset: object, name: str, text: str | None) -> None:
        self.writes += 1
        super().set_note(dataset, name, text)  # type: ignore[arg-type]


@pytest.mark.parametrize("former", [None, "before"], ids=["without", "with"])
@pytest.mark.parametrize(
    ("error", "is_noted"),
    [(None, True), (Unavailable(what="the store"), True), (MOVED, False), (KeyError(), True)],
    ids=["moved", "perhaps", "refused", "bug"],
)
def test_dropped_objects_stay_noted_unless_the_head_surely_did_not_move(
    former: str | None, error: Exception | None, *, is_noted: bool
) -> None:
    blobs = MemoryBlobStore()
    blobs.set_note(ID, DROPPED, former)
    raised: Exception | None = None
    try:
        with drop_noted(blobs, ID, HEAD):
            assert blobs.note(ID, DROPPED) == str(HEAD), "before the head moves"
            if error is not None:
                raise error
    except (OdfError, KeyError) as caught:
        raised = caught
    assert raised is error
    assert blobs.note(ID, DROPPED) == (str(HEAD) if is_noted else former)


def test_an_unchanged_note_is_not_written_again() -> None:
    blobs = NotedStore()
    for _ in range(2):
        note_complete(blobs, ID, HEAD)
        change_aliases(blobs, ID, lambda known: known.with_push(SHARED))
    assert blobs.writes == 2


def test_objects_are_complete_up_to_a_block_until_any_are_dropped() -> None:
    blobs = MemoryBlobStore()
    assert complete_until(blobs, ID) is None
    note_complete(blobs, ID, HEAD)
    assert complete_until(blobs, ID) == HEAD
    note_drop(blobs, ID, HEAD)
    assert complete_until(blobs, ID) is None
    forget_drop(blobs, ID)
    assert complete_until(blobs, ID) == HEAD


def test_a_marker_that_cannot_be_read_covers_no_block() -> None:
    blobs = MemoryBlobStore()
    blobs.set_note(ID, COMPLETE, "f16")
    assert complete_until(blobs, ID) is None
    note_complete(blobs, ID, HEAD)
    blobs.set_note(ID, DROPPED, "f16")
    assert dropped_blocks(blobs, ID) is None
    assert complete_until(blobs, ID) is None, "something was dropped, whatever it was"


def test_dropped_are_the_objects_of_the_blocks_up_to_the_marker() -> None:
    blobs, chain = MemoryBlobStore(), a_chain(a_seed(), a_push_source(), a_schema())
    dataset, dropped = chain.state.dataset_id, chain.blocks[-1].hash
    for one in chain.add_data().blocks:
        blobs.put(dataset, ObjectKind.BLOCK, one.hash, one.raw)
    assert dropped_blocks(blobs, dataset) is None
    note_drop(blobs, dataset, dropped)
    found = dropped_blocks(blobs, dataset)
    assert found is not None
    assert [found.contains(one.hash) for one in chain.blocks] == [True, True, True, False]


def test_the_last_push_target_of_a_dataset_is_listed_first_and_once() -> None:
    blobs = MemoryBlobStore()
    for place in (SHARED, COPY, SHARED):
        changed = change_aliases(blobs, ID, lambda known, place=place: known.pushed_to(place))  # type: ignore[misc]
        assert changed == remote_aliases(blobs, ID)
    assert remote_aliases(blobs, ID) == RemoteAliases(push=(SHARED, COPY))


@pytest.mark.parametrize("place", [0, 1, 123_456_789])
def test_a_batch_of_a_run_has_the_runs_key_and_its_index(place: int) -> None:
    key = key_in_run("my run", place)
    assert run_and_place(key) == ("my run", place)
    assert run_of(key) == "my run"


@pytest.mark.parametrize("key", ["my run", "7", key_in_run("run", 10**9), "run\x1f", "run\x1f²", "run\x1f-1"])
def test_any_other_key_is_a_separate_run(key: str) -> None:
    assert run_and_place(key) is None
    assert run_of(key) == key


FIRST, SECOND = "https://example.org/orders", "shop/orders"


def store() -> MemoryBlobStore:
    return MemoryBlobStore(MemoryRefStore())


def test_a_dataset_has_no_aliases_at_first() -> None:
    assert remote_aliases(store(), a_dataset()) == RemoteAliases()


def test_aliases_keep_their_order_and_are_unique() -> None:
    blobs = store()
    change_aliases(blobs, a_dataset(), lambda known: known.with_pull(SECOND).with_pull(FIRST))
    change_aliases(blobs, a_dataset(), lambda known: known.with_pull(SECOND))
    change_aliases(blobs, a_dataset(), lambda known: known.with_push(FIRST))
    assert remote_aliases(blobs, a_dataset()) == RemoteAliases(pull=(SECOND, FIRST), push=(FIRST,))


def test_nothing_remains_of_aliases_that_were_all_deleted() -> None:
    blobs = store()
    change_aliases(blobs, a_dataset(), lambda known: known.with_pull(FIRST).with_push(SECOND))
    change_aliases(blobs, a_dataset(), lambda known: known.without_pull(FIRST).without_push(SECOND))
    assert blobs.note(a_dataset(), NOTE) is None


def test_a_damaged_note_is_replaced_by_the_next_change() -> None:
    blobs = store()
    for text in ("", "no JSON", "[]", '{"pull": "x", "push": []}', '{"pull": [1], "push": []}'):
        blobs.set_note(a_dataset(), NOTE, text)
        assert remote_aliases(blobs, a_dataset()) == RemoteAliases()
    change_aliases(blobs, a_dataset(), lambda known: known.with_pull(FIRST))
    assert remote_aliases(blobs, a_dataset()).pull == (FIRST,)


def test_two_changes_at_the_same_time_are_both_kept() -> None:
    blobs = store()
    with ThreadPoolExecutor(1) as pool:
        with blobs.lock_notes(a_dataset()):
            changing = pool.submit(change_aliases, blobs, a_dataset(), lambda known: known.with_pull(FIRST))
            assert not wait([changing], timeout=0.1).done
            blobs.set_note(a_dataset(), NOTE, f'{{"pull": ["{SECOND}"], "push": []}}')
        changing.result()
    assert remote_aliases(blobs, a_dataset()).pull == (SECOND, FIRST)


DATASET = a_dataset()
NAME, OTHER = a_hash("one"), a_hash("other")


def test_a_dataset_has_its_own_objects_and_references_only(tmp_path: Path) -> None:
    refs, blobs = MemoryRefStore(), LocalBlobStore(tmp_path)
    for dataset, name in ((DATASET, NAME), (a_dataset("other"), OTHER)):
        refs.compare_and_set(dataset, expected=None, new=name)
        for kind in (ObjectKind.BLOCK, ObjectKind.DATA):
            blobs.put(dataset, kind, name, kind.value.encode())
    refs.compare_and_set(DATASET, expected=None, new=OTHER, ref="next")
    stored = StoredDataset(DATASET, blobs, refs)

    assert (stored.head(), stored.head("next"), stored.head("none")) == (NAME, OTHER, None)
    assert stored.has(ObjectKind.DATA, NAME)
    assert not stored.has(ObjectKind.DATA, OTHER)
    assert stored.read_block(NAME) == b"blocks"
    assert list(stored.names(ObjectKind.DATA)) == [NAME]
    assert stored.size(ObjectKind.DATA, NAME) == len(b"data")
    assert stored.local_path(ObjectKind.DATA, NAME).read_bytes() == b"data"
    with stored.open(ObjectKind.DATA, NAME) as file:
        assert file.read() == b"data"


def test_a_block_that_cannot_be_continued_from_is_named_by_its_file() -> None:
    blobs, block = MemoryBlobStore(), a_chain().blocks[0]
    file = f"datasets/{DATASET.folder}/blocks/{block.hash}"
    for require in (require_readable_block, require_stored_block):
        with pytest.raises(Damaged, match="the file is missing") as damaged:
            require(blobs, DATASET, block.hash)
        assert damaged.value.file == file

    blobs.put(DATASET, ObjectKind.BLOCK, block.hash, block.raw[:-1])
    require_stored_block(blobs, DATASET, block.hash)
    with pytest.raises(Damaged, match="does not match its hash") as damaged:
        require_readable_block(blobs, DATASET, block.hash)
    assert damaged.value.file == file
