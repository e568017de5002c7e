"""What a node's services cannot reach is in `odf status` within seconds, and gone when the part answers again."""

import http.client
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest
from odf_testing.embedded import EmbeddedNode
from odf_testing.story import Story, root

from odf_common.metadata.scalars import Timestamp

NOTICED: Final = 30.0  # seconds: ten, and what a busy machine adds
ANSWERED: Final = (
    15.0  # seconds: five, and what a busy machine adds; without the check, it takes more than 30
)
STATUS: Final = 10.0  # seconds: five, and what a busy machine adds
USERS: Final = {"kafka": {"ingest", "coordinator", "verifier", "sync"}, "coordinator": {"ingest", "sync"}}


@contextmanager
def frozen(node: EmbeddedNode, part: str) -> Iterator[None]:
    pid = node.kill(part, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def states(node: EmbeddedNode) -> dict[str, dict[str, Any]]:
    begun = time.monotonic()
    status = node.run("status --output json")
    assert time.monotonic() - begun < STATUS
    return {part["name"]: part for part in (*status["services"], *status["parts"])}


@pytest.mark.parametrize("part", USERS)
def test_a_part_that_is_frozen_is_named_with_since_when_and_with_what_waits_for_it(
    node: EmbeddedNode, part: str
) -> None:
    node.eventually(lambda: all(one["state"] == "ready" for one in states(node).values()), NOTICED)
    begun = Timestamp.from_ms(int(time.time() * 1000))
    with frozen(node, part):
        node.eventually(lambda: states(node)[part]["state"] == "unreachable", NOTICED)
        node.eventually(lambda: degraded(node) == USERS[part], NOTICED)
        seen = states(node)[part]
        assert Timestamp.parse(seen["since"]).ms >= begun.ms - 1000
        assert "cannot reach it" in seen["problem"]
        (problem,) = [one for one in node.run("status --output json")["problems"] if one["of"] == part]
        assert problem["since"] == seen["since"]
        shown = node.run("status")
        assert f"{part}, since " in shown
        assert f"is degraded; cannot reach {part}" in shown
    node.eventually(lambda: all(one["state"] == "ready" for one in states(node).values()), NOTICED)
    node.eventually(lambda: not list((node.home / "outages").glob("*.json")), NOTICED)


@pytest.mark.parametrize("part", ["kafka", "coordinator", "ingest"])
def test_a_push_is_answered_soon_while_a_part_is_frozen_and_its_repeat_gets_the_outcome_once(
    story: Story, part: str
) -> None:
    name = f"outages.{part}"
    story.add(root(name, ("id BIGINT", "at TIMESTAMP(3)"), event_time="at"))
    assert push(story.node, name, 1)[0] == 200
    with frozen(story.node, part):
        begun = time.monotonic()
        assert push(story.node, name, 2)[:2] == (503, "1")
        assert time.monotonic() - begun < ANSWERED
        # What another test has frozen before may be named for two more seconds.
        silence = f"{part} does not answer"
        story.node.eventually(lambda: push(story.node, name, 2)[2]["message"].startswith(silence), NOTICED)
    story.node.eventually(lambda: push(story.node, name, 2)[0] == 200, NOTICED)
    assert story.chain(name).column("id") == [1, 2]


def push(node: EmbeddedNode, name: str, id_: int) -> tuple[int, str | None, Any]:
    """Push a record with its id as the key."""
    connection = http.client.HTTPConnection(str(node.node.http).removeprefix("http://"), timeout=60)
    try:
        row = json.dumps({"id": id_, "at": "2026-01-01T00:00:00Z"}).encode()
        headers = {"Content-Type": "application/x-ndjson", "Idempotency-Key": str(id_)}
        connection.request("POST", f"/{name}/ingest?wait=commit", row, headers)
        answer = connection.getresponse()
        return answer.status, answer.headers["Retry-After"], json.loads(answer.read())
    finally:
        connection.close()


def degraded(node: EmbeddedNode) -> set[str]:
    return {name for name, one in states(node).items() if one["state"] == "degraded"}
