"""Signatures are pushed with their blocks, checked, and only to nodes that accept them."""

import tarfile
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO, Final

import pytest
from odf_testing.builders import a_hash
from odf_testing.sync_node import SyncNode

from odf_common.adapters.local.exported_dataset import FolderDataset
from odf_common.adapters.local.stores import LocalBlobStore
from odf_common.codec.envelopes import Envelope
from odf_common.codec.signature import SIZE_LIMIT, encode_signature
from odf_common.errors import InvalidInput, Unavailable
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import DatasetId
from odf_common.identity.keys import generate, sign_block
from odf_common.ports.store import ObjectKind
from odf_sync.http import serve_push, smart_routes
from odf_sync.repositories.folder import FolderTarget
from odf_sync.smart import messages as msg
from odf_sync.smart.archive import (
    ArchivedBlock,
    ReadSignature,
    no_signature,
    read_archive,
    read_signed_archive,
    write_archive,
)
from odf_sync.smart.exchange import TransferRefused
from odf_sync.smart.messages import Upload
from odf_sync.transfer import push_to_node
from odf_sync.transfer.partial_files import UPLOADED
from odf_sync.transfer.push_source import Uploader
from odf_sync.transfer.remote_chain import SignatureRefused

KEY: Final = generate()
Signatures = dict[Multihash, bytes]


@pytest.fixture
def here(tmp_path: Path) -> SyncNode:
    """A node with a dataset of a few blocks, all signed."""
    node = SyncNode(tmp_path / "here")
    node.add_cities(["Kyiv", "Osaka"], ["Quito"])
    node.sign("cities", KEY)
    return node


@pytest.fixture
def there(tmp_path: Path) -> SyncNode:
    return SyncNode(tmp_path / "there")


@pytest.fixture
def url(there: SyncNode) -> Iterator[str]:
    """The dataset's URL on the other node."""
    with there.served() as base:
        yield f"odf+{base}/copy"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "shared" / "cities"


def signatures_in(folder: Path) -> Signatures:
    return {Multihash.parse(file.name): file.read_bytes() for file in (folder / "signatures").glob("f1620*")}


def newest(node: SyncNode) -> Multihash:
    head = node.head("cities")
    assert head is not None
    return head


def damage(node: SyncNode, block: Multihash, content: bytes) -> DatasetId:
    """Store other bytes as the signature of a block."""
    (entry,) = node.catalog.entries()
    node.blobs.remove(entry.dataset_id, ObjectKind.SIGNATURE, [block])
    node.blobs.put(entry.dataset_id, ObjectKind.SIGNATURE, block, content)
    return entry.dataset_id


def test_a_node_has_the_signatures_that_were_pushed(here: SyncNode, there: SyncNode, url: str) -> None:
    signatures = here.signatures("cities")
    here.push("cities", url)
    assert there.signatures("copy") == signatures

    here.coordinator.push("cities", "Oslo", minute=9)
    here.push("cities", url)
    assert there.head("copy") == here.head("cities")
    assert there.signatures("copy") == signatures, "the new block has none"

    here.coordinator.push("cities", "Bern", minute=10)
    block, signature = newest(here), encode_signature(sign_block(KEY, newest(here)))
    damage(here, block, signature)
    here.push("cities", url)
    assert there.signatures("copy") == {**signatures, block: signature}


def test_a_long_chain_is_pushed_with_its_signatures_in_parts_and_by_upload(
    here: SyncNode, there: SyncNode, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push_to_node, "PART_BYTES", 1)
    monkeypatch.setattr(push_to_node, "MAX_INLINE_ARCHIVE_BYTES", 0)
    here.push("cities", url)
    assert there.signatures("copy") == here.signatures("cities")
    assert [*(tmp_path / "there" / UPLOADED).iterdir()] == [], "each archive is removed with its push"


