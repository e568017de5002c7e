"""Sources whose messages name a schema, or are Arrow IPC though the read step is another format."""

import io
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from odf_testing.builders import a_push_source
from odf_testing.letters import StoredLetters
from odf_testing.registry import Registry, avro, framed, framed_by_guid, serving_registry

from odf_common.codec.envelopes import body_of
from odf_common.errors import InvalidInput
from odf_common.metadata.events import (
    MergeStrategySnapshot,
    MergeStrategyUpsertStream,
    ReadStepCsv,
    ReadStepNdJson,
)
from odf_common.ports.bus import NOTIFICATIONS
from odf_common.proto.odf.bus.v1.bus_pb2 import IngestProgress
from odf_ingest.control.rejected_messages import RejectedMessages
from odf_ingest.errors import SourceStopped
from odf_ingest.prepare.batch import MessageBatch
from odf_ingest.prepare.plan import plan_of
from odf_ingest.prepare.preparer import PreparedRecords
from odf_ingest.push.lifecycle import start_position
from odf_ingest.push.lifecycle.source_record import Phase
from odf_ingest.push.source_topics import Key
from odf_ingest.registry import Registries, decode_batch, json_step
from odf_ingest.source_settings import SourceSettings, save_settings

from .in_memory_broker import TOPIC, Broker, Running, message, running
from .test_control import control
from .test_message_columns import messages

