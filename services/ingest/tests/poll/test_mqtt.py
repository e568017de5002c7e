import subprocess
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, cast

import pytest
from odf_testing.certificates import self_signed
from odf_testing.mqttbroker import MqttBroker, require_mosquitto, serving_mqtt

from odf_common.adapters.networks import AddressForbidden, Networks
from odf_common.dataset.open_rejects import source_progress
from odf_common.errors import InvalidInput, Unavailable
from odf_common.metadata.events import (
    AddData,
    MergeStrategyLedger,
    MergeStrategySnapshot,
    ReadStepNdJson,
    SetPollingSource,
)
from odf_common.metadata.fetching import (
    CompressionFormat,
    FetchStepMqtt,
    MqttQos,
    MqttTopicSubscription,
    PrepStepDecompress,
)
from odf_ingest.poll.fetch import mqtt, mqtt_session
from odf_ingest.poll.fetch.fetch_step import MqttLimits
from odf_ingest.poll.fetch.mqtt_packets import PacketType
from odf_ingest.poll.poll_errors import SourceRefusedRequest, SourceUnreachable
from odf_ingest.poll.poller import NOTE, PollSummary
from odf_ingest.source_settings import BadRecords

NOTHING = PollSummary()
POLLS = 100
ANSWER_SECONDS = 60
EXACT, LEAST, MOST = MqttQos.ExactlyOnce, MqttQos.AtLeastOnce, MqttQos.AtMostOnce


class Killed(BaseException):
    """As by kill -9: nothing in the process handles it."""


QUICK = MqttLimits(quiet_seconds=0.15, gap_seconds=0.05)


@pytest.fixture
def poll(poll: Any) -> Any:
    """Return a function that polls a broker that needs no second for an answer."""

    def run(bench: Any, mqtt: MqttLimits = QUICK, **more: Any) -> PollSummary:
        return cast("PollSummary", poll(bench, mqtt=mqtt, **more))

    return run


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MqttBroker]:
    with serving_mqtt(tmp_path_factory.mktemp("mosquitto")) as broker:
        yield broker


@pytest.fixture
def broker(running: MqttBroker, monkeypatch: pytest.MonkeyPatch) -> MqttBroker:
    """Return the broker; each test has distinct client names, since all benches share one dataset."""
    client, salt = mqtt._client, uuid.uuid4().hex
    monkeypatch.setattr(mqtt, "_client", lambda dataset, topics: client(f"{dataset}{salt}", topics))  # type: ignore[arg-type]
    return running


def step(broker: MqttBroker, qos: MqttQos | None = EXACT, path: str = "home/#", **more: Any) -> FetchStepMqtt:
    topics = (MqttTopicSubscription(path=path, qos=qos),)
    given: dict[str, Any] = {"host": "127.0.0.1", "port": broker.port, "topics": topics}
    return FetchStepMqtt(**given | more)


@pytest.fixture
def make_polled(make_polled: Any) -> Any:
    """Return a factory of datasets whose records have the event time of their message."""
    return partial(make_polled, read=ReadStepNdJson(ddl_schema=("id BIGINT", "v STRING")))


@pytest.fixture
def bench(make_polled: Any, broker: MqttBroker) -> Any:
    """Return a dataset of messages that arrive exactly once."""
    return make_polled(step(broker))


def line(number: int) -> tuple[str, bytes]:
    return f"home/{number % 3}", f'{{"id":{number},"v":"a"}}'.encode()


def polled(poll: Any, bench: Any, count: int, **more: Any) -> None:
    """Poll until the dataset has that many rows: on a busy machine a broker may be quiet for a while."""
    for _ in range(POLLS):
        if len(bench.rows()) >= count:
            break
        poll(bench, **more)
    assert len(bench.rows()) == count


def ids(bench: Any) -> list[int]:
    return [one for (one,) in bench.values("id")]


