"""Notes stored next to a dataset's objects, and the keys of its batches."""

import pytest
from odf_testing.builders import a_chain, a_dataset, a_hash, a_push_source, a_schema, a_seed
from odf_testing.memory_store import MemoryBlobStore

from odf_common.dataset.batch_keys import key_in_run, run_and_place, run_of
from odf_common.dataset.dataset_notes import (
    COMPLETE,
    DROPPED,
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
from odf_common.errors import HeadMoved, OdfError, Unavailable
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