def test_an_archive_that_was_removed_meanwhile_does_not_hide_that_the_head_has_moved(
    here: SyncNode, there: SyncNode, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push_to_node, "MAX_INLINE_ARCHIVE_BYTES", 0)
    complete, removed = serve_push.PushTarget.complete, []

    def complete_and_remove(self: serve_push.PushTarget, *arguments: Any) -> None:
        complete(self, *arguments)
        for file in (tmp_path / "there" / UPLOADED).iterdir():
            file.unlink()
            removed.append(file)

    monkeypatch.setattr(serve_push.PushTarget, "complete", complete_and_remove)
    assert here.push("cities", url)[-1].state == "updated"
    assert len(removed) == 1
    assert there.head("copy") == here.head("cities")


def test_a_forced_push_sends_the_signatures_of_the_new_chain(
    here: SyncNode, there: SyncNode, url: str
) -> None:
    here.push("cities", url)
    common = here.head("cities")
    here.coordinator.push("cities", "Oslo", minute=9)
    here.push("cities", url)
    (entry,) = here.catalog.entries()
    here.refs.compare_and_set(entry.dataset_id, expected=newest(here), new=common)  # type: ignore[arg-type]
    here.coordinator.push("cities", "Bern", minute=10)
    here.sign("cities", KEY)
    here.push("cities", url, is_forced=True)
    assert newest(here) in there.signatures("copy")


