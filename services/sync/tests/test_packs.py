"""Packs of blocks, and blocks that a server encodes again."""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import urllib3
from aiohttp import web
from odf_testing.builders import AChain, a_chain, a_seed
from odf_testing.http import running
from odf_testing.memory_store import MemoryBlobStore, MemoryCatalog, MemoryRefStore, node_datasets
from odf_testing.recorded_servers import Script, scripted
from odf_testing.recorded_transfers import Pool, all_recorded, lines_of
from odf_testing.sync_node import SyncNode

from odf_common.chain.compare_chains import Behind
from odf_common.chain.walk import ChainBroken
from odf_common.codec.flatbuffers import block_hash, decode_block, encode_block
from odf_common.errors import InvalidInput, StorageUnavailable
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.events import SetInfo
from odf_common.ports.store import CatalogEntry, ObjectKind
from odf_sync.http import simple_protocol
from odf_sync.http.authorization import Authorizer
from odf_sync.http.endpoints import application, dataset_of
from odf_sync.http.simple_protocol import SimpleProtocol
from odf_sync.repositories import remote_dataset
from odf_sync.repositories.remote_dataset import blocks_in, frame_block
from odf_sync.transfer.pull_dataset import compare
from odf_sync.transfer.push_source import RemoteAhead
from odf_sync.transfer.remote_chain import ChainsDiverged, missing_blocks

CHAIN = a_chain(a_seed(), *(SetInfo(description=f"number {number}") for number in range(99)))
RAW = [block.raw for block in CHAIN.blocks]
HASHES = [block.hash for block in CHAIN.blocks]
Answer = Callable[[web.Request], web.StreamResponse | None]


class Store(MemoryBlobStore):
    """A store that is unreachable for some of its reads."""

    outages: Collection[int] = ()
    """Which reads fail from now on, counted from 1."""

    def read(self, dataset: DatasetId, kind: ObjectKind, name: Multihash) -> bytes:
        if self.outages:
            self.outages = {one - 1 for one in self.outages if one}
            if 0 in self.outages:
                raise StorageUnavailable
        return super().read(dataset, kind, name)


class Served:
    """A node with `CHAIN`, and the requests to it."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answer: Answer = lambda _: None
        """What is answered instead of the node; None: the node's own answer."""
        self.refs = MemoryRefStore()
        self.blobs = Store(self.refs)
        self.url = ""

    def pull(self, here: Multihash | None = None, chain: AChain = CHAIN) -> list[Multihash]:
        """Return the blocks that are missing where `chain` is known up to `here`."""
        self.asked.clear()
        there = remote_dataset(self.url)
        missing = missing_blocks(there, there.head(), chain.store.__getitem__, here, spool=BytesIO())
        assert [raw for _, raw in missing.blocks.raw()] == [block.raw for block in missing.blocks]
        return [block.hash for block in missing.blocks]


@contextmanager
def served() -> Iterator[Served]:
    node, catalog, dataset = Served(), MemoryCatalog(), CHAIN.state.dataset_id
    for block in CHAIN.blocks:
        node.blobs.put(dataset, ObjectKind.BLOCK, block.hash, block.raw)
    node.refs.compare_and_set(dataset, expected=None, new=HASHES[-1])
    catalog.add(CatalogEntry(alias="cities", dataset_id=dataset))
    datasets = node_datasets(catalog, node.blobs, node.refs)
    app = application(
        Authorizer(catalog=catalog, local_writers="off"),
        SimpleProtocol(datasets, Path("/nowhere")).endpoints(),
    )

    @web.middleware
    async def noting(request: web.Request, handler: Callable[..., object]) -> web.StreamResponse:
        node.asked.append(request.path_qs.removeprefix("/cities/"))
        return node.answer(request) or await handler(request)  # type: ignore[misc]

    app.middlewares.append(noting)
    with running(app) as base:
        node.url = f"{base}/cities"
        yield node


@pytest.fixture(scope="module")
def module_node() -> Iterator[Served]:
    with served() as node:
        yield node


@pytest.fixture
def node(module_node: Served) -> Served:
    module_node.answer = lambda _: None
    module_node.blobs.outages = ()
    return module_node


def test_a_chain_is_sent_in_one_response(node: Served) -> None:
    assert node.pull() == HASHES
    assert node.asked == ["refs/head", f"packs/{HASHES[-1]}"]


