"""Contracts of ports as tests: an adapter's test class inherits one and provides its fixture.

For a blob store that takes three lines: a class that inherits `BlobStoreContract` with a fixture `blobs`.
"""

import contextlib
import multiprocessing
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Barrier

import pytest

from odf_common.dataset.state_cache import StateCache
from odf_common.errors import AlreadyExists, HeadMoved, NotFound
from odf_common.hashing.multihash import Multihash, physical_hash_of
from odf_common.identity.dataset_refs import DatasetId
from odf_common.ports.store import BlobStore, Catalog, CatalogEntry, Locks, ObjectKind, RefStore

CONTENT = b"some bytes"
NAME = physical_hash_of(CONTENT)


def a_dataset(number: int = 1) -> DatasetId:
    """Return one of many dataset ids."""
    return DatasetId.of_key(number.to_bytes(32, "big"))


def a_hash(number: int = 1) -> Multihash:
    """Return one of many hashes."""
    return physical_hash_of(number.to_bytes(8, "big"))


def an_entry(alias: str = "cities", number: int = 1, **topics: str) -> CatalogEntry:
    """Return the catalog entry of a dataset."""
    return CatalogEntry(alias=alias, dataset_id=a_dataset(number), push_topics=topics)


class BlobStoreContract:
    """Objects are found by dataset, kind and name, and never change. Fixture: `blobs`, empty."""

    def test_what_was_put_is_read_back(self, blobs: BlobStore) -> None:
        """For every way to read."""
        blobs.put(a_dataset(), ObjectKind.BLOCK, NAME, CONTENT)
        assert blobs.has(a_dataset(), ObjectKind.BLOCK, NAME)
        assert blobs.read(a_dataset(), ObjectKind.BLOCK, NAME) == CONTENT
        assert blobs.size(a_dataset(), ObjectKind.BLOCK, NAME) == len(CONTENT)
        path = blobs.local_path(a_dataset(), ObjectKind.BLOCK, NAME)
        assert path.read_bytes() == CONTENT
        assert blobs.local_copy(a_dataset(), ObjectKind.BLOCK, NAME) == path
        with blobs.open(a_dataset(), ObjectKind.BLOCK, NAME) as file:
            assert file.read() == CONTENT

    def test_objects_of_other_datasets_and_kinds_are_not_seen(self, blobs: BlobStore) -> None:
        """The same hash may name an object in one place only."""
        blobs.put(a_dataset(1), ObjectKind.DATA, NAME, CONTENT)
        assert not blobs.has(a_dataset(2), ObjectKind.DATA, NAME)
        assert not blobs.has(a_dataset(1), ObjectKind.CHECKPOINT, NAME)

    def test_a_missing_object_is_not_found(self, blobs: BlobStore) -> None:
        """For every way to read."""
        for read in (blobs.read, blobs.size, blobs.open, blobs.local_path):
            with pytest.raises(NotFound):
                read(a_dataset(), ObjectKind.DATA, NAME)

    def test_an_existing_object_is_left_unchanged(self, blobs: BlobStore) -> None:
        """Names are hashes: the first content is as good as a later one."""
        blobs.put(a_dataset(), ObjectKind.DATA, NAME, CONTENT)
        blobs.put(a_dataset(), ObjectKind.DATA, NAME, b"other bytes")
        assert blobs.read(a_dataset(), ObjectKind.DATA, NAME) == CONTENT

    def test_many_objects_are_stored_at_once_and_existing_ones_are_left_unchanged(
        self, blobs: BlobStore
    ) -> None:
        blobs.put(a_dataset(), ObjectKind.DATA, NAME, CONTENT)
        blobs.put_all(a_dataset(), ObjectKind.DATA, [])
        new = [(a_hash(number), b"%d" % number) for number in range(100)]
        blobs.put_all(a_dataset(), ObjectKind.DATA, [*new, (NAME, b"other bytes"), new[0]])
        assert blobs.read(a_dataset(), ObjectKind.DATA, NAME) == CONTENT
        assert [(name, blobs.read(a_dataset(), ObjectKind.DATA, name)) for name, _ in new] == new
        assert set(blobs.names(a_dataset(), ObjectKind.DATA)) == {NAME, *(name for name, _ in new)}

    def test_a_file_is_moved_in(self, blobs: BlobStore) -> None:
        """It is moved, even if the object existed."""
        folder = blobs.scratch()
        for _ in range(2):
            file = folder / "file"
            file.write_bytes(CONTENT)
            blobs.put_file(a_dataset(), ObjectKind.CHECKPOINT, NAME, file)
            assert not file.exists()
        assert blobs.read(a_dataset(), ObjectKind.CHECKPOINT, NAME) == CONTENT
        shutil.rmtree(folder)

    def test_a_file_of_an_existing_object_is_dropped(self, blobs: BlobStore) -> None:
        blobs.put(a_dataset(), ObjectKind.DATA, NAME, CONTENT)
        file = blobs.scratch() / "other"
        file.write_bytes(b"other")
        blobs.put_file(a_dataset(), ObjectKind.DATA, NAME, file)
        assert blobs.read(a_dataset(), ObjectKind.DATA, NAME) == CONTENT
        assert not file.exists()

    def test_scratch_folders_are_new_and_empty(self, blobs: BlobStore) -> None:
        """Two callers never share one."""
        first, second = blobs.scratch(), blobs.scratch()
        assert first != second
        assert list(first.iterdir()) == []
        for folder in (first, second):
            shutil.rmtree(folder)

    def test_names_and_datasets_are_listed(self, blobs: BlobStore) -> None:
        """Scratch folders and other kinds are not included."""
        blobs.scratch().rmdir()
        assert list(blobs.names(a_dataset(), ObjectKind.BLOCK)) == []
        for number in (1, 2):
            blobs.put(a_dataset(number), ObjectKind.BLOCK, a_hash(number), b"")
        blobs.put(a_dataset(1), ObjectKind.BLOCK, a_hash(3), b"")
        assert set(blobs.names(a_dataset(1), ObjectKind.BLOCK)) == {a_hash(1), a_hash(3)}
        assert set(blobs.datasets()) == {a_dataset(1), a_dataset(2)}

    def test_removed_objects_are_gone_and_may_be_stored_again(self, blobs: BlobStore) -> None:
        """Others stay; removing missing ones does nothing."""
        blobs.remove(a_dataset(), ObjectKind.DATA, [NAME])
        for number in (1, 2):
            blobs.put(a_dataset(), ObjectKind.DATA, a_hash(number), CONTENT)
        assert blobs.local_path(a_dataset(), ObjectKind.DATA, a_hash(1)).is_file()
        blobs.remove(a_dataset(), ObjectKind.CHECKPOINT, [a_hash(1)])
        blobs.remove(a_dataset(), ObjectKind.DATA, [a_hash(1), a_hash(3)])
        assert list(blobs.names(a_dataset(), ObjectKind.DATA)) == [a_hash(2)]
        with pytest.raises(NotFound):
            blobs.local_path(a_dataset(), ObjectKind.DATA, a_hash(1))
        blobs.put(a_dataset(), ObjectKind.DATA, a_hash(1), CONTENT)
        assert blobs.read(a_dataset(), ObjectKind.DATA, a_hash(1)) == CONTENT

    def test_notes_are_changed_under_an_exclusive_lock(self, blobs: BlobStore) -> None:
        def count() -> None:
            for _ in range(20):
                with blobs.lock_notes(a_dataset(1)):
                    blobs.set_note(
                        a_dataset(1), "count", str(int(blobs.note(a_dataset(1), "count") or 0) + 1)
                    )

        threads = [threading.Thread(target=count, daemon=True) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert blobs.note(a_dataset(1), "count") == "60"

    def test_notes_are_kept_until_they_are_removed(self, blobs: BlobStore) -> None:
        """They belong to one dataset, and are deleted with it."""
        blobs.put(a_dataset(1), ObjectKind.BLOCK, NAME, CONTENT)
        blobs.set_note(a_dataset(1), "one", None)
        for text in ("first", "second"):
            blobs.set_note(a_dataset(1), "one", text)
        blobs.set_note(a_dataset(1), "two", "other")
        noted = [blobs.note(a_dataset(of), name) for of, name in ((1, "one"), (1, "two"), (2, "one"))]
        assert noted == ["second", "other", None]
        blobs.set_note(a_dataset(1), "one", None)
        assert blobs.note(a_dataset(1), "one") is None
        blobs.delete_dataset(a_dataset(1))
        assert blobs.note(a_dataset(1), "two") is None

    def test_a_deleted_dataset_is_gone_and_may_be_stored_again(self, blobs: BlobStore) -> None:
        """Deleting a missing one does nothing."""
        blobs.put(a_dataset(1), ObjectKind.BLOCK, NAME, CONTENT)
        blobs.put(a_dataset(2), ObjectKind.BLOCK, NAME, CONTENT)
        for _ in range(2):
            blobs.delete_dataset(a_dataset(1))
        assert not blobs.has(a_dataset(1), ObjectKind.BLOCK, NAME)
        assert list(blobs.datasets()) == [a_dataset(2)]
        blobs.put(a_dataset(1), ObjectKind.BLOCK, NAME, CONTENT)
        assert blobs.has(a_dataset(1), ObjectKind.BLOCK, NAME)


class RefStoreContract:
    """A head moves from what the mover saw, or not at all. Fixture: `refs`, empty."""

    def test_there_is_no_head_at_first(self, refs: RefStore) -> None:
        """None is an answer, not an error."""
        assert refs.head(a_dataset()) is None

    def test_a_head_moves_from_what_it_was(self, refs: RefStore) -> None:
        """From no block to the first, from the first to the second."""
        refs.compare_and_set(a_dataset(), expected=None, new=a_hash(1))
        refs.compare_and_set(a_dataset(), expected=a_hash(1), new=a_hash(2))
        assert refs.head(a_dataset()) == a_hash(2)
        assert refs.head(a_dataset(2)) is None

    def test_a_stale_mover_gets_an_error_and_nothing_changes(self, refs: RefStore) -> None:
        """The error has the expected and the actual hash."""
        refs.compare_and_set(a_dataset(), expected=None, new=a_hash(1))
        for expected in (None, a_hash(2)):
            with pytest.raises(HeadMoved) as caught:
                refs.compare_and_set(a_dataset(), expected=expected, new=a_hash(3))
            assert caught.value.actual == str(a_hash(1))
        assert refs.head(a_dataset()) == a_hash(1)

    def test_references_of_other_names_are_separate(self, refs: RefStore) -> None:
        """The name is `head` by default."""
        refs.compare_and_set(a_dataset(), expected=None, new=a_hash(1), ref="other")
        assert refs.head(a_dataset()) is None
        assert refs.head(a_dataset(), "other") == a_hash(1)

    def test_a_reference_is_removed_only_from_its_expected_block(self, refs: RefStore) -> None:
        """Others stay; names are returned in order."""
        refs.compare_and_set(a_dataset(), expected=None, new=a_hash(1))
        refs.compare_and_set(a_dataset(), expected=None, new=a_hash(2), ref="b-1")
        refs.compare_and_set(a_dataset(), expected=None, new=a_hash(3), ref="a")
        assert refs.names(a_dataset()) == ("a", "b-1", "head")
        assert refs.names(a_dataset(2)) == ()
        with pytest.raises(HeadMoved) as caught:
            refs.remove(a_dataset(), "a", expected=a_hash(1))
        assert (caught.value.ref, caught.value.actual) == ("a", str(a_hash(3)))
        refs.remove(a_dataset(), "a", expected=a_hash(3))
        assert refs.head(a_dataset(), "a") is None
        assert refs.names(a_dataset()) == ("b-1", "head")
        refs.remove(a_dataset(), "b-1", expected=None)
        assert refs.names(a_dataset()) == ("head",)

    def test_of_many_movers_exactly_one_wins_each_round(self, refs: RefStore) -> None:
        """Threads only; adapters of real stores add processes."""
        movers, rounds = 8, 20
        expected: Multihash | None = None
        with ThreadPoolExecutor(movers) as pool:
            for number in range(rounds):
                news = [a_hash(movers * number + mover) for mover in range(movers)]
                won = list(pool.map(lambda new, old=expected: _moves(refs, old, new), news))
                assert sum(won) == 1
                expected = news[won.index(True)]
                assert refs.head(a_dataset()) == expected


def _moves(refs: RefStore, expected: Multihash | None, new: Multihash) -> bool:
    try:
        refs.compare_and_set(a_dataset(), expected=expected, new=new)
    except HeadMoved:
        return False
    return True


class CatalogContract:
    """A name belongs to the first that takes it, whatever its case. Fixture: `catalog`, empty."""

    def test_an_entry_is_found_by_alias_and_by_id(self, catalog: Catalog) -> None:
        """The alias keeps its spelling, the lookup ignores it."""
        entry = an_entry("Cities.Population", default="odf.push.cities.default")
        assert catalog.by_alias(entry.alias) is None
        assert catalog.by_id(entry.dataset_id) is None
        catalog.add(entry)
        assert catalog.by_alias("cities.POPULATION") == entry
        assert catalog.by_id(entry.dataset_id) == entry

    def test_a_name_is_taken_once(self, catalog: Catalog) -> None:
        """Whatever its case; the first entry stays."""
        catalog.add(an_entry("cities", 1))
        with pytest.raises(AlreadyExists):
            catalog.add(an_entry("CITIES", 2))
        assert catalog.by_alias("cities") == an_entry("cities", 1)
        assert catalog.by_id(a_dataset(2)) is None

    def test_its_lock_is_held_by_one_at_a_time(self, catalog: Catalog) -> None:
        """And it is released on errors, too."""
        inside: list[int] = []

        def hold(number: int) -> int:
            with contextlib.suppress(NotFound), catalog.lock():
                inside.append(number)
                time.sleep(0.01)
                assert inside == [number]
                inside.clear()
                raise NotFound(what="something")
            return number

        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(hold, range(8))) == [*range(8)]

    def test_of_many_takers_exactly_one_wins(self, catalog: Catalog) -> None:
        """The others get an error."""
        with ThreadPoolExecutor(8) as pool:
            won = list(pool.map(lambda number: _takes(catalog, an_entry("cities", number)), range(8)))
        assert sum(won) == 1
        assert catalog.by_alias("cities") == an_entry("cities", won.index(True))

    def test_entries_are_sorted_by_lower_case_alias(self, catalog: Catalog) -> None:
        """Accounts are part of the alias."""
        for number, alias in enumerate(["b", "A", "me/c"]):
            catalog.add(an_entry(alias, number))
        assert [entry.alias for entry in catalog.entries()] == ["A", "b", "me/c"]

    def test_an_entry_is_replaced(self, catalog: Catalog) -> None:
        """Visible to every lookup at once."""
        catalog.add(an_entry("cities"))
        assert catalog.by_id(a_dataset()) == an_entry("cities")
        catalog.replace(an_entry("Cities", default="topic"))
        assert catalog.by_alias("cities") == an_entry("Cities", default="topic")
        assert catalog.by_id(a_dataset()) == an_entry("Cities", default="topic")
        assert len(list(catalog.entries())) == 1

    def test_an_entry_keeps_its_creation_under_other_names(self, catalog: Catalog) -> None:
        """Until it is removed: the next dataset with its id is another incarnation."""
        entry = replace(an_entry("cities"), creation="c0ffee")
        catalog.add(entry)
        catalog.rename("cities", replace(entry, alias="towns", formerly="cities"))
        found = catalog.by_id(a_dataset())
        assert found is not None
        assert found.incarnation == f"{a_dataset()}#c0ffee"
        catalog.remove("towns")
        catalog.add(an_entry("cities"))
        assert [one.incarnation for one in catalog.entries()] == [str(a_dataset())]

    def test_a_missing_entry_cannot_be_replaced(self, catalog: Catalog) -> None:
        """Replacing never creates."""
        with pytest.raises(NotFound):
            catalog.replace(an_entry())
        assert list(catalog.entries()) == []

    def test_an_entry_gets_another_name_in_one_step(self, catalog: Catalog) -> None:
        """To a free one; then the old name is free."""
        catalog.add(an_entry("cities", default="topic"))
        catalog.add(an_entry("towns", 2))
        with pytest.raises(AlreadyExists):
            catalog.rename("cities", an_entry("Towns"))
        with pytest.raises(NotFound):
            catalog.rename("villages", an_entry("hamlets"))
        catalog.rename("cities", an_entry("Places", default="topic"))
        assert [entry.alias for entry in catalog.entries()] == ["Places", "towns"]
        assert catalog.by_id(a_dataset()) == an_entry("Places", default="topic")
        catalog.add(an_entry("cities", 3))

    def test_a_claim_is_held_by_one_and_its_records_are_kept_until_it_is_settled(
        self, catalog: Catalog
    ) -> None:
        """Releasing a claim does not settle it."""
        claim = catalog.claim(a_dataset())
        assert claim is not None
        assert catalog.claim(a_dataset()) is None
        claim.write(an_entry("cities", default="one"))
        claim.write(an_entry("towns", default="two"))
        claim.release()

        (left,) = catalog.claims()
        assert (left.alias, left.dataset_id, set(left.push_topics)) == ("towns", a_dataset(), {"one", "two"})
        again = catalog.claim(a_dataset())
        assert again is not None
        assert again.entry == left
        again.settle()
        assert catalog.claims() == ()

    def test_a_claim_that_recorded_nothing_leaves_nothing(self, catalog: Catalog) -> None:
        """And others are free to take it."""
        for _ in range(2):
            claim = catalog.claim(a_dataset())
            assert claim is not None
            claim.release()
            assert catalog.claims() == ()

    def test_of_many_claims_one_is_held_at_a_time(self, catalog: Catalog) -> None:
        """Even while the previous one is being settled."""
        held: list[int] = []

        def take(number: int) -> int:
            while (claim := catalog.claim(a_dataset())) is None:
                time.sleep(0.001)
            held.append(number)
            claim.write(an_entry())
            assert held == [number]
            held.clear()
            claim.settle()
            return number

        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(take, range(8))) == [*range(8)]

    def test_a_removed_name_is_free(self, catalog: Catalog) -> None:
        """Removing a missing one does nothing."""
        catalog.add(an_entry("cities", 1))
        assert catalog.by_id(a_dataset(1)) is not None
        for _ in range(2):
            catalog.remove("Cities")
        assert catalog.by_alias("cities") is None
        assert catalog.by_id(a_dataset(1)) is None
        catalog.add(an_entry("cities", 2))
        assert catalog.by_id(a_dataset(2)) == an_entry("cities", 2)


