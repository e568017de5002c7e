import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from odf_testing.builders import a_dataset
from odf_testing.power_cut import Recorder

from odf_common.adapters.local import durable
from odf_common.adapters.local.durable import LockHeld
from odf_common.errors import Damaged, InvalidInput, NotFound, StorageUnavailable
from odf_ingest import accepted_pushes as module
from odf_ingest.accepted_pushes import Receipt, Receipts, State, id_of
from odf_ingest.errors import KeyReused, TooManyPending

DATASET = a_dataset()


@pytest.fixture
def receipts(tmp_path: Path) -> Receipts:
    return Receipts(tmp_path / "home")


def staged(tmp_path: Path, text: str = "x") -> Path:
    file = tmp_path / f"staged-{text}"
    file.write_text(text)
    return file


def a_receipt(key: str = "k", digest: str = "d") -> Receipt:
    return Receipt(
        id=id_of(DATASET, "default", key),
        source="default",
        key=key,
        is_key_generated=False,
        input_format="",
        event_time="2026-01-01T00:00:00Z",
        digest=digest,
        size=1,
        accepted_at=1,
    )


def batches(tmp_path: Path) -> list[str]:
    return sorted(file.name for file in (tmp_path / "home").rglob("*.batch"))


def test_what_is_accepted_is_found_by_another_process_in_order(receipts: Receipts, tmp_path: Path) -> None:
    for key in ("b", "a", "c"):
        receipts.accept(DATASET, a_receipt(key), staged(tmp_path, key))
    other = Receipts(tmp_path / "home")
    assert list(other.datasets()) == [DATASET]
    found = other.pending(DATASET)
    assert [one.receipt.key for one in found] == ["b", "a", "c"]
    assert [one.batch.read_text() for one in found] == ["b", "a", "c"]
    assert other.find(DATASET, found[0].receipt.id) == a_receipt("b")


def test_the_same_push_again_is_the_same_receipt_with_one_batch(receipts: Receipts, tmp_path: Path) -> None:
    first = receipts.accept(DATASET, a_receipt(), staged(tmp_path))
    again = receipts.accept(DATASET, replace(a_receipt(), accepted_at=2), staged(tmp_path))
    assert again == first
    assert len(batches(tmp_path)) == 1


