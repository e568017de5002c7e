import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from odf_common.adapters.local import durable
from odf_common.adapters.s3.cache import IN_USE_SECONDS, LOCK, MARK_SECONDS, ObjectCache

BLOCK = 4096  # bytes of the smallest file on disk
LIMIT = 10 * BLOCK


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000_000.0

    def __call__(self) -> float:
        self.now += 1  # no two files were used at the same time
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def cache(tmp_path: Path, clock: Clock) -> ObjectCache:
    return ObjectCache(tmp_path / "cache", LIMIT, clock)


def copies(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "cache").rglob("*") if not path.name.startswith("."))


def test_copies_are_found_by_their_names(cache: ObjectCache, tmp_path: Path) -> None:
    assert cache.find("one/data/a") is None
    cache.put("one/data/a", b"first")
    (tmp_path / "file").write_bytes(b"second")
    assert cache.take("one/data/b", tmp_path / "file") == cache.find("one/data/b")
    found = [cache.find(name) for name in ("one/data/a", "one/data/b")]
    assert [path.read_bytes() for path in found if path is not None] == [b"first", b"second"]
    assert not (tmp_path / "file").exists()


def test_the_longest_unused_copies_are_removed_when_there_are_too_many(
    cache: ObjectCache, tmp_path: Path, clock: Clock
) -> None:
    for number in range(10):
        cache.put(str(number), bytes(BLOCK))
    clock.now += IN_USE_SECONDS + MARK_SECONDS
    assert cache.find("0") is not None
    cache.put("10", bytes(BLOCK))
    assert copies(tmp_path) == ["0", "10", "3", "4", "5", "6", "7", "8", "9"]


def test_nothing_is_removed_while_all_copies_fit(cache: ObjectCache, tmp_path: Path, clock: Clock) -> None:
    for number in range(9):
        cache.put(str(number), bytes(BLOCK))
    clock.now += IN_USE_SECONDS
    cache.put("9", bytes(BLOCK))
    assert len(copies(tmp_path)) == 10


def test_copies_in_use_stay_up_to_one_and_a_half_times_the_limit(
    cache: ObjectCache, tmp_path: Path, clock: Clock
) -> None:
    for number in range(15):
        cache.put(f"{number:02}", bytes(BLOCK))
    assert len(copies(tmp_path)) == 15
    clock.now += IN_USE_SECONDS
    cache.put("30", bytes(BLOCK))
    assert len(copies(tmp_path)) == 9  # nine tenths of the limit


def test_the_longest_unused_copies_are_removed_beyond_that_even_if_they_are_in_use(
    cache: ObjectCache, tmp_path: Path, clock: Clock
) -> None:
    for number in range(15):
        cache.put(f"{number:02}", bytes(BLOCK))
    clock.now += MARK_SECONDS
    assert cache.find("00") is not None
    cache.put("15", bytes(BLOCK))
    assert copies(tmp_path) == ["00", *[f"{number:02}" for number in range(2, 16)]]
    for number in range(16, 40):
        cache.put(f"{number:02}", bytes(BLOCK))
        assert len(copies(tmp_path)) == 15
    assert copies(tmp_path) == [f"{number:02}" for number in range(25, 40)]


def test_a_copy_that_is_open_stays_complete_when_it_is_removed(cache: ObjectCache) -> None:
    with cache.put("first", b"content").open("rb") as first:
        for number in range(20):
            cache.put(str(number), bytes(BLOCK))
        assert cache.find("first") is None
        assert first.read() == b"content"


def test_two_processes_keep_one_limit(cache: ObjectCache, tmp_path: Path, clock: Clock) -> None:
    other = ObjectCache(tmp_path / "cache", LIMIT, clock)
    for number in range(10):
        cache.put(str(number), bytes(BLOCK))
    clock.now += IN_USE_SECONDS
    other.put("10", bytes(BLOCK))
    assert copies(tmp_path) == ["10", *map(str, range(2, 10))]
    assert cache.find("0") is None