class LocksContract:
    """One lock per dataset, which expires. Fixture: `locks`, none of them held."""

    def test_a_lock_is_held_by_one_until_it_is_released(self, locks: Locks) -> None:
        """Others are free."""
        first = locks.acquire(a_dataset(1), 5000)
        assert first is not None
        assert locks.acquire(a_dataset(1), 5000) is None
        assert locks.acquire(a_dataset(2), 5000) is not None
        first.release()
        assert locks.acquire(a_dataset(1), 5000) is not None

    def test_an_expired_lock_is_not_released_from_its_next_holder(self, locks: Locks) -> None:
        """Its holder may have been suspended."""
        old = locks.acquire(a_dataset(), 30)
        assert old is not None
        time.sleep(0.06)
        assert locks.acquire(a_dataset(), 5000) is not None
        old.release()
        assert locks.acquire(a_dataset(), 5000) is None


class StateCacheContract:
    """Bytes by dataset. Fixture: `cache`, empty."""

    def test_the_last_state_is_returned_until_it_is_forgotten(self, cache: StateCache) -> None:
        """Each dataset has its own; forgetting a missing one does nothing."""
        assert cache.get(a_dataset(1)) is None
        cache.put(a_dataset(1), b"one")
        cache.put(a_dataset(1), b"newer")
        cache.put(a_dataset(2), b"\x00\xff")
        assert cache.get(a_dataset(1)) == b"newer"
        assert cache.get(a_dataset(2)) == b"\x00\xff"
        for _ in range(2):
            cache.forget(a_dataset(1))
        assert cache.get(a_dataset(1)) is None
        assert cache.get(a_dataset(2)) == b"\x00\xff"


