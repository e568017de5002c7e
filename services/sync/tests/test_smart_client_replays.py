"""Exchanges of another implementation by the Smart Transfer Protocol, replayed against our client."""

import json
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from odf_testing.recorded_cases import Side, plays
from odf_testing.recorded_node import CITIES
from odf_testing.recorded_servers import Script, in_order, scripted
from odf_testing.recorded_transfers import (
    PATIENCE_SECONDS,
    RECORDED_HOST,
    Content,
    Line,
    Pool,
    alias_of,
    all_recorded,
    body_of,
    content_in,
    head_of,
    lines_of,
    plain_of,
)
from odf_testing.sync_node import SyncNode

from odf_common.adapters.local.repositories import LocalRepositories
from odf_common.adapters.networks import PUBLIC
from odf_common.dataset.dataset_notes import remote_aliases
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import Name
from odf_common.metadata.events import SetInfo
from odf_sync.access.access_store import AccessStore
from odf_sync.access.remote_login import AccessDenied, RemoteLogins, authorization
from odf_sync.repositories.http_dataset import READ_RETRY, READ_TIMEOUT, HttpDataset
from odf_sync.repositories.node_client import NodeClient
from odf_sync.smart.connection import Connection, connect
from odf_sync.smart.exchange import CLOSE_FAULT, PULL, PUSH, End, TransferRefused
from odf_sync.smart.exchange import Side as EndSide
from odf_sync.smart.message_json import encode
from odf_sync.smart.messages import DatasetVisibility, Internal, Message, Phase, Refusal
from odf_sync.transfer.push_source import PushDiverged
from odf_sync.transfer.remote_chain import ChainsDiverged

NINE = Multihash.parse("f16205b32358ba1169824af9f5f71d362beb5f58932cfca42013f210e16672a94399f")
TWELVE = Multihash.parse("f1620b95d40b1f2297553525ab60376952ffa3828f8c12fdd4d1d6478f73779ebb4b3")
GAVE_UP = (1000, "the client gave up")  # the recorded client drops the connection, which is a defect


@pytest.fixture(scope="module")
def pool() -> Pool:
    return all_recorded()


@plays(Side.CLIENT)
def test_our_client_pulls_as_recorded(tmp_path: Path, pool: Pool, case: str) -> None:
    node, lines = SyncNode(tmp_path), lines_of(case)
    alias, head = alias_of(lines[0]["path"]), Multihash.parse(lines[1]["body"])
    asked = next(json.loads(line["body"]) for line in lines if "begin_after" in line.get("body", ""))
    before: Content = {}
    if asked["begin_after"] is not None:
        node.hold(alias, Multihash.parse(asked["begin_after"]), pool)
        before = node.content(alias)
    script = Script(lines=lines)

    with scripted(script) as base:
        *_, last = node.pull(f"odf+{base}/{alias}", alias, token=token_in(lines))

    assert_played(script)
    assert script.closed == [(1000, "Client pull flow succeeded")]
    assert last.state == ("up-to-date" if asked["begin_after"] == str(head) else "updated")
    assert node.head(alias) == head
    assert node.content(alias) == before | content_in(lines)


def token_in(lines: list[Line]) -> str | None:
    """Return the token that the recorded client sent."""
    sent = lines[0]["headers"].get("authorization")
    return None if sent is None else str(sent).removeprefix("Bearer ")


def assert_played(script: Script) -> None:
    """Assert that the client did what the recorded one did, in its order; objects travel at the same time."""
    assert script.faults == []
    assert in_order(script.did) == in_order(script.recorded_acts)


@plays(Side.CLIENT)
def test_our_client_names_the_common_ancestor_of_a_diverged_chain(
    tmp_path: Path, pool: Pool, case: str
) -> None:
    node, lines = SyncNode(tmp_path), lines_of(case)
    ours = _diverged(node, pool)
    before = node.content(CITIES)
    recorded = next(line for line in lines if "begin_after" in line.get("body", ""))
    begin_after = json.loads(recorded["body"])["begin_after"]
    newer = [name for name, _ in pool.chain(TWELVE)[9:]][::-1]
    blocks = {f"/{CITIES}/blocks/{name}": pool.blocks[name] for name in newer}
    script = Script(lines=lines, replaced={begin_after: str(ours)}, extra=blocks)

    with scripted(script) as base, pytest.raises(ChainsDiverged) as refused:
        node.pull(f"odf+{base}/{CITIES}", CITIES)

    assert script.faults == []
    # Ours also finds the common block, from the blocks that it does not have.
    assert script.asked == [*script.recorded, *(f"GET {path}" for path in blocks)]
    assert script.closed == [GAVE_UP]
    assert refused.value.common_block == str(NINE)
    assert (node.head(CITIES), node.content(CITIES)) == (ours, before)


