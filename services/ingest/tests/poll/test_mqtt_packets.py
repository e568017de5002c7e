"""The bytes of MQTT packets (MQTT 3.1.1, OASIS): each limit, at it and one beyond it."""

import socket
import struct
import threading
from typing import Any

import pytest

from odf_common.errors import InvalidInput, OdfError
from odf_common.metadata.events import AddData, ReadStepNdJson
from odf_common.metadata.fetching import FetchStepMqtt, MqttQos, MqttTopicSubscription
from odf_ingest.poll.fetch.fetch_step import MqttLimits
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
from odf_ingest.poll.poll_errors import SourceRefusedRequest, SourceUnreachable


@pytest.mark.parametrize(
    ("answer", "error", "text"),
    [
        (b"HTTP/1.1 400 Bad Request\r\nServer: x" + bytes(100), SourceRefusedRequest, "does not speak MQTT"),
        (b"\x20\xff\xff\xff\xff\x01", SourceRefusedRequest, "more than four bytes"),
        (b"\x20\xff\xff\xff\x7f", SourceRefusedRequest, "more than 16777216"),
        (b"\x20\x01\x00", SourceRefusedRequest, "CONNACK is malformed"),
        (b"\x20\x02\x00\x01", SourceRefusedRequest, "does not speak MQTT 3.1.1"),
        (b"\x20\x02\x00\x03", SourceUnreachable, "reports that it is unavailable"),
        (
            b"\x20\x02\x00\x00\x90\x03\x00\x01\x80",
            SourceRefusedRequest,
            "refuses the subscription to 'home/#'",
        ),
        (b"\x20\x02\x00\x00\x90\x02\x00\x01", SourceRefusedRequest, "SUBACK is malformed"),
        (b"\x20\x02\x00\x00\x30\x01\x00", SourceRefusedRequest, "PUBLISH is malformed"),
        (b"\x20\x02\x00\x00\x36\x06\x00\x01t\x00\x01x", SourceRefusedRequest, "PUBLISH is malformed"),
        (b"\x20\x02\x00\x00\x30\x04\x00\x02\xff\xfe", SourceRefusedRequest, "a topic is not UTF-8"),
        (b"\x20\x02\x00\x00\x90\x03\x00\x01\x00\x40\x02\x00\x01", SourceRefusedRequest, "unexpected PUBACK"),
        (b"\x20\x02\x00\x00", SourceUnreachable, "the connection was interrupted"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_hostile_brokers_are_errors(
    make_polled: Any, poll: Any, answer: bytes, error: type[OdfError], text: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connected, _ = listening.accept()
            with connected:
                connected.sendall(answer)
                connected.shutdown(socket.SHUT_WR)
                while connected.recv(1000):
                    pass

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        topics = (MqttTopicSubscription(path="home/#"),)
        fetch = FetchStepMqtt(host="127.0.0.1", port=listening.getsockname()[1], topics=topics)
        with pytest.raises(error, match=text):
            poll(make_polled(fetch))
        thread.join()


def test_a_batch_ends_once_it_has_as_many_bytes_as_one_may_have(make_polled: Any, poll: Any) -> None:
    payload = b'{"id":1}'
    limits = MqttLimits(batch_bytes=2 * len(payload), quiet_seconds=0.05, gap_seconds=0.01)
    message = b"\x00\x01t" + payload
    sent = (
        b"\x20\x02\x00\x00\x90\x03\x00\x01\x00"
        + 5 * (b"\x30" + bytes([len(message)]) + message)
        + 4 * b"\xd0\x00"  # one for each batch, and for the session
    )
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connected, _ = listening.accept()
            with connected:
                connected.sendall(sent)
                while connected.recv(1000):
                    pass

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        topics = (MqttTopicSubscription(path="t"),)
        fetch = FetchStepMqtt(host="127.0.0.1", port=listening.getsockname()[1], topics=topics)
        bench = make_polled(fetch, read=ReadStepNdJson(ddl_schema=("id BIGINT",)))
        poll(bench, mqtt=limits)
        thread.join()
    slices = [one.new_data for one in bench.events() if isinstance(one, AddData) and one.new_data]
    assert [one.offset_interval.records for one in slices] == [2, 2, 1]


def test_an_address_at_which_no_broker_listens_is_unreachable(make_polled: Any, poll: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    topics = (MqttTopicSubscription(path="t"),)
    with pytest.raises(SourceUnreachable, match="Connection refused"):
        poll(make_polled(FetchStepMqtt(host="127.0.0.1", port=port, topics=topics)))


def test_a_connection_that_is_reset_is_an_error(make_polled: Any, poll: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connected, _ = listening.accept()
            connected.recv(1)
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connected.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        topics = (MqttTopicSubscription(path="home/#"),)
        fetch = FetchStepMqtt(host="127.0.0.1", port=listening.getsockname()[1], topics=topics)
        with pytest.raises(SourceUnreachable, match="Connection reset by peer"):
            poll(make_polled(fetch))
        thread.join()


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16_383, 16_384, 2_097_152])
def test_packets_are_split_wherever_they_are_cut(size: int) -> None:
    payload = bytes(size)
    length, rest = bytearray(), size + 3
    while True:
        rest, digit = rest >> 7, rest & 0x7F
        length.append(digit | (0x80 if rest else 0))
        if not rest:
            break
    raw = b"\x30" + bytes(length) + b"\x00\x01t" + payload
    for cut in {0, 1, 2, 3, len(raw) // 2, len(raw) - 1} - {len(raw)}:
        assert split(raw[:cut], len(raw)) is None
    found = split(raw + b"\x30", len(raw))
    assert found is not None
    packet, end = found
    assert (message_of(packet).payload, end) == (payload, len(raw))
    with pytest.raises(NotMqtt, match="more than"):
        split(raw, size)


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
