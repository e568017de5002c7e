"""Pushes to Source resources, and topics that they read: accepted durably, and committed once to each dataset."""

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from odf_testing.builders import a_dataset
from odf_testing.memory_store import MemoryCatalog

from odf_common.chain.state import ChainState
from odf_common.errors import InvalidInput, Unavailable
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.store import CatalogEntry
from odf_ingest.errors import BufferFull, KeyReused, RecordRejected, UnsupportedMediaType
from odf_ingest.push.source_topics import SourceTopics
from odf_ingest.registry import Registries
from odf_ingest.sources.message_drain import MessageDrain
from odf_ingest.sources.push_buffer import AcceptedPush, PushBuffer
from odf_ingest.sources.source_ingestion import (
    DELETION_POLICY,
    FORCED,
    RecordsUncommitted,
    SourceIngestion,
    SourcePush,
    forget_source,
)
from odf_ingest.sources.source_resource import SourceNotPushed
from odf_ingest.sources.topic_feeds import TopicFeeds

from .in_memory_broker import Broker, message

ID = "2b9c1a52-5f0e-4d53-9a3e-6f1b2b7a9d10"
NODE_TYPES = "https://node.odf.example/schemas/source/v1alpha1"
COLUMNS = ["id BIGINT NOT NULL", "v STRING", "event_time TIMESTAMP"]
READ: Mapping[str, Any] = {"kind": "NdJson", "ddlSchema": COLUMNS}
TOPICS: Mapping[str, Any] = {"kind": "Ext", "$schema": f"{NODE_TYPES}/KafkaTopic", "topics": ["shop.*"]}