@plays(Side.CLIENT)
def test_our_client_pushes_as_recorded(tmp_path: Path, pool: Pool, case: str) -> None:
    node, lines = SyncNode(tmp_path), lines_of(case)
    node.hold("here", head_of(lines, pool), pool)
    asked = next(line["body"] for line in lines if "visibility" in line.get("body", ""))
    visibility = DatasetVisibility(json.loads(asked)["visibility_for_created_dataset"])
    script = Script(lines=lines)

    with scripted(script) as base:
        target = f"odf+{base}/{alias_of(lines[0]['path'])}"
        *_, last = node.push("here", target, visibility=visibility, token=token_in(lines))

    assert_played(script)
    assert script.closed == [(1000, "Client push flow succeeded")]
    assert (last.state, last.head) == ("updated", head_of(lines, pool))


@plays(Side.CLIENT)
def test_our_client_requests_only_the_head_if_nothing_is_new(tmp_path: Path, pool: Pool, case: str) -> None:
    node, lines = SyncNode(tmp_path), lines_of(case)
    node.hold("here", Multihash.parse(lines[1]["body"]), pool)
    script = Script(lines=lines)

    with scripted(script) as base:
        *_, last = node.push("here", f"odf+{base}/{alias_of(lines[0]['path'])}", token=token_in(lines))

    assert_played(script)
    assert last.state == "up-to-date"


@plays(Side.CLIENT)
def test_our_client_pushes_to_a_repository_by_its_name_as_recorded(
    tmp_path: Path, pool: Pool, case: str
) -> None:
    node, lines = SyncNode(tmp_path), lines_of(case)
    name = next(alias_of(line["path"]) for line in lines if line.get("path", "").endswith("/push"))
    here = name.rpartition("/")[2]
    node.hold(here, head_of(lines, pool), pool)
    script = Script(lines=lines)

    with scripted(script) as base:
        LocalRepositories(tmp_path).add(Name("shop"), f"odf+{base}")
        *_, last = node.push(here, "shop", token=token_in(lines))

    assert_played(script)
    assert script.closed == [(1000, "Client push flow succeeded")]
    assert last.state == "updated"
    (entry,) = node.catalog.entries()
    assert remote_aliases(node.blobs, entry.dataset_id).push == (f"shop/{name}",)


@plays(Side.CLIENT)
def test_our_client_reports_a_push_that_is_not_allowed(tmp_path: Path, pool: Pool, case: str) -> None:
    node, lines = SyncNode(tmp_path), lines_of(case)
    node.hold(CITIES, NINE, pool)
    script = Script(lines=lines)
    status = next(line["status"] for line in lines if line.get("status") in (401, 403))

    with scripted(script) as base, pytest.raises(AccessDenied, match=f"status {status}"):
        node.push(CITIES, f"odf+{base}/{alias_of(lines[0]['path'])}", token=token_in(lines))

    assert_played(script)
    assert _push_aliases(node) == ()


@plays(Side.CLIENT)
def test_our_client_reports_a_push_that_fails_after_the_blocks(tmp_path: Path, pool: Pool, case: str) -> None:
    node, lines = SyncNode(tmp_path), lines_of(case)
    node.hold("here", head_of(lines, pool), pool)
    script = Script(lines=lines)

    with scripted(script) as base, pytest.raises(TransferRefused) as refused:
        node.push("here", f"odf+{base}/{alias_of(lines[0]['path'])}", token=token_in(lines))

    assert_played(script)
    assert refused.value.fault == Internal(phase=Phase.PUSH_TARGET, error_message="Internal error")
    assert _push_aliases(node) == ()


def _push_aliases(node: SyncNode) -> tuple[str, ...]:
    (entry,) = node.catalog.entries()
    return remote_aliases(node.blobs, entry.dataset_id).push