def test_messages_are_kept_by_the_broker_between_polls_and_become_one_block_each_time(
    bench: Any, poll: Any, broker: MqttBroker
) -> None:
    assert poll(bench) == NOTHING
    broker.send(*map(line, range(5)), qos=2)
    polled(poll, bench, 5)
    assert poll(bench) == NOTHING
    broker.send(line(5), qos=1)
    polled(poll, bench, 6)
    assert ids(bench) == [0, 1, 2, 3, 4, 5]
    states = [one.new_source_state for one in bench.events() if isinstance(one, AddData)]
    assert {one.kind for one in states if one is not None} == {"odf/mqtt"}


def test_a_backlog_larger_than_the_window_of_the_broker_arrives(
    bench: Any, poll: Any, broker: MqttBroker
) -> None:
    """Mosquitto sends 20 messages before it waits for confirmations, and queues 1,000."""
    poll(bench)
    broker.send(*map(line, range(130)), qos=2)
    polled(poll, bench, 130)
    assert ids(bench) == list(range(130))


def killed_when(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, when: Callable[..., bool]) -> Any:
    """Replace a method, so that the process ends before it runs."""
    original = getattr(owner, name)

    def run(*args: Any) -> Any:
        if when(*args[1:]):
            raise Killed
        return original(*args)

    return monkeypatch.setattr(owner, name, run)


STAGES: dict[str, tuple[type, str, Callable[..., bool]]] = {
    "before the block": (mqtt._Subscriber, "_as_fetched", lambda *_: True),
    "before the first confirmation": (mqtt._Subscriber, "_confirm", lambda *_: True),
    "before a later confirmation": (
        mqtt_session.Session,
        "confirm",
        lambda kind, number: kind in (PacketType.PUBREC, PacketType.PUBACK) and number == 3,
    ),
    "before the release": (mqtt._Subscriber, "_release", lambda *_: True),
    "before the first identifier is free": (
        mqtt_session.Session,
        "confirm",
        lambda kind, _: kind is PacketType.PUBCOMP,
    ),
}


