import contextlib
import errno
import os
import random
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any, NoReturn

import numpy as np
import pyarrow as pa
import pytest
from structlog.testing import capture_logs

from odf_ingest.history import run_store
from odf_ingest.history.indexes import CurrentRows, KeyIndex
from odf_ingest.history.run_file import RunLayout, RunLimits
from odf_ingest.history.run_store import RunFolder, RunStore

APPEND, RETRACT = 0, 1
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string()), ("op", pa.uint8())])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "dataset").mkdir()
    return tmp_path / "dataset" / "index" / "keys"


# A few records are handled like millions: in blocks, mapped, and merged from disk to disk.
TINY = RunLimits(
    runs_per_merge=3,
    keys_in_memory=8,
    keys_per_merge_step=5,
    block_rows=2,
    mapped_from_bytes=0,
    synced_from_bytes=0,
)


def test_limits_suit_millions_of_records() -> None:
    assert RunLimits() == RunLimits(
        runs_per_merge=8,
        keys_in_memory=131_072,
        keys_per_merge_step=131_072,
        block_bytes=16_384,
        block_rows=8192,
        mapped_from_bytes=262_144,
        synced_from_bytes=16_777_216,
    )


def a_store(folder: Path | None, **changed: Any) -> RunStore:
    store = RunStore(folder, **changed)
    store.load()
    return store


def add(store: RunStore, keys: Collection[int], head: str) -> None:
    KeyIndex(store).add(np.array(sorted(keys)), head)


def held(store: RunStore) -> set[int]:
    return {int(key) for run in store.runs for key in run.keys.tolist()}


def as_keys(numbers: Collection[int], *, is_text: bool) -> Any:
    texts = [f"{'x' * (number % 5)}{number}".encode() for number in numbers]
    return np.sort(np.array(texts if is_text else list(numbers)))


@pytest.mark.parametrize("is_text", [False, True])
def test_keys_are_found_again_after_any_restart(folder: Path, *, is_text: bool) -> None:
    source = random.Random(7)
    known: set[int] = set()
    store = a_store(folder, limits=TINY)
    for number in range(60):
        store = a_store(folder, limits=TINY) if number % 3 == 0 else store
        assert list(store.heads[:1]) == [str(number)] * min(number, 1)
        new = set(source.sample(range(10_000), source.choice([1, 2, 9, 40]))) - known
        index = KeyIndex(store)
        index.add(as_keys(new, is_text=is_text), str(number + 1))
        known |= new
        assert index.holds(as_keys(known, is_text=is_text)).all()
        assert not index.holds(as_keys(set(range(-50, 10_050)) - known, is_text=is_text)).any()
    assert len(store.runs) < 28
    assert len(list(folder.glob("*.run"))) == len(store.runs), "no file is left behind"


def test_rows_are_found_again_after_any_restart(folder: Path) -> None:
    source = random.Random(7)
    expected: dict[int, str] = {}
    rows = CurrentRows(("k",), a_store(folder, limits=TINY))
    for number in range(80):
        rows = CurrentRows(("k",), a_store(folder, limits=TINY)) if number % 3 == 0 else rows
        batch: list[dict[str, Any]] = [
            {"k": source.randrange(60), "v": str(source.random()), "op": source.choice([APPEND, RETRACT])}
            for _ in range(source.choice([1, 5, 30]))
        ]
        rows.add(pa.Table.from_pylist(batch, SCHEMA), "op", str(number))
        for row in batch:
            expected.pop(row["k"], None)
            if row["op"] == APPEND:
                expected[row["k"]] = row["v"]
        wanted = np.array(sorted(source.sample(range(-5, 65), 20)))
        found = {row["k"]: row["v"] for row in rows.current(wanted).to_pylist()}
        assert found == {key: value for key, value in expected.items() if key in wanted}
        assert {row["k"]: row["v"] for row in rows.current().to_pylist()} == expected


def test_a_changed_byte_anywhere_is_found(folder: Path) -> None:
    rows = CurrentRows(("k",), a_store(folder, limits=TINY))
    for number in range(5):
        batch = [{"k": key, "v": f"{number}", "op": APPEND} for key in range(number * 4, number * 4 + 10)]
        rows.add(pa.Table.from_pylist(batch, SCHEMA), "op", str(number))
    expected = rows.current().sort_by("k").to_pylist()
    # By length: names are random, and each run should change the same bytes.
    files = {
        file: file.read_bytes()
        for file in sorted(folder.iterdir(), key=lambda file: file.stat().st_size)
        if file.name != run_store.LOCK
    }
    changes = [(file, place) for file, content in files.items() for place in range(len(content))]
    for changed, place in random.Random(7).sample(changes, 300):
        for file, content in files.items():
            file.write_bytes(content)
        content = files[changed]
        changed.write_bytes(content[:place] + bytes([content[place] ^ 0x40]) + content[place + 1 :])
        assert a_store(folder, limits=TINY).heads[:1] != ["4"]
    for file, content in files.items():
        file.write_bytes(content)
    kept = CurrentRows(("k",), a_store(folder, limits=TINY))
    assert kept.current().sort_by("k").to_pylist() == expected


