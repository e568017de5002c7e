"""Messages that are Arrow IPC, of a source whose read step is another format."""

import io
from typing import Any

import pyarrow as pa
import pytest

from odf_common.errors import InvalidInput
from odf_common.metadata.steps import MergeStrategySnapshot, ReadStepNdJson
from odf_ingest.push.source_topics import Key
from odf_ingest.source_settings import SourceSettings, save_settings

from .in_memory_broker import TOPIC, Broker, Running, message, running
from .in_memory_broker import broker as broker  # noqa: PLC0414 - a fixture
from .test_control import control
from .test_topics_of_others import entry

ARROW = {"messageFormat": "arrow"}


def ipc(**columns: list[object]) -> bytes:
    table, sink = pa.table(columns), io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def read_as(node: Running, name: str) -> None:
    """Change the format, which is in effect on return."""
    control(node).change(entry(node), "", {"messageFormat": name})
    assert node.reader.sources[Key(node.bench.dataset, "default")].columns.value_format == name


def test_each_message_is_a_batch_of_records(make_bench: Any, broker: Broker) -> None:
    bench = make_bench(None, ReadStepNdJson(ddl_schema=("id BIGINT NOT NULL", "v STRING")))
    with running(bench, broker) as node:
        read_as(node, "arrow")
        broker.logs[TOPIC, 0] += [ipc(id=[1, 2]), b"junk", ipc(id=["x"]), ipc(id=[3])]
        node.drain()
        assert node.ids == [1, 2, 3]
    assert [one.reason.split(": ")[0] for one in bench.coordinator.letters] == ["is not Arrow data", "row 1"]
    reason = bench.coordinator.letters[1].reason
    assert reason.startswith("row 1: column id: 'x' is not a value of BIGINT; ")


def test_the_format_changes_while_the_topic_is_read(make_bench: Any, broker: Broker) -> None:
    bench = make_bench(None, ReadStepNdJson(ddl_schema=("id BIGINT NOT NULL", "v STRING")))
    with running(bench, broker) as node:
        broker.logs[TOPIC, 0] += [message(1)]
        node.drain()
        read_as(node, "arrow")
        broker.logs[TOPIC, 0] += [ipc(id=[2])]
        node.drain()
        read_as(node, "source")
        broker.logs[TOPIC, 0] += [message(3)]
        node.drain()
        assert node.ids == [1, 2, 3]
    assert bench.coordinator.letters == []


def test_the_setting_holds_after_a_restart_also_without_a_declared_schema(
    make_bench: Any, broker: Broker
) -> None:
    bench = make_bench(MergeStrategySnapshot(primary_key=("id",)), ReadStepNdJson())
    save_settings(bench.blobs, bench.dataset, "default", SourceSettings.from_plain(ARROW))
    broker.logs[TOPIC, 0] += [ipc(id=[1, 2], v=[0.5, 1.0])]
    with running(bench, broker) as node:
        node.drain()
    broker.logs[TOPIC, 0] += [ipc(id=[2], v=[1.0])]
    with running(bench, broker) as node:
        node.drain()
    assert bench.values("op", "id", "v") == [(0, 1, 0.5), (0, 2, 1.0), (1, 1, 0.5)]


def test_columns_of_messages_and_a_registry_cannot_be_combined_with_it(
    make_bench: Any, broker: Broker
) -> None:
    with running(make_bench(), broker) as node:
        with pytest.raises(InvalidInput, match="each message of this source is a whole batch"):
            control(node).change(entry(node), "", ARROW | {"keyColumns": "id"})
        with pytest.raises(InvalidInput, match="messageFormat: Arrow has its schema itself"):
            control(node).change(entry(node), "", ARROW | {"schemaRegistry": "http://127.0.0.1:1"})
        with pytest.raises(InvalidInput, match="messageFormat: expected one of source, arrow, got 'avro'"):
            control(node).change(entry(node), "", {"messageFormat": "avro"})
