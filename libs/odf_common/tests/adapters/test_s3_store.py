"""The store on S3, over a MinIO server."""

import hashlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from io import BytesIO
from pathlib import Path

import pytest
from odf_testing.chains import overwrite
from odf_testing.contracts import (
    CONTENT,
    NAME,
    BlobStoreContract,
    RefStoreContract,
    a_dataset,
    a_hash,
    require_one_winner_of_processes,
)
from odf_testing.guarded import GuardedDict
from odf_testing.minioserver import LARGE, MinioServer

from odf_common.adapters.local import stores
from odf_common.adapters.local.durable import PENDING
from odf_common.adapters.local.stores import CorruptRef
from odf_common.adapters.s3 import bucket
from odf_common.adapters.s3.bucket import Bucket
from odf_common.adapters.s3.bucket_stores import S3BlobStore, S3RefStore, _Fetches
from odf_common.adapters.s3.cache import ObjectCache
from odf_common.adapters.s3.location import S3Access, S3Location
from odf_common.errors import Damaged, HeadMoved, NotFound, StorageUnavailable
from odf_common.hashing.multihash import physical_hash_of
from odf_common.ports.store import NAMED_BY_CONTENT, ObjectKind


class TestS3BlobStore(BlobStoreContract):
    @pytest.fixture
    def blobs(self, server: MinioServer, place: S3Location, tmp_path: Path) -> S3BlobStore:
        return server.store(place, tmp_path / "home")


class TestS3RefStore(RefStoreContract):
    @pytest.fixture
    def refs(self, server: MinioServer, place: S3Location) -> S3RefStore:
        return S3RefStore(server.bucket(place))


def test_keys_are_those_of_the_common_layout(server: MinioServer, place: S3Location, tmp_path: Path) -> None:
    server.store(place, tmp_path).put(a_dataset(), ObjectKind.BLOCK, NAME, CONTENT)
    S3RefStore(server.bucket(place)).compare_and_set(a_dataset(), expected=None, new=NAME)
    folder = f"fed01{a_dataset().public_key.hex()}"
    assert server.objects(place) == {
        f"{folder}/blocks/{NAME}": CONTENT,
        f"{folder}/refs/head": str(NAME).encode(),
    }
    assert set(server.objects(S3Location(bucket=place.bucket))) == {
        f"some/prefix/{folder}/blocks/{NAME}",
        f"some/prefix/{folder}/refs/head",
    }


def _refs(place: S3Location, access: S3Access) -> S3RefStore:
    return S3RefStore(Bucket(place, access))


def test_of_two_processes_exactly_one_moves_the_head(server: MinioServer, place: S3Location) -> None:
    require_one_winner_of_processes(partial(_refs, place, server.access), rounds=20)


def test_a_removed_reference_can_be_created_again_by_one_only(server: MinioServer, place: S3Location) -> None:
    refs = S3RefStore(server.bucket(place))
    refs.compare_and_set(a_dataset(), expected=None, new=a_hash(1), ref="old")
    refs.remove(a_dataset(), "old", expected=a_hash(1))
    assert (refs.head(a_dataset(), "old"), refs.names(a_dataset())) == (None, ())
    refs.compare_and_set(a_dataset(), expected=None, new=a_hash(2), ref="old")
    with pytest.raises(HeadMoved):
        refs.compare_and_set(a_dataset(), expected=None, new=a_hash(3), ref="old")
    assert refs.head(a_dataset(), "old") == a_hash(2)


@pytest.mark.parametrize("content", [b"not a hash", b"\xff", b"f1620" * 1000], ids=["text", "bytes", "long"])
def test_a_damaged_reference_is_named(server: MinioServer, place: S3Location, content: bytes) -> None:
    refs = S3RefStore(server.bucket(place))
    server.bucket(place).put(f"{a_dataset().folder}/refs/head", content)
    with pytest.raises(CorruptRef, match="refs/head cannot be used"):
        refs.head(a_dataset())
    with pytest.raises(CorruptRef):
        refs.compare_and_set(a_dataset(), expected=None, new=a_hash(1))
    refs.remove(a_dataset(), "head", expected=None)
    assert refs.head(a_dataset()) is None


def test_a_large_file_is_stored_in_parts(server: MinioServer, place: S3Location, tmp_path: Path) -> None:
    blobs = server.store(place, tmp_path / "one")
    file = blobs.scratch() / "file"
    file.write_bytes(LARGE)
    name = physical_hash_of(LARGE)
    blobs.put_file(a_dataset(), ObjectKind.DATA, name, file)
    assert not file.exists()
    etag = server.client().stat_object(place.bucket, place.key(f"{a_dataset().folder}/data/{name}")).etag
    assert str(etag).endswith("-2")  # of two parts
    other = server.store(place, tmp_path / "two")
    assert other.size(a_dataset(), ObjectKind.DATA, name) == len(LARGE)
    with other.open(a_dataset(), ObjectKind.DATA, name) as stored:
        assert hashlib.sha3_256(stored.read()).digest() == hashlib.sha3_256(LARGE).digest()