OTHER = "odf.push.a.other"
COLUMNS = ("id BIGINT NOT NULL", "v STRING", "event_time TIMESTAMP")
ROW = {
    "type": "record",
    "name": "Row",
    "fields": [
        {"name": "id", "type": ["null", "long"]},
        {"name": "v", "type": "string"},
        {"name": "event_time", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}


@pytest.fixture
def registry() -> Iterator[Registry]:
    with serving_registry() as served:
        served.add(1, ROW)
        yield served


@pytest.fixture
def broker(broker: Broker) -> Broker:
    broker.make(OTHER)
    return broker


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_position, "REPORT_RETRIES_AFTER_SECONDS", 0.0)


def row(id_: int | None, v: str = "a") -> bytes:
    return avro(1, ROW, {"id": id_, "v": v, "event_time": 1_577_836_800_123})


def why(node: Running, source: str) -> str:
    return str(node.owned.stuck().get(Key(node.bench.dataset, source), ""))


def test_rows_are_committed_and_what_cannot_be_decoded_is_a_dead_letter_as_it_was_sent(
    bench: Any, broker: Broker, registry: Registry
) -> None:
    bench.set(schema_registry=registry.url)
    bad = {
        framed(9, b"x"): "schema 9: does not exist",
        row(3)[:-1]: "schema 1: the payload",
        row(None): "column id: null is not allowed; a value of BIGINT is required",
    }
    broker.logs[TOPIC, 0] += [row(1, "é\n"), *bad, message(7), None, row(2)]
    with running(bench, broker) as node:
        node.wait(lambda: node.ids == [1, 2])
        first, second = bench.rows()
        assert (first["v"], str(first["event_time"])) == ("é\n", "2020-01-01 00:00:00.123000+00:00")
        assert second["id"] == 2
    letters = bench.coordinator.letters
    assert [one.value for one in letters] == [*bad, message(7), b""]
    assert [one.offset for one in letters] == [1, 2, 3, 4, 5]
    expected = [*bad.values(), "has no schema id", "is empty"]
    assert all(one.reason.startswith(start) for one, start in zip(letters, expected, strict=True)), letters


VALUE = {"type": "record", "name": "Value", "fields": [{"name": "v", "type": "string"}]}
KEY = {
    "type": "record",
    "name": "Key",
    "fields": [{"name": "id", "type": "long"}, {"name": "code", "type": "bytes"}],
}


def with_key_columns(registry: Registry, columns: str) -> SourceSettings:
    return SourceSettings.from_plain(
        {"schemaRegistry": registry.url, "keyColumns": columns, "keyFormat": "registry"}
    )


def test_keys_are_decoded_too_and_those_of_tombstones(make_bench: Any, registry: Registry) -> None:
    registry.add(2, KEY)
    registry.add(3, VALUE)
    columns = ("id BIGINT NOT NULL", "code BINARY", "v STRING")
    bench = make_bench(MergeStrategyUpsertStream(primary_key=("id",)), ReadStepNdJson(ddl_schema=columns))
    chosen = with_key_columns(registry, "id,code")
    keys = [avro(2, KEY, {"id": number, "code": b"\xff"}) for number in (1, 2)]
    values = [avro(3, VALUE, {"v": text}) for text in "abc"]
    batch = messages([*values, None, b"x"], chosen.message_columns, [*keys, framed(9, b""), keys[0], b"y"])
    prepared = decoded(bench, chosen, batch)
    assert prepared.records is not None
    found = prepared.records.select(["op", "id", "code", "v"]).to_pylist()
    assert [tuple(one.values()) for one in found] == [
        (0, 1, b"\xff", "a"),
        (0, 2, b"\xff", "b"),
        (1, 1, b"\xff", None),
    ]
    assert [(one.offset, one.value) for one in prepared.bad] == [(2, values[2]), (4, b"x")]
    assert [one.reason.partition(":")[0] for one in prepared.bad] == [
        "its key",
        "has no schema id",
    ]


def test_ids_in_headers_are_those_of_value_and_key(make_bench: Any, registry: Registry) -> None:
    guid = UUID("89791762-2336-4186-9674-299b90a802e2")
    registry.add(3, VALUE)
    registry.add(4, '"long"')
    registry.guids |= {guid: 3, UUID(int=4): 4}
    columns = ("id BIGINT NOT NULL", "v STRING")
    bench = make_bench(MergeStrategyUpsertStream(primary_key=("id",)), ReadStepNdJson(ddl_schema=columns))
    chosen = with_key_columns(registry, "id")
    assert chosen.message_columns.read_headers == ("__value_schema_id", "__key_schema_id")
    named, by_key = framed_by_guid(guid, b""), framed_by_guid(UUID(int=4), b"")
    # In headers; in front of the bytes; a tombstone; a damaged value.
    values = [b"\x02a", framed(3, b"\x02b"), None, b"\x02"]
    keys = [b"\x02", framed(4, b"\x04"), b"\x02", b"\x02"]
    (part,) = messages(values, chosen.message_columns, keys).parts
    headers = {
        "__value_schema_id": [named, None, None, named],
        "__key_schema_id": [by_key, None, by_key, by_key],
    }
    batch = replace(messages(values, chosen.message_columns), parts=(replace(part, headers=headers),))
    prepared = decoded(bench, chosen, batch)
    assert prepared.records is not None
    found = prepared.records.select(["op", "id", "v"]).to_pylist()
    assert [tuple(one.values()) for one in found] == [(0, 1, "a"), (0, 2, "b"), (1, 1, None)]
    (bad,) = prepared.bad
    assert bad.value == named + b"\x02", "with its id, so that it can be read again without the header"
    assert bad.reason.startswith(f"schema {guid}: the payload")


KEYS = {
    "string": (b'\x06a"b', "STRING", 'a"b'),
    "long": (b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01", "BIGINT", 2**63 - 1),
    "boolean": (b"\x01", "BOOLEAN", True),
    "bytes": (b"\x02\xff", "BINARY", b"\xff"),
}


@pytest.mark.parametrize("schema", KEYS)
def test_a_key_that_is_a_single_value_is_that_of_the_only_column(
    make_bench: Any, registry: Registry, schema: str
) -> None:
    payload, column, value = KEYS[schema]
    prepared = with_keys(make_bench, registry, json.dumps(schema), column, [payload])
    assert prepared.bad == ()
    assert prepared.records is not None
    assert prepared.records.column("k").to_pylist() == [value]


def test_a_key_that_is_an_array_is_refused(make_bench: Any, registry: Registry) -> None:
    schema = json.dumps({"type": "array", "items": "long"})
    (bad,) = with_keys(make_bench, registry, schema, "BIGINT", [b"\x02\x02\x00"]).bad
    assert (
        bad.reason == "its key: schema 4: is neither an Avro record nor a single value, so it has no columns"
    )


def test_a_json_key_that_is_not_a_value_does_not_become_columns(make_bench: Any, registry: Registry) -> None:
    texts = [b" 5", b'1,"v":"x"', b"[1]", b""]
    prepared = with_keys(make_bench, registry, "{}", "BIGINT", texts, kind="JSON")
    assert prepared.records is not None
    assert prepared.records.select(["k", "v"]).to_pylist() == [{"k": 5, "v": "a"}]
    assert [one.offset for one in prepared.bad] == [1, 2, 3]


def test_a_key_that_is_an_object_or_a_single_value_fills_the_column(
    make_bench: Any, registry: Registry
) -> None:
    texts = [b'"a"', b' {"k":"b"}', b"null"]
    prepared = with_keys(make_bench, registry, "{}", "STRING", texts, kind="JSON")
    assert prepared.records is not None
    assert prepared.records.column("k").to_pylist() == ["a", "b", None]
    assert prepared.bad == ()


def with_keys(
    make_bench: Any, registry: Registry, schema: str, column: str, payloads: list[bytes], **facts: Any
) -> PreparedRecords:
    """Return what a source with `column` k as its key reads from a message per payload of a key."""
    registry.add(3, VALUE)
    registry.add(4, schema, **facts)
    bench = make_bench(read=ReadStepNdJson(ddl_schema=(f"k {column}", "v STRING")))
    chosen = with_key_columns(registry, "k")
    keys = [framed(4, payload) for payload in payloads]
    batch = messages([framed(3, b"\x02a")] * len(keys), chosen.message_columns, keys)
    return decoded(bench, chosen, batch)


def decoded(bench: Any, chosen: SourceSettings, batch: MessageBatch) -> PreparedRecords:
    decoder = Registries().decoder(chosen)
    assert decoder is not None
    plan = plan_of(bench.state, bench.state.push_sources["default"])
    return decode_batch(decoder, plan, batch, bench.preparer.messages)


def test_keys_of_a_registry_need_its_address() -> None:
    with pytest.raises(InvalidInput, match="keyFormat: registry needs the address in schemaRegistry"):
        SourceSettings.from_plain({"keyColumns": "id", "keyFormat": "registry"})


def with_other(make_bench: Any, registry: Registry) -> Any:
    """Return a dataset whose source `other` is of the registry."""
    bench = make_bench(None, None, replace(a_push_source("other"), read=ReadStepNdJson(ddl_schema=COLUMNS)))
    save_settings(bench.blobs, bench.dataset, "other", SourceSettings(schema_registry=registry.url))
    return bench


def test_a_registry_that_is_down_pauses_only_its_source_and_loses_nothing(
    make_bench: Any, broker: Broker, registry: Registry
) -> None:
    bench = with_other(make_bench, registry)
    registry.fails = 503
    broker.logs[OTHER, 0] += [row(11), row(12)]
    with running(bench, broker, other=OTHER) as node:
        node.wait(lambda: "gives no schema: it answers /schemas/ids/1 with status 503" in why(node, "other"))
        stuck = node.owned.stuck()[Key(bench.dataset, "other")]
        assert (stuck.reason, "schemaRegistry" in stuck.advice()) == ("RegistryUnavailable", True)
        for number in range(1, 4):
            broker.logs[TOPIC, 0] += [message(number)]
            node.wait(lambda number=number: len(node.ids) == number)  # type: ignore[misc]
            assert "503" in why(node, "other")
        node.wait(lambda: 2 in lags(node))
        assert bench.coordinator.letters == []
        registry.fails = 0
        node.wait(lambda: node.ids == [1, 2, 3, 11, 12])
        node.wait(lambda: node.owned.stuck() == {})
    assert bench.coordinator.letters == []


def test_a_source_whose_registry_has_moved_continues_with_its_new_address(
    make_bench: Any, broker: Broker, registry: Registry
) -> None:
    bench = with_other(make_bench, registry)
    registry.fails = 503
    broker.logs[OTHER, 0] += [row(11)]
    with running(bench, broker, other=OTHER) as node, serving_registry() as moved:
        moved.add(1, ROW)
        node.wait(lambda: "with status 503" in why(node, "other"))
        advice = node.owned.stuck()[Key(bench.dataset, "other")].advice()
        assert "`odf source set DATASET KEY=VALUE` (schemaRegistry," in advice
        control(node).change(node.entry, "other", {"schemaRegistry": moved.url})
        node.wait(lambda: node.ids == [11])
        node.wait(lambda: node.owned.stuck() == {})


def lags(node: Running) -> list[int]:
    bodies = [body_of(one) for topic, one in node.bench.coordinator.sent if topic == NOTIFICATIONS]
    return [one.lag for one in bodies if isinstance(one, IngestProgress) and one.source_name == "other"]


def test_columns_are_inferred_from_decoded_messages(
    make_bench: Any, broker: Broker, registry: Registry
) -> None:
    bench = make_bench(None, ReadStepNdJson())
    bench.set(schema_registry=registry.url)
    broker.logs[TOPIC, 0] += [row(1), row(2**62 + 1)]
    with running(bench, broker) as node:
        node.wait(lambda: node.ids == [1, 2**62 + 1])
    assert [row_["v"] for row_ in bench.rows()] == ["a", "a"]


def test_a_message_may_be_a_whole_batch(make_bench: Any, broker: Broker, registry: Registry) -> None:
    bench = make_bench(MergeStrategySnapshot(primary_key=("id",)))
    bench.set(schema_registry=registry.url)
    broker.logs[TOPIC, 0] += [row(1, "a"), framed(9, b""), row(1, "b")]
    with running(bench, broker) as node:
        node.wait(lambda: [one["v"] for one in bench.rows()] == ["a", "a", "b"])
    assert [one.reason for one in bench.coordinator.letters] == [
        "schema 9: does not exist in the schema registry"
    ]


def test_a_source_of_another_format_stops_and_says_why(
    make_bench: Any, broker: Broker, registry: Registry
) -> None:
    bench = make_bench(None, ReadStepCsv(ddl_schema=COLUMNS))
    bench.set(schema_registry=registry.url)
    broker.logs[TOPIC, 0] += [row(1)]
    with running(bench, broker) as node:
        node.wait(lambda: "read by a source with `kind: NdJson`, this one has Csv" in why(node, "default"))
        assert node.owned.phase(Key(bench.dataset, "default")) is Phase.STOPPED
    with pytest.raises(InvalidInput, match="this one has Csv"):
        json_step(ReadStepCsv())


def test_a_registry_that_does_not_answer_does_not_delay_other_sources_of_the_dataset(
    make_bench: Any, broker: Broker, registry: Registry
) -> None:
    bench = with_other(make_bench, registry)
    registry.pause = 0.02  # more than a second for an answer
    broker.logs[OTHER, 0] += [row(11)]
    with running(bench, broker, other=OTHER) as node:
        node.wait(lambda: registry.asked != [])
        broker.logs[TOPIC, 0] += [message(1)]
        node.wait(lambda: node.ids == [1])
        broker.logs[TOPIC, 0] += [message(2)]
        node.wait(lambda: node.ids == [1, 2])
        node.wait(lambda: node.ids == [1, 2, 11])


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


def test_columns_of_messages_and_a_registry_cannot_be_combined_with_it(node: Running) -> None:
    with pytest.raises(InvalidInput, match="each message of this source is a whole batch"):
        control(node).change(node.entry, "", ARROW | {"keyColumns": "id"})
    with pytest.raises(InvalidInput, match="messageFormat: Arrow has its schema itself"):
        control(node).change(node.entry, "", ARROW | {"schemaRegistry": "http://127.0.0.1:1"})
    with pytest.raises(InvalidInput, match="messageFormat: expected one of source, arrow, got 'avro'"):
        control(node).change(node.entry, "", {"messageFormat": "avro"})