def test_a_truncated_or_missing_file_invalidates_the_later_runs(folder: Path) -> None:
    store = a_store(folder)
    add(store, range(100_000), "a")
    add(store, range(100_000, 100_100), "b")
    first, second = (folder / str(one.file) for one in store._held)
    content = second.read_bytes()
    for spoil in (lambda: second.write_bytes(content[:-1]), lambda: second.write_bytes(b""), second.unlink):
        spoil()
        assert a_store(folder).heads == ["a"]
        second.write_bytes(content)
    store = a_store(folder)
    assert store.heads == ["b", "a"]
    first.unlink()
    assert a_store(folder).heads == []


def test_rows_of_runs_with_different_columns_are_found_together(folder: Path) -> None:
    batches = [
        [{"k": key, "op": APPEND, column: f"{number}"} for key in range(number * 4, number * 4 + 6)]
        for number, column in enumerate(["v", "v", "w", "w", "v"])
    ]
    rows = CurrentRows(("k",), a_store(folder, limits=TINY))
    for number, batch in enumerate(batches):
        rows.add(pa.Table.from_pylist(batch), "op", str(number))
    expected = {row["k"]: {"v": None, "w": None} | row for batch in batches for row in batch}
    kept = CurrentRows(("k",), a_store(folder, limits=TINY))
    for chosen in (range(-1, 30), range(0, 30, 3), (5, 21)):
        found = {row["k"]: row for row in kept.current(np.array(chosen)).to_pylist()}
        assert {key: (row["v"], row["w"]) for key, row in found.items()} == {
            key: (row["v"], row["w"]) for key, row in expected.items() if key in chosen
        }


