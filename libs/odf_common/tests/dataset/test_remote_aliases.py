from concurrent.futures import ThreadPoolExecutor, wait

from odf_testing.builders import a_dataset
from odf_testing.memory_store import MemoryBlobStore, MemoryRefStore

from odf_common.dataset.dataset_notes import NOTE, RemoteAliases, change_aliases, remote_aliases

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
        with blobs.noting(a_dataset()):
            changing = pool.submit(change_aliases, blobs, a_dataset(), lambda known: known.with_pull(FIRST))
            assert not wait([changing], timeout=0.1).done
            blobs.set_note(a_dataset(), NOTE, f'{{"pull": ["{SECOND}"], "push": []}}')
        changing.result()
    assert remote_aliases(blobs, a_dataset()).pull == (SECOND, FIRST)