@plays(Side.CLIENT)
def test_our_client_refuses_a_push_that_has_diverged(tmp_path: Path, pool: Pool, case: str) -> None:
    node = SyncNode(tmp_path)
    _diverged(node, pool)
    (asked, answered) = lines_of(case)
    alias = alias_of(asked["path"])
    newer = [name for name, _ in pool.chain(TWELVE)[9:]][::-1]
    blocks = {f"/{alias}/blocks/{name}": pool.blocks[name] for name in newer}
    # The blocks of the recorded head were not recorded: another chain stands for it.
    script = Script(lines=[asked, {**answered, "body": str(TWELVE)}], extra=blocks)

    with scripted(script) as base, pytest.raises(PushDiverged) as refused:
        node.push(CITIES, f"odf+{base}/{alias}", token=token_in([asked]))

    assert script.faults == []
    # Ours also finds the common block, from the blocks that it does not have.
    assert script.asked == [*script.recorded, *(f"GET {path}" for path in blocks)]
    assert refused.value.common_block == str(NINE)


def _diverged(node: SyncNode, pool: Pool) -> Multihash:
    """Hold the first nine blocks and one that no other node has; return it."""
    node.hold(CITIES, NINE, pool)
    node.add_block(CITIES, SetInfo(description="ours"))
    head = node.head(CITIES)
    assert head is not None
    return head


@plays(Side.CLIENT)
def test_our_client_logs_in_with_a_password_as_recorded(tmp_path: Path, case: str) -> None:
    lines = lines_of(case)
    script = Script(lines=lines)
    sent = json.loads(json.loads(lines[0]["body"])["loginCredentialsJson"])

    with scripted(script) as base:
        token = RemoteLogins(AccessStore(tmp_path)).with_password(base, sent["login"], sent["password"])

    assert_played(script)
    assert token == json.loads(lines[1]["body"])["accessToken"]


@plays(Side.CLIENT)
def test_our_end_of_an_exchange_sends_and_accepts_the_recorded_messages(case: str) -> None:
    """The recorded clients were written by hand: the lower layers of our client send their messages."""
    lines = lines_of(case)
    script = Script(lines=lines)

    with scripted(script) as base, ExitStack() as stack:
        ours = _Ours(base=base, stack=stack)
        for line in lines:
            ours.play(line)

    assert_played(script)


@dataclass
class _Ours:
    """Our end of one exchange at a time; `theirs` reads the recorded client's messages like our server."""

    base: str
    stack: ExitStack
    theirs: dict[int, End] = field(default_factory=dict)
    connections: dict[int, Connection] = field(default_factory=dict)

    def play(self, line: Line) -> None:
        conn = line["conn"]
        match line["from"], line["kind"]:
            case "client", "ws-open":
                table = PUSH if line["path"].endswith("/push") else PULL
                self.theirs[conn] = End(side=EndSide.SERVER, table=table)
                opened = connect(self.base + line["path"], table, authorization(token_in([line])))
                self.connections[conn] = self.stack.enter_context(opened)
            case "client", "ws-text":
                said = self.theirs[conn].receive(line["body"].replace(RECORDED_HOST, self.base))
                self.connections[conn].send(said)
            case "server", "ws-text":
                heard = self._heard(conn)
                assert plain_of(encode(heard), self.base) == plain_of(line["body"], self.base)
                self.theirs[conn].note_sent(heard)
            case "server", "ws-close" if line["code"] == CLOSE_FAULT:
                assert plain_of(encode(self._heard(conn)), self.base) == plain_of(line["reason"], self.base)
            case "client", "ws-close":
                self.connections[conn].close(line["reason"].encode())
            case "client", "http-request":
                self._ask(line)
            case _:
                assert line["from"] == "server"

    def _heard(self, conn: int) -> Message:
        try:
            message = self.connections[conn].poll(PATIENCE_SECONDS)
        except TransferRefused as refused:
            return Refusal(fault=refused.fault)
        assert message is not None
        return message

    def _ask(self, line: Line) -> None:
        if line["method"] == "GET":
            HttpDataset(self.base + line["path"].removesuffix("/refs/head"), token_in([line])).head()
            return
        client = NodeClient(self.base, PUBLIC, timeout=READ_TIMEOUT, retries=READ_RETRY)
        headers = {name: held for name, held in line["headers"].items() if name != "content-length"}
        assert client.put(self.base + line["path"], headers, body_of(line)).status == 200