def test_a_client_that_stops_reading_is_not_logged_as_a_server_error(
    node: Served, caplog: pytest.LogCaptureFixture
) -> None:
    answer = urllib3.request("GET", f"{node.url}/packs/{HASHES[-1]}", preload_content=False)
    answer.read(10)
    answer.close()
    assert node.pull() == HASHES
    assert not [one for one in caplog.records if one.levelname == "ERROR"]


def test_only_what_is_new_is_sent(node: Served) -> None:
    assert node.pull(HASHES[-4]) == HASHES[-3:]
    assert node.asked == ["refs/head", f"packs/{HASHES[-1]}?after={HASHES[-4]}"]


def test_a_pack_ends_before_the_block_that_is_known(node: Served) -> None:
    answer = urllib3.request("GET", f"{node.url}/packs/{HASHES[-1]}?after={HASHES[-4]}")
    assert list(blocks_in([answer.data], most=max(map(len, RAW)))) == RAW[:-4:-1]


def test_a_pack_may_end_early_and_the_rest_is_requested(
    node: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simple_protocol, "PACK_BYTES", sum(map(len, RAW[60:])))
    assert node.pull() == HASHES
    assert [one.partition("/")[0] for one in node.asked] == ["refs", "packs", "packs", "packs"]


def test_single_blocks_are_requested_from_a_server_that_does_not_announce_packs(node: Served) -> None:
    def plain(request: web.Request) -> web.StreamResponse | None:
        return web.Response(text=str(HASHES[-1])) if request.path.endswith("head") else None

    node.answer = plain
    assert node.pull() == HASHES
    assert node.asked == ["refs/head", *(f"blocks/{name}" for name in HASHES[::-1])]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0\0",
        frame_block(RAW[5]),
        frame_block(RAW[-1])[:-1],
        b"\xff" * 100,
        frame_block(RAW[-1]) + frame_block(RAW[3]),
        frame_block(b""),
    ],
    ids=["empty", "cut length", "other block", "cut block", "huge block", "other second block", "no bytes"],
)
def test_an_unexpected_pack_costs_nothing_but_time(node: Served, content: bytes) -> None:
    def hostile(request: web.Request) -> web.StreamResponse | None:
        return web.Response(body=content) if "/packs/" in request.path else None

    node.answer = hostile
    assert node.pull(HASHES[-10]) == HASHES[-9:]
    packs = [one for one in node.asked if one.startswith("packs/")]
    assert len(packs) <= 2, "a place that fails once is not asked for packs again"


def test_refused_packs_are_not_requested_again(node: Served) -> None:
    node.answer = lambda request: web.Response(status=403) if "/packs/" in request.path else None
    assert node.pull(HASHES[-10]) == HASHES[-9:]
    assert len(node.asked) == 2 + 9


def test_a_damaged_block_is_named() -> None:
    with served() as node:
        node.blobs.remove(CHAIN.state.dataset_id, ObjectKind.BLOCK, [HASHES[50]])
        with pytest.raises(ChainBroken) as caught:
            node.pull()
    assert (caught.value.block, caught.value.kind) == (str(HASHES[50]), "missing")


def test_a_chain_that_diverged_is_seen_at_the_common_block(node: Served) -> None:
    other = a_chain(a_seed(), *(SetInfo(description=f"number {number}") for number in range(90)))
    other.add(SetInfo(description="ours"))
    there = remote_dataset(node.url)
    missing = missing_blocks(there, there.head(), other.store.__getitem__, other.state.head, may_diverge=True)
    assert missing.common == HASHES[90]
    assert [block.hash for block in missing.blocks] == HASHES[91:]


@pytest.mark.parametrize("path", ["packs/nonsense", f"packs/{HASHES[-1]}?after=nonsense"])
def test_a_pack_is_named_by_hashes(node: Served, path: str) -> None:
    answer = urllib3.request("GET", f"{node.url}/{path}")
    assert answer.status == 400
    assert b"nonsense" in answer.data


def test_a_pack_of_an_unknown_block_does_not_exist(node: Served) -> None:
    assert urllib3.request("GET", f"{node.url}/packs/f1620{'0' * 64}").status == 404
    answer = urllib3.request("HEAD", f"{node.url}/packs/{HASHES[-1]}")
    assert (answer.status, answer.data) == (200, b"")


