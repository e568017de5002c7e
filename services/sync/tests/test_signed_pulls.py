"""Signatures are pulled with their blocks, checked, and in few requests; other servers get no such requests."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
import urllib3
from aiohttp import web
from odf_testing.builders import a_chain, a_hash, a_seed
from odf_testing.http import running
from odf_testing.memory_store import MemoryBlobStore, MemoryCatalog, MemoryRefStore, node_datasets
from odf_testing.sync_node import SyncNode

from odf_common.adapters.local.stores import LocalBlobStore
from odf_common.codec.signature import SIZE_LIMIT, encode_signature
from odf_common.errors import InvalidInput, StorageUnavailable, Unavailable
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import DatasetId
from odf_common.identity.keys import BlockSignature, SignerId, generate, sign_block
from odf_common.metadata.events import SetInfo
from odf_common.ports.store import CatalogEntry, ObjectKind
from odf_sync.http import simple_protocol
from odf_sync.http.authorization import Authorizer
from odf_sync.http.endpoints import application
from odf_sync.http.simple_protocol import SimpleProtocol
from odf_sync.repositories import http_dataset, remote_dataset
from odf_sync.repositories.remote_dataset import frame_block
from odf_sync.transfer.remote_chain import SignatureRefused, fetched_signatures, missing_blocks

KEY: Final = generate()
CHAIN: Final = a_chain(a_seed(), *(SetInfo(description=f"number {number}") for number in range(49)))
DATASET: Final = CHAIN.state.dataset_id
NAMES: Final = [block.hash for block in reversed(CHAIN.blocks)]  # newest first
SIGNATURES: Final = {name: encode_signature(sign_block(KEY, name)) for name in NAMES}
FORGED: Final = encode_signature(
    BlockSignature(signer=SignerId.of_key(generate()), signature=sign_block(KEY, NAMES[0]).signature)
)
Answer = Callable[[web.Request], web.StreamResponse | None]


class Served:
    """A node with `CHAIN`, and the requests to it."""

    def __init__(self, signed: Mapping[Multihash, bytes]) -> None:
        self.asked: list[str] = []
        self.clients: set[object] = set()
        """Addresses and ports of the clients' connections."""
        self.answer: Answer = lambda _: None
        """What is answered instead of the node; None: the node's own answer."""
        self.cuts: list[int] = []
        """For each of the next packs: signatures after which its connection is cut, within the next one."""
        self.refs = MemoryRefStore()
        self.blobs = MemoryBlobStore(self.refs)
        self.url = ""
        for block in CHAIN.blocks:
            self.blobs.put(DATASET, ObjectKind.BLOCK, block.hash, block.raw)
        for name, signature in signed.items():
            self.blobs.put(DATASET, ObjectKind.SIGNATURE, name, signature)
        self.refs.compare_and_set(DATASET, expected=None, new=NAMES[0])

    def pull(self, new: int = len(NAMES)) -> dict[Multihash, bytes]:
        """Return the signatures of the newest blocks."""
        self.asked.clear()
        there = remote_dataset(self.url)
        there.head()
        return dict(fetched_signatures(there, NAMES[:new], (*NAMES, None)[new]))


@contextmanager
def served(signed: Mapping[Multihash, bytes] = SIGNATURES) -> Iterator[Served]:
    node, catalog = Served(signed), MemoryCatalog()
    catalog.add(CatalogEntry(alias="cities", dataset_id=DATASET))
    datasets = node_datasets(catalog, node.blobs, node.refs)
    authorizer = Authorizer(catalog=catalog, local_writers="off")
    app = application(authorizer, SimpleProtocol(datasets, Path("/nowhere")).endpoints())

    @web.middleware
    async def noting(request: web.Request, handler: Callable[..., object]) -> web.StreamResponse:
        node.asked.append(request.path_qs.removeprefix("/cities/"))
        assert request.transport is not None
        node.clients.add(request.transport.get_extra_info("peername"))
        if node.cuts and "/signature-packs/" in request.path:
            return await cut(request, node.cuts.pop(0))
        return node.answer(request) or await handler(request)  # type: ignore[misc]

    app.middlewares.append(noting)
    with running(app) as base:
        node.url = f"{base}/cities"
        yield node


