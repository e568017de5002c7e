"""What a node's services cannot reach is in `odf status` within seconds, and gone when the part answers again."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest
from odf_testing.embedded import EmbeddedNode

from odf_common.metadata.scalars import Timestamp

NOTICED: Final = 30.0  # seconds: ten, and what a busy machine adds
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
    assert not list((node.home / "outages").glob("*.json"))


def degraded(node: EmbeddedNode) -> set[str]:
    return {name for name, one in states(node).items() if one["state"] == "degraded"}
