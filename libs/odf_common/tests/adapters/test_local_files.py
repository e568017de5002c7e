"""What only the files of a home show: who may read them, what is no object among them, and damage next to them."""

import contextlib
import time
from collections.abc import Callable
from dataclasses import replace
from io import FileIO
from pathlib import Path

import pytest
from odf_testing.contracts import CONTENT, NAME, a_dataset, a_hash, an_entry

from odf_common.adapters.local import LocalBlobStore, LocalCatalog, claims, durable, layout
from odf_common.errors import NotFound
from odf_common.hashing.multihash import Multihash
from odf_common.ports.store import ObjectKind


def test_notes_are_private(tmp_path: Path) -> None:
    blobs = LocalBlobStore(tmp_path)
    blobs.set_note(a_dataset(), "sources", "secret")
    assert layout.note_file(tmp_path, a_dataset(), "sources").stat().st_mode & 0o777 == 0o600


def test_a_file_that_spells_a_hash_in_another_way_is_no_object(tmp_path: Path) -> None:
    blobs = LocalBlobStore(tmp_path)
    blobs.put(a_dataset(), ObjectKind.DATA, NAME, CONTENT)
    folder = layout.object_file(tmp_path, a_dataset(), ObjectKind.DATA, NAME).parent
    other = str(a_hash(2)).upper()
    (folder / other).write_bytes(b"")
    (folder / "x").write_bytes(b"")
    assert str(Multihash.parse(other)) != other
    assert list(blobs.names(a_dataset(), ObjectKind.DATA)) == [NAME]


def test_an_object_that_is_missing_is_named_by_its_kind_and_hash(tmp_path: Path) -> None:
    blobs, missing = LocalBlobStore(tmp_path), f"object data/{NAME} "
    for ask in (blobs.read, blobs.open, blobs.size, blobs.local_path):
        with pytest.raises(NotFound, match=missing):
            ask(a_dataset(), ObjectKind.DATA, NAME)


def test_an_index_goes_with_its_dataset(tmp_path: Path) -> None:
    blobs = LocalBlobStore(tmp_path)
    file = blobs.index_folder(a_dataset()) / "words"
    durable.write(file, b"")
    blobs.delete_dataset(a_dataset())
    assert not file.exists()


def open_in(folder: Path) -> int:
    """Return how many files of a folder this process has open, removed ones too."""
    targets = []
    for handle in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # other threads close files meanwhile
            targets.append(str(handle.readlink()))
    return sum(target.startswith(f"{folder}/") for target in targets)


def test_a_claim_leaves_no_file_open_once_it_is_settled_or_refused(tmp_path: Path) -> None:
    held = claims.take(tmp_path, a_dataset())
    assert held is not None
    assert claims.take(tmp_path, a_dataset()) is None
    assert open_in(tmp_path) == 1

    held.settle()

    assert open_in(tmp_path) == 0


def test_a_claim_that_is_settled_while_claims_are_listed_and_what_is_no_claim_hide_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (1, 2):
        held = claims.take(tmp_path, a_dataset(number))
        assert held is not None
        held.write(an_entry(f"dataset{number}", number))
        held.release()
    settled, other = sorted(tmp_path.iterdir())
    (tmp_path / "!").write_bytes(b"")  # before all claims

    def read(file: Path) -> bytes:
        if file == settled:
            raise FileNotFoundError
        return file.read_bytes()

    monkeypatch.setattr(claims, "read_file", read)
    assert [one.dataset_id.folder for one in claims.records(tmp_path)] == [other.name]


def test_a_damaged_dataset_keeps_no_other_from_being_swept(tmp_path: Path) -> None:
    blobs = LocalBlobStore(tmp_path)
    datasets = sorted(map(a_dataset, range(3)), key=lambda one: one.folder)
    for dataset in datasets:
        blobs.put(dataset, ObjectKind.DATA, NAME, CONTENT)
        pending = durable.pending_beside(layout.object_file(tmp_path, dataset, ObjectKind.DATA, NAME))
        pending.write_bytes(b"")
    damaged = layout.dataset_folder(tmp_path, datasets[1])
    damaged.rename(tmp_path / "elsewhere")
    damaged.write_bytes(b"")
    blobs.sweep(time.time() + 1)
    left = list(tmp_path.glob(f"datasets/*/data/{durable.PENDING}*"))
    assert left == []


def test_a_claim_has_all_that_was_recorded(tmp_path: Path) -> None:
    catalog, topics = LocalCatalog(tmp_path), [{"a": "odf.a"}, {"b": "odf.b"}]
    claim = catalog.claim(a_dataset())
    assert claim is not None
    for one in topics:
        claim.write(replace(an_entry("cities"), push_topics=one))
    assert set(claim.entry.push_topics) == {"odf.a", "odf.b"}
    claim.release()
    (left,) = catalog.claims()
    assert set(left.push_topics) == {"odf.a", "odf.b"}


def test_a_write_of_which_the_system_takes_a_part_is_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Short(FileIO):
        def write(self, content: object, /) -> int:
            return super().write(bytes(content)[:3])  # type: ignore[call-overload]

    def short(path: Path, mode: str, buffering: int, opener: Callable[[str, int], int]) -> FileIO:
        return Short(path, mode.replace("b", ""), opener=opener)

    monkeypatch.setattr(durable, "open", short, raising=False)
    durable.write(tmp_path / "file", b"0123456789")
    assert (tmp_path / "file").read_bytes() == b"0123456789"
