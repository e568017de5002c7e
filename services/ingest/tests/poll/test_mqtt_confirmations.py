"""Which packets confirm a message, and when: a broker in this process follows the protocol and notes what comes."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, cast

import pytest

from odf_common.metadata.events import AddData, MergeStrategySnapshot, ReadStepNdJson
from odf_common.metadata.fetching import FetchStepMqtt, MqttQos, MqttTopicSubscription
from odf_ingest.poll.fetch import mqtt_session
from odf_ingest.poll.fetch.fetch_step import MqttLimits
from odf_ingest.poll.fetch.mqtt_packets import Packet, PacketType, confirmation, number_of, split
from odf_ingest.poll.poll_errors import SourceRefusedRequest, SourceUnreachable
from odf_ingest.poll.poller import PollSummary

NOTHING = PollSummary()
QUICK = MqttLimits(quiet_seconds=0.1, gap_seconds=0.03)
EXACT, LEAST, MOST = MqttQos.ExactlyOnce, MqttQos.AtLeastOnce, MqttQos.AtMostOnce
PUBREC, PUBREL, PUBCOMP = PacketType.PUBREC, PacketType.PUBREL, PacketType.PUBCOMP
RELEASE_FLAGS = 2
PINGRESP = bytes([PacketType.PINGRESP << 4, 0])


class OneSession:
    """A broker with one session: `waiting` are its messages by number, of which `received` await only a PUBCOMP."""

    def __init__(self, qos: MqttQos) -> None:
        self.qos = qos
        self.window = 100  # how many messages it sends before it waits for confirmations
        self.waiting: dict[int, bytes] = {}
        self.received: set[int] = set()
        self.confirmed: list[tuple[PacketType, int]] = []
        self.has_session = False
        self.is_mute = False  # about confirmations
        self.is_early = False  # with messages, which come before the answer to their subscription
        self.resume_seconds = 0.0  # before it sends what a session has
        self.subscriptions = 0
        self.at_confirmation: Callable[[], object] = lambda: None
        self.seen: list[object] = []  # what `at_confirmation` has returned
        self.is_idle = threading.Event()  # no connection is open
        self.is_idle.set()
        self._sent: set[int] = set()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._thread.join(10)
        self._listening.close()

    def _serve(self) -> None:
        while True:
            try:
                connected, _ = self._listening.accept()
            except OSError:
                return
            self.is_idle.clear()
            with connected:
                self._sent.clear()
                self._converse(connected)
            self.is_idle.set()

    def _converse(self, connected: socket.socket) -> None:
        buffer = bytearray()
        while chunk := connected.recv(1 << 16):
            buffer += chunk
            while (found := split(buffer, 1 << 20)) is not None:
                packet, length = found
                del buffer[:length]
                if packet.kind is PacketType.DISCONNECT:
                    return
                for part in self._answers(packet):
                    connected.sendall(part)

    def _answers(self, packet: Packet) -> Iterator[bytes]:
        if packet.kind is not PacketType.CONNECT:
            yield self._answer(packet)
            return
        has_session, self.has_session = self.has_session, True
        yield bytes([0x20, 2, has_session, 0])
        if has_session:
            time.sleep(self.resume_seconds)
            yield self._more()

    def _answer(self, packet: Packet) -> bytes:
        match packet.kind:
            case PacketType.PINGREQ:
                return PINGRESP
            case PacketType.SUBSCRIBE:
                self.subscriptions += 1
                parts = bytes([0x90, 3, *packet.body[:2], self.qos]), self._more()
                return b"".join(reversed(parts) if self.is_early else parts)
            case _:
                number = number_of(packet)
                self.confirmed.append((packet.kind, number))
                self.seen.append(self.at_confirmation())
                return b"" if self.is_mute else self._confirmed(packet.kind, number)

    def _confirmed(self, kind: PacketType, number: int) -> bytes:
        if kind is PUBREC:
            self.received.add(number)
            return release(number)
        self.waiting.pop(number, None)
        self.received.discard(number)
        return self._more()

    def _more(self) -> bytes:
        """Return the next messages, and the releases that an earlier connection did not confirm."""
        if self.is_mute and self._sent:
            return b""
        some = [number for number in list(self.waiting)[: self.window] if number not in self._sent]
        self._sent |= set(some)
        return b"".join(
            release(number) if number in self.received else self._publish(number) for number in some
        )

    def _publish(self, number: int) -> bytes:
        text = self.waiting[number]
        body = b"\x00\x01t" + (number.to_bytes(2) if self.qos else b"") + text
        return bytes([0x30 | self.qos << 1, len(body)]) + body


def release(number: int) -> bytes:
    raw = bytearray(confirmation(PUBREL, number))
    raw[0] |= RELEASE_FLAGS
    return bytes(raw)


@pytest.fixture
def brokers() -> Iterator[list[OneSession]]:
    started: list[OneSession] = []
    yield started
    for broker in started:
        broker.close()


@pytest.fixture
def poll(poll: Any, brokers: list[OneSession]) -> Any:
    """Return a function that polls a dataset, and returns when its broker has seen all."""

    def run(bench: Any, **limits: Any) -> PollSummary:
        try:
            return cast("PollSummary", poll(bench, mqtt=replace(QUICK, **limits)))
        finally:
            assert all(broker.is_idle.wait(10) for broker in brokers)

    return run


@pytest.fixture
def make_broker(make_polled: Any, brokers: list[OneSession]) -> Callable[..., tuple[OneSession, Any]]:
    """Return a factory of brokers with messages by number, and of datasets that poll them."""

    def make(qos: MqttQos, *numbers: int, merge: Any = None) -> tuple[OneSession, Any]:
        broker = OneSession(qos)
        broker.waiting = {number: b'{"id":%d}' % number for number in numbers}
        brokers.append(broker)
        topics = (MqttTopicSubscription(path="t", qos=qos),)
        fetch = FetchStepMqtt(host="127.0.0.1", port=broker.port, topics=topics)
        return broker, make_polled(fetch, merge, read=ReadStepNdJson(ddl_schema=("id BIGINT",)))

    return make


@pytest.fixture
def unconfirmed(make_broker: Any, poll: Any) -> Callable[..., tuple[OneSession, Any]]:
    """Return a factory of brokers that do not answer the confirmations of their messages, which are committed."""

    def make(*numbers: int) -> tuple[OneSession, Any]:
        broker, bench = make_broker(EXACT, *numbers)
        broker.is_mute = True
        with pytest.raises(SourceUnreachable, match="no answer in time"):
            poll(bench, answer_seconds=0.1)
        broker.is_mute = False
        broker.confirmed.clear()
        return broker, bench

    return make


def ids(bench: Any) -> list[int]:
    return [one for (one,) in bench.values("id")]


def test_an_exactly_once_message_is_confirmed_in_two_steps_after_its_block(
    make_broker: Any, poll: Any
) -> None:
    broker, bench = make_broker(EXACT, 3, 5)
    broker.at_confirmation = lambda: ids(bench)
    assert poll(bench) == PollSummary(blocks=1, records=2)
    assert broker.confirmed[:2] == [(PUBREC, 3), (PUBREC, 5)]
    assert sorted(broker.confirmed[2:]) == [(PUBCOMP, 3), (PUBCOMP, 5)]
    assert broker.seen == [[3, 5]] * 4
    assert broker.waiting == {}
    assert poll(bench) == NOTHING


def test_an_at_least_once_message_is_confirmed_after_its_block(make_broker: Any, poll: Any) -> None:
    broker, bench = make_broker(LEAST, 3, 5)
    broker.at_confirmation = lambda: ids(bench)
    assert poll(bench) == PollSummary(blocks=1, records=2)
    assert broker.confirmed == [(PacketType.PUBACK, 3), (PacketType.PUBACK, 5)]
    assert broker.seen == [[3, 5]] * 2


def test_an_at_most_once_message_is_not_confirmed(make_broker: Any, poll: Any) -> None:
    broker, bench = make_broker(MOST, 1, 2)
    assert poll(bench) == PollSummary(blocks=1, records=2)
    assert broker.confirmed == []


def test_a_dataset_is_subscribed_once_and_the_broker_keeps_its_session(make_broker: Any, poll: Any) -> None:
    broker, bench = make_broker(EXACT, 1)
    for number in (2, 3):
        assert poll(bench).records == 1
        broker.waiting[number] = b'{"id":%d}' % number
    assert poll(bench).records == 1
    assert broker.subscriptions == 1


def test_a_message_before_the_answer_to_the_subscription_is_read(make_broker: Any, poll: Any) -> None:
    broker, bench = make_broker(EXACT, 1, 2)
    broker.is_early = True
    assert poll(bench) == PollSummary(blocks=1, records=2)
    assert ids(bench) == [1, 2]
    assert broker.waiting == {}


def test_a_message_that_comes_after_a_pause_is_in_the_same_poll(
    make_broker: Any, poll: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, bench = make_broker(LEAST, 1)
    original, pauses = mqtt_session.Session.receive, [None]

    def receive(session: mqtt_session.Session, seconds: float) -> Packet | None:
        return pauses.pop() if pauses and seconds == QUICK.gap_seconds else original(session, seconds)

    monkeypatch.setattr(mqtt_session.Session, "receive", receive)
    assert poll(bench, quiet_seconds=0.5).records == 1
    assert not pauses


def test_a_poll_does_not_end_before_a_slow_broker_has_resumed_the_session(
    make_broker: Any, poll: Any
) -> None:
    """Mosquitto sends a message again that it has released if the connection ends while it resumes the session."""
    broker, bench = make_broker(EXACT)
    assert poll(bench) == NOTHING
    broker.waiting = {3: b'{"id":3}'}
    broker.resume_seconds = 5 * QUICK.quiet_seconds
    assert poll(bench).records == 1


@pytest.mark.parametrize("seconds", [QUICK.poll_seconds, 0.3])
def test_a_poll_does_not_end_before_a_slow_broker_has_its_confirmations(
    make_broker: Any, poll: Any, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    """Otherwise the next connection may overtake them: Mosquitto drops what it has not read of the earlier one."""
    broker, bench = make_broker(LEAST, 1, 2)
    broker.at_confirmation = lambda: time.sleep(5 * QUICK.quiet_seconds)
    close, confirmed = mqtt_session.Session.close, []

    def checked(session: mqtt_session.Session) -> None:
        confirmed.append(len(broker.confirmed))
        close(session)

    monkeypatch.setattr(mqtt_session.Session, "close", checked)
    # The gap is so long that the shorter poll has one batch.
    assert poll(bench, poll_seconds=seconds, gap_seconds=0.4).records == 2
    assert confirmed == [2]


def test_a_broker_that_does_not_answer_a_ping_is_unreachable(make_broker: Any, poll: Any) -> None:
    broker, bench = make_broker(EXACT)
    assert poll(bench) == NOTHING
    broker.resume_seconds = 1.0
    with pytest.raises(SourceUnreachable, match="no answer in time"):
        poll(bench, answer_seconds=0.2)


def test_each_message_is_a_block_if_it_is_a_whole_snapshot(make_broker: Any, poll: Any) -> None:
    _, bench = make_broker(EXACT, 1, 2, 3, merge=MergeStrategySnapshot(primary_key=("id",)))
    assert poll(bench).blocks == 3
    assert bench.values("op", "id") == [(0, 1), (1, 1), (0, 2), (1, 2), (0, 3)]


def test_a_message_that_a_broker_repeats_is_confirmed_again_and_read_once(
    unconfirmed: Any, poll: Any
) -> None:
    broker, bench = unconfirmed(1, 2)
    assert ids(bench) == [1, 2]
    broker.waiting[7] = b'{"id":7}'
    assert poll(bench) == PollSummary(blocks=1, records=1)
    assert [number for kind, number in broker.confirmed if kind is PUBREC] == [1, 2, 7]
    assert broker.waiting == {}
    assert ids(bench) == [1, 2, 7]


def test_a_release_that_an_earlier_connection_did_not_answer_is_answered(make_broker: Any, poll: Any) -> None:
    broker, bench = make_broker(EXACT)
    assert poll(bench) == NOTHING
    broker.waiting, broker.received = {9: b""}, {9}
    assert poll(bench) == NOTHING
    assert broker.confirmed == [(PUBCOMP, 9)]
    assert broker.waiting == {}


def test_a_number_that_was_released_is_that_of_a_new_message(make_broker: Any, poll: Any) -> None:
    broker, bench = make_broker(EXACT, 1)
    assert poll(bench).records == 1
    broker.waiting = {1: b'{"id":11}'}
    assert poll(bench).records == 1
    assert ids(bench) == [1, 11]


def test_a_broker_that_has_lost_the_session_is_subscribed_again_and_its_numbers_are_new(
    unconfirmed: Any, poll: Any
) -> None:
    broker, bench = unconfirmed(1)
    broker.has_session, broker.waiting = False, {}
    assert poll(bench) == NOTHING
    broker.waiting = {1: b'{"id":11}'}
    assert poll(bench).records == 1
    assert ids(bench) == [1, 11]
    assert broker.waiting == {}


def test_a_broker_that_has_forgotten_a_batch_blocks_no_later_poll(unconfirmed: Any, poll: Any) -> None:
    broker, bench = unconfirmed(1)
    broker.waiting = {}
    assert poll(bench, answer_seconds=0.1) == NOTHING
    broker.waiting = {1: b'{"id":11}'}
    assert poll(bench).records == 1
    assert ids(bench) == [1, 11]


def test_a_batch_larger_than_the_window_of_a_broker_that_repeats_it_is_released_in_parts(
    unconfirmed: Any, poll: Any
) -> None:
    broker, bench = unconfirmed(1, 2, 3, 4, 5)
    broker.window = 2
    assert poll(bench) == NOTHING
    assert broker.waiting == {}
    assert [number for kind, number in broker.confirmed if kind is PUBREC] == [1, 2, 3, 4, 5]
    assert ids(bench) == [1, 2, 3, 4, 5]


def test_a_batch_has_as_many_messages_as_one_may_have(make_broker: Any, poll: Any) -> None:
    broker, bench = make_broker(EXACT, 1, 2, 3, 4, 5)
    assert poll(bench, messages=2) == PollSummary(blocks=3, records=5)
    slices = [one.new_data for one in bench.events() if isinstance(one, AddData) and one.new_data]
    assert [one.offset_interval.records for one in slices] == [2, 2, 1]
    assert broker.waiting == {}


def test_more_bytes_than_may_wait_for_their_block_are_refused(make_broker: Any, poll: Any) -> None:
    size = len(b'{"id":1}')
    broker, bench = make_broker(LEAST, 1, 2)
    assert poll(bench, waiting_bytes=2 * size).records == 2
    broker.waiting = dict.fromkeys((1, 2, 3), b'{"id":1}')
    with pytest.raises(SourceRefusedRequest, match=f"more than {2 * size} bytes arrived before"):
        poll(bench, waiting_bytes=2 * size)
    assert len(bench.rows()) == 2


def test_the_usual_limits_suit_a_broker_that_answers_within_seconds() -> None:
    assert MqttLimits() == MqttLimits(
        quiet_seconds=1.0,
        gap_seconds=0.1,
        poll_seconds=30.0,
        answer_seconds=10.0,
        messages=10_000,
        batch_bytes=16_777_216,
        waiting_bytes=268_435_456,
    )