def packs_with(content: bytes) -> Answer:
    """Return an answer to the request for signatures."""
    return lambda request: web.Response(body=content) if "/signature-packs/" in request.path else None


def test_the_signatures_of_a_chain_are_sent_in_one_response() -> None:
    with served() as node:
        assert node.pull() == SIGNATURES
        assert node.asked == ["refs/head", f"signature-packs/{NAMES[0]}"]


def test_of_new_blocks_only_their_signatures_are_sent() -> None:
    with served() as node:
        assert node.pull(3) == {name: SIGNATURES[name] for name in NAMES[:3]}
        path = f"signature-packs/{NAMES[0]}?after={NAMES[3]}"
        assert node.asked == ["refs/head", path]
        assert urllib3.request("GET", f"{node.url}/{path}").data == b"".join(
            frame_block(SIGNATURES[name]) for name in NAMES[:3]
        )


def test_a_new_block_and_its_signature_are_sent_over_one_connection() -> None:
    with served() as node:
        there = remote_dataset(node.url)
        missing = missing_blocks(there, there.head(), CHAIN.store.__getitem__, NAMES[1])
        assert missing.blocks.names == (NAMES[0],)
        found = dict(fetched_signatures(there, missing.blocks.names, missing.common))
        assert found == {NAMES[0]: SIGNATURES[NAMES[0]]}
        assert len(node.asked) == 3
        assert len(node.clients) == 1


def test_a_dataset_without_signatures_costs_no_request() -> None:
    with served({}) as node:
        assert node.pull() == {}
        assert node.asked == ["refs/head"]
        assert "Odf-Block-Signatures" not in urllib3.request("HEAD", f"{node.url}/refs/head").headers


def test_blocks_without_a_signature_are_copied_without_one() -> None:
    some = {name: SIGNATURES[name] for name in NAMES[7::5]}  # not the newest
    with served(some) as node:
        assert node.pull() == some


def test_no_signatures_are_requested_from_a_server_that_does_not_announce_them() -> None:
    with served() as node:
        head = web.Response(text=str(NAMES[0]), headers={"Odf-Block-Packs": "1"})
        node.answer = lambda request: head if request.path.endswith("head") else None
        assert node.pull() == {}
        assert node.asked == ["refs/head"]


def test_a_pack_may_end_early_and_the_rest_is_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simple_protocol, "PACK_BYTES", sum(len(block.raw) for block in CHAIN.blocks[30:]))
    with served() as node:
        assert node.pull() == SIGNATURES
        assert node.asked[1:] == [f"signature-packs/{NAMES[at]}" for at in (0, 20, 40)]


def test_a_block_that_the_server_lost_ends_its_pack() -> None:
    with served() as node:
        node.blobs.remove(DATASET, ObjectKind.BLOCK, [NAMES[20]])
        assert node.pull() == {name: SIGNATURES[name] for name in NAMES[:20]}


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (FORGED, "does not match the signer"),
        (SIGNATURES[NAMES[1]], "does not match the signer"),
        (b"nonsense", "not a signature"),
        (SIGNATURES[NAMES[0]] + b"\n", "not a signature"),
        (b"x" * (SIZE_LIMIT + 1), f"at most {SIZE_LIMIT}"),
        (b"x" * 1024**2, f"at most {SIZE_LIMIT}"),
    ],
    ids=["other key", "other block", "garbage", "one byte more", "long", "1 MB"],
)
def test_an_invalid_signature_of_a_block_is_refused_and_named(content: bytes, why: str) -> None:
    with served() as node:
        node.answer = packs_with(frame_block(content))
        with pytest.raises(SignatureRefused, match=why) as refused:
            node.pull()
        assert (refused.value.block, refused.value.repository) == (str(NAMES[0]), node.url)


