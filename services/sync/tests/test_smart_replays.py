"""Exchanges of another implementation by the Smart Transfer Protocol, replayed against our server and our client."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from odf_testing.manifests import root
from odf_testing.recorded_transfers import (
    Line,
    Pool,
    Script,
    all_recorded,
    blocks_in,
    lines_of,
    play_client,
    scripted,
    with_texts,
)
from odf_testing.sync_node import SyncNode

from odf_common.adapters.local.repositories import LocalRepositories
from odf_common.codec.flatbuffers import block_hash, decode_block, encode_block
from odf_common.dataset.remote_aliases import remote_aliases
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import Name
from odf_common.metadata.events import SetInfo
from odf_sync.access.access_store import AccessStore
from odf_sync.access.directory import Directory
from odf_sync.access.sent_tokens import LoginRequired
from odf_sync.http.authorization import Authorizer
from odf_sync.http.smart_protocol import serve_push
from odf_sync.smart.messages import ProgressRequest, Visibility
from odf_sync.transfer.compare import ChainsDiverged
from odf_sync.transfer.push import PushDiverged

CITIES = "alice/cities.population"
NINE = "f16205b32358ba1169824af9f5f71d362beb5f58932cfca42013f210e16672a94399f"
TEN = "f162034ddb54db66eb42d04b373d23bb3a3ff42d1f7b978ddb88babdda2d0bbadc6b2"
TWELVE = "f1620b95d40b1f2297553525ab60376952ffa3828f8c12fdd4d1d6478f73779ebb4b3"
SECRET = "f1620e843b81808ba186660e544a31e1a2e61c4e824c2d1d0c3e9faf4e2472adbee45"
OLD = "f1620c8aedd3152c164665f036f654664ffe6bd80cc7b9b1b08125506c26825199a60"

ALICE = "did:odf:fed01616ce9931bb5b132616ce9931bb5b13210c6963656060000df86d89f9bd9ff38"
KAMU = "did:odf:fed016b61ed2ab1b63a006b61ed2ab1b63a00b016d65607000000e0821aafbf163e6f"

PULLS = {
    "smart-pull-new": (CITIES, NINE),
    "smart-pull-up-to-date": (CITIES, NINE),
    "smart-pull-incremental": (CITIES, TEN),
    "smart-pull-missing": (CITIES, NINE),
    "smart-pull-diverged": (CITIES, TWELVE),
    "smart-pull-private-owner": ("bob/secret.notes", SECRET),
    "smart-pull-old-layout": ("alice/old.layout", OLD),
    "smart-pull-unknown-begin": (CITIES, TWELVE),
    "smart-pull-unknown-stop": (CITIES, TWELVE),
    "smart-pull-two-object-rounds": (CITIES, TWELVE),
}


@pytest.fixture(scope="module")
def pool() -> Pool:
    return all_recorded()


@pytest.mark.parametrize("case", PULLS)
def test_our_server_answers_a_pull_as_recorded(tmp_path: Path, pool: Pool, case: str) -> None:
    node = SyncNode(tmp_path)
    alias, head = PULLS[case]
    node.hold(alias, Multihash.parse(head), pool)

    with node.served() as base:
        asyncio.run(play_client(base, lines_of(case)))


@pytest.mark.parametrize("action", ["pull", "push"])
def test_the_headers_of_a_transfer_are_checked_in_the_recorded_order(
    tmp_path: Path, pool: Pool, action: str
) -> None:
    node = SyncNode(tmp_path)
    node.hold(CITIES, Multihash.parse(TWELVE), pool)
    lines = [line for line in lines_of("version-header") if _is_of(line, action)]

    with node.served() as base:
        asyncio.run(play_client(base, lines))


def _is_of(line: Line, action: str) -> bool:
    paths = {one["conn"]: one for one in lines_of("version-header") if "path" in one}
    asked = paths[line["conn"]]
    # Who may push, and so which method is not allowed to whom, is a matter of access.
    is_allowed = asked["method"] == "GET" and (action == "pull" or "authorization" in asked["headers"])
    return bool(asked["path"].endswith(action)) and is_allowed


@pytest.mark.parametrize(
    ("case", "here"),
    [
        ("smart-pull-new", None),
        ("smart-pull-up-to-date", NINE),
        ("smart-pull-incremental", NINE),
        ("smart-pull-private-owner", None),
        ("smart-pull-old-layout", None),
    ],
)
def test_our_client_pulls_as_recorded(tmp_path: Path, pool: Pool, case: str, here: str | None) -> None:
    alias, head = PULLS[case]
    node, there = SyncNode(tmp_path / "here"), SyncNode(tmp_path / "there")
    there.hold(alias, Multihash.parse(head), pool)
    if here is not None:
        node.hold(alias, Multihash.parse(here), pool)
    script = Script(lines=lines_of(case))

    with scripted(script) as base:
        *_, last = node.pull(f"odf+{base}/{alias}", alias)

    assert script.faults == []
    assert sorted(script.asked) == sorted(script.recorded)
    assert script.closed == [(1000, "Client pull flow succeeded")]
    assert last.state == ("up-to-date" if here == head else "updated")
    assert node.content(alias) == there.content(alias)


def test_our_client_names_the_common_ancestor_of_a_diverged_chain(tmp_path: Path, pool: Pool) -> None:
    node = SyncNode(tmp_path)
    ours = _diverged(node, pool)
    recorded = next(line for line in lines_of("smart-pull-diverged") if "begin_after" in line.get("body", ""))
    begin_after = recorded["body"].split('"')[3]
    blocks = {f"/{CITIES}/blocks/{name}": raw for name, raw in pool.chain(Multihash.parse(TWELVE))}
    script = Script(lines=lines_of("smart-pull-diverged"), replaced={begin_after: str(ours)}, extra=blocks)

    with scripted(script) as base, pytest.raises(ChainsDiverged) as refused:
        node.pull(f"odf+{base}/{CITIES}", CITIES)

    assert script.faults == []
    assert script.asked[: len(script.recorded)] == script.recorded
    assert refused.value.common_block == NINE


PUSHES = (
    "smart-push-new",
    "smart-push-new-no-objects",
    "smart-push-truncated-rounds",
    "smart-push-id-already-there",
    "smart-push-corrupt-block",
    "single-tenant-push",
)


@pytest.mark.parametrize("case", PUSHES)
def test_our_server_takes_a_push_as_recorded(tmp_path: Path, pool: Pool, case: str) -> None:
    node = SyncNode(tmp_path)
    lines = lines_of(case)
    if case == "smart-push-id-already-there":
        node.hold("alice/lab.thermo", head_of(lines_of("smart-push-new"), pool), pool)
    if case == "smart-push-corrupt-block":
        lines = [line for line in lines if line["conn"] == 1]  # then a Seed stays there, which is a defect

    with node.served() as base:
        asyncio.run(play_client(base, lines))

    alias = next(line["path"] for line in lines if line["kind"] == "ws-open" and "path" in line)[1:-5]
    if any(line["kind"] == "ws-close" and line["code"] == 1011 for line in lines):
        assert node.head(alias) is None
    else:
        assert node.head(alias) == head_of(lines, pool)


def test_our_server_takes_answers_about_the_progress_that_come_late(tmp_path: Path, pool: Pool) -> None:
    """They answer questions that crossed with the end of a list of objects, and are not the end of the next one."""
    node = SyncNode(tmp_path)
    recorded = lines_of("smart-push-truncated-rounds")
    lines = [late for line in recorded for late in (line, *_answered_again(line))]
    assert len(lines) == len(recorded) + 4

    with node.served() as base:
        asyncio.run(play_client(base, lines))

    alias = next(line["path"] for line in lines if line["kind"] == "ws-open" and "path" in line)[1:-5]
    assert node.head(alias) == head_of(lines, pool)


def _answered_again(line: Line) -> list[Line]:
    if line.get("body") != '{"details":"Complete"}':
        return []
    return [{**line, "body": '{"details":{"Running":{"uploaded_objects_count":1}}}'}, line]


def test_our_server_asks_for_the_progress_of_slow_uploads_as_recorded(
    tmp_path: Path, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = SyncNode(tmp_path)
    lines = lines_of("smart-push-slow-upload")

    def asked_once() -> ProgressRequest:
        monkeypatch.setattr(serve_push, "PROGRESS_SECONDS", 3600.0)
        return ProgressRequest()

    monkeypatch.setattr(serve_push, "PROGRESS_SECONDS", 0.2)
    monkeypatch.setattr(serve_push, "ProgressRequest", asked_once)

    with node.served() as base:
        asyncio.run(play_client(base, lines))

    assert node.head("alice/craft.n2") == head_of(lines, pool)


@pytest.mark.parametrize("case", ["smart-push-new", "smart-push-new-no-objects", "single-tenant-push"])
def test_our_client_pushes_as_recorded(tmp_path: Path, pool: Pool, case: str) -> None:
    node = SyncNode(tmp_path)
    lines = lines_of(case)
    node.hold("here", head_of(lines, pool), pool)
    opened = next(line for line in lines if line["kind"] == "ws-open" and "path" in line)
    asked = next(line["body"] for line in lines if "visibility" in line.get("body", ""))
    visibility = Visibility(json.loads(asked)["visibility_for_created_dataset"])
    script = Script(lines=lines)

    with scripted(script) as base:
        *_, last = node.push(
            "here", f"odf+{base}{opened['path'].removesuffix('/push')}", visibility=visibility
        )

    assert script.faults == []
    assert sorted(script.asked) == sorted(script.recorded)
    assert script.closed == [(1000, "Client push flow succeeded")]
    assert last.state == "updated"


def test_a_push_of_nothing_new_asks_for_the_head_only(tmp_path: Path, pool: Pool) -> None:
    node = SyncNode(tmp_path)
    node.hold("here", head_of(lines_of("smart-push-new"), pool), pool)
    script = Script(lines=lines_of("smart-push-up-to-date"))

    with scripted(script) as base:
        *_, last = node.push("here", f"odf+{base}/alice/lab.thermo")

    assert (last.state, script.asked) == ("up-to-date", script.recorded)


def test_our_client_pushes_to_a_repository_by_its_name_as_recorded(tmp_path: Path, pool: Pool) -> None:
    node = SyncNode(tmp_path)
    lines = lines_of("smart-push-to-repo-name")
    node.hold("lab.hygro", head_of(lines, pool), pool)
    script = Script(lines=lines)

    with scripted(script) as base:
        LocalRepositories(tmp_path).add(Name("shop"), f"odf+{base}")
        *_, last = node.push("lab.hygro", "shop", token="TOKEN")

    assert script.faults == []
    assert script.asked == script.recorded
    assert script.tokens == {"Bearer TOKEN"}
    assert script.closed == [(1000, "Client push flow succeeded")]
    assert last.state == "updated"
    (entry,) = node.catalog.entries()
    assert remote_aliases(node.blobs, entry.dataset_id).push == ("shop/alice/lab.hygro",)


def test_our_server_takes_a_push_to_a_repository_by_its_name_as_recorded(tmp_path: Path, pool: Pool) -> None:
    node = SyncNode(tmp_path)
    directory = Directory(AccessStore(tmp_path), is_multi_tenant=True)
    account = directory.add_account(Name("alice"), None)
    token = directory.create_token(account.name, label="test")[0].text()
    lines = with_texts(lines_of("smart-push-to-repo-name"), {"TOKEN": token, ALICE: str(account.id)})

    with node.served(Authorizer(catalog=node.catalog, local_writers="off", directory=directory)) as base:
        asyncio.run(play_client(base, lines, is_logged_in=True))

    assert node.head("alice/lab.hygro") == head_of(lines, pool)


def test_an_anonymous_push_is_refused_as_recorded(tmp_path: Path, pool: Pool) -> None:
    node = SyncNode(tmp_path)
    node.hold(CITIES, Multihash.parse(NINE), pool)
    script = Script(lines=lines_of("smart-push-anonymous"))

    with scripted(script) as base, pytest.raises(LoginRequired):
        node.push(CITIES, f"odf+{base}/alice/anon.data")

    assert script.asked == script.recorded


def test_a_node_of_one_tenant_answers_as_recorded(tmp_path: Path) -> None:
    node = SyncNode(tmp_path)
    directory = Directory(AccessStore(tmp_path), is_multi_tenant=False)
    account = directory.add_account(Name("kamu"), None)
    token = directory.create_token(account.name, label="test")[0].text()
    node.coordinator.add(yaml.safe_dump(root("upserts", ["city STRING"])))
    lines = with_texts(lines_of("single-tenant-info"), {"TOKEN": token, KAMU: str(account.id)})

    with node.served(Authorizer(catalog=node.catalog, local_writers="off", directory=directory)) as base:
        asyncio.run(play_client(base, lines, is_logged_in=True))


def test_a_push_that_has_diverged_is_refused_by_our_client(tmp_path: Path, pool: Pool) -> None:
    node = SyncNode(tmp_path)
    _diverged(node, pool)
    (asked, answered) = lines_of("smart-push-diverged")
    blocks = {
        f"{asked['path'].removesuffix('/refs/head')}/blocks/{name}": raw
        for name, raw in pool.chain(Multihash.parse(TWELVE))
    }
    # The blocks of the recorded head were not recorded: another chain stands for it.
    script = Script(lines=[asked, {**answered, "body": TWELVE}], extra=blocks)

    with scripted(script) as base, pytest.raises(PushDiverged) as refused:
        node.push(CITIES, f"odf+{base}/alice/lab.thermo")

    assert script.asked[:1] == script.recorded
    assert not any(request.endswith("/push") for request in script.asked)
    assert refused.value.common_block == NINE


def test_our_server_tells_a_stale_client_its_head(tmp_path: Path, pool: Pool) -> None:
    node = SyncNode(tmp_path)
    head = head_of(lines_of("smart-push-new"), pool)
    node.hold("alice/lab.thermo", head, pool)
    recorded = next(
        line["body"] for line in lines_of("smart-push-invalid-head") if "expected" in line.get("body", "")
    )
    expected = json.loads(recorded)["Err"]["InvalidHead"]["expected_head"]
    lines = [
        {**line, "body": line["body"].replace(expected, str(head))} if "body" in line else line
        for line in lines_of("smart-push-invalid-head")
    ]

    with node.served() as base:
        asyncio.run(play_client(base, lines))


def head_of(lines: list[Line], pool: Pool) -> Multihash:
    """Return the last block that was pushed."""
    body = next(line["body"] for line in lines if "new_blocks" in line.get("body", ""))
    return blocks_in(json.loads(body)["new_blocks"])[-1][0]


def _diverged(node: SyncNode, pool: Pool) -> Multihash:
    """Hold the first nine blocks and one that no other node has; return it."""
    nine = Multihash.parse(NINE)
    last = decode_block(pool.blocks[nine]).block
    block = replace(
        last,
        prev_block_hash=nine,
        sequence_number=last.sequence_number + 1,
        event=SetInfo(description="ours"),
    )
    raw = encode_block(block, version=3)
    node.hold(CITIES, block_hash(raw), replace(pool, blocks={**pool.blocks, block_hash(raw): raw}))
    return block_hash(raw)
