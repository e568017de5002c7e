"""Sources whose messages name a schema: rows and dead letters as usual; a registry that is down pauses only them."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from odf_testing.builders import a_push_source
from odf_testing.registry import Registry, avro, framed, serving_registry

from odf_common.codec.bus import body_of
from odf_common.errors import InvalidInput
from odf_common.metadata.steps import MergeStrategySnapshot, ReadStepCsv, ReadStepNdJson
from odf_common.ports.bus import NOTIFICATIONS
from odf_common.proto.odf.bus.v1.bus_pb2 import IngestProgress
from odf_ingest.push import stalls
from odf_ingest.push.source_record import Key
from odf_ingest.push.state_machine import Phase
from odf_ingest.registry import json_step
from odf_ingest.source_settings import SourceSettings, save_settings

from .test_reader import TOPIC, Broker, Running, message, running

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
def broker() -> Broker:
    made = Broker()
    made.make(TOPIC)
    made.make(OTHER)
    return made


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stalls, "REPORT_RETRIES_AFTER_SECONDS", 0.0)


def row(id_: int | None, v: str = "a") -> bytes:
    return avro(1, ROW, {"id": id_, "v": v, "event_time": 1_577_836_800_123})


def why(node: Running, source: str) -> str:
    return str(node.owned.stuck().get(Key(node.bench.dataset, source), ""))


def test_rows_are_committed_and_what_cannot_be_decoded_is_a_dead_letter_as_it_was_sent(
    make_bench: Any, broker: Broker, registry: Registry
) -> None:
    bench = make_bench()
    save_settings(bench.blobs, bench.dataset, "default", SourceSettings(schema_registry=registry.url))
    bad = {
        framed(9, b"x"): "schema 9: does not exist",
        row(3)[:-1]: "schema 1: the payload",
        row(None): "has no id",
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


def test_a_registry_that_is_down_pauses_only_its_source_and_loses_nothing(
    make_bench: Any, broker: Broker, registry: Registry
) -> None:
    bench = make_bench(None, None, replace(a_push_source("other"), read=ReadStepNdJson(ddl_schema=COLUMNS)))
    save_settings(bench.blobs, bench.dataset, "other", SourceSettings(schema_registry=registry.url))
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


def lags(node: Running) -> list[int]:
    bodies = [body_of(one) for topic, one in node.bench.coordinator.sent if topic == NOTIFICATIONS]
    return [one.lag for one in bodies if isinstance(one, IngestProgress) and one.source_name == "other"]


def test_columns_are_inferred_from_decoded_messages(
    make_bench: Any, broker: Broker, registry: Registry
) -> None:
    bench = make_bench(None, ReadStepNdJson())
    save_settings(bench.blobs, bench.dataset, "default", SourceSettings(schema_registry=registry.url))
    broker.logs[TOPIC, 0] += [row(1), row(2**62 + 1)]
    with running(bench, broker) as node:
        node.wait(lambda: node.ids == [1, 2**62 + 1])
    assert [row_["v"] for row_ in bench.rows()] == ["a", "a"]


def test_a_message_may_be_a_whole_batch(make_bench: Any, broker: Broker, registry: Registry) -> None:
    bench = make_bench(MergeStrategySnapshot(primary_key=("id",)))
    save_settings(bench.blobs, bench.dataset, "default", SourceSettings(schema_registry=registry.url))
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
    save_settings(bench.blobs, bench.dataset, "default", SourceSettings(schema_registry=registry.url))
    broker.logs[TOPIC, 0] += [row(1)]
    with running(bench, broker) as node:
        node.wait(lambda: "read by a source with `kind: NdJson`, this one has Csv" in why(node, "default"))
        assert node.owned.phase(Key(bench.dataset, "default")) is Phase.STOPPED
    with pytest.raises(InvalidInput, match="this one has Csv"):
        json_step(ReadStepCsv())


def test_a_registry_that_does_not_answer_holds_up_no_other_source_of_the_dataset(
    make_bench: Any, broker: Broker, registry: Registry
) -> None:
    bench = make_bench(None, None, replace(a_push_source("other"), read=ReadStepNdJson(ddl_schema=COLUMNS)))
    save_settings(bench.blobs, bench.dataset, "other", SourceSettings(schema_registry=registry.url))
    registry.pause = 0.02  # more than a second for an answer
    broker.logs[OTHER, 0] += [row(11)]
    with running(bench, broker, other=OTHER) as node:
        node.wait(lambda: registry.asked != [])
        broker.logs[TOPIC, 0] += [message(1)]
        node.wait(lambda: node.ids == [1])
        broker.logs[TOPIC, 0] += [message(2)]
        node.wait(lambda: node.ids == [1, 2])
        node.wait(lambda: node.ids == [1, 2, 11])