def test_the_cache_is_measured_by_one_process_at_a_time_and_others_do_not_wait_for_it(
    cache: ObjectCache, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = SimpleNamespace(pause=lambda _: pytest.fail("it waits for the lock"))
    monkeypatch.setattr(durable, "LOCK_POLL", waiting)
    with durable.lock_file(tmp_path / "cache" / LOCK):
        for number in range(30):
            cache.put(str(number), bytes(BLOCK))
            clock.now += IN_USE_SECONDS
    assert len(copies(tmp_path)) == 30


def test_a_copy_larger_than_the_limit_is_kept_until_another_is_added(
    cache: ObjectCache, tmp_path: Path
) -> None:
    cache.put("old", bytes(BLOCK))
    large = cache.put("large", bytes(3 * LIMIT))
    assert large.stat().st_size == 3 * LIMIT
    assert copies(tmp_path) == ["large"]
    cache.put("small", bytes(BLOCK))
    assert copies(tmp_path) == ["small"]


def test_dropped_and_unfinished_copies_are_removed(cache: ObjectCache, tmp_path: Path) -> None:
    for name in ("one/data/a", "one/data/b", "two/data/a"):
        cache.put(name, b"")
    unfinished = tmp_path / "cache" / "two" / "data" / f"{durable.PENDING}1"
    unfinished.write_bytes(b"")
    os.utime(unfinished, (10, 10))
    cache.drop("one/data/a")
    cache.drop("one/data/none")
    assert cache.find("one/data/b") is not None
    cache.drop("one")
    cache.sweep(untouched_since=20)
    assert cache.find("one/data/b") is None
    assert cache.find("two/data/a") is not None
    assert not unfinished.exists()


def test_a_copy_is_marked_as_used_at_most_once_a_minute(tmp_path: Path) -> None:
    clock = [10_000.0]
    cache = ObjectCache(tmp_path, 1 << 20, clock=lambda: clock[-1])
    file = cache.put("copy", b"content")
    marks = []
    for now in (10_030.0, 10_060.0, 10_061.0, 10_100.0):
        clock.append(now)
        cache.find("copy")
        marks.append(file.stat().st_mtime)

    assert marks == [10_000.0, 10_000.0, 10_061.0, 10_061.0]


def test_copies_that_were_used_or_removed_by_others_since_they_were_measured_are_left_alone(
    cache: ObjectCache, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(10):
        cache.put(str(number), bytes(BLOCK))
    clock.now += IN_USE_SECONDS + MARK_SECONDS
    measured = cache._copies

    def used_meanwhile() -> Iterator[tuple[float, int, str]]:
        yield from list(measured())
        assert cache.find("0") is not None
        (tmp_path / "cache" / "1").unlink()

    monkeypatch.setattr(cache, "_copies", used_meanwhile)
    cache.put("10", bytes(BLOCK))
    assert copies(tmp_path) == ["0", "10", *"456789"]


def test_unfinished_copies_of_other_processes_and_names_without_a_file_are_no_copies(
    cache: ObjectCache, tmp_path: Path, clock: Clock
) -> None:
    folder = tmp_path / "cache"
    folder.mkdir()
    unfinished, gone = folder / f"{durable.PENDING}1", folder / "gone"
    unfinished.write_bytes(bytes(BLOCK))
    os.utime(unfinished, (10, 10))
    gone.symlink_to("nowhere")
    for number in range(10):
        cache.put(str(number), bytes(BLOCK))
    clock.now += IN_USE_SECONDS
    cache.put("10", bytes(BLOCK))
    assert unfinished.exists()
    assert copies(tmp_path) == ["10", *"23456789", "gone"]


def test_the_folder_is_measured_after_each_twentieth_of_the_limit(
    cache: ObjectCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    puts: list[str] = []
    measured: list[int] = []
    monkeypatch.setattr(cache, "_evict", lambda _: measured.append(len(puts)))
    for number in range(20):
        cache.put(str(number), bytes(LIMIT // 80))
        puts.append(str(number))
    assert measured == [0, 4, 8, 12, 16]


def test_a_copy_is_whole_after_a_power_cut(
    cache: ObjectCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(os.fstat(handle).st_ino))
    copy = cache.put("a", b"x")
    (tmp_path / "file").write_bytes(b"y")
    taken = cache.take("b", tmp_path / "file")
    assert {copy.stat().st_ino, taken.stat().st_ino} <= set(synced)


def test_a_copy_is_dropped_whether_it_exists_or_not(cache: ObjectCache) -> None:
    cache.put("one/data/a", b"first")
    cache.put("one/data/b", b"second")
    for _ in range(2):
        cache.drop("one/data/a")
    assert cache.find("one/data/a") is None
    assert cache.find("one/data/b") is not None


def test_files_that_are_moved_in_are_counted_like_written_ones(
    cache: ObjectCache, tmp_path: Path, clock: Clock
) -> None:
    for number in range(11):
        clock.now += IN_USE_SECONDS + MARK_SECONDS if number == 10 else 0
        file = tmp_path / "file"
        file.write_bytes(bytes(BLOCK))
        cache.take(str(number), file)
    assert copies(tmp_path) == ["10", *"23456789"]
