"""A topic in a schema registry's wire format: rows, dead letters, and a registry that goes away."""

from decimal import Decimal

from odf_testing.registry import Registered, avro, descriptor_of, framed, serving_registry
from odf_testing.story import Sender, Story, root

NAME = "registry.orders"
COLUMNS = (
    "id BIGINT",
    "price DECIMAL(10, 2)",
    "raw BINARY",
    "big BIGINT UNSIGNED",
    "at TIMESTAMP(6)",
)
AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
        {"name": "raw", "type": ["null", "bytes"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    ],
}
PROTO = """
syntax = "proto3";
import "google/protobuf/timestamp.proto";
message Order { int64 id = 1; uint64 big = 2; google.protobuf.Timestamp at = 3; }
"""
AT_US = 1_767_225_600_000_001
PROTO_MESSAGE = b"\0\x08\x02\x10" + b"\xff" * 9 + b"\x01\x1a\x06\x08\x80\xf2\xd6\xca\x06"
# Its file has options of its own, and imports what no registry lists among a schema's references.
LABELLED = """
syntax = "proto3";
package lab;
import "google/protobuf/descriptor.proto";
import "confluent/type/decimal.proto";
extend google.protobuf.FieldOptions { string owner = 50123; }
extend google.protobuf.MessageOptions { bool is_personal = 50124; }
message Sample {
  option (is_personal) = true;
  int64 id = 1 [(owner) = "ward 7"];
  confluent.type.Decimal price = 2;
}
"""
AMOUNT = 'syntax = "proto3"; package confluent.type; message Decimal { bytes value = 1; uint32 precision = 2; int32 scale = 3; }'
DATED = """
syntax = "proto3";
import "google/type/date.proto";
message Sample { int64 id = 1; google.type.Date taken = 2; }
"""
DATE = (
    'syntax = "proto3"; package google.type; message Date { int32 year = 1; int32 month = 2; int32 day = 3; }'
)
SAMPLE = b"\0\x08\x07\x12\x07\x0a\x01\x7b\x10\x0a\x18\x02"
DATED_SAMPLE = b"\0\x08\x08\x12\x07\x08\xea\x0f\x10\x02\x18\x1c"
LOGIN = "schemaRegistryUser=odf schemaRegistryPassword=-"


def order(number: int, id_: int) -> bytes:
    return avro(number, AVRO, {"id": id_, "price": b"\x01\x00", "raw": b"\xff\x00", "at": AT_US + id_})


def test_messages_received_before_the_address_was_set_are_read_again(story: Story) -> None:
    node, name = story.node, "registry.early"
    story.add(root(name, COLUMNS))
    with serving_registry() as registry:
        registry.add(1, AVRO)
        Sender(node).send(story.topic(name), [order(1, 1), order(1, 2)])
        node.eventually(lambda: len(node.run(f"rejected list {name} --output json")) == 2)
        node.run(f"source set {name} schemaRegistry={registry.url} --output json")
        node.run(f"rejected retry {name} --all --output json")
        story.await_records({name: 2})
    assert story.chain(name).column("id") == [1, 2]
    assert node.run(f"rejected list {name} --output json") == []


def test_messages_are_rows_and_a_registry_that_is_down_loses_none(story: Story) -> None:
    node = story.node
    story.add(root(NAME, COLUMNS))
    with serving_registry() as registry:
        registry.login = "odf:se-cret"
        registry.add(1, AVRO)
        registry.add_protobuf(2, PROTO)
        registry.add(3, "{}", kind="JSON")
        setting = f"source set {NAME} schemaRegistry={registry.url} {LOGIN} --output json"
        (shown,) = node.run(setting, stdin=b"se-cret\n")
        assert shown["settings"]["schemaRegistryPassword"] == "***"
        json_ = b'{"id": 3, "at": "2026-01-01T00:00:03Z"}'
        bad = framed(9, b"x")
        Sender(node).send(story.topic(NAME), [order(1, 1), framed(2, PROTO_MESSAGE), bad, framed(3, json_)])
        story.await_records({NAME: 3})
        (letter,) = story.dead_letters(story.topic(NAME))
        assert letter["reason"] == "schema 9: does not exist in the schema registry"
        registry.fails = 503
        registry.add(4, AVRO)
        Sender(node).send(story.topic(NAME), [order(4, 4)])
        seen: list[str] = []

        def is_named() -> bool:
            seen.append(str(node.run("status --output json")))
            return "503" in seen[-1] and "odf source set" in seen[-1]

        node.eventually(is_named)
        assert not any("se-cret" in status for status in seen)
        registry.fails = 0
        story.await_records({NAME: 4})
    chain = story.chain(NAME)
    assert chain.column("id") == [1, 2, 3, 4]
    assert chain.column("price") == [Decimal("2.56"), None, None, Decimal("2.56")]
    assert chain.column("raw") == [b"\xff\x00", None, None, b"\xff\x00"]
    assert chain.column("big") == [None, 2**64 - 1, None, None]
    assert [f"{at:%S.%f}" for at in chain.column("at")] == [
        "00.000002",
        "00.000000",
        "03.000000",
        "00.000005",
    ]
    assert len(story.dead_letters(story.topic(NAME))) == 1
    assert "se-cret" not in node.logs(100_000)


def test_a_schema_with_options_is_read_and_a_file_that_is_missing_is_named(story: Story) -> None:
    node, name = story.node, "registry.samples"
    story.add(
        root(name, ("id BIGINT", "price DECIMAL(10, 2)", "taken STRUCT<year: INT, month: INT, day: INT>"))
    )
    with serving_registry() as registry:
        labelled = descriptor_of(LABELLED, **{"confluent/type/decimal": AMOUNT})
        registry.add(1, labelled, kind="PROTOBUF")
        dated = descriptor_of(DATED, **{"google/type/date": DATE})
        registry.add(2, dated, kind="PROTOBUF")
        node.run(f"source set {name} schemaRegistry={registry.url} --output json")
        Sender(node).send(story.topic(name), [framed(1, SAMPLE), framed(2, DATED_SAMPLE)])
        story.pull(name)
        assert [(row["id"], row["price"]) for row in story.tail(name)] == [(7, "1.23")]
        (letter,) = story.dead_letters(story.topic(name))
        assert "imports google/type/date.proto" in letter["reason"]

        registry.subjects["date", 1] = Registered(
            descriptor_of(DATE, "google/type/date.proto"), kind="PROTOBUF"
        )
        reference = {"name": "google/type/date.proto", "subject": "date", "version": 1}
        registry.add(3, dated, kind="PROTOBUF", references=[reference])
        Sender(node).send(story.topic(name), [framed(3, DATED_SAMPLE)])
        story.pull(name)
    assert story.tail(name)[1]["taken"] == {"year": 2026, "month": 2, "day": 28}