@pytest.mark.parametrize("stage", STAGES)
def test_exactly_once_holds_under_kills(
    bench: Any, poll: Any, broker: MqttBroker, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    poll(bench)
    broker.send(*map(line, range(5)), qos=2)
    with monkeypatch.context() as patch:
        killed_when(patch, *STAGES[stage])
        with pytest.raises(Killed):
            polled(poll, bench, POLLS)
    broker.send(*map(line, range(5, 8)), qos=2)
    polled(poll, bench, 8)
    assert poll(bench) == NOTHING
    assert ids(bench) == list(range(8))


def killed_at_completion(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """End the process before a PUBCOMP, when Mosquitto has resumed the session: before that it is not exactly once."""
    confirm, sent = mqtt_session.Session.confirm, count(1)

    def run(session: mqtt_session.Session, kind: PacketType, identifier: int) -> None:
        if kind is PacketType.PUBCOMP and next(sent) == number:
            wait_until_idle(session)
            raise Killed
        confirm(session, kind, identifier)

    monkeypatch.setattr(mqtt_session.Session, "confirm", run)


def wait_until_idle(session: mqtt_session.Session) -> None:
    session.ping()
    while (packet := session.receive(ANSWER_SECONDS)) and packet.kind is not PacketType.PINGRESP:
        pass
    assert packet is not None


def checks_notes(monkeypatch: pytest.MonkeyPatch, bench: Any) -> None:
    """Fail if an identifier is released that no durable note marks as free: its next message would be dropped."""
    confirm = mqtt_session.Session.confirm

    def checked(session: mqtt_session.Session, kind: PacketType, number: int) -> None:
        if kind is PacketType.PUBCOMP:
            note = mqtt._SubscriptionNote.parse(bench.blobs.note(bench.dataset, NOTE))
            batch = mqtt.MqttProgress.parse(bench.state.source_states["default"])
            assert note.released >= batch.number or number in note.ids
        confirm(session, kind, number)

    monkeypatch.setattr(mqtt_session.Session, "confirm", checked)


@pytest.mark.parametrize("kills", [(), (3,), (1, 1), (3, 12, 5)], ids=str)
def test_a_batch_larger_than_the_window_of_a_restarted_broker_is_not_repeated(
    make_polled: Any, poll: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kills: tuple[int, ...]
) -> None:
    """It repeats ten messages, and more only when it has the PUBCOMP of these; ingest is killed before some of them."""
    with serving_mqtt(tmp_path, "allow_anonymous true", "max_inflight_messages 10") as broker:
        bench = make_polled(step(broker))
        poll(bench)
        if not kills:
            checks_notes(monkeypatch, bench)
        broker.send(*map(line, range(45)), qos=2)
        with monkeypatch.context() as patch:
            killed_when(patch, mqtt._Subscriber, "_release", lambda batch: len(batch.ids) > 10)
            with pytest.raises(Killed):
                poll(bench)
        broker.stop()
        broker.start()
        for number in kills:
            with monkeypatch.context() as patch:
                killed_at_completion(patch, number)
                with pytest.raises(Killed):
                    poll(bench)
        broker.send(*map(line, range(45, 50)), qos=2)
        polled(poll, bench, 50)
        assert poll(bench) == NOTHING
    assert ids(bench) == list(range(50))


def test_a_released_batch_as_large_as_the_window_of_a_restarted_broker_is_not_repeated(
    make_polled: Any, poll: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ingest was killed before the first PUBCOMP; Mosquitto sends messages beyond its window as if they were new."""
    with serving_mqtt(tmp_path, "allow_anonymous true", "max_inflight_messages 10") as broker:
        bench = make_polled(step(broker))
        poll(bench)
        broker.send(*map(line, range(10)), qos=2)
        with monkeypatch.context() as patch:
            killed_at_completion(patch, 1)
            with pytest.raises(Killed):
                polled(poll, bench, POLLS)
        broker.stop()
        broker.start()
        broker.send(line(10), qos=2)
        polled(poll, bench, 11)
        assert poll(bench) == NOTHING
    assert ids(bench) == list(range(11))


def test_identifiers_that_were_free_before_a_reset_are_not_in_the_next_batch(
    bench: Any, poll: Any, broker: MqttBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part of a batch was released when the dataset was reset; then all confirmations of a connection are lost."""
    poll(bench)
    note = mqtt._SubscriptionNote.parse(bench.blobs.note(bench.dataset, NOTE))
    bench.blobs.set_note(bench.dataset, NOTE, replace(note, ids=tuple(range(1, 100))).text())
    broker.send(line(1), line(2), qos=2)
    with monkeypatch.context() as patch:
        patch.setattr(mqtt_session.Session, "confirm", lambda *_: None)
        with pytest.raises(SourceUnreachable, match="no answer in time"):
            polled(poll, bench, POLLS, mqtt=replace(QUICK, answer_seconds=0.2))
    polled(poll, bench, 2)
    assert poll(bench) == NOTHING
    assert ids(bench) == [1, 2]


def test_the_session_of_earlier_topics_has_separate_identifiers(
    bench: Any, poll: Any, broker: MqttBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ingest was killed before it released a message of other topics with the same identifier."""
    poll(bench)
    old = bench.state.polling_source
    bench.propose(SetPollingSource(fetch=step(broker, path="away/#"), read=old.read, merge=old.merge))
    poll(bench)
    broker.send(("away/1", line(1)[1]), qos=2)
    with monkeypatch.context() as patch:
        killed_when(patch, mqtt._Subscriber, "_release", lambda *_: True)
        with pytest.raises(Killed):
            polled(poll, bench, POLLS)
    broker.send(line(2), qos=2)
    bench.propose(SetPollingSource(fetch=old.fetch, read=old.read, merge=old.merge))
    polled(poll, bench, 2)
    assert ids(bench) == [1, 2]


@pytest.mark.parametrize("stage", list(STAGES)[:3])
def test_at_least_once_loses_nothing_under_kills_and_keys_drop_duplicates(
    make_polled: Any, poll: Any, broker: MqttBroker, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    bench = make_polled(step(broker, LEAST), MergeStrategyLedger(primary_key=("id",)))
    poll(bench)
    broker.send(*map(line, range(5)))
    with monkeypatch.context() as patch:
        killed_when(patch, *STAGES[stage])
        with pytest.raises(Killed):
            polled(poll, bench, POLLS)
    polled(poll, bench, 5)
    poll(bench)
    assert ids(bench) == list(range(5))


def test_batches_of_two_nodes_with_other_messages_or_topics_have_other_states(
    make_polled: Any, poll: Any, broker: MqttBroker
) -> None:
    """The state says whether a batch is in the chain: those of another node must not be mistaken for it."""
    states = []
    for message in (line(1), line(4), ("home/2", line(1)[1])):
        bench = make_polled(step(broker, LEAST))
        poll(bench)
        broker.send(message)
        polled(poll, bench, 1)
        states.append(bench.state.source_states["default"])
    assert {mqtt.MqttProgress.parse(one).number for one in states} == {1}
    assert len({one.value for one in states}) == 3


def test_at_most_once_is_the_default_and_receives_messages_published_meanwhile(
    make_polled: Any, poll: Any, broker: MqttBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep = mqtt._Subscriber._keep

    def subscribed(subscriber: mqtt._Subscriber, note: mqtt._SubscriptionNote) -> None:
        keep(subscriber, note)
        broker.send(line(1), qos=0)

    monkeypatch.setattr(mqtt._Subscriber, "_keep", subscribed)
    bench = make_polled(step(broker, None))
    assert poll(bench, replace(QUICK, quiet_seconds=2.0)) == PollSummary(blocks=1, records=1)


def test_a_retained_message_is_read_once(make_polled: Any, poll: Any, broker: MqttBroker) -> None:
    broker.send(("kept/1", b'{"id":1}'), retain=True)
    bench = make_polled(step(broker, LEAST, "kept/#"))
    polled(poll, bench, 1)
    assert poll(bench) == NOTHING
    old = bench.state.polling_source
    bench.propose(SetPollingSource(fetch=step(broker, LEAST, "home/#"), read=old.read, merge=old.merge))
    assert poll(bench) == NOTHING  # other topics are another session


def test_a_bad_message_is_a_dead_letter_and_does_not_block_its_batch(
    bench: Any, poll: Any, broker: MqttBroker
) -> None:
    poll(bench)
    broker.send(line(1), ("home/2", b"x"), line(2), qos=2)
    polled(poll, bench, 2)
    broker.send(("home/2", b"y"), line(3), qos=2)
    polled(poll, bench, 3)
    assert poll(bench) == NOTHING  # all are confirmed
    assert ids(bench) == [1, 2, 3]
    letters = bench.coordinator.letters
    assert [(one.offset, one.value) for one in letters] == [(0, b"x"), (1, b"y")]
    assert letters[0].reason.endswith(" (home/2): expected one JSON object")
    assert source_progress(bench.state.source_states["default"]).rejected == 2


def test_a_bad_snapshot_is_a_dead_letter_as_a_whole(make_polled: Any, poll: Any, broker: MqttBroker) -> None:
    bench = make_polled(step(broker), MergeStrategySnapshot(primary_key=("id",)))
    poll(bench)
    twice, null = b'{"id":1}\n{"id":1,"v":"b"}', b'{"v":"a"}'
    broker.send(
        ("home/1", b'{"id":1}\n{"id":2}'), ("home/1", twice), ("home/1", null), ("home/1", b'{"id":2}'), qos=2
    )
    polled(poll, bench, 3)
    assert bench.values("op", "id") == [(0, 1), (0, 2), (1, 1)]
    assert [one.value for one in bench.coordinator.letters] == [twice, null]


def test_a_source_that_stops_names_a_bad_message_and_the_batch_stays_at_the_broker(
    bench: Any, poll: Any, broker: MqttBroker
) -> None:
    bench.set(bad_records=BadRecords.STOP)
    poll(bench)
    broker.send(("home/2", b'{"id":"x"}'), qos=2)
    text = r"mqtt://127.0.0.1:\d+, message 1 \(home/2\): column id: 'x' is not a value of BIGINT"
    for _ in range(2):
        with pytest.raises(InvalidInput, match=text):
            polled(poll, bench, 1)
    assert bench.rows() == []


def test_a_broker_that_restarts_keeps_its_messages(make_polled: Any, poll: Any, tmp_path: Path) -> None:
    with serving_mqtt(tmp_path) as broker:
        bench = make_polled(step(broker))
        poll(bench)
        broker.send(line(1), qos=2)
        broker.stop()
        with pytest.raises(Unavailable, match="Connection refused"):
            poll(bench)
        broker.start()
        polled(poll, bench, 1)
        (tmp_path / "mosquitto.db").unlink(missing_ok=True)
        assert broker.process is not None
        broker.process.kill()
        broker.stop()
        broker.start()  # the session is lost: it is subscribed again
        poll(bench)
        broker.send(line(2), qos=2)
        polled(poll, bench, 2)
    assert ids(bench) == [1, 2]


def test_user_and_password_come_from_templates_and_are_masked(
    make_polled: Any, poll: Any, tmp_path: Path
) -> None:
    require_mosquitto()
    users = tmp_path / "users"
    subprocess.run(
        ["mosquitto_passwd", "-b", "-c", users, "reader", "hushhush"], check=True, capture_output=True
    )
    settings = ("allow_anonymous false", f"password_file {users}")
    with serving_mqtt(tmp_path, *settings) as broker:
        bench = make_polled(step(broker, username="reader", password="${{ env.SECRET }}"))
        assert poll(bench, environ={"SECRET": "hushhush"}) == NOTHING
        auth = {"username": "reader", "password": "hushhush"}
        broker.send(line(1), auth=auth)
        polled(poll, bench, 1, environ={"SECRET": "hushhush"})
        for given in ({"SECRET": "guessed"}, {"SECRET": "hushhush2"}):
            with pytest.raises(SourceRefusedRequest, match=r"not authorized|wrong user") as caught:
                poll(bench, environ=given)
            assert given["SECRET"] not in str(caught.value)


def test_tls_checks_the_certificate(
    make_polled: Any, poll: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = self_signed(tmp_path)
    settings = (f"certfile {certificate}", f"keyfile {key}", "allow_anonymous true")
    with serving_mqtt(tmp_path, *settings) as broker:
        bench = make_polled(step(broker, host="mqtts://127.0.0.1"))
        with pytest.raises(SourceUnreachable, match="TLS: CERTIFICATE_VERIFY_FAILED"):
            poll(bench)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        poll(bench)
        broker.send(line(1), qos=2, tls={"ca_certs": str(certificate)})
        polled(poll, bench, 1)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"host": "http://example.org"}, "expected mqtt or mqtts"),
        ({"host": "a b"}, "expected a host name"),
        ({"host": ""}, "expected a host name"),
        ({"port": 70_000}, "expected 1 to 65535"),
        ({"topics": ()}, "topics: is empty"),
        ({"topics": (MqttTopicSubscription(path="a/#/b"),)}, "not a topic filter"),
        ({"topics": (MqttTopicSubscription(path="a+"),)}, "not a topic filter"),
        ({"username": "\0"}, "cannot be sent"),
        ({"password": "x" * 70_000}, "cannot be sent"),
    ],
)
def test_a_wrong_step_is_refused(
    make_polled: Any, poll: Any, broker: MqttBroker, changes: dict[str, Any], text: str
) -> None:
    with pytest.raises(InvalidInput, match=text):
        poll(make_polled(step(broker, **changes)))


def test_prepare_steps_and_private_addresses_are_refused(
    make_polled: Any, poll: Any, broker: MqttBroker
) -> None:
    steps = (PrepStepDecompress(format=CompressionFormat.Gzip),)
    bench = make_polled(step(broker, LEAST, "prepared/#"), prepare=steps)
    with pytest.raises(InvalidInput, match="messages have no prepare steps"):
        poll(bench)
    with pytest.raises(AddressForbidden):
        poll(make_polled(step(broker)), networks=Networks())