@pytest.mark.parametrize("size", [1, 3, 4, 5, 1000, 10**6])
def test_packs_are_read_in_chunks_of_any_size(size: int) -> None:
    whole = b"".join(frame_block(raw) for raw in RAW)
    chunks = (whole[at : at + size] for at in range(0, len(whole), size))
    assert list(blocks_in(chunks, most=10**6)) == RAW


def test_a_pack_with_too_long_a_block_is_refused_before_that_arrives() -> None:
    with pytest.raises(InvalidInput, match="at most 10"):
        next(blocks_in([frame_block(b"x" * 11)[:5]], most=10))


def test_a_pack_ends_when_the_store_becomes_unavailable_and_the_client_requests_the_rest(
    node: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simple_protocol, "PIECE_BYTES", 300)
    node.blobs.outages = {50}
    assert node.pull() == HASHES
    first, second = (urlsplit(path).path for path in node.asked if path.startswith("packs/"))
    assert (first, second) == (f"packs/{HASHES[-1]}", f"packs/{HASHES[-50]}")


def test_a_pack_is_sent_in_pieces(node: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be larger than what a server should buffer in memory for each client."""
    frames = [frame_block(raw) for raw in RAW[::-1]]
    monkeypatch.setattr(simple_protocol, "PIECE_BYTES", len(frames[0] + frames[1]))
    answer = urllib3.request("GET", f"{node.url}/packs/{HASHES[-1]}", preload_content=False)
    pieces = list(answer.read_chunked())
    assert pieces[0] == frames[0] + frames[1]
    assert len(pieces) > 2
    assert b"".join(pieces) == b"".join(frames)


def test_no_pack_begins_while_the_store_is_unavailable(node: Served) -> None:
    node.blobs.outages = {1}
    url = f"{node.url}/packs/{HASHES[-1]}"
    refused = urllib3.request("GET", url, retries=False)
    assert (refused.status, refused.headers["Retry-After"]) == (503, "5")
    assert list(blocks_in(iter([urllib3.request("GET", url).data]), most=1000)) == RAW[::-1]


OLD = "f1620c8aedd3152c164665f036f654664ffe6bd80cc7b9b1b08125506c26825199a60"


def encoded_again(raw: bytes) -> bytes:
    return encode_block(decode_block(raw).block, version=3)


@pytest.fixture
def here(tmp_path: Path) -> SyncNode:
    return SyncNode(tmp_path / "here")


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SyncNode:
    """A node with a chain of version 2, which it encodes again when it sends a block alone; it has no packs."""
    made = SyncNode(tmp_path / "made")
    made.add_cities(["Kyiv"], ["Osaka"], ["Quito"])
    node = SyncNode(tmp_path / "there")
    hold_in_version_2(node, made)

    async def block(_: object, kind: ObjectKind, request: web.Request) -> web.StreamResponse:
        entry, name = dataset_of(request), Multihash.parse(request.match_info["name"])
        raw = node.blobs.read(entry.dataset_id, kind, name)
        return web.Response(body=encoded_again(raw) if kind is ObjectKind.BLOCK else raw)

    monkeypatch.setattr(simple_protocol.SimpleProtocol, "_object", block)
    monkeypatch.setattr(simple_protocol, "ASKED_AGAIN", {})
    return node


def hold_in_version_2(node: SyncNode, made: SyncNode) -> None:
    pool, head = Pool(), made.head("cities")
    assert head is not None
    content = made.content("cities")
    blocks = {block_hash(raw): raw for (kind, _), raw in content.items() if kind is ObjectKind.BLOCK}
    pool.objects = {
        Multihash.parse(name): raw for (kind, name), raw in content.items() if kind is ObjectKind.DATA
    }
    before: Multihash | None = None
    for _, raw in Pool(blocks=blocks).chain(head):
        block = replace(decode_block(raw).block, prev_block_hash=before)
        old = encode_block(block, version=2)
        before = block_hash(old)
        pool.blocks[before] = old
    assert before is not None
    node.hold("cities", before, pool)


def rewind(node: SyncNode, blocks: int) -> Multihash:
    """Move a node's head back; return the former one."""
    entry, head = node.catalog.by_alias("cities"), node.head("cities")
    assert entry is not None
    assert head is not None
    target: Multihash | None = head
    for _ in range(blocks):
        assert target is not None
        target = decode_block(
            node.blobs.read(entry.dataset_id, ObjectKind.BLOCK, target)
        ).block.prev_block_hash
    assert target is not None
    node.refs.compare_and_set(entry.dataset_id, expected=head, new=target)
    return head


def test_a_pull_takes_the_stored_blocks_by_the_smart_protocol(here: SyncNode, there: SyncNode) -> None:
    with there.served() as base:
        rewind_to = rewind(there, 2)
        *_, first = here.pull(f"{base}/cities", "cities")
        assert (first.state, here.head("cities")) == ("updated", there.head("cities"))
        entry = there.catalog.by_alias("cities")
        assert entry is not None
        there.refs.compare_and_set(entry.dataset_id, expected=there.head("cities"), new=rewind_to)
        *_, second = here.pull(f"{base}/cities", "cities")
    assert (second.state, second.new_blocks) == ("updated", 2)
    assert here.content("cities") == there.content("cities")


def test_a_comparison_and_a_push_read_the_stored_blocks_too(here: SyncNode, there: SyncNode) -> None:
    with there.served() as base:
        newest = rewind(there, 1)
        here.pull(f"{base}/cities", "cities")
        entry = there.catalog.by_alias("cities")
        assert entry is not None
        there.refs.compare_and_set(entry.dataset_id, expected=there.head("cities"), new=newest)
        assert compare(here.datasets, here.settings, "cities", f"{base}/cities")[0] == Behind(blocks=1)
        with pytest.raises(RemoteAhead):
            here.push("cities", f"odf+{base}/cities")


def test_a_chain_that_has_diverged_is_refused_with_the_common_block(here: SyncNode, there: SyncNode) -> None:
    with there.served() as base:
        newest = rewind(there, 1)
        common = there.head("cities")
        here.pull(f"{base}/cities", "cities")
        here.add_block("cities", SetInfo(description="ours"), version=2)
        entry = there.catalog.by_alias("cities")
        assert entry is not None
        there.refs.compare_and_set(entry.dataset_id, expected=common, new=newest)
        for url in (f"{base}/cities", f"odf+{base}/cities"):
            with pytest.raises(ChainsDiverged) as refused:
                here.pull(url, "cities")
            assert refused.value.common_block == str(common)


@contextmanager
def static(files: dict[str, bytes]) -> Iterator[tuple[str, list[str]]]:
    """Serve files, and nothing else; yield the URL and the requested paths."""
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.path)
        found = files.get(request.path)
        return web.Response(status=404) if found is None else web.Response(body=found)

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    with running(app) as base:
        yield base, asked