def test_a_pack_that_ends_within_a_signature_is_refused() -> None:
    with served() as node:
        node.answer = packs_with(frame_block(SIGNATURES[NAMES[0]]) + frame_block(SIGNATURES[NAMES[1]])[:-1])
        with pytest.raises(SignatureRefused) as refused:
            node.pull()
        assert refused.value.block == str(NAMES[1])


def test_signatures_of_blocks_that_were_not_requested_are_not_stored() -> None:
    with served() as node:
        node.answer = packs_with(frame_block(SIGNATURES[NAMES[0]]) * 2)
        assert node.pull(1) == {NAMES[0]: SIGNATURES[NAMES[0]]}
        with pytest.raises(SignatureRefused, match=str(NAMES[1])):
            node.pull(2)


async def cut(request: web.Request, after: int) -> web.StreamResponse:
    """Send some signatures from the requested start, and a part of the next one."""
    first = NAMES.index(Multihash.parse(request.path.rpartition("/")[2]))
    response = web.StreamResponse()
    await response.prepare(request)
    content = b"".join(frame_block(SIGNATURES[name]) for name in NAMES[first : first + after])
    await response.write(content + b"\0\0")
    assert request.transport is not None
    request.transport.close()
    return response


def test_an_interrupted_connection_is_replaced_while_signatures_arrive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_dataset, "READ_RETRY", urllib3.Retry(0, redirect=0))
    with served() as node:
        node.cuts = [20, 0, 20]
        assert node.pull() == SIGNATURES
        assert node.asked[1:] == [f"signature-packs/{NAMES[at]}" for at in (0, 20, 20, 40)]
        node.cuts = [0, 0, 20]
        with pytest.raises(Unavailable):
            node.pull()
        assert len(node.asked) == 1 + 2


def test_one_signature_is_served_by_the_hash_of_its_block() -> None:
    with served({NAMES[0]: SIGNATURES[NAMES[0]]}) as node:
        signed, unsigned, unknown, invalid = (
            urllib3.request("GET", f"{node.url}/signatures/{name}")
            for name in (NAMES[0], NAMES[1], a_hash("x"), "nonsense")
        )
    assert (signed.status, signed.data) == (200, SIGNATURES[NAMES[0]])
    assert (signed.headers["Content-Type"], signed.headers["Cache-Control"]) == (
        "application/json",
        "no-cache",
    )
    assert (unsigned.status, unsigned.json()) == (404, {"message": f"Block has no signature: {NAMES[1]}"})
    assert (unknown.status, invalid.status) == (404, 400)


@pytest.fixture
def there(tmp_path: Path) -> SyncNode:
    """A node with a dataset of a few blocks, all signed."""
    node = SyncNode(tmp_path / "there")
    node.add_cities(["Kyiv", "Osaka"], ["Quito"])
    node.sign("cities", KEY)
    return node


@pytest.fixture
def here(tmp_path: Path) -> SyncNode:
    return SyncNode(tmp_path / "here")


@pytest.fixture(params=["http", "odf+http", "file"])
def url(request: pytest.FixtureRequest, there: SyncNode, tmp_path: Path) -> Iterator[str]:
    """The location from which the dataset of the other node is pulled."""
    entry = there.catalog.by_alias("cities")
    assert entry is not None
    with there.served() as base:
        folder = tmp_path / "there" / "datasets" / entry.dataset_id.folder
        prefix = request.param.removesuffix("http")
        yield folder.as_uri() if request.param == "file" else f"{prefix}{base}/cities"