def _takes(catalog: Catalog, entry: CatalogEntry) -> bool:
    try:
        catalog.add(entry)
    except AlreadyExists:
        return False
    return True


def require_one_winner_of_processes(refs: Callable[[], RefStore], *, rounds: int) -> None:
    """Raise unless of two processes exactly one sets each of `rounds` heads, and all heads are those of the winners.

    `refs` opens the store in a process, so it can be pickled.
    """
    racers = 2
    spawn = multiprocessing.get_context("spawn")
    start, wins = spawn.Barrier(racers), spawn.SimpleQueue()
    processes = [spawn.Process(target=_race, args=(refs, r, rounds, start, wins)) for r in range(racers)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    won = {}
    while not wins.empty():
        number, racer = wins.get()
        assert number not in won
        won[number] = racer
    assert sorted(won) == list(range(rounds))
    assert all(refs().head(a_dataset(number)) == a_hash(racer) for number, racer in won.items())


def _race(
    open_refs: Callable[[], RefStore],
    racer: int,
    rounds: int,
    start: Barrier,
    wins: SimpleQueue[tuple[int, int]],
) -> None:
    refs = open_refs()
    for number in range(rounds):
        start.wait()
        try:
            refs.compare_and_set(a_dataset(number), expected=None, new=a_hash(racer))
            wins.put((number, racer))
        except HeadMoved:
            pass
