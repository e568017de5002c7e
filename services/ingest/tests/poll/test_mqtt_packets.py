import socket
import struct
import threading
from typing import Any

import pytest

from odf_common.errors import OdfError
from odf_common.metadata.events import AddData
from odf_common.metadata.fetching import FetchStepMqtt, MqttTopicSubscription
from odf_common.metadata.steps import ReadStepNdJson
from odf_ingest.poll.fetch.fetch_step import MqttLimits
from odf_ingest.poll.fetch.mqtt_packets import NotMqtt, message_of, split
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
