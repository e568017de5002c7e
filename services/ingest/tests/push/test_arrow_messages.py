"""Messages that are Arrow IPC, of a source whose read step is another format."""

import io
from typing import Any

import pyarrow as pa
import pytest
from odf_testing.letters import StoredLetters

from odf_common.errors import InvalidInput
from odf_common.metadata.steps import MergeStrategySnapshot, ReadStepNdJson
from odf_ingest.control.rejected_messages import RejectedMessages
from odf_ingest.errors import SourceStopped
from odf_ingest.push.source_topics import Key
from odf_ingest.source_settings import SourceSettings, save_settings

from .in_memory_broker import TOPIC, Broker, Running, message, running
from .test_control import control

ARROW = {"messageFormat": "arrow"}


def ipc(**columns: Any) -> bytes:
    table, sink = pa.table(columns), io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def read_from_start(bench: Any, **more: str) -> None:
    """Set the format, and more, of the source before it is read."""
    save_settings(bench.blobs, bench.dataset, "default", SourceSettings.from_plain(ARROW | more))


def read_as(node: Running, name: str) -> None:
    """Change the format, which is in effect on return."""
    control(node).change(node.entry, "", {"messageFormat": name})
    assert node.reader.sources[Key(node.bench.dataset, "default")].columns.value_format == name


def test_each_message_is_a_batch_of_records(make_bench: Any, broker: Broker) -> None:
    bench = make_bench(None, ReadStepNdJson(ddl_schema=("id BIGINT NOT NULL", "v STRING")))
    with running(bench, broker) as node:
        read_as(node, "arrow")
        node.ingest([ipc(id=[1, 2]), b"junk", ipc(id=["x"]), ipc(id=[3])])
        assert node.ids == [1, 2, 3]
    assert [one.reason.split(": ")[0] for one in bench.coordinator.letters] == ["is not Arrow data", "row 1"]
    reason = bench.coordinator.letters[1].reason
    assert reason.startswith("row 1: column id: 'x' is not a value of BIGINT; ")


def bad_rows(node: Running) -> RejectedMessages:
    made: RejectedMessages = node.bench.rejected_messages(StoredLetters(node.bench.coordinator.letters))
    return made


def test_bad_rows_of_a_message_are_dead_letters_that_are_read_again(make_bench: Any, broker: Broker) -> None:
    bench = make_bench(None, ReadStepNdJson(ddl_schema=("id BIGINT NOT NULL", "at TIMESTAMP(3)")))
    read_from_start(bench, finerTimes="refuse")
    with running(bench, broker) as node:
        finer = pa.array([1001, 2001, None], pa.timestamp("us", "UTC"))
        node.ingest([ipc(id=[1]), ipc(id=[2, None]), ipc(id=[3, 4, 5], at=finer), ipc(id=[6])])
        assert node.ids == [1, 2, 5, 6]
        is_null = "column id: null is not allowed; a value of BIGINT is required"
        reasons = [one.reason.partition("Z'")[0] for one in bench.coordinator.letters]
        assert reasons == [
            f"message 0/1 of topic {TOPIC}, row 2: {is_null}",
            f"message 0/2 of topic {TOPIC}, row 1: column at: '1970-01-01 00:00:00.001001",
            f"message 0/2 of topic {TOPIC}, row 2: column at: '1970-01-01 00:00:00.002001",
        ]
        rejected = bad_rows(node)
        assert [one.location for one in bench.open_letters(rejected)] == ["row/0", "row/1", "row/2"]
        control(node).change(node.entry, "", {"finerTimes": "cut"})
        settled = rejected.retry(bench.dataset, [])
        assert (settled.count, settled.unfit, settled.open) == (2, 1, 1)
        assert settled.why == is_null
        assert node.ids == [1, 2, 5, 6, 3, 4]
        node.ingest([ipc(id=[7, None])])
        assert [one.location for one in bench.open_letters(rejected)] == ["row/0", "row/3"]


def test_a_message_with_a_bad_row_stops_a_source_that_is_to_stop_and_is_skipped_as_a_whole(
    make_bench: Any, broker: Broker
) -> None:
    bench = make_bench(None, ReadStepNdJson(ddl_schema=("id BIGINT NOT NULL", "v STRING")))
    read_from_start(bench, badRecords="stop")
    with running(bench, broker) as node:
        broker.logs[TOPIC, 0] += [ipc(id=[1]), ipc(id=[2, None]), ipc(id=[3])]
        with pytest.raises(
            SourceStopped, match="row 2: column id: null is not allowed; a value of BIGINT is required"
        ):
            node.drain()
        assert node.ids == [1]
        assert control(node).skip(node.entry, "").skipped == (0, 1)
        node.drain()
        assert node.ids == [1, 3]
        (letter,) = bench.open_letters(bad_rows(node))
        assert (letter.location, letter.value) == ("0/1", broker.logs[TOPIC, 0][1])


@pytest.mark.parametrize(
    ("merge", "more"),
    [(MergeStrategySnapshot(primary_key=("id",)), {}), (None, {"maxRejectedShare": "0.4"})],
    ids=["snapshot", "share"],
)
def test_bad_rows_of_a_message_are_not_left_out_of_a_snapshot_or_in_excess(
    make_bench: Any, broker: Broker, merge: Any, more: dict[str, str]
) -> None:
    bench = make_bench(merge, ReadStepNdJson(ddl_schema=("id BIGINT NOT NULL", "v STRING")))
    read_from_start(bench, **more)
    with running(bench, broker) as node:
        broker.logs[TOPIC, 0] += [ipc(id=[1, None]), ipc(id=[2])]
        if more:
            with pytest.raises(SourceStopped, match=f"1 of 2 rows of message 0/0 of topic {TOPIC} are not"):
                node.drain()
            assert bench.coordinator.letters == []
            return
        node.drain()
        assert node.ids == [2]
        (letter,) = bench.open_letters(bad_rows(node))
        assert (letter.location, letter.reason.partition(":")[0]) == ("0/0", "row 2")


def test_the_format_changes_while_the_topic_is_read(make_bench: Any, broker: Broker) -> None:
    bench = make_bench(None, ReadStepNdJson(ddl_schema=("id BIGINT NOT NULL", "v STRING")))
    with running(bench, broker) as node:
        node.ingest([message(1)])
        read_as(node, "arrow")
        node.ingest([ipc(id=[2])])
        read_as(node, "source")
        node.ingest([message(3)])
        assert node.ids == [1, 2, 3]
    assert bench.coordinator.letters == []


def test_the_setting_holds_after_a_restart_also_without_a_declared_schema(
    make_bench: Any, broker: Broker
) -> None:
    bench = make_bench(MergeStrategySnapshot(primary_key=("id",)), ReadStepNdJson())
    read_from_start(bench)
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
            control(node).change(node.entry, "", ARROW | {"keyColumns": "id"})
        with pytest.raises(InvalidInput, match="messageFormat: Arrow has its schema itself"):
            control(node).change(node.entry, "", ARROW | {"schemaRegistry": "http://127.0.0.1:1"})
        with pytest.raises(InvalidInput, match="messageFormat: expected one of source, arrow, got 'avro'"):
            control(node).change(node.entry, "", {"messageFormat": "avro"})