def test_of_many_simultaneous_pushes_with_one_key_one_is_stored(receipts: Receipts, tmp_path: Path) -> None:
    file = staged(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        found = list(
            pool.map(lambda n: receipts.accept(DATASET, replace(a_receipt(), accepted_at=n), file), range(16))
        )
    assert len(set(found)) == 1
    assert len(batches(tmp_path)) == 1


def test_other_content_under_a_known_key_is_refused_also_once_it_is_settled(
    receipts: Receipts, tmp_path: Path
) -> None:
    receipts.accept(DATASET, a_receipt(), staged(tmp_path))
    for _ in range(2):
        with pytest.raises(KeyReused, match="nothing of this push was accepted"):
            receipts.accept(DATASET, a_receipt(digest="other"), staged(tmp_path))
        receipts.settle(DATASET, replace(a_receipt(), state=State.COMMITTED))
    assert receipts.pending(DATASET) == []


def test_a_refused_push_leaves_its_key_free(receipts: Receipts, tmp_path: Path) -> None:
    receipts.accept(DATASET, a_receipt(), staged(tmp_path))
    receipts.settle(DATASET, replace(a_receipt(), state=State.REFUSED))
    better = receipts.accept(DATASET, a_receipt(digest="better"), staged(tmp_path, "better"))
    assert [one.receipt for one in receipts.pending(DATASET)] == [better]


def test_no_push_is_accepted_while_files_of_others_are_removed(
    receipts: Receipts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, a refused push that is accepted again meanwhile would lose its new batch or its receipt."""
    folder = tmp_path / "home/accepted" / DATASET.folder
    unlink, removed = Path.unlink, set[str]()

    def contended(file: Path, *, missing_ok: bool = False) -> None:
        with pytest.raises(LockHeld), durable.lock_file(folder / "accept.lock", wait_seconds=0):
            pass
        removed.add(file.name)
        unlink(file, missing_ok=missing_ok)

    receipts.accept(DATASET, a_receipt(), staged(tmp_path))
    (batch,) = batches(tmp_path)
    monkeypatch.setattr(Path, "unlink", contended)
    receipts.settle(DATASET, replace(a_receipt(), state=State.REFUSED))
    assert removed == {batch}
    (folder / batch).write_text("x")
    receipts.pending(DATASET)
    assert batches(tmp_path) == []
    os.utime(folder / f"{a_receipt().id}.json", (0, 0))
    receipts.tidy()
    assert removed == {batch, f"{a_receipt().id}.json"}


def test_a_settled_push_has_no_batch_and_keeps_its_receipt(receipts: Receipts, tmp_path: Path) -> None:
    receipts.accept(DATASET, a_receipt(), staged(tmp_path))
    done = replace(a_receipt(), state=State.COMMITTED, head="h", records=3)
    receipts.settle(DATASET, done)
    assert batches(tmp_path) == []
    assert receipts.find(DATASET, done.id) == done
    assert list(receipts.datasets()) == []


def test_a_batch_without_a_receipt_was_never_accepted(
    receipts: Receipts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(durable, "write", killed)
        patch.setattr(Receipts, "_drop_batches", lambda *_: None)  # killed before it could clean up
        with pytest.raises(KeyboardInterrupt):
            receipts.accept(DATASET, a_receipt(), staged(tmp_path))
    assert len(batches(tmp_path)) == 1
    receipts.accept(DATASET, a_receipt(), staged(tmp_path))
    assert len(batches(tmp_path)) == 1, "the leftover is replaced"
    (tmp_path / "home/accepted" / DATASET.folder / f"{a_receipt().id}.json").unlink()
    assert receipts.pending(DATASET) == []
    assert batches(tmp_path) == []


def test_a_failed_acceptance_leaves_nothing(
    receipts: Receipts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(durable, "write", full)
        with pytest.raises(StorageUnavailable, match="the disk is full"):
            receipts.accept(DATASET, a_receipt(), staged(tmp_path))
    assert batches(tmp_path) == []


def test_a_receipt_whose_name_is_not_durable_is_removed_and_its_repeat_is_queued(
    receipts: Receipts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = durable.sync_folder

    def fail_after_rename(folder: Path) -> None:
        if (folder / f"{a_receipt().id}.json").exists():
            raise OSError(12, "Cannot allocate memory")
        sync(folder)

    with monkeypatch.context() as patch:
        patch.setattr(durable, "sync_folder", fail_after_rename)
        with pytest.raises(StorageUnavailable):
            receipts.accept(DATASET, a_receipt(), staged(tmp_path))
    assert receipts.find(DATASET, a_receipt().id) is None
    assert batches(tmp_path) == []
    receipts.accept(DATASET, a_receipt(), staged(tmp_path))
    assert [push.receipt for push in receipts.pending(DATASET)] == [a_receipt()]


def test_an_outcome_that_cannot_be_stored_keeps_the_batch(
    receipts: Receipts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    accepted = receipts.accept(DATASET, a_receipt(), staged(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr(durable, "write", full)
        with pytest.raises(StorageUnavailable):
            receipts.settle(DATASET, replace(accepted, state=State.COMMITTED))
    (waiting,) = receipts.pending(DATASET)
    assert (waiting.receipt, waiting.batch.read_text()) == (accepted, "x")


def test_a_push_is_queued_after_those_that_wait_however_many_were_settled(
    receipts: Receipts, tmp_path: Path
) -> None:
    for id_ in ("b" * 32, "d" * 32, "c" * 32):
        receipts.accept(DATASET, replace(a_receipt(), id=id_), staged(tmp_path))
    receipts.settle(DATASET, replace(a_receipt(), id="b" * 32, state=State.COMMITTED))
    receipts.accept(DATASET, replace(a_receipt(), id="a" * 32), staged(tmp_path))
    assert [one.receipt.id[0] for one in receipts.pending(DATASET)] == ["d", "c", "a"]


def test_a_key_names_one_push_of_one_source_of_one_dataset() -> None:
    places = [(DATASET, "default"), (DATASET, "other"), (a_dataset("other"), "default")]
    assert len({id_of(dataset, source, "k") for dataset, source in places}) == 3
    assert id_of(DATASET, "a", "b") != id_of(DATASET, "ab", "")


def test_a_kill_between_outcome_and_batch_is_cleaned_up(receipts: Receipts, tmp_path: Path) -> None:
    receipts.accept(DATASET, a_receipt(), staged(tmp_path))
    name = batches(tmp_path)[0]
    receipts.settle(DATASET, replace(a_receipt(), state=State.COMMITTED))
    (tmp_path / "home/accepted" / DATASET.folder / name).write_text("x")
    assert receipts.pending(DATASET) == []
    assert batches(tmp_path) == []


def test_content_is_durable_before_the_receipt(
    receipts: Receipts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = staged(tmp_path)
    synced: list[int] = []
    fsync = os.fsync

    def noted(handle: int) -> None:
        synced.append(os.fstat(handle).st_ino)
        fsync(handle)

    monkeypatch.setattr(os, "fsync", noted)
    receipts.accept(DATASET, a_receipt(), file)
    folder = tmp_path / "home/accepted" / DATASET.folder
    receipt = folder / f"{a_receipt().id}.json"
    order = [synced.index(one.stat().st_ino) for one in (file, receipt)]
    assert order == sorted(order)
    assert synced[-1] == folder.stat().st_ino


def test_an_accepted_push_outlives_a_power_cut_and_no_receipt_is_without_its_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, receipt = tmp_path / "disk", a_receipt()
    home.mkdir()
    recorder, file = Recorder(home), staged(home)
    with recorder.recording(monkeypatch):
        Receipts(home).accept(DATASET, receipt, file)
    batch, known = (
        f"accepted/{DATASET.folder}/{name}"
        for name in (f"000000001-{receipt.id}.batch", f"{receipt.id}.json")
    )
    for disk in recorder.disks():
        # A file system may write the receipt's name early, and that of the batch not.
        if known in disk.after_cut(lambda _: True):
            assert disk.after_cut(lambda _: False)[batch] == file.read_bytes()
    assert known in disk.after_cut(lambda _: False)


def test_no_more_than_a_thousand_wait(
    receipts: Receipts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_PENDING_PUSHES", 2)
    for key in "ab":
        receipts.accept(DATASET, a_receipt(key), staged(tmp_path))
    refused = replace(a_receipt("c"), state=State.REFUSED)
    receipts.settle(DATASET, refused)
    with pytest.raises(TooManyPending, match="2 pushes of this dataset wait"):
        receipts.accept(DATASET, a_receipt("c"), staged(tmp_path))
    assert receipts.find(DATASET, refused.id) == refused
    assert receipts.accept(DATASET, a_receipt("a"), staged(tmp_path)).key == "a"


def test_one_process_settles_a_datasets_pushes(receipts: Receipts, tmp_path: Path) -> None:
    receipts.accept(DATASET, a_receipt(), staged(tmp_path))
    with receipts.working(DATASET) as first, Receipts(tmp_path / "home").working(DATASET) as second:
        assert (first, second) == (True, False)
    with receipts.working(DATASET) as later:
        assert later


def test_receipts_are_forgotten_after_a_week_but_never_a_waiting_one(
    receipts: Receipts, tmp_path: Path
) -> None:
    for key in ("waiting", "old", "new"):
        receipts.accept(DATASET, a_receipt(key), staged(tmp_path))
    day = 24 * 3600.0
    for key in ("old", "new"):
        receipts.settle(DATASET, replace(a_receipt(key), state=State.COMMITTED))
    folder = tmp_path / "home/accepted" / DATASET.folder
    now = time.time()
    for key, age in (("waiting", 9 * day), ("old", 7.1 * day), ("new", 6.9 * day)):
        os.utime(folder / f"{a_receipt(key).id}.json", (now - age, now - age))
    (unfinished := folder / f"{durable.PENDING}x").touch()
    os.utime(unfinished, (now - 8 * day, now - 8 * day))
    receipts.tidy()
    assert not unfinished.exists()
    found = [key for key in ("waiting", "old", "new") if receipts.find(DATASET, a_receipt(key).id)]
    assert found == ["waiting", "new"]


@pytest.mark.parametrize("id_", ["", "../../names/x", "g" * 32, "A" * 32, "a" * 33])
def test_an_invalid_receipt_id_is_refused(receipts: Receipts, id_: str) -> None:
    with pytest.raises(InvalidInput, match="not a receipt"):
        receipts.find(DATASET, id_)


def test_a_damaged_receipt_is_named(receipts: Receipts, tmp_path: Path) -> None:
    receipts.accept(DATASET, a_receipt(), staged(tmp_path))
    (tmp_path / "home/accepted" / DATASET.folder / f"{a_receipt().id}.json").write_text("{")
    with pytest.raises(Damaged, match=r"^accepted/fed01.*\.json cannot be used"):
        receipts.find(DATASET, a_receipt().id)


def test_a_missing_staged_file_is_named(receipts: Receipts, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="staged file gone"):
        receipts.accept(DATASET, a_receipt(), tmp_path / "gone")


def test_a_lock_that_cannot_be_opened_is_a_fault_of_the_store_and_no_bug(tmp_path: Path) -> None:
    (tmp_path / "accepted" / a_dataset(1).folder / "worker.lock").mkdir(parents=True)
    with pytest.raises(Damaged), Receipts(tmp_path).working(a_dataset(1)):
        pass
