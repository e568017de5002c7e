"""Exchanges of other implementations by the Simple Transfer Protocol, replayed over real sockets.

Our server answers the recorded requests as recorded; our client sends the recorded requests in their order.
"""

import asyncio
import json
from pathlib import Path

import pytest
from odf_testing.recorded_cases import Side, plays
from odf_testing.recorded_clients import JSON, TEXT, answered, play_client
from odf_testing.recorded_node import CITIES, recorded_node
from odf_testing.recorded_servers import Script, in_order, scripted
from odf_testing.recorded_transfers import (
    Content,
    Line,
    Pool,
    alias_of,
    all_recorded,
    content_in,
    dataset_of,
    lines_of,
)
from odf_testing.sync_node import SyncNode

from odf_common.codec.flatbuffers import decode_block
from odf_common.dataset.dataset_notes import note_complete
from odf_common.errors import NotFound
from odf_common.hashing.multihash import Multihash
from odf_common.metadata.events import SetInfo
from odf_common.ports.store import ObjectKind
from odf_sync.transfer.remote_chain import ChainsDiverged, LocalAhead


@pytest.fixture(scope="module")
def pool() -> Pool:
    return all_recorded()


@plays(Side.SERVER)
def test_our_server_answers_simple_requests_as_recorded(tmp_path: Path, pool: Pool, case: str) -> None:
    there = recorded_node(tmp_path, _by_a_node(lines_of(case)), pool)

    with there.served() as base:
        asyncio.run(play_client(base, there.lines))


def _by_a_node(lines: list[Line]) -> list[Line]:
    """Return the lines with the content type that nodes set for a reference, and static file servers do not."""
    types = {
        line["conn"]: {"content-type": f"{TEXT}; charset=utf-8"}
        for line in lines
        if line.get("path", "").endswith("/refs/head")
    }
    return [
        {**line, "headers": {**line["headers"], **types.get(line["conn"], {})}}
        if line.get("status") == 200
        else line
        for line in lines
    ]


@plays(Side.SERVER)
def test_our_server_answers_single_requests_as_recorded(tmp_path: Path, pool: Pool, case: str) -> None:
    lines = lines_of(case)
    for line in lines_of(case):
        if "range" in line["headers"]:  # the recorded server ignores it
            content = pool.objects[Multihash.parse(line["path"].rpartition("/")[2])]
            lines = answered(lines, line["conn"], status=206, body=content[:10].decode("latin-1"))
    there = recorded_node(tmp_path, lines, pool)

    with there.served() as base:
        asyncio.run(play_client(base, there.lines))


@plays(Side.SERVER)
def test_our_server_accepts_objects_as_recorded(tmp_path: Path, pool: Pool, case: str) -> None:
    lines = lines_of(case)
    names = {line["conn"]: line["path"].rpartition("/")[2] for line in lines if "path" in line}
    for conn in {line["conn"] for line in lines if line.get("status") == 500}:  # a defect
        hashed = names[conn + 1]  # the name of the same bytes in the next request
        text = json.dumps({"message": f"the body hashes to {hashed}, not to {names[conn]}"})
        lines = answered(lines, conn, status=400, headers={"content-type": JSON}, body=text)
    there = recorded_node(tmp_path, lines, pool)

    with there.served() as base:
        asyncio.run(play_client(base, there.lines))


@plays(Side.CLIENT)
def test_our_client_copies_by_the_simple_protocol_as_recorded(tmp_path: Path, pool: Pool, case: str) -> None:
    lines, node = lines_of(case), SyncNode(tmp_path)
    alias, head = alias_of(lines[0]["path"]), Multihash.parse(lines[1]["body"])
    before = _held_before(node, alias, lines, pool)
    script = Script(lines=lines)

    with scripted(script) as base:
        *_, last = node.pull(f"{base}/{alias}", alias)

    assert script.faults == []
    assert in_order(script.asked) == in_order(head_read_once(script))
    assert last.state == ("updated" if len(script.asked) > 1 else "up-to-date")
    assert node.head(alias) == head
    assert node.content(alias) == before | content_in(lines)


def _held_before(node: SyncNode, alias: str, lines: list[Line], pool: Pool) -> Content:
    """Have what the recorded client already had, and did not request: the chain before the oldest block it got."""
    raw = [content for (kind, _), content in content_in(lines).items() if kind is ObjectKind.BLOCK]
    last = decode_block(raw[-1]).block.prev_block_hash if raw else Multihash.parse(lines[1]["body"])
    if last is None:
        return {}
    node.hold(alias, last, pool)
    return node.content(alias)


def head_read_once(script: Script) -> list[str]:
    """Return the recorded requests, without the first: the recorded client reads the head twice, ours once."""
    first, second, *rest = script.recorded
    assert first == second
    return [first, *rest]


@plays(Side.CLIENT)
def test_our_client_requests_a_hidden_dataset_once(tmp_path: Path, case: str) -> None:
    node, lines = SyncNode(tmp_path), lines_of(case)
    alias, scheme = alias_of(lines[0]["path"]), "odf+" if case.startswith("smart") else ""
    script = Script(lines=lines)

    with scripted(script) as base, pytest.raises(NotFound) as raised:
        node.pull(f"{scheme}{base}/{alias}", alias)

    assert (script.faults, script.asked) == ([], script.recorded)
    assert raised.value.what == f"dataset {base}/{alias}"
    assert list(node.catalog.entries()) == []


@plays(Side.CLIENT)
def test_our_client_reads_a_diverged_chain_down_to_the_common_block(
    tmp_path: Path, pool: Pool, case: str
) -> None:
    node, lines = SyncNode(tmp_path), lines_of(case)
    names = [line["path"].rpartition("/")[2] for line in lines if "/blocks/" in line.get("path", "")]
    node.hold(CITIES, Multihash.parse(names[-1]), pool)
    node.add_block(CITIES, SetInfo(description="ours"))
    before, head = node.content(CITIES), node.head(CITIES)
    script = Script(lines=lines)

    with scripted(script) as base, pytest.raises(ChainsDiverged) as refused:
        node.pull(f"{base}/{CITIES}", CITIES)

    assert script.faults == []
    # The common block is read from our own store.
    assert script.asked == head_read_once(script)[:-1]
    assert (refused.value.common_block, refused.value.blocks_here) == (names[-1], 1)
    assert refused.value.blocks_there == len(names) - 1
    assert (node.content(CITIES), node.head(CITIES)) == (before, head)


@plays(Side.CLIENT)
def test_our_client_refuses_a_server_that_is_behind(tmp_path: Path, pool: Pool, case: str) -> None:
    node, lines = SyncNode(tmp_path), lines_of(case)
    theirs = Multihash.parse(lines[1]["body"])
    node.hold(CITIES, theirs, pool)
    note_complete(node.blobs, dataset_of(pool.chain(theirs)), theirs)
    node.add_block(CITIES, SetInfo(description="ours"))
    before, head = node.content(CITIES), node.head(CITIES)
    script = Script(lines=lines)

    with scripted(script) as base, pytest.raises(LocalAhead) as refused:
        node.pull(f"{base}/{CITIES}", CITIES)

    assert script.faults == []
    assert script.asked == head_read_once(script)
    assert refused.value.blocks == 1
    assert (node.content(CITIES), node.head(CITIES)) == (before, head)
