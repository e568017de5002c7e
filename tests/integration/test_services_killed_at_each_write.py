"""Ingest and the coordinator are killed by SIGKILL before and after each of their writes: nothing is lost or doubled.

The writes are found by killing at the first one, the second one and so on, until the process survives a batch.
"""

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Final

import pytest
from odf_testing import kill_hook
from odf_testing.embedded import EmbeddedNode
from odf_testing.story import Story

MANIFEST: Final = {
    "Append": {"kind": "Append"},
    "Ledger": {"kind": "Ledger", "primaryKey": ["id"]},
}
BATCH: Final = 3  # messages
LEAST: Final = 5  # writes of a batch
SERVICES: Final = {"ingest": "odf_ingest", "coordinator": "odf_coordinator"}


@pytest.fixture(scope="module")
def hooked(node: EmbeddedNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedNode]:
    """Another node, whose services end at the write that a file names."""
    home = tmp_path_factory.mktemp("hooked")
    (home / "kills").mkdir()
    made = node.guest(
        home, {"PYTHONPATH": str(Path(kill_hook.__file__).parent), "KILL_HOOK": str(home / "kills")}
    )
    made.up("coordinator", "ingest", "verifier")
    yield made
    made.down()


class Killing:
    """A root with a topic, and how often its messages arrived while a service was killed."""

    def __init__(self, hooked: EmbeddedNode, service: str, merge: str, when: str, stride: int) -> None:
        self.story, self.node, self.service, self.when = Story(hooked), hooked, service, when
        self.name = f"{service}.{merge.lower()}.{when}.{stride}"
        self.story.add(
            {
                "kind": "DatasetSnapshot",
                "version": 1,
                "content": {
                    "name": self.name,
                    "kind": "Root",
                    "metadata": [
                        {
                            "kind": "AddPushSource",
                            "sourceName": "default",
                            "read": {"kind": "NdJson", "schema": ["id BIGINT"]},
                            "merge": MANIFEST[merge],
                        }
                    ],
                },
            }
        )
        self.topic = self.story.topic(self.name)
        self.sent = 0
        self.send()  # the writes of a first batch are others, once

    def send(self) -> None:
        """Publish a batch, and return when it is committed; read from the store, as the service may be down."""
        head = self.story.folder(self.name) / "refs" / "head"
        before = head.read_bytes()
        ids = range(self.sent, self.sent + BATCH)
        self.node.produce(self.topic, [b'{"id":%d}' % number for number in ids])
        self.sent += BATCH
        self.node.eventually(lambda: head.read_bytes() != before and len(self.ids()) >= self.sent)

    def ids(self) -> list[int]:
        """Return the ids of all records, in their order."""
        return self.story.chain(self.name).column("id")

    def is_killed(self, writes: int) -> bool:
        """Send a batch to a service that is killed at its n-th write; return whether it was."""
        order = self.node.home / "kills" / SERVICES[self.service]
        old = self.node.pid(self.service)
        assert old is not None
        pending = order.with_suffix(".new")
        pending.write_text(f"{writes} {self.when}")
        pending.rename(order)
        self.send()
        if self.node.pid(self.service) == old and Path(f"/proc/{old}").exists():
            return False
        self.node.await_restart(self.service, old)
        return True

    def disarm(self) -> None:
        """Restart the service, which would otherwise be killed at a later write."""
        old = self.node.kill(self.service)
        self.node.await_restart(self.service, old)


@pytest.mark.parametrize(
    ("service", "merge", "when", "stride"),
    [
        ("coordinator", "Append", "before", 3),
        pytest.param("coordinator", "Append", "before", 1, marks=pytest.mark.soak),
        # The state that a killed ingest leaves is tested at each write without a broker, too.
        pytest.param("ingest", "Append", "before", 1, marks=pytest.mark.soak),
        pytest.param("ingest", "Append", "after", 1, marks=pytest.mark.soak),
        pytest.param("coordinator", "Append", "after", 1, marks=pytest.mark.soak),
        pytest.param("ingest", "Ledger", "before", 1, marks=pytest.mark.soak),
        pytest.param("ingest", "Ledger", "after", 1, marks=pytest.mark.soak),
    ],
)
def test_kills_at_each_write_lose_and_double_nothing(
    hooked: EmbeddedNode, service: str, merge: str, when: str, stride: int
) -> None:
    killing = Killing(hooked, service, merge, when, stride)
    kills = next(writes for writes in count(step=stride) if not killing.is_killed(writes))
    killing.disarm()
    assert kills > LEAST
    assert killing.ids() == list(range(killing.sent))
    assert [one["verdict"] for one in killing.story.verify(killing.name)] == ["valid"]
