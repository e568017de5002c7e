"""Pushes to folders and buckets, from which other nodes pull: in order, never over another chain unless forced."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import yaml
from odf_testing.builders import a_dataset, a_hash
from odf_testing.minioserver import ACCESS_KEY, SECRET_KEY, MinioServer, serving_s3
from odf_testing.story import derivative
from odf_testing.sync_node import SyncNode

from odf_common.adapters.local.repositories import LocalRepositories
from odf_common.adapters.s3.bucket import PART_BYTES, Bucket, StoredObject
from odf_common.adapters.s3.location import S3Location
from odf_common.codec.signature import encode_signature
from odf_common.errors import Damaged, HeadMoved, InvalidInput, Unavailable
from odf_common.hashing.multihash import Multihash, physical_hash_of
from odf_common.identity.dataset_refs import Name
from odf_common.identity.keys import generate, sign_block
from odf_common.ports.store import ObjectKind, require_entry
from odf_common.service.settings import Settings
from odf_sync.repositories.folder import FolderTarget
from odf_sync.repositories.s3 import S3Target
from odf_sync.search import OwnDatasets, Search
from odf_sync.transfer.push_dataset import AnotherDataset
from odf_sync.transfer.push_source import PushDiverged, RemoteAhead
from odf_sync.transfer.remote_chain import SignatureRefused


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MinioServer]:
    with serving_s3(tmp_path_factory.mktemp("minio")) as server:
        yield server


@pytest.fixture
def place(server: MinioServer) -> S3Location:
    return server.new_bucket("shared/cities")


@pytest.fixture
def target(server: MinioServer, place: S3Location) -> S3Target:
    return S3Target(place, server.access)


def node_at(home: Path, server: MinioServer) -> SyncNode:
    environment = {"ODF_HOME": str(home), "ODF_S3_ENDPOINT": server.endpoint}
    keys = {"ODF_S3_ACCESS_KEY": ACCESS_KEY, "ODF_S3_SECRET_KEY": SECRET_KEY}
    return SyncNode(home, Settings.from_env(environment | keys))


@pytest.fixture
def here(tmp_path: Path, server: MinioServer) -> SyncNode:
    """A node with a dataset of a few blocks and slices."""
    node = node_at(tmp_path / "here", server)
    node.add_cities(["Kyiv", "Osaka"], ["Quito"])
    return node


@dataclass(frozen=True, kw_only=True)
class Store:
    """A folder or a bucket to push to."""

    base: str
    target: FolderTarget | S3Target

    @property
    def url(self) -> str:
        return f"{self.base}/cities"


@pytest.fixture(params=["folder", "bucket"])
def store(request: pytest.FixtureRequest, tmp_path: Path, server: MinioServer) -> Store:
    base = (tmp_path / "shared folder").as_uri()
    if request.param == "folder":
        return Store(base=base, target=FolderTarget(f"{base}/cities"))
    bucket = server.new_bucket("shared")
    return Store(base=str(bucket), target=S3Target(S3Location.parse(f"{bucket}/cities"), server.access))


def test_a_pushed_dataset_is_pulled(
    here: SyncNode, store: Store, tmp_path: Path, server: MinioServer
) -> None:
    LocalRepositories(tmp_path / "here").add(Name("shared"), store.base)
    *steps, last = here.push("cities", "shared/cities")
    assert list(dict.fromkeys(step.state for step in steps)) == [
        "comparing",
        "blocks",
        "objects",
        "committing",
    ]
    assert (last.state, last.head, last.new_records) == ("updated", here.head("cities"), 3)

    here.coordinator.push("cities", "Oslo", minute=9)
    again, third = here.push("cities", "")[-1], here.push("cities", "")[-1]
    assert (again.state, again.new_blocks, again.new_records) == ("updated", 1, 1)
    assert third.state == "up-to-date"

    there = node_at(tmp_path / "there", server)
    assert there.pull(store.url, "copy")[-1].state == "updated"
    assert there.content("copy") == here.content("cities")


def test_a_chain_that_is_ahead_or_diverged_is_replaced_by_force_only(here: SyncNode, store: Store) -> None:
    common, entry = here.head("cities"), require_entry(here.catalog, "cities")
    assert common is not None
    here.coordinator.push("cities", "Oslo", minute=9)
    here.push("cities", store.url)
    ahead = store.target.head()

    here.refs.compare_and_set(entry.dataset_id, expected=here.head("cities"), new=common)
    with pytest.raises(RemoteAhead):
        here.push("cities", store.url)
    here.coordinator.push("cities", "Bern", "Rome", minute=10)
    with pytest.raises(PushDiverged) as refused:
        here.push("cities", store.url)
    assert refused.value.common_block == str(common)
    assert store.target.head() == ahead

    assert here.push("cities", store.url, is_forced=True)[-1].state == "updated"
    assert store.target.head() == here.head("cities")


def test_another_dataset_is_not_replaced_even_by_force(
    here: SyncNode, store: Store, tmp_path: Path, server: MinioServer
) -> None:
    there = node_at(tmp_path / "there", server)
    there.add_cities()
    there.push("cities", store.url)
    for is_forced in (False, True):
        with pytest.raises(AnotherDataset) as refused:
            here.push("cities", store.url, is_forced=is_forced)
        assert str(require_entry(there.catalog, "cities").dataset_id) in str(refused.value)
        assert "--force" not in refused.value.advice()
    assert store.target.head() == there.head("cities")


@pytest.mark.parametrize("kind", [ObjectKind.DATA, ObjectKind.BLOCK])
def test_an_interrupted_push_leaves_the_old_chain_and_resumes(
    here: SyncNode,
    store: Store,
    tmp_path: Path,
    server: MinioServer,
    monkeypatch: pytest.MonkeyPatch,
    *,
    kind: ObjectKind,
) -> None:
    here.push("cities", store.url)
    before, content = store.target.head(), here.content("cities")
    here.coordinator.push("cities", "Oslo", minute=9)
    put = type(store.target).put

    def stopping(to: Any, what: ObjectKind, name: Multihash, content: BinaryIO) -> None:
        if what is kind:
            raise Unavailable(what="the store", why="it was stopped")
        put(to, what, name, content)

    with monkeypatch.context() as patch:
        patch.setattr(type(store.target), "put", stopping)
        with pytest.raises(Unavailable):
            here.push("cities", store.url)
    assert store.target.head() == before
    there = node_at(tmp_path / "there", server)
    there.pull(store.url, "copy")
    assert there.content("copy") == content
    assert here.push("cities", "")[-1].new_blocks == 1
    there.pull(store.url, "copy")
    assert there.content("copy") == here.content("cities")


def test_the_head_moves_only_from_where_it_is_expected(store: Store) -> None:
    dataset, target = a_dataset(), store.target
    assert target.head() is None
    target.move_head(dataset, expected=None, new=a_hash("one"))
    for expected in (None, a_hash("other")):
        with pytest.raises(HeadMoved):
            target.move_head(dataset, expected=expected, new=a_hash("two"))
    assert target.head() == a_hash("one")
    target.move_head(dataset, expected=a_hash("one"), new=a_hash("two"))
    assert target.head() == a_hash("two")


def test_signatures_are_pushed_to_a_bucket_and_pulled_from_it(
    here: SyncNode, server: MinioServer, place: S3Location, tmp_path: Path
) -> None:
    signatures = here.sign("cities", generate())
    here.push("cities", str(place))
    stored = {one.name for one in server.bucket(place).objects("signatures/")}
    assert stored == {f"signatures/{block}" for block in signatures}
    there = node_at(tmp_path / "there", server)
    there.pull(str(place), "copy")
    assert there.signatures("copy") == signatures

    here.coordinator.push("cities", "Oslo", minute=9)
    here.coordinator.push("cities", "Bern", minute=10)
    head = here.head("cities")
    assert head is not None
    server.bucket(place).put(f"signatures/{head}", theirs := encode_signature(sign_block(generate(), head)))
    here.sign("cities", generate())
    here.push("cities", str(place))
    there.pull(str(place), "copy")
    assert there.signatures("copy") == {**here.signatures("cities"), head: theirs}, "it was there before"


@pytest.mark.parametrize("content", [b"nonsense", b"x" * 1024**2], ids=["garbage", "1 MB"])
def test_an_invalid_signature_in_a_bucket_refuses_the_copy(
    here: SyncNode, server: MinioServer, place: S3Location, tmp_path: Path, content: bytes
) -> None:
    here.push("cities", str(place))
    server.bucket(place).put(f"signatures/{here.head('cities')}", content)
    there = node_at(tmp_path / "there", server)
    with pytest.raises(SignatureRefused, match=f"block {here.head('cities')}"):
        there.pull(str(place), "copy")
    assert there.catalog.by_alias("copy") is None


def test_no_signature_is_requested_from_a_bucket_without_any(
    here: SyncNode, place: S3Location, tmp_path: Path, server: MinioServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    here.push("cities", str(place))
    read, asked = Bucket.read, list[str]()

    def noting(bucket: Bucket, name: str, *, limit: int | None = None) -> StoredObject | None:
        asked.append(name)
        return read(bucket, name, limit=limit)

    monkeypatch.setattr(Bucket, "read", noting)
    node_at(tmp_path / "there", server).pull(str(place), "copy")
    assert asked
    assert not [name for name in asked if name.startswith("signatures/")]


@pytest.mark.parametrize("size", [0, 1000, PART_BYTES + 1], ids=["empty", "small", "in parts"])
def test_an_object_is_stored_under_its_hash_and_only_there(
    target: S3Target, server: MinioServer, place: S3Location, size: int
) -> None:
    content = bytes(size)
    name = physical_hash_of(content)
    assert not target.has(ObjectKind.DATA, name)
    for _ in range(2):
        target.put(ObjectKind.DATA, name, BytesIO(content))
    assert target.has(ObjectKind.DATA, name)
    with pytest.raises(Damaged, match=str(a_hash("other"))):
        target.put(ObjectKind.DATA, a_hash("other"), BytesIO(content))
    stored = [(one.name, one.size) for one in server.bucket(place).objects("")]
    assert stored == [(f"data/{name}", size)]


def test_of_many_pushes_at_once_one_moves_the_head(server: MinioServer, place: S3Location) -> None:
    def move(number: int) -> bool:
        try:
            S3Target(place, server.access).move_head(a_dataset(), expected=None, new=a_hash(str(number)))
        except HeadMoved:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        moved = [number for number, is_moved in enumerate(pool.map(move, range(8))) if is_moved]
    assert [S3Target(place, server.access).head()] == [a_hash(str(number)) for number in moved]


def test_a_head_that_is_not_a_hash_is_not_replaced(
    target: S3Target, server: MinioServer, place: S3Location
) -> None:
    server.bucket(place).put("refs/head", b"damaged")
    with pytest.raises(InvalidInput, match="not a hash"):
        target.move_head(a_dataset(), expected=None, new=a_hash("one"))
    assert server.bucket(place).read("refs/head") is not None


def test_a_dataset_pushed_to_a_bucket_is_found_by_a_search(
    here: SyncNode, server: MinioServer, tmp_path: Path
) -> None:
    base = server.new_bucket("shared")
    here.push("cities", f"{base}/alice/cities")
    there = node_at(tmp_path / "there", server)
    LocalRepositories(tmp_path / "there").add(Name("s3"), str(base))
    own = OwnDatasets(datasets=there.datasets, in_bucket=True)
    search = Search(own=own, settings=there.settings)
    (found,), (searched,) = search.find("cities")
    assert (found.name, found.found_in, searched.problem) == ("s3/alice/cities", ("name",), "")


def test_dropped_data_is_left_out_of_a_bucket(
    here: SyncNode, place: S3Location, tmp_path: Path, server: MinioServer
) -> None:
    query = derivative("copied", {"cities": "cities"}, "SELECT event_time, city FROM cities")
    here.coordinator.add(yaml.safe_dump(query))
    here.coordinator.work()
    dropped = here.coordinator.dropper.drop("copied")
    missing = dropped.slices + dropped.checkpoints

    assert here.push("copied", str(place))[-1].missing_objects == missing > 0

    there = node_at(tmp_path / "there", server)
    last = there.pull(str(place), "copied")[-1]
    assert (last.state, last.head, last.missing_objects) == ("updated", here.head("copied"), missing)