def test_a_copy_has_the_signatures_of_its_source(here: SyncNode, there: SyncNode, url: str) -> None:
    signatures = there.signatures("cities")
    assert len(signatures) == len([*there.content("cities")]) - 2  # blocks, without two slices
    here.pull(url, "copy")
    assert here.signatures("copy") == signatures

    there.coordinator.push("cities", "Oslo", minute=9)
    here.pull(url, "copy")
    assert here.head("copy") == there.head("cities")
    assert here.signatures("copy") == signatures, "the new block has none"

    there.coordinator.push("cities", "Bern", minute=10)
    signatures = there.sign("cities", KEY)
    here.pull(url, "copy")
    assert here.head("copy") in here.signatures("copy")
    assert here.signatures("copy").items() < signatures.items(), "one was signed after it was pulled"


def test_a_copy_without_signatures_gets_them_when_it_is_checked_again(
    here: SyncNode, there: SyncNode, url: str
) -> None:
    (entry,) = there.catalog.entries()
    signatures = there.signatures("cities")
    there.blobs.remove(entry.dataset_id, ObjectKind.SIGNATURE, signatures)
    here.pull(url, "copy")
    there.sign("cities", KEY)
    assert here.pull(url, "copy")[-1].state == "up-to-date"
    assert here.signatures("copy") == {}
    here.pull(url, "copy", rechecks=True)
    assert here.signatures("copy") == signatures


def test_an_invalid_signature_refuses_the_copy_before_anything_moves(
    here: SyncNode, there: SyncNode, url: str
) -> None:
    (entry,) = there.catalog.entries()
    head = there.head("cities")
    assert head is not None
    there.blobs.remove(entry.dataset_id, ObjectKind.SIGNATURE, [head])
    there.blobs.put(entry.dataset_id, ObjectKind.SIGNATURE, head, FORGED)
    with pytest.raises(SignatureRefused) as refused:
        here.pull(url, "copy")
    assert refused.value.block == str(head)
    assert refused.value.repository == url
    assert here.head("copy") is None
    assert here.catalog.by_alias("copy") is None
    assert list(here.blobs.names(entry.dataset_id, ObjectKind.BLOCK)) == []


def test_a_signature_that_this_node_has_is_kept(here: SyncNode, there: SyncNode, url: str) -> None:
    (entry,) = there.catalog.entries()
    head = there.head("cities")
    assert head is not None
    own = encode_signature(sign_block(generate(), head))
    here.blobs.put(entry.dataset_id, ObjectKind.SIGNATURE, head, own)
    here.pull(url, "copy")
    assert here.signatures("copy") == {**there.signatures("cities"), head: own}


def test_signatures_are_stored_before_blocks_and_the_head(
    here: SyncNode, there: SyncNode, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_all = LocalBlobStore.put_all
    (entry,) = there.catalog.entries()

    def failing(
        store: LocalBlobStore,
        dataset: DatasetId,
        kind: ObjectKind,
        contents: Sequence[tuple[Multihash, bytes]],
    ) -> None:
        if kind is ObjectKind.SIGNATURE:
            raise StorageUnavailable
        put_all(store, dataset, kind, contents)

    with monkeypatch.context() as patch:
        patch.setattr(LocalBlobStore, "put_all", failing)
        with pytest.raises(StorageUnavailable):
            here.pull(url, "copy")
    assert list(here.blobs.names(entry.dataset_id, ObjectKind.BLOCK)) == []
    assert here.head("copy") is None
    here.pull(url, "copy")
    assert here.signatures("copy") == there.signatures("cities")


def test_a_server_that_redirects_is_not_reported_to_have_an_invalid_signature() -> None:
    def elsewhere(request: web.Request) -> web.StreamResponse | None:
        redirect = web.Response(status=302, headers={"Location": "ftp://127.0.0.1/"})
        return redirect if "/signature-packs/" in request.path else None

    with served() as node:
        node.answer = elsewhere
        with pytest.raises(InvalidInput, match="expected a URL of http or https"):
            node.pull()
