"""Exchanges of another implementation by the Smart Transfer Protocol, replayed against our server."""

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from odf_testing.recorded_cases import Side, plays
from odf_testing.recorded_clients import answered, play_client
from odf_testing.recorded_node import recorded_node
from odf_testing.recorded_transfers import Line, Pool, alias_of, all_recorded, content_in, head_of, lines_of
from odf_testing.story import root
from odf_testing.sync_node import SyncNode

from odf_sync.http import serve_push
from odf_sync.smart import messages as msg
from odf_sync.smart.messages import ProgressRequest


@pytest.fixture(scope="module")
def pool() -> Pool:
    return all_recorded()


@plays(Side.SERVER)
def test_our_server_answers_a_pull_as_recorded(tmp_path: Path, pool: Pool, case: str) -> None:
    there = recorded_node(tmp_path, lines_of(case), pool)

    with there.served() as base:
        asyncio.run(play_client(base, there.lines))


@plays(Side.SERVER)
def test_our_server_accepts_a_push_as_recorded(tmp_path: Path, pool: Pool, case: str) -> None:
    lines = lines_of(case)
    there = recorded_node(tmp_path, lines, pool)

    with there.served() as base:
        asyncio.run(play_client(base, there.lines))

    assert_pushed(there.node, lines, pool)


def assert_pushed(node: SyncNode, lines: list[Line], pool: Pool) -> None:
    """Assert that a node has the dataset that was pushed, byte for byte, and nothing else of it."""
    alias = pushed_to(lines)
    assert node.head(alias) == head_of(lines, pool)
    assert node.content(alias) == content_in(lines)


def pushed_to(lines: list[Line]) -> str:
    """Return the name that a recorded client pushed to."""
    return next(alias_of(line["path"]) for line in lines if line.get("path", "").endswith("/push"))


@plays(Side.SERVER)
def test_our_server_answers_as_recorded_and_nothing_changes(tmp_path: Path, pool: Pool, case: str) -> None:
    there = recorded_node(tmp_path, lines_of(case), pool)
    before = state_of(there.node)

    with there.served() as base:
        asyncio.run(play_client(base, there.lines))

    assert state_of(there.node) == before


def state_of(node: SyncNode) -> dict[str, object]:
    """Return the heads and the content of all datasets."""
    names = [entry.alias for entry in node.catalog.entries()]
    return {alias: (node.head(alias), node.content(alias)) for alias in names}


@plays(Side.SERVER)
def test_our_server_keeps_nothing_of_a_push_with_a_corrupt_block(
    tmp_path: Path, pool: Pool, case: str
) -> None:
    """The recorded server keeps a dataset with its first block, which is a defect."""
    lines = lines_of(case)
    after = next(line["conn"] for line in lines if line.get("path", "").endswith("/refs/head"))
    there = recorded_node(tmp_path, answered(lines, after, status=404), pool)
    before = state_of(there.node)

    with there.served() as base:
        asyncio.run(play_client(base, there.lines))

    assert state_of(there.node) == before


def test_our_server_accepts_late_progress_responses(tmp_path: Path, pool: Pool) -> None:
    """They answer questions sent at the same time as the end of a list of objects, and do not end the next one."""
    recorded = lines_of("smart-push-truncated-rounds")
    lines = [late for line in recorded for late in (line, *_answered_again(line))]
    assert len(lines) == len(recorded) + 4
    there = recorded_node(tmp_path, lines, pool)

    with there.served() as base:
        asyncio.run(play_client(base, there.lines))

    assert_pushed(there.node, lines, pool)


def _answered_again(line: Line) -> list[Line]:
    if line.get("body") != '{"details":"Complete"}':
        return []
    return [{**line, "body": '{"details":{"Running":{"uploaded_objects_count":1}}}'}, line]


@plays(Side.SERVER)
def test_our_server_requests_the_progress_of_slow_uploads_as_recorded(
    tmp_path: Path, pool: Pool, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    lines = lines_of(case)
    there = recorded_node(tmp_path, lines, pool)

    def asked_once() -> ProgressRequest:
        monkeypatch.setattr(serve_push, "PROGRESS_SECONDS", 3600.0)
        return ProgressRequest()

    monkeypatch.setattr(serve_push, "PROGRESS_SECONDS", 0.2)
    monkeypatch.setattr(serve_push, "msg", SimpleNamespace(**(vars(msg) | {"ProgressRequest": asked_once})))

    with there.served() as base:
        asyncio.run(play_client(base, there.lines))

    assert_pushed(there.node, lines, pool)


@plays(Side.SERVER)
def test_a_single_tenant_node_answers_as_recorded(tmp_path: Path, pool: Pool, case: str) -> None:
    there = recorded_node(tmp_path, lines_of(case), pool, is_multi_tenant=False)
    there.node.coordinator.add(yaml.safe_dump(root("upserts", ["city STRING"])))

    with there.served() as base:
        asyncio.run(play_client(base, there.lines))
