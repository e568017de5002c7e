"""A node on which healthy datasets stream, and its hostile neighbours.

A neighbour is a generator: it causes its problem, yields the dataset that `odf status` has to name with a remedy
(or None where no dataset has a problem), and then applies the remedy and shows that the dataset continues.
"""

import json
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from confluent_kafka import Producer
from odf_testing.embedded import EmbeddedNode
from odf_testing.story import QUIET, Manifest, Story, as_text, ledger, root

from odf_common.adapters.local.stores import LocalBlobStore, LocalRefStore
from odf_common.dataset.state_cache import ChainStates, NoStateCache
from odf_common.identity.dataset_refs import DatasetId

COLUMNS: Final = ("id BIGINT", "amount DOUBLE", "at TIMESTAMP(3)")
HEALTHY: Final = tuple(f"healthy.{number}" for number in range(6))
STRATEGIES: Final[tuple[Mapping[str, Any], ...]] = ({"kind": "Append"}, ledger("id"), {"kind": "Append"})
BURST: Final = 50  # records to each dataset, once in `EVERY`
EVERY: Final = 1.0  # seconds
WINDOWS: Final = (2.0, 4.0, 8.0)  # seconds; a longer one only if the rate was too low in those before
KEPT: Final = 0.8  # share of the undisturbed rate
SERVICES: Final = ("ingest", "coordinator", "verifier", "sync")


def rows(first: int, count: int, at: str = "2026-01-01T00:00:00Z") -> list[dict[str, object]]:
    return [{"id": id_, "amount": id_ / 4, "at": at} for id_ in range(first, first + count)]


def as_messages(records: list[dict[str, object]]) -> list[bytes]:
    return [json.dumps(record).encode() for record in records]


def plain_root(name: str) -> Manifest:
    return root(name, COLUMNS, event_time="at")


class Stream:
    """Publishes to the healthy datasets in turn, at a steady rate that leaves the machine spare capacity."""

    def __init__(self, story: Story) -> None:
        self.topics = [story.topic(name) for name in HEALTHY]
        self.sent = [0] * len(HEALTHY)
        self._producer = Producer({"bootstrap.servers": story.node.kafka}, logger=QUIET)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        assert self._producer.flush(60) == 0

    def _run(self) -> None:
        turn = 0
        while not self._stop.wait(EVERY / len(HEALTHY)):
            number = turn % len(HEALTHY)
            for message in as_messages(rows(self.sent[number], BURST)):
                self._producer.produce(self.topics[number], message, partition=0)
            self._producer.poll(0)
            self.sent[number] += BURST
            turn += 1


@dataclass(slots=True)
class Street:
    """A node on which healthy datasets stream."""

    story: Story
    stream: Stream
    pids: Mapping[str, int | None]
    committed: Callable[[str], int]
    made: dict[str, str] = field(default_factory=dict)
    prefix: str = ""

    @property
    def node(self) -> EmbeddedNode:
        return self.story.node

    def add(self, name: str, manifest: Callable[[str], Manifest] = plain_root) -> str:
        """Create a dataset with a name unlike those of other tests; returns that name."""
        name = f"{self.prefix}.{name}"
        (added,) = self.node.run("add - --output json", stdin=as_text(manifest(name)))
        self.made[name] = added["id"]
        return name

    def rename(self, name: str, new: str) -> None:
        """Give a dataset another name."""
        self.node.run(f"rename {name} {new}")
        self.made[new] = self.made.pop(name)

    def delete(self, name: str) -> None:
        """Delete a dataset."""
        self.node.run(f"delete {name} --yes")
        del self.made[name]
        self.story.forget()

    def records(self, name: str) -> int:
        """Return the number of records that the node reports for a dataset."""
        return self.story.records(name)[0]

    def publish(self, name: str, records: list[dict[str, object]] | list[bytes]) -> None:
        self.story.publish(name, records)

    def await_committed(self, name: str, count: int) -> None:
        self.node.eventually(lambda: self.committed(name) == count)

    def folder(self, name: str) -> Path:
        return self.story.folder(name)

    def trouble(self, name: str) -> tuple[str, str]:
        """Return the problem of a dataset in `odf status`, and its remedy."""
        status = self.node.run("status --output json")
        found = [one for one in status["problems"] if one["of"] == name]
        return (found[0]["problem"], found[0]["remedy"] or "") if found else ("", "")

    def rate(self, seconds: float) -> tuple[float, list[str]]:
        """Return the share of the records published in an interval that were committed in it, and the stalled datasets."""
        sent, committed = list(self.stream.sent), [self.committed(name) for name in HEALTHY]
        time.sleep(seconds)
        offered = [after - before for before, after in zip(sent, self.stream.sent, strict=True)]
        grown = [self.committed(name) - before for name, before in zip(HEALTHY, committed, strict=True)]
        stalled = [name for name, count in zip(HEALTHY, grown, strict=True) if count == 0]
        return sum(grown) / sum(offered), stalled

    def require_healthy(self) -> None:
        """Nothing was restarted, and the healthy datasets keep their rate."""
        low: list[str] = []
        for seconds in WINDOWS:
            share, stalled = self.rate(seconds)
            if share >= KEPT and not stalled:
                break
            low.append(f"{share:.0%} of what was published, stalled: {stalled}")
        assert len(low) < len(WINDOWS), low
        assert {name: self.node.pid(name) for name in self.pids} == self.pids


Neighbour = Callable[[Street], Generator[str | None, None, None]]


@contextmanager
def opened(node: EmbeddedNode) -> Iterator[Street]:
    """Add the healthy datasets to a node and stream to them; at the end each has every record once, in order."""
    story = Story(node)
    story.add(
        *(
            root(name, COLUMNS, merge=STRATEGIES[number % len(STRATEGIES)], event_time="at")
            for number, name in enumerate(HEALTHY)
        )
    )
    blobs, refs = LocalBlobStore(node.home), LocalRefStore(node.home)
    states = ChainStates(blobs, refs, NoStateCache())
    with Stream(story) as stream:
        street = Street(story, stream, {name: node.pid(name) for name in SERVICES}, lambda _: 0)

        def committed(name: str) -> int:
            if name not in street.made:
                street.made[name] = story.summary(name)["id"]
            state = states.current(DatasetId.parse(street.made[name]))
            return 0 if state is None else state.next_offset

        street.committed = committed
        node.eventually(lambda: all(committed(name) > 0 for name in HEALTHY))
        yield street
    for number, name in enumerate(HEALTHY):
        street.await_committed(name, stream.sent[number])
        assert story.chain(name).column("id") == list(range(stream.sent[number]))
