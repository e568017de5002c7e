"""Stories of the integration tests: small datasets are added to a node, used and compared.

Rows are sent to roots; DuckDB gives the results over all of them at once.
"""

import copy
import json
import logging
import shutil
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa
import yaml
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from odf_common.ports.bus import DEAD_LETTERS
from odf_testing.chains import OFFSET, SYSTEM_TIME, StoredChain, read_chain
from odf_testing.embedded import PATIENCE, EmbeddedNode

Manifest = dict[str, Any]
APPEND: Final = {"kind": "Append"}

# A polling source, as it stands in the metadata of a manifest.
POLLING = """
    - kind: SetPollingSource
      fetch: {kind: Url, url: "http://example.org"}
      read: {kind: NdJson}
      merge: {kind: Append}
"""


def ledger(*key: str) -> Manifest:
    """Return the merge strategy that accepts each key once."""
    return {"kind": "Ledger", "primaryKey": list(key)}


def root(
    name: str,
    columns: Sequence[str],
    *,
    merge: Mapping[str, Any] = APPEND,
    event_time: str | None = None,
    sources: Sequence[str] = ("default",),
) -> Manifest:
    """Return a root that takes JSON objects; `columns` are DDL."""
    events: list[Manifest] = [
        {
            "kind": "AddPushSource",
            "sourceName": source,
            "read": {"kind": "NdJson", "schema": list(columns)},
            "merge": dict(merge),
        }
        for source in sources
    ]
    if event_time is not None:
        events.append({"kind": "SetVocab", "eventTimeColumn": event_time})
    return _snapshot(name, "Root", events)


def derivative(name: str, inputs: Mapping[str, str], query: str) -> Manifest:
    """Return a derivative of one query; `inputs` are datasets by their names in the query."""
    transform = {"kind": "Sql", "engine": "spark", "query": query}
    refs = [{"datasetRef": ref, "alias": alias} for alias, ref in inputs.items()]
    return _snapshot(name, "Derivative", [{"kind": "SetTransform", "inputs": refs, "transform": transform}])


def renamed(folder: Path, prefix: str, *, merge: Mapping[str, Any] | None = None) -> list[Manifest]:
    """Return a folder's manifests with `prefix` added to each name; queries keep the old names as aliases."""
    manifests = [prefixed(yaml.safe_load(file.read_text()), prefix) for file in sorted(folder.glob("*.yaml"))]
    for manifest in manifests:
        for event in manifest["content"]["metadata"]:
            if merge is not None and event["kind"] == "AddPushSource":
                event["merge"] = dict(merge)
    return manifests


def prefixed(manifest: Manifest, prefix: str) -> Manifest:
    """Return a manifest with `prefix` added to its name and to those of its inputs; its query keeps the old ones."""
    prefixed = copy.deepcopy(manifest)
    content = prefixed["content"]
    content["name"] = f"{prefix}.{content['name']}"
    for event in content["metadata"]:
        for one in event.get("inputs", ()):
            one.setdefault("alias", one["datasetRef"])
            one["datasetRef"] = f"{prefix}.{one['datasetRef']}"
    return prefixed


def as_text(*manifests: Manifest) -> bytes:
    """Return a single YAML text with several documents; JSON is YAML without anchors."""
    return "\n---\n".join(json.dumps(manifest) for manifest in manifests).encode()


def _snapshot(name: str, kind: str, events: list[Manifest]) -> Manifest:
    content = {"name": name, "kind": kind, "metadata": events}
    return {"kind": "DatasetSnapshot", "version": 1, "content": content}


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


START: Final = datetime(2026, 1, 1, tzinfo=UTC)  # a Thursday, as the epoch's first day


def row(names: str, *values: object) -> Row:
    """Return a row of these columns."""
    return dict(zip(names.split(), values, strict=True))


def at_once(roots: Mapping[str, Sequence[Row]], query: str) -> list[tuple[object, ...]]:
    """Return DuckDB's result over all input; timestamps are milliseconds."""
    with duckdb.connect() as connection:
        for name, rows in roots.items():
            connection.register(name.replace(".", "_"), pa.Table.from_pylist([plain(row) for row in rows]))
        return connection.execute(query).fetchall()


def changes(chain: StoredChain) -> list[tuple[object, ...]]:
    """Return a dataset's records as (op, *values), in the same form."""
    table = chain.table
    assert table is not None, "it has no data"
    return [tuple(plain(row).values()) for row in table.drop_columns([OFFSET, SYSTEM_TIME]).to_pylist()]


def timestamp(**after: float) -> datetime:
    """Return the timestamp that long after the first."""
    return START + timedelta(**after)


def plain(sent: Row) -> Row:
    """Return a row with its timestamps as milliseconds since the epoch."""
    return {
        key: int(one.timestamp() * 1000) if isinstance(one, datetime) else one for key, one in sent.items()
    }


def line(sent: Row) -> bytes:
    """Return a row in the form in which it is sent."""
    return json.dumps(
        sent, default=lambda one: float(one) if isinstance(one, Decimal) else one.isoformat()
    ).encode()