def test_a_node_that_does_not_announce_them_is_sent_no_signatures(
    here: SyncNode, there: SyncNode, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def strict(archive: BinaryIO, *, count: int, limit: int) -> Iterator[ArchivedBlock]:
        return ((name, [raw], b"") for name, raw in read_archive(archive, count=count, limit=limit))

    names = vars(msg) | {"SIGNATURES_HEADER": "unknown-header"}
    monkeypatch.setattr(smart_routes, "msg", SimpleNamespace(**names))
    monkeypatch.setattr(serve_push, "read_signed_archive", strict)
    here.push("cities", url)
    assert there.head("copy") == here.head("cities")
    assert there.signatures("copy") == {}


@pytest.mark.parametrize("way", ["node", "folder"])
def test_signatures_are_not_searched_for_block_by_block_if_none_exist(
    here: SyncNode, url: str, folder: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (entry,) = here.catalog.entries()
    here.blobs.remove(entry.dataset_id, ObjectKind.SIGNATURE, here.signatures("cities"))
    has, asked = LocalBlobStore.has, list[ObjectKind]()

    def noting(store: LocalBlobStore, dataset: DatasetId, kind: ObjectKind, name: Multihash) -> bool:
        asked.append(kind)
        return has(store, dataset, kind, name)

    monkeypatch.setattr(LocalBlobStore, "has", noting)
    here.push("cities", url if way == "node" else folder.as_uri())
    assert ObjectKind.SIGNATURE not in asked


def test_an_interrupted_push_resumes_with_its_signatures(
    here: SyncNode, there: SyncNode, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push_to_node, "MAX_INLINE_ARCHIVE_BYTES", 0)

    def cut(uploader: Uploader, upload: Upload) -> None:
        raise Unavailable(what=str(upload.object_file.physical_hash))

    with monkeypatch.context() as patch:
        patch.setattr(Uploader, "send", cut)
        with pytest.raises(Unavailable):
            here.push("cities", url)
    assert there.head("copy") is None
    here.push("cities", url)
    assert there.signatures("copy") == here.signatures("cities")


def test_a_push_whose_confirmation_was_lost_is_repeated_with_its_signatures(
    here: SyncNode, there: SyncNode, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(topic: str, dataset: DatasetId, body: Any, *, timeout: float) -> Envelope | None:
        del topic, dataset, body, timeout
        raise Unavailable(what="the coordinator")

    with monkeypatch.context() as patch:
        patch.setattr(there, "request", lost)
        with pytest.raises(TransferRefused, match="the coordinator"):
            here.push("cities", url)
    assert there.head("copy") is None
    (entry,) = here.catalog.entries()
    stored = set(there.blobs.names(entry.dataset_id, ObjectKind.SIGNATURE))
    assert stored == here.signatures("cities").keys(), "they are durable before the head moves"
    here.push("cities", url)
    assert there.signatures("copy") == here.signatures("cities")


WRONG: Final[dict[str, Callable[[Multihash], bytes]]] = {
    "other block": lambda _: encode_signature(sign_block(KEY, a_hash("other"))),
    "other spelling": lambda block: encode_signature(sign_block(KEY, block)) + b"\n",
    "garbage": lambda _: b"nonsense",
    "empty": lambda _: b"",
    "long": lambda _: b"x" * (SIZE_LIMIT + 1),
    "1 MB": lambda _: b"x" * 1024**2,
}


def sending(monkeypatch: pytest.MonkeyPatch, signature: ReadSignature) -> None:
    """Have this node push other signatures than it has, unchecked."""
    monkeypatch.setattr(push_to_node, "own_signatures", lambda *_: signature)


@pytest.mark.parametrize("wrong", WRONG)
def test_a_pushed_signature_that_is_not_valid_is_refused_before_anything_moves(
    here: SyncNode, there: SyncNode, url: str, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = newest(here)
    right = here.signatures("cities")
    sending(monkeypatch, lambda block: WRONG[wrong](block) if block == head else right[block])
    with pytest.raises(TransferRefused, match=r"block f1620|signatures/f1620"):
        here.push("cities", url)
    (entry,) = here.catalog.entries()
    assert there.head("copy") is None
    for kind in (ObjectKind.BLOCK, ObjectKind.SIGNATURE):
        assert list(there.blobs.names(entry.dataset_id, kind)) == []


@pytest.mark.parametrize("way", ["node", "folder"])
def test_a_damaged_signature_of_this_node_is_named_and_nothing_moves(
    here: SyncNode, there: SyncNode, url: str, folder: Path, way: str
) -> None:
    head = newest(here)
    damage(here, head, b"damaged")
    with pytest.raises(SignatureRefused) as refused:
        here.push("cities", url if way == "node" else folder.as_uri())
    assert (refused.value.block, refused.value.repository) == (str(head), "cities")
    assert there.head("copy") is None
    assert not (folder / "refs" / "head").exists()


def test_a_signature_that_the_other_node_has_is_kept(here: SyncNode, there: SyncNode, url: str) -> None:
    (entry,) = here.catalog.entries()
    head = newest(here)
    theirs = encode_signature(sign_block(generate(), head))
    there.blobs.put(entry.dataset_id, ObjectKind.SIGNATURE, head, theirs)
    here.push("cities", url)
    assert there.signatures("copy") == {**here.signatures("cities"), head: theirs}


def test_a_folder_has_the_signatures_that_were_pushed(here: SyncNode, folder: Path, tmp_path: Path) -> None:
    here.push("cities", folder.as_uri())
    assert signatures_in(folder) == here.signatures("cities")
    here.coordinator.push("cities", "Oslo", minute=9)
    here.sign("cities", KEY)
    here.push("cities", "")
    assert signatures_in(folder) == here.signatures("cities")
    other = SyncNode(tmp_path / "other")
    other.pull(folder.as_uri(), "copy")
    assert other.signatures("copy") == here.signatures("cities")


def test_signatures_are_in_a_folder_before_their_blocks_and_a_push_that_stopped_continues(
    here: SyncNode, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = FolderTarget.put
    stored: list[Multihash] = []

    def stopping(target: FolderTarget, kind: ObjectKind, name: Multihash, content: BinaryIO) -> None:
        if kind is ObjectKind.BLOCK:
            assert FolderDataset(folder).has(ObjectKind.SIGNATURE, name)
            if len(stored) == 2:
                raise Unavailable(what="the disk", why="it was pulled out")
            stored.append(name)
        put(target, kind, name, content)

    with monkeypatch.context() as patch:
        patch.setattr(FolderTarget, "put", stopping)
        with pytest.raises(Unavailable):
            here.push("cities", folder.as_uri())
    assert not (folder / "refs" / "head").exists()
    here.push("cities", folder.as_uri())
    assert signatures_in(folder) == here.signatures("cities")


def test_a_signature_in_a_folder_is_kept(here: SyncNode, folder: Path) -> None:
    head = newest(here)
    theirs = encode_signature(sign_block(generate(), head))
    (folder / "signatures").mkdir(parents=True)
    (folder / "signatures" / str(head)).write_bytes(theirs)
    here.push("cities", folder.as_uri())
    assert signatures_in(folder) == {**here.signatures("cities"), head: theirs}


NAMES: Final = [a_hash(text) for text in "abc"]
SIGNED: Final = {name: encode_signature(sign_block(KEY, name)) for name in NAMES[:2]}


def archive_of(*files: tuple[str, bytes]) -> bytes:
    with tarfile.open(fileobj=(out := BytesIO()), mode="w:gz", format=tarfile.GNU_FORMAT) as tar:
        for name, content in files:
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, BytesIO(content))
    return out.getvalue()


def test_an_archive_has_each_signature_before_its_block() -> None:
    blocks = [(name, str(name).encode()) for name in NAMES]
    write_archive(blocks, (out := BytesIO()), SIGNED.get)
    with tarfile.open(fileobj=BytesIO(out.getvalue())) as tar:
        a, b, c = map(str, NAMES)
        assert tar.getnames() == [f"signatures/{a}", a, f"signatures/{b}", b, c]
    signed = read_signed_archive(BytesIO(out.getvalue()), count=3, limit=10**6)
    read = [(name, b"".join(pieces), signature) for name, pieces, signature in signed]
    assert read == [(name, raw, SIGNED.get(name, b"")) for name, raw in blocks]
    with pytest.raises(InvalidInput, match="not asked for"):
        list(read_archive(BytesIO(out.getvalue()), count=3))


def test_the_format_of_an_archive_without_signatures_is_unchanged() -> None:
    blocks = [(name, str(name).encode()) for name in NAMES]
    write_archive(blocks, (plain := BytesIO()))
    write_archive(blocks, (unsigned := BytesIO()), no_signature)
    assert unsigned.getvalue() == plain.getvalue()
    assert list(read_archive(BytesIO(plain.getvalue()), count=3)) == blocks


A, B = (str(name) for name in NAMES[:2])


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ([(f"signatures/{B}", b"x"), (A, b"a"), (B, b"b")], f"signatures/{B}' does not precede its block"),
        ([(f"signatures/{a_hash('x')}", b"x"), (A, b"a"), (B, b"b")], "does not precede its block"),
        (
            [(f"signatures/{A}", b"x"), (f"signatures/{A}", b"x"), (A, b"a"), (B, b"b")],
            "does not precede its block",
        ),
        ([(A, b"a"), (f"signatures/{A}", b"x"), (B, b"b")], f"signatures/{A}' does not precede its block"),
        ([(A, b"a"), (B, b"b"), (f"signatures/{B}", b"x")], "does not precede its block"),
        ([(A, b"a"), (f"signatures/../{B}", b"x"), (B, b"b")], "does not precede its block"),
        ([(f"signatures/{A}", b"x" * 513), (A, b"a"), (B, b"b")], "513 bytes"),
        ([(f"signatures/{A}", b""), (A, b"a"), (B, b"b")], " 0 bytes"),
    ],
    ids=["other", "unknown", "twice", "after", "last", "path", "long", "empty"],
)
def test_a_signature_that_does_not_belong_to_the_next_block_is_refused(
    files: list[tuple[str, bytes]], why: str
) -> None:
    with pytest.raises(InvalidInput, match=why):
        list(read_signed_archive(BytesIO(archive_of(*files)), count=2, limit=10**6))