def test_without_the_smart_protocol_the_block_is_named(here: SyncNode) -> None:
    raw = all_recorded().blocks[Multihash.parse(OLD)]
    files = {"/old/refs/head": OLD.encode(), f"/old/blocks/{OLD}": encoded_again(raw)}
    with static(files) as (base, asked), pytest.raises(ChainBroken) as refused:
        here.pull(f"{base}/old", "old")
    assert (refused.value.kind, refused.value.block) == ("corrupt", OLD)
    assert asked == ["/old/refs/head", f"/old/blocks/{OLD}", "/old/pull"]


def test_our_client_takes_the_recorded_block_of_an_old_layout_by_a_plain_url(here: SyncNode) -> None:
    """The recorded server sends 152 bytes instead of 144 if only the block is requested."""
    raw = all_recorded().blocks[Multihash.parse(OLD)]
    script = Script(
        lines=lines_of("smart-pull-old-layout"),
        replaced={
            '"stop_at":null,"force_update_if_diverged":false': f'"stop_at":"{OLD}","force_update_if_diverged":true'
        },
        extra={f"/alice/old.layout/blocks/{OLD}": encoded_again(raw)},
    )
    assert (len(raw), len(encoded_again(raw))) == (144, 152)
    with scripted(script) as base:
        *_, last = here.pull(f"{base}/alice/old.layout", "old.layout")
    assert script.faults == []
    assert script.closed == [(1000, "Client pull flow succeeded")]
    assert (last.state, str(last.head)) == ("updated", OLD)