def a_source(ingress: Mapping[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    headers = {"id": ID, "name": "Orders", "account": {"name": "odf"}, "annotations": {}}
    fields = {"read": dict(READ), **({} if ingress is None else {"ingress": dict(ingress)}), **spec}
    schema = "https://opendatafabric.org/schemas/source/v1alpha1/Source"
    return {"$schema": schema, "headers": headers, "spec": fields}


def buffered(size: int) -> Mapping[str, Any]:
    return {"kind": "RestEndpoint", "buffer": {"kind": "Memory", "bufferSize": size}}


def rows(*ids: int) -> bytes:
    return b"\n".join(message(id_) for id_ in ids)


class Node:
    """Ingest of a node with one dataset, or more."""

    def __init__(self, bench: Any, home: Path, broker: Broker) -> None:
        self.bench, self.home, self.broker = bench, home, broker
        catalog = MemoryCatalog()
        catalog.add(CatalogEntry(alias="orders", dataset_id=bench.dataset))
        self.ingestion = SourceIngestion(
            controller=cast("Any", None),
            poller=cast("Any", None),
            buffer=PushBuffer(home),
            drain=MessageDrain(
                queues=bench.queues,
                preparer=bench.preparer,
                rejecting=bench.rejecting,
                registries=Registries(),
                slice_max_bytes=10_000,
            ),
            queues=bench.queues,
            catalog=catalog,
            topics=TopicFeeds(
                topics=SourceTopics(broker, bench.blobs),  # type: ignore[arg-type]
                blobs=bench.blobs,
                new_client=lambda: Broker(logs=broker.logs, ids=broker.ids),
            ),
        )

    def push(
        self, source: dict[str, Any], body: bytes, key: str = "", input_format: str = ""
    ) -> AcceptedPush:
        file = self.home / "pushed"
        file.write_bytes(body)
        push = SourcePush(
            receipt=key or str(hash(body)),
            key=key,
            file=file,
            input_format=input_format,
            event_time=Timestamp.from_ms(1000),
            accepted_ms=time.time_ns() // 1_000_000,
        )
        return self.ingestion.accept(source, push)

    def run(self, source: dict[str, Any], consumers: tuple[DatasetId, ...] = ()) -> list[object]:
        self.ingestion.ingest(self.bench.dataset, source, lambda _: None, lambda: True, consumers=consumers)
        return self.ids

    def count(self, source: dict[str, Any]) -> int:
        return self.ingestion.count(self.bench.dataset, source)

    @property
    def ids(self) -> list[object]:
        return [row["id"] for row in self.bench.rows()]


@pytest.fixture
def node(bench: Any, tmp_path: Path) -> Node:
    return Node(bench, tmp_path, Broker())


def test_pushes_wait_for_a_run_which_commits_them_in_one_block(node: Node) -> None:
    source = a_source()
    assert (node.push(source, rows(1, 2)).records, node.push(source, rows(3)).records) == (2, 1)
    assert (node.count(source), node.ids) == (3, [])
    before = node.bench.state.sequence_number
    assert node.run(source) == [1, 2, 3]
    assert node.bench.state.source_states[ID].source_name == ID
    assert (node.count(source), node.ingestion.buffer.count(ID)) == (0, 0)
    blocks = node.bench.state.sequence_number - before
    assert node.run(source) == [1, 2, 3]
    assert node.bench.state.sequence_number - before == blocks, "an empty run commits nothing"
    node.push(source, rows(4))
    assert node.run(source) == [1, 2, 3, 4]
    assert "AddPushSource" not in [type(event).__name__ for event in node.bench.events()[2:]]


def test_a_push_with_the_same_key_is_accepted_once(node: Node) -> None:
    source = a_source()
    first = node.push(source, rows(1), "k")
    assert node.push(source, rows(1), "k") == first
    node.run(source)
    assert node.push(source, rows(1), "k") == first
    assert node.run(source) == [1]
    with pytest.raises(KeyReused):
        node.push(source, rows(2), "k")


def test_a_full_buffer_refuses_the_whole_push_until_a_run(node: Node) -> None:
    source = a_source(buffered(3))
    node.push(source, rows(1, 2))
    with pytest.raises(BufferFull, match="2 of 3 records are waiting, and the push has 2"):
        node.push(source, rows(3, 4))
    node.push(source, rows(3))
    assert node.run(source) == [1, 2, 3]
    node.push(source, rows(4, 5, 6))
    assert node.run(source) == [1, 2, 3, 4, 5, 6]


def test_what_was_accepted_before_a_kill_is_committed_after_it_once(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = a_source()
    node.push(source, rows(1, 2))

    def kill(*_: object) -> None:
        raise Unavailable(what="the process")

    monkeypatch.setattr(PushBuffer, "release", kill)
    with pytest.raises(Unavailable):
        node.run(source)  # committed, and not dropped yet
    monkeypatch.undo()
    again = Node(node.bench, node.home, node.broker)
    assert again.count(source) == 0
    again.push(source, rows(3))
    assert again.run(source) == [1, 2, 3]


def test_the_buffer_keeps_what_another_dataset_lacks(node: Node) -> None:
    source, other, empty = a_source(), a_dataset("other"), node.bench.state

    class Queues:
        def state(self, dataset: DatasetId) -> ChainState:
            return cast("ChainState", empty if dataset == other else node.bench.state)

    node.ingestion = replace(node.ingestion, queues=cast("Any", Queues()))
    node.push(source, rows(1, 2))
    assert node.run(source, (node.bench.dataset, other)) == [1, 2]
    assert (node.ingestion.buffer.count(ID), node.count(source)) == (2, 0)
    assert node.ingestion.count(other, source) == 2
    node.run(source)
    assert node.ingestion.buffer.count(ID) == 0


def test_bad_records_become_dead_letters(node: Node) -> None:
    source = a_source()
    node.push(source, rows(1) + b'\n{"id": "x"}\n' + rows(2))
    assert node.run(source) == [1, 2]
    ((offset, reason),) = node.bench.reasons
    assert offset == 1
    assert "'x' is not a value of BIGINT" in reason


def test_a_snapshot_is_one_message(node: Node) -> None:
    source = a_source(merge={"kind": "Snapshot", "primaryKey": ["id"]})
    assert node.push(source, rows(1, 2)).records == 2
    node.push(source, rows(2))
    node.run(source)
    assert [(row["op"], row["id"]) for row in node.bench.rows()] == [(0, 1), (0, 2), (1, 1)]


@pytest.mark.parametrize(
    ("read", "body", "input_format"),
    [
        ({"kind": "Csv", "header": True}, "v,id\né,1\nb,2\n".encode(), "text/csv"),
        ({"kind": "Csv", "header": True, "encoding": "latin1"}, "v,id\né,1\nb,2\n".encode("latin1"), ""),
        ({"kind": "Csv", "separator": ";"}, "1;é\n2;b\n".encode(), ""),
        ({"kind": "Json"}, '[{"id": 1, "v": "é"}, {"id": 2, "v": "b"}]'.encode(), "application/json"),
        ({"kind": "Json", "subPath": "a"}, '{"a": [{"id": 1, "v": "é"}, {"id": 2, "v": "b"}]}'.encode(), ""),
    ],
)
def test_formats_of_many_records_are_split_into_messages(
    node: Node, read: Mapping[str, Any], body: bytes, input_format: str
) -> None:
    source = a_source(read={"ddlSchema": COLUMNS[:2], **read})
    assert node.push(source, body, input_format=input_format).records == 2
    node.run(source)
    assert node.bench.values("id", "v") == [(1, "é"), (2, "b")]
    assert node.bench.coordinator.letters == []


@pytest.mark.parametrize(
    ("source", "body", "input_format", "error"),
    [
        (a_source(), rows(1), "text/csv", UnsupportedMediaType),
        (a_source(), rows(1), "application/x-odd", UnsupportedMediaType),
        (a_source(), b"\n", "", InvalidInput),
        (a_source({"kind": "Url", "url": "https://example.org"}), rows(1), "", SourceNotPushed),
        (a_source(TOPICS), rows(1), "", SourceNotPushed),
        (a_source(prepare=[{"kind": "Decompress", "format": "Gzip"}]), rows(1), "", InvalidInput),
    ],
)
def test_what_cannot_be_committed_is_not_accepted(
    node: Node, source: dict[str, Any], body: bytes, input_format: str, error: type[Exception]
) -> None:
    with pytest.raises(error):
        node.push(source, body, input_format=input_format)
    assert node.ingestion.buffer.count(ID) == 0


def test_a_source_of_the_chain_with_the_same_name_is_not_mixed_up(node: Node) -> None:
    source = a_source()
    source["headers"]["annotations"]["legacySourceName"] = "default"
    node.push(source, rows(1))
    with pytest.raises(InvalidInput, match="has a push source default itself"):
        node.run(source)


def test_a_deleted_source_keeps_its_records_unless_forced(node: Node) -> None:
    source, buffer = a_source(), node.ingestion.buffer
    node.push(source, rows(1))
    with pytest.raises(RecordsUncommitted, match="1 accepted records are not committed"):
        forget_source(buffer, source)
    source["headers"]["annotations"][DELETION_POLICY] = FORCED
    forget_source(buffer, source)
    assert buffer.count(ID) == 0


def test_topics_of_others_are_read_from_the_chosen_start(node: Node) -> None:
    broker = node.broker
    for topic in ("shop.a", "shop.b", "street"):
        broker.make(topic)
        broker.logs[topic, 0].append(message(1))
    source = a_source({**TOPICS, "start": "latest"})
    assert node.count(source) == 0
    broker.logs["shop.a", 0] += [message(2), message(3)]
    broker.logs["shop.b", 0].append(message(4))
    assert node.count(source) == 3
    assert sorted(map(int, map(str, node.run(source)))) == [2, 3, 4]
    assert node.count(source) == 0
    broker.logs["street", 0].append(message(9))
    broker.logs["shop.a", 0].append(message(5))
    assert sorted(map(int, map(str, node.run(source)))) == [2, 3, 4, 5]


def test_a_source_that_stops_at_bad_messages_commits_those_before(node: Node) -> None:
    node.broker.make("shop.a")
    node.broker.logs["shop.a", 0] += [message(1), b"x", message(2)]
    stopping = a_source({**TOPICS, "badRecords": "stop"})
    with pytest.raises(RecordRejected):
        node.run(stopping)
    assert (node.ids, node.count(stopping)) == ([1], 2)
    assert node.run(a_source(TOPICS)) == [1, 2]
    assert len(node.bench.reasons) == 1
