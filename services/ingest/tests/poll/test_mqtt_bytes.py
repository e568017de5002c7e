"""The bytes of MQTT packets (MQTT 3.1.1, OASIS): each limit, at it and one beyond it."""

import pytest

from odf_common.errors import InvalidInput
from odf_common.metadata.fetching import MqttQos
from odf_ingest.poll.fetch.mqtt_packets import (
    MAX_STRING_BYTES,
    Message,
    NotMqtt,
    Packet,
    PacketType,
    confirmation,
    connect,
    message_of,
    number_of,
    split,
    subscribe,
)

ONCE, AT_LEAST, EXACTLY = MqttQos


@pytest.mark.parametrize(
    ("user", "password", "flags", "credentials"),
    [
        (None, None, 0x00, b""),
        ("u", None, 0x80, b"\x00\x01u"),
        (None, "p", 0x40, b"\x00\x01p"),
        ("u", "", 0xC0, b"\x00\x01u\x00\x00"),
    ],
)
def test_a_session_outlives_its_connection_and_has_the_credentials_that_are_given(
    user: str | None, password: str | None, flags: int, credentials: bytes
) -> None:
    body = b"\x00\x04MQTT\x04" + bytes([flags, 0, 0]) + b"\x00\x01c" + credentials
    assert connect("c", user, password) == bytes([0x10, len(body)]) + body


def test_a_subscription_has_its_number_and_each_topic_with_its_quality() -> None:
    body = b"\x01\x02\x00\x01a\x02\x00\x02b/\x00"
    assert subscribe(0x102, (("a", EXACTLY), ("b/", ONCE))) == bytes([0x82, len(body)]) + body


@pytest.mark.parametrize("kind", [PacketType.PUBACK, PacketType.PUBREC, PacketType.PUBCOMP])
def test_a_confirmation_is_read_as_it_is_written(kind: PacketType) -> None:
    raw = confirmation(kind, 0xFFFE)
    assert raw == bytes([kind << 4, 2, 0xFF, 0xFE])
    found = split(raw, 2)
    assert found is not None
    packet, end = found
    assert (packet.kind, packet.flags, number_of(packet), end) == (kind, 0, 0xFFFE, 4)


@pytest.mark.parametrize("body", [b"", b"\x01"])
def test_a_confirmation_without_a_number_is_malformed(body: bytes) -> None:
    with pytest.raises(NotMqtt, match="a PUBREL is malformed"):
        number_of(Packet(kind=PacketType.PUBREL, flags=2, body=body))
    assert number_of(Packet(kind=PacketType.PUBREL, flags=2, body=b"\x00\x01more")) == 1


@pytest.mark.parametrize("type_", [0, 10, 11, 15])
def test_a_packet_of_no_type_for_subscribers_is_refused_once_it_is_whole(type_: int) -> None:
    assert split(bytes([type_ << 4, 1]), 1) is None
    with pytest.raises(NotMqtt, match=f"unknown packet type {type_}"):
        split(bytes([type_ << 4, 1, 0]), 1)


def test_a_packet_may_be_as_long_as_the_limit_and_no_longer() -> None:
    found = split(b"\x32\x03abc", 3)
    assert found == (Packet(kind=PacketType.PUBLISH, flags=2, body=b"abc"), 5)
    with pytest.raises(NotMqtt, match="3 bytes, more than 2"):
        split(b"\x32\x03", 2)


def publish(flags: int, body: bytes) -> Message:
    return message_of(Packet(kind=PacketType.PUBLISH, flags=flags, body=body))


@pytest.mark.parametrize(
    ("flags", "body", "message"),
    [
        (0, b"\x00\x01t", Message(topic="t", payload=b"", qos=ONCE)),
        (8, b"\x00\x00x", Message(topic="", payload=b"x", qos=ONCE, is_repeated=True)),
        (2, b"\x00\x01t\x00\x01", Message(topic="t", payload=b"", qos=AT_LEAST, number=1)),
        (
            12,
            b"\x00\x01t\x01\x00x",
            Message(topic="t", payload=b"x", qos=EXACTLY, number=256, is_repeated=True),
        ),
        (1, b"\x00\x01t", Message(topic="t", payload=b"", qos=ONCE)),
    ],
)
def test_a_message_has_the_content_of_its_packet(flags: int, body: bytes, message: Message) -> None:
    assert publish(flags, body) == message


@pytest.mark.parametrize(
    ("flags", "body", "why"),
    [
        (0, b"", "is malformed"),
        (0, b"\x00", "is malformed"),
        (0, b"\x00\x02t", "is malformed"),
        (2, b"\x00\x01t\x00", "is malformed"),
        (6, b"\x00\x01t\x00\x01", "is malformed"),
        (2, b"\x00\x01t\x00\x00", "no packet identifier"),
        (4, b"\x00\x01t\x00\x00x", "no packet identifier"),
        (0, b"\x00\x01\xff", "not UTF-8"),
    ],
)
def test_a_message_that_contradicts_itself_is_refused(flags: int, body: bytes, why: str) -> None:
    with pytest.raises(NotMqtt, match=why):
        publish(flags, body)


def test_a_string_is_as_long_as_its_length_field_allows() -> None:
    raw = connect("c" * MAX_STRING_BYTES, None, None)
    found = split(raw, len(raw))
    assert found is not None
    assert found[0].body[10:12] == b"\xff\xff"
    with pytest.raises(InvalidInput, match="65536 bytes cannot be sent"):
        connect("c" * (MAX_STRING_BYTES + 1), None, None)
