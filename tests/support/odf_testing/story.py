"""Helpers for the stories of the integration tests: a node's datasets, used and compared."""

import json
import logging
import shutil
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from odf_common.ports.bus import DEAD_LETTERS
from odf_testing.chains import StoredChain, read_chain
from odf_testing.embedded import PATIENCE, EmbeddedNode
from odf_testing.manifests import Manifest, as_text

QUIET: Final = logging.getLogger("story.kafka")
QUIET.setLevel(logging.CRITICAL)
EVERYTHING: Final = 10_000_000  # records
Row = dict[str, Any]


class Story:
    """A node and the helpers of a story."""

    def __init__(self, node: EmbeddedNode) -> None:
        """Use a running node."""
        self.node = node
        self._known: dict[str, Row] = {}
        self._sender: Sender | None = None

    def add(self, *manifests: Manifest) -> list[Row]:
        """Add datasets; return the output of `odf add` for each."""
        return self._rows("add - --output json", stdin=as_text(*manifests))

    def refused(self, *manifests: Manifest) -> str:
        """Try to add datasets; return the refusal."""
        said = self.node.fails("add -", stdin=as_text(*manifests))
        assert "cannot be reached" not in said, said
        return said

    def summary(self, dataset: str) -> Row:
        """Return a dataset's entry in `odf list`."""
        found = self.find(dataset)
        assert found is not None, f"{dataset} does not exist"
        return found

    def find(self, dataset: str) -> Row | None:
        """Return a dataset's entry in `odf list`, None if it does not exist."""
        return next((row for row in self._rows("list --output json") if row["alias"] == dataset), None)

    def records(self, *datasets: str) -> list[int]:
        """Return the number of records of each."""
        counts = {row["alias"]: row["records"] for row in self._rows("list --output json")}
        return [counts[dataset] for dataset in datasets]

    def forget(self) -> None:
        """Forget cached facts of a dataset and its topics: it was deleted, and another may have its name."""
        self._known.clear()
        self._sender = None

    def topic(self, dataset: str, source: str = "default") -> str:
        """Return the push topic of a source."""
        return str(self._entry(dataset)["pushTopics"][source])

    def folder(self, dataset: str) -> Path:
        """Return a dataset's folder."""
        return folder_of(self.node.home, self._entry(dataset)["id"])

    def chain(self, dataset: str) -> StoredChain:
        """Return a dataset's chain, with all invariants checked."""
        return read_chain(self.folder(dataset))

    def tail(self, dataset: str) -> list[Row]:
        """Return all records as `odf tail` shows them."""
        return self._rows(f"tail {dataset} -n {EVERYTHING} --output json")

    def publish(
        self, dataset: str, records: Iterable[bytes | Mapping[str, object]], source: str = "default"
    ) -> int:
        """Publish messages to a source's topic; return their number."""
        messages = [one if isinstance(one, bytes) else json.dumps(one).encode() for one in records]
        self._sender = self._sender or Sender(self.node)
        return self._sender.send(self.topic(dataset, source), messages)

    def ingest(self, dataset: str, records: Iterable[bytes | Mapping[str, object]], options: str = "") -> Row:
        """Push records as one batch, and return when it is committed."""
        lines = [one if isinstance(one, bytes) else json.dumps(one).encode() for one in records]
        return self._rows(f"ingest {dataset} - {options} --output json", stdin=b"\n".join(lines))[0]

    def is_handed_over(self) -> bool:
        """Return whether ingest has accepted a pushed file, and is still working on it."""
        return any(self.node.home.glob("scratch/*/*/batch"))

    def pull(self, line: str) -> dict[str, Row]:
        """Run `odf pull`, and return its rows by dataset."""
        return {row["dataset"]: row for row in self._rows(f"pull {line} --output json")}

    def copy(self, dataset: str, to: Path) -> Path:
        """Copy a dataset's folder in its current state; `to` must not exist."""
        shutil.copytree(self.folder(dataset), to)
        return to

    def await_records(self, expected: Mapping[str, int], timeout: float = PATIENCE) -> None:
        """Return when the datasets have that many records each; does not call pull."""
        names = tuple(expected)
        self.node.eventually(lambda: self.records(*names) == list(expected.values()), timeout)

    def dead_letters(self, topic: str) -> list[dict[str, str]]:
        """Return the dead letters of a push topic: headers, and the message itself as `value`."""
        held = []
        for headers, value in _all_messages(self.node, DEAD_LETTERS):
            if headers.get("topic") == topic:
                held.append({**headers, "value": value.decode(errors="replace")})
        return sorted(held, key=lambda letter: int(letter["offset"]))

    def verify(self, line: str, *, code: int = 0) -> list[Row]:
        """Run `odf verify`, and return its verdicts."""
        return self._rows(f"verify {line} --output json", code=code)

    def _entry(self, dataset: str) -> Row:
        """Return the immutable facts of a dataset without asking again."""
        if dataset not in self._known:
            self._known = {row["alias"]: row for row in self._rows("list --output json")}
        return self._known[dataset]

    def _rows(self, line: str, *, stdin: bytes | None = None, code: int = 0) -> list[Row]:
        rows = self.node.run(line, stdin=stdin, code=code)
        assert isinstance(rows, list), f"odf {line} printed {rows!r}"
        return rows


def folder_of(home: Path, dataset_id: str) -> Path:
    """Return a dataset's folder in a home."""
    return home / "datasets" / dataset_id.removeprefix("did:odf:")


def chunks(messages: Sequence[bytes], count: int) -> list[Sequence[bytes]]:
    """Split messages into `count` runs of nearly the same length, in order."""
    bounds = [len(messages) * number // count for number in range(count + 1)]
    return [messages[low:high] for low, high in pairwise(bounds)]


class Sender:
    """A publisher that outlives restarts of the broker; one for many messages, since the first takes half a second."""

    def __init__(self, node: EmbeddedNode) -> None:
        """Create the producer."""
        settings = {
            **node.producers,
            "enable.idempotence": True,
            "delivery.timeout.ms": 120_000,
            "reconnect.backoff.max.ms": 500,
        }
        self._producer = Producer(settings, logger=QUIET)
        self._failed: list[KafkaError] = []

    def send(self, topic: str, messages: Iterable[bytes | None], partition: int = 0) -> int:
        """Publish messages in this order, None being a tombstone; return their number once all are durable."""
        count = 0
        for count, message in enumerate(messages, 1):  # noqa: B007 - how many there were
            self._producer.produce(topic, message, partition=partition, on_delivery=self._settle)
            self._producer.poll(0)
        assert self._producer.flush(120) == 0, "not acknowledged"
        assert self._failed == []
        return count

    def _settle(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self._failed.append(error)


def _all_messages(node: EmbeddedNode, topic: str) -> list[tuple[dict[str, str], bytes]]:
    """Return headers and value of all messages in a topic now."""
    ends = node.topics().ends(topic)
    consumer = Consumer({**node.clients, "group.id": "story", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in ends])
    held: list[tuple[dict[str, str], bytes]] = []
    try:
        while len(held) < sum(ends.values()):
            message = consumer.poll(PATIENCE)
            assert message is not None, f"{topic} cannot be read"
            assert message.error() is None, message.error()
            headers = dict(message.headers() or ())
            held.append(({name: _text(value) for name, value in headers.items()}, message.value() or b""))
    finally:
        consumer.close()
    return held


def _text(value: str | bytes | None) -> str:
    return value.decode() if isinstance(value, bytes) else value or ""