def _killed_before_completion(access: S3Access, place: S3Location, file: Path) -> None:
    uploader = Bucket(place, access)
    uploader._client._complete_multipart_upload = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign, assignment]
    uploader.upload("large", file)


def test_an_upload_that_is_killed_before_its_end_leaves_nothing_visible(
    server: MinioServer, place: S3Location, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.write_bytes(LARGE)
    spawn = multiprocessing.get_context("spawn")
    process = spawn.Process(target=_killed_before_completion, args=(server.access, place, file))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    stored = server.bucket(place)
    assert (stored.size("large"), list(stored.objects(""))) == (None, [])
    assert stored.upload("large", file)
    assert stored.size("large") == len(LARGE)


def test_bytes_that_do_not_match_their_name_are_refused_and_not_kept(
    server: MinioServer, place: S3Location, tmp_path: Path
) -> None:
    blobs = server.store(place, tmp_path)
    server.bucket(place).put(f"{a_dataset().folder}/data/{NAME}", b"other bytes")
    for read in (blobs.read, blobs.open, blobs.local_path):
        with pytest.raises(Damaged, match=f"data/{NAME} cannot be used: the hash of its bytes is f1620"):
            read(a_dataset(), ObjectKind.DATA, NAME)
    assert not list((tmp_path / "cache").rglob("f1620*"))


def test_an_object_is_fetched_once_and_found_by_all_processes_of_the_node(
    server: MinioServer, place: S3Location, tmp_path: Path
) -> None:
    server.store(place, tmp_path / "writer").put(a_dataset(), ObjectKind.DATA, NAME, CONTENT)
    first = server.store(place, tmp_path / "reader").local_path(a_dataset(), ObjectKind.DATA, NAME)
    server.client().remove_object(place.bucket, place.key(f"{a_dataset().folder}/data/{NAME}"))
    reader = server.store(place, tmp_path / "reader")
    assert reader.local_path(a_dataset(), ObjectKind.DATA, NAME) == first
    assert reader.local_copy(a_dataset(), ObjectKind.DATA, NAME) == first
    assert reader.read(a_dataset(), ObjectKind.DATA, NAME) == CONTENT
    assert not reader.has(a_dataset(), ObjectKind.DATA, NAME)  # the bucket decides


def test_what_the_bucket_itself_has_is_read_whatever_was_copied(
    server: MinioServer, place: S3Location, tmp_path: Path
) -> None:
    blobs, key = server.store(place, tmp_path), place.key(f"{a_dataset().folder}/data/{NAME}")
    blobs.put(a_dataset(), ObjectKind.DATA, NAME, CONTENT)
    for content, error in ((b"other bytes", Damaged), (None, NotFound)):
        if content is None:
            server.client().remove_object(place.bucket, key)
        else:
            server.client().put_object(place.bucket, key, BytesIO(content), len(content))
        with pytest.raises(error, match=str(NAME)):
            blobs.open_stored(a_dataset(), ObjectKind.DATA, NAME)
        with blobs.open(a_dataset(), ObjectKind.DATA, NAME) as copy:
            assert copy.read() == CONTENT
    copied = blobs.local_copy(a_dataset(), ObjectKind.DATA, NAME)
    assert copied is not None
    overwrite(copied, b"damaged copy")
    server.client().put_object(place.bucket, key, BytesIO(CONTENT), len(CONTENT))
    with blobs.open_stored(a_dataset(), ObjectKind.DATA, NAME) as stored:
        assert stored.read() == CONTENT
    assert copied.read_bytes() == CONTENT


def test_an_object_that_many_threads_need_at_once_is_fetched_once(
    server: MinioServer, place: S3Location, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.store(place, tmp_path / "writer").put(a_dataset(), ObjectKind.DATA, NAME, CONTENT)
    reader = server.store(place, tmp_path / "reader")
    fetched: list[str] = []
    download = Bucket.download

    def slowly(self: Bucket, name: str, file: Path) -> bool:
        fetched.append(name)
        time.sleep(0.2)  # meanwhile the others request it
        return download(self, name, file)

    monkeypatch.setattr(Bucket, "download", slowly)
    assert reader.local_copy(a_dataset(), ObjectKind.DATA, NAME) is None
    with ThreadPoolExecutor(20) as pool:
        paths = list(pool.map(lambda _: reader.local_path(a_dataset(), ObjectKind.DATA, NAME), range(20)))
    assert fetched == [f"{a_dataset().folder}/data/{NAME}"]
    assert [path.read_bytes() for path in paths] == [CONTENT] * 20


def test_threads_that_wait_for_a_fetch_get_its_error_and_later_ones_retry(
    server: MinioServer, place: S3Location, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = server.store(place, tmp_path / "reader")
    fetched: list[str] = []
    download = Bucket.download

    def slowly(self: Bucket, name: str, file: Path) -> bool:
        fetched.append(name)
        time.sleep(0.5)
        return download(self, name, file)

    monkeypatch.setattr(Bucket, "download", slowly)
    with ThreadPoolExecutor(20) as pool:
        reads = [pool.submit(reader.local_path, a_dataset(), ObjectKind.DATA, NAME) for _ in range(20)]
        assert {type(read.exception()) for read in reads} == {NotFound}
    assert len(fetched) < 20
    server.store(place, tmp_path / "writer").put(a_dataset(), ObjectKind.DATA, NAME, CONTENT)
    assert reader.local_path(a_dataset(), ObjectKind.DATA, NAME).read_bytes() == CONTENT


def test_fetches_of_two_objects_do_not_wait_for_each_other(
    server: MinioServer, place: S3Location, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = physical_hash_of(b"other")
    writer, reader = server.store(place, tmp_path / "writer"), server.store(place, tmp_path / "reader")
    writer.put_all(a_dataset(), ObjectKind.DATA, [(NAME, CONTENT), (other, b"other")])
    both = threading.Barrier(2, timeout=10)
    download = Bucket.download

    def together(self: Bucket, name: str, file: Path) -> bool:
        both.wait()
        return download(self, name, file)

    monkeypatch.setattr(Bucket, "download", together)
    with ThreadPoolExecutor(2) as pool:
        paths = pool.map(lambda name: reader.local_path(a_dataset(), ObjectKind.DATA, name), (NAME, other))
        assert [path.read_bytes() for path in paths] == [CONTENT, b"other"]


def test_a_deleted_dataset_leaves_nothing_in_the_bucket_nor_the_home(
    server: MinioServer, place: S3Location, tmp_path: Path
) -> None:
    blobs, refs = server.store(place, tmp_path), S3RefStore(server.bucket(place))
    for number in range(3):
        blobs.put(a_dataset(), ObjectKind.BLOCK, a_hash(number), CONTENT)
    refs.compare_and_set(a_dataset(), expected=None, new=a_hash(1))
    refs.compare_and_set(a_dataset(), expected=None, new=a_hash(1), ref="old")
    refs.remove(a_dataset(), "old", expected=a_hash(1))
    blobs.delete_dataset(a_dataset())
    assert server.objects(place) == {}
    assert not list((tmp_path / "cache").rglob("f1620*"))


def test_more_objects_than_one_page_are_listed_and_removed(
    server: MinioServer, place: S3Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = server.bucket(place)
    names = [f"folder/{number:03}" for number in range(25)]
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(lambda name: stored.put(name, b""), names))
    monkeypatch.setattr(bucket, "MAX_KEYS_PER_REQUEST", 10)
    assert [listed.name for listed in stored.objects("folder/")] == names
    stored.remove(names)
    assert list(stored.objects("")) == []


def test_no_more_of_an_object_is_read_than_requested(server: MinioServer, place: S3Location) -> None:
    stored = server.bucket(place)
    stored.put("one", CONTENT)
    for limit, content in ((3, CONTENT[:3]), (None, CONTENT)):
        found = stored.read("one", limit=limit)
        assert found is not None
        assert found.content == content


def test_fetches_begin_and_end_one_at_a_time(tmp_path: Path) -> None:
    fetches = _Fetches()
    running: GuardedDict[str, Future[Path]] = GuardedDict(fetches._guard)
    fetches._running = running
    assert fetches.fetch_once("key", lambda: tmp_path) == tmp_path
    assert len(running) == 0


def test_an_error_of_one_of_many_objects_is_raised(
    server: MinioServer, place: S3Location, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, blobs = Bucket.put, server.store(place, tmp_path)

    def failing(self: Bucket, name: str, content: bytes) -> bool:
        if name.endswith(str(a_hash(2))):
            raise StorageUnavailable(file=name, why="lost on purpose")
        return put(self, name, content)

    monkeypatch.setattr(Bucket, "put", failing)
    with pytest.raises(StorageUnavailable, match="lost on purpose"):
        blobs.put_all(a_dataset(), ObjectKind.BLOCK, [(a_hash(number), b"") for number in range(4)])


def test_a_deletion_removes_the_head_first_then_the_objects_then_local_files(
    server: MinioServer, place: S3Location, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs, refs = server.store(place, tmp_path), S3RefStore(server.bucket(place))
    blobs.put(a_dataset(), ObjectKind.BLOCK, NAME, CONTENT)
    blobs.set_note(a_dataset(), "sources", "x")
    refs.compare_and_set(a_dataset(), expected=None, new=NAME)
    remove, left = Bucket.remove, list[set[str]]()

    def noted(self: Bucket, names: Iterable[str]) -> None:
        remove(self, names)
        left.append({name.partition("/")[2] for name in server.objects(place)})
        assert blobs.note(a_dataset(), "sources") == "x"

    monkeypatch.setattr(Bucket, "remove", noted)
    blobs.delete_dataset(a_dataset())
    assert left == [{f"blocks/{NAME}"}, set()]
    assert blobs.note(a_dataset(), "sources") is None


def test_an_object_of_another_node_is_not_overwritten_and_its_bytes_are_read(
    server: MinioServer, place: S3Location, tmp_path: Path
) -> None:
    kind = next(kind for kind in ObjectKind if kind not in NAMED_BY_CONTENT)
    theirs, ours = server.store(place, tmp_path / "theirs"), server.store(place, tmp_path / "ours")
    file = tmp_path / "file"
    file.write_bytes(b"other")
    name = a_hash(2)  # not that of the bytes
    theirs.put(a_dataset(), kind, name, CONTENT)
    ours.put(a_dataset(), kind, name, b"other")
    ours.put_file(a_dataset(), kind, name, file)
    assert not file.exists()
    assert ours.read(a_dataset(), kind, name) == CONTENT
    with ours.open(a_dataset(), kind, name) as opened:
        assert opened.read() == CONTENT


def test_an_object_read_whole_is_cached_and_read_again_if_its_copy_is_removed(
    server: MinioServer, place: S3Location, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.store(place, tmp_path / "writer").put(a_dataset(), ObjectKind.DATA, NAME, CONTENT)
    reader = server.store(place, tmp_path / "reader")
    assert reader.read(a_dataset(), ObjectKind.DATA, NAME) == CONTENT
    copy = reader.local_copy(a_dataset(), ObjectKind.DATA, NAME)
    assert copy is not None
    assert copy.read_bytes() == CONTENT

    find, is_gone = ObjectCache.find, list[bool]()

    def gone_once(self: ObjectCache, name: str) -> Path | None:
        if not is_gone:
            is_gone.append(True)
            copy.unlink()
            return copy
        return find(self, name)

    monkeypatch.setattr(ObjectCache, "find", gone_once)
    assert reader.read(a_dataset(), ObjectKind.DATA, NAME) == CONTENT
    is_gone.clear()
    with reader.open(a_dataset(), ObjectKind.DATA, NAME) as opened:
        assert opened.read() == CONTENT
    assert copy.exists()


def test_keys_other_than_objects_and_datasets_are_not_listed(
    server: MinioServer, place: S3Location, tmp_path: Path
) -> None:
    blobs, stored = server.store(place, tmp_path), server.bucket(place)
    blobs.put(a_dataset(), ObjectKind.DATA, NAME, CONTENT)
    for name in ("readme", str(a_hash(2)).upper(), f"{NAME}/x"):
        stored.put(f"{a_dataset().folder}/data/{name}", b"")
        stored.put(f"{name}/data/{NAME}", b"")
    stored.put(f"{a_dataset(2).folder.upper()}/data/{NAME}", b"")
    assert list(blobs.names(a_dataset(), ObjectKind.DATA)) == [NAME]
    assert list(blobs.datasets()) == [a_dataset()]


def test_files_that_killed_processes_left_in_the_home_are_removed(
    server: MinioServer, place: S3Location, tmp_path: Path
) -> None:
    blobs = server.store(place, tmp_path)
    blobs.put(a_dataset(), ObjectKind.DATA, NAME, CONTENT)
    copy = blobs.local_copy(a_dataset(), ObjectKind.DATA, NAME)
    assert copy is not None
    blobs.set_note(a_dataset(), "sources", "x")
    hidden = tmp_path / "datasets" / f"{PENDING}1"
    hidden.mkdir()
    unfinished = [copy.parent / f"{PENDING}2", stores.note_file(tmp_path, a_dataset(), f"{PENDING}3")]
    for file in unfinished:
        file.write_bytes(b"")

    blobs.finish_deletions()
    blobs.sweep(time.time() - 60)
    assert [path.exists() for path in (hidden, *unfinished)] == [False, True, True]
    blobs.sweep(time.time() + 60)
    assert not any(file.exists() for file in unfinished)
    assert copy.exists()
    assert blobs.note(a_dataset(), "sources") == "x"