def test_runs_of_another_format_equality_or_key_are_not_used(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(a_store(folder), [1], "a")
    with monkeypatch.context() as earlier:
        earlier.setattr(run_store, "FORMAT", run_store.FORMAT - 1)
        assert a_store(folder).heads == []
    add(a_store(folder), [1], "a")
    assert a_store(folder).heads == ["a"]
    assert a_store(folder, key=("other",)).heads == []
    add(a_store(folder), [1], "a")
    monkeypatch.setattr(run_store, "VERSION", 2)
    assert a_store(folder).heads == []


def test_runs_after_a_block_are_cut_also_on_disk(folder: Path) -> None:
    store = a_store(folder)
    add(store, range(1000), "a")
    add(store, [2000], "b")
    store.reach("c", 1)
    assert store.heads == ["c", "b", "a"]
    store.cut("a")
    add(store, [3000], "d")
    assert held(a_store(folder)) == {*range(1000), 3000}
    store.cut(None)
    add(store, [1], "e")
    assert held(a_store(folder)) == {1}
    assert len(list(folder.glob("*.run"))) == 1


def test_a_run_is_written_once(folder: Path) -> None:
    store = a_store(folder)
    add(store, range(100), "a")
    (first,) = (file.name for file in folder.glob("*.run"))
    add(store, [200], "b")
    assert first in {file.name for file in folder.glob("*.run")}
    assert held(a_store(folder)) == {*range(100), 200}


def test_blocks_without_keys_are_not_read_again_after_each_restart(folder: Path) -> None:
    store = a_store(folder)
    add(store, [1], "a")
    for number in range(200):
        store.reach(str(number), 1)
    assert int(a_store(folder).heads[0]) > 100


def test_on_a_full_disk_runs_stay_in_memory_and_are_written_later(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = a_store(folder)
    add(store, range(10), "a")
    with monkeypatch.context() as full:

        def no_space(*_: object) -> object:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        full.setattr(RunFolder, "write", no_space)
        with capture_logs() as once:
            for number in range(10, 40):
                add(store, [number], str(number))
        assert held(store) == set(range(40))
        assert held(a_store(folder)) == set(range(10))
    add(store, [40], "b")
    assert held(a_store(folder)) == set(range(41))
    with monkeypatch.context() as full, capture_logs() as again:
        full.setattr(RunFolder, "write", no_space)
        for number in range(41, 80):
            add(store, [number], str(number))
    assert [[one["event"] for one in logs] for logs in (once, again)] == [["an index stays in memory"]] * 2


def test_no_files_are_left_of_a_run_or_manifest_that_cannot_be_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(a_store(folder), [1], "a")
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    runs = RunFolder(folder, {}, RunLimits())

    def no_space(*_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OSError, match="No space"):
        runs.write(no_space, "a")
    monkeypatch.setattr(Path, "replace", no_space)
    with pytest.raises(OSError, match="No space"):
        runs.replace([], None)
    monkeypatch.setattr(Path, "open", no_space)
    with pytest.raises(OSError, match="No space"):
        runs.write(no_space, "a")
    monkeypatch.undo()
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


@pytest.mark.parametrize(("longer", "is_synced"), [(0, True), (1, False)])
def test_a_long_run_is_complete_on_disk_when_it_is_used_and_short_ones_cost_no_waiting(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, longer: int, is_synced: bool
) -> None:
    content, synced = b"x" * 100, list[int]()
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(os.fstat(handle).st_size))
    folder.mkdir(parents=True)
    limits = RunLimits(synced_from_bytes=len(content) + longer)

    def fill(file: IO[bytes]) -> RunLayout:
        file.write(content)
        return RunLayout(dtype="|S1", count=100, rows_bytes=0)

    RunFolder(folder, {}, limits).write(fill, "a")
    assert synced == [len(content)] * is_synced


def test_a_lock_is_refused_to_a_second_writer_and_free_again_after_an_error(folder: Path) -> None:
    one, other = RunFolder(folder, {}, RunLimits()), RunFolder(folder, {}, RunLimits())
    with contextlib.suppress(ValueError), one.try_lock() as is_locked:
        with other.try_lock() as is_locked_too:
            assert (is_locked, is_locked_too) == (True, False)
        raise ValueError
    with other.try_lock() as is_locked:
        assert is_locked


def test_the_runs_of_the_last_writer_are_adopted_by_the_other(folder: Path) -> None:
    one, other = a_store(folder), RunStore(folder)
    add(one, [1], "a")
    other.load()
    add(other, [2], "b")
    add(one, [3], "c")  # it was suspended: none of its writes may reach the disk
    assert held(one) == {1, 3}
    assert held(a_store(folder)) == {1, 2}
    one.load()
    assert held(one) == {1, 2}
    assert one.heads[0] == "b"


def test_while_another_process_writes_runs_stay_in_memory(folder: Path) -> None:
    store, other = a_store(folder), a_store(folder)
    add(store, [1], "a")
    assert other._folder is not None
    with other._folder.try_lock() as is_locked:
        assert is_locked
        add(store, [2], "b")
        assert held(store) == {1, 2}
    assert held(a_store(folder)) == {1}
    add(store, [3], "c")
    assert held(a_store(folder)) == {1, 2, 3}


def test_a_deleted_dataset_does_not_reappear(tmp_path: Path) -> None:
    store = a_store(tmp_path / "gone" / "index" / "keys")
    add(store, [1], "a")
    assert held(store) == {1}
    assert list(tmp_path.iterdir()) == []


OPERATIONS = ("open", "replace", "unlink", "write_bytes", "mkdir")


def test_a_kill_at_any_operation_loses_no_more_than_the_last_runs(tmp_path: Path) -> None:
    batches = [range(number * 7, number * 7 + 7) for number in range(6)]
    for step in range(1, 400):
        folder = tmp_path / str(step) / "index" / "keys"
        folder.parent.parent.mkdir()
        is_killed = killed_at(step, partial(add_all, folder, batches))
        store = a_store(folder)
        reached = int(store.heads[0]) + 1 if store.heads else 0
        assert held(store) == {key for batch in batches[:reached] for key in batch}
        add_all(folder, batches[reached:], reached)
        store = a_store(folder)
        assert held(store) == {key for batch in batches for key in batch}
        assert len(list(folder.iterdir())) == len(store.runs) + 2, "what the killed process left is removed"
        if not is_killed:
            assert step > 40
            return
    pytest.fail("it never gets to the end")


def add_all(folder: Path, batches: Sequence[Sequence[int]], first: int = 0) -> None:
    store = a_store(folder, limits=TINY)
    for number, batch in enumerate(batches, first):
        add(store, batch, str(number))


def killed_at(step: int, work: Callable[[], object]) -> bool:
    """Do work in a child that ends just before its nth operation on files; return whether it did."""
    child = os.fork()
    if child == 0:
        left = step

        def counted(original: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **named: Any) -> Any:
                nonlocal left
                left -= 1
                if left == 0:
                    os._exit(9)
                return original(*args, **named)

            return call

        for name in OPERATIONS:
            setattr(Path, name, counted(getattr(Path, name)))
        os.fsync = counted(os.fsync)
        try:
            work()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


@pytest.mark.parametrize(
    ("lengths", "first"),
    [([1], 0), ([1] * 2, 1), ([1] * 3, 0), ([9, 1, 1], 2), ([9, 1, 1, 1], 1), ([9, 3, 3, 1, 1, 1], 1)],
)
def test_as_many_runs_of_a_tier_as_it_may_have_are_merged_the_oldest_too(
    lengths: Sequence[int], first: int
) -> None:
    assert run_store._first_to_merge(lengths, 3) == first
