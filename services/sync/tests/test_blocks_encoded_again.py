"""A server that decodes blocks and encodes them again, as kamu 0.265 does with those of version 2 (wire-facts §8.2)."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web
from odf_testing.http import running
from odf_testing.recorded_servers import Script, scripted
from odf_testing.recorded_transfers import Pool, all_recorded, lines_of
from odf_testing.sync_node import SyncNode

from odf_common.chain.compare_chains import Behind
from odf_common.chain.walk import ChainBroken
from odf_common.codec.flatbuffers import block_hash, decode_block, encode_block
from odf_common.hashing.multihash import Multihash
from odf_common.metadata.events import SetInfo
from odf_common.ports.store import ObjectKind
from odf_sync.http import simple_protocol
from odf_sync.http.endpoints import dataset_of
from odf_sync.transfer.pull_dataset import compare
from odf_sync.transfer.push_source import RemoteAhead
from odf_sync.transfer.remote_chain import ChainsDiverged

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
