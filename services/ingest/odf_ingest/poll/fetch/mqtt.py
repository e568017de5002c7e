"""Mqtt: messages of a broker, a block for each batch of them (spec 0.35: FetchStep::Mqtt).

The session outlives the connection: between polls the broker keeps what is published, except with `AtMostOnce`. A
message is confirmed only after its block is committed.

* `AtLeastOnce`: PUBACK follows the block. A process that is killed in between gets the message again.
* `ExactlyOnce`: PUBREC follows the block. Its state has the packet identifiers, by which a repeated message is
  recognised. PUBCOMP, after which the broker may use an identifier again, follows a durable note that it is free.
  A broker with a window repeats a large batch in parts: it sends more only after PUBCOMP of the part before.
"""

import hashlib
import json
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Self

from odf_common.errors import InvalidInput
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.events import SourceState
from odf_common.metadata.fetching import FetchStepMqtt, MqttQos
from odf_ingest.commit.position import reading
from odf_ingest.poll.fetch.fetch_step import Context, FetchedMessages, fetch
from odf_ingest.poll.fetch.mqtt_packets import Message, NotMqtt, Packet, PacketType, message_of, number_of
from odf_ingest.poll.fetch.mqtt_session import Broker, Session, connect
from odf_ingest.poll.polled_position import MQTT, state_of

VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MqttProgress:
    """The state of a block: batches so far, and packet identifiers of its messages that the broker may repeat."""

    client: str = ""
    number: int = 0
    ids: tuple[int, ...] = ()
    digest: str = ""
    """SHA3-256 of the batch's topics and payloads."""

    @classmethod
    def parse(cls, state: SourceState | None) -> Self:
        """Read a source state; raises `InvalidInput` if this version cannot read it."""
        if state is None or state.kind != MQTT:
            return cls()
        with reading(state.value, VERSION) as plain:
            ids = tuple(int(number) for number in plain.get("ids", ()))
            return cls(
                client=str(plain["client"]), number=int(plain["number"]), ids=ids, digest=str(plain["digest"])
            )

    def state(self) -> SourceState:
        """Return the state of the block: JSON, keys sorted, no spaces."""
        plain: dict[str, object] = {
            "v": VERSION,
            "client": self.client,
            "number": self.number,
            "digest": self.digest,
        }
        if self.ids:
            plain["ids"] = list(self.ids)
        return state_of(MQTT, json.dumps(plain, sort_keys=True, separators=(",", ":")))


@dataclass(frozen=True, slots=True, kw_only=True)
class _SubscriptionNote:
    """This node's note."""

    client: str = ""
    """The client that has subscribed."""
    released: int = 0
    """The last batch whose packet identifiers the broker may use again."""
    ids: tuple[int, ...] = ()
    """Those of the batch after it that the broker may use again."""

    @property
    def last_batch(self) -> int:
        """The number of the last batch that the note knows."""
        return self.released + bool(self.ids)

    @classmethod
    def parse(cls, text: str | None) -> Self:
        """Read a note; a damaged one counts as none, so that the node subscribes again."""
        try:
            plain = json.loads(text or "{}")
            return cls(
                client=str(plain.get("client", "")),
                released=int(plain.get("released", 0)),
                ids=tuple(int(number) for number in plain.get("ids", ())),
            )
        except (ValueError, TypeError, AttributeError):
            return cls()

    def text(self) -> str:
        return json.dumps({"client": self.client, "released": self.released, "ids": self.ids})


@fetch.register
def mqtt(step: FetchStepMqtt, context: Context) -> Generator[FetchedMessages]:
    """Yield batches of messages until none comes for a second, or for half a minute."""
    topics = _topics(step)
    broker = Broker.parse(step)
    context.report(str(broker))
    with connect(broker, context.limits.networks) as session:
        client = _client(context.dataset, topics)
        has_session = session.open(client, step.username, step.password)
        yield from _Subscriber(broker, session, context, client).batches(topics, has_session=has_session)


class _Subscriber:
    """Collects and confirms messages of one connection."""

    def __init__(self, broker: Broker, session: Session, context: Context, client: str) -> None:
        self._broker = broker
        self._session = session
        self._context = context
        self._limits = context.limits.mqtt
        self._note = _SubscriptionNote.parse(context.note.read())
        self._before = context.position.last
        self._received = MqttProgress.parse(self._before)
        self._client = client
        self._pings = 0  # that the broker has not answered
        self._waiting: list[Message] = []
        self._size = 0  # bytes of what waits

    def batches(
        self, topics: Sequence[tuple[str, MqttQos]], *, has_session: bool
    ) -> Iterator[FetchedMessages]:
        """Yield batches; each is confirmed when the next is asked for."""
        progress, note = self._received, self._note
        if not has_session:  # a new one, whose identifiers start again
            self._keep(_SubscriptionNote(released=max(note.last_batch, progress.number)))
        elif (
            progress.client == self._client
            and progress.number > note.released
            and not self._release(progress)
        ):
            # The broker has forgotten the rest.
            self._keep(_SubscriptionNote(client=note.client, released=progress.number))
        if self._note.client != self._client:
            # Not repeated in later polls: the broker would send retained messages again.
            for message in self._session.subscribe(tuple(topics)):
                self._add_waiting(message)
            self._keep(replace(self._note, client=self._client))
        self._ping()
        until = time.monotonic() + self._limits.poll_seconds
        while time.monotonic() < until and (messages := self._collect()):
            yield self._as_fetched(messages)
            self._confirm(messages)
        self._await_pings()

    def _await_pings(self) -> None:
        """Return when the broker has read all confirmations; messages that arrive now are left to the next poll."""
        until = time.monotonic() + self._limits.answer_seconds
        while self._pings and time.monotonic() < until:
            packet = self._session.receive(self._limits.gap_seconds)
            self._pings -= packet is not None and packet.kind is PacketType.PINGRESP

    def _collect(self) -> list[Message]:
        """Return the next messages; none after a quiet second, once the broker has answered all pings.

        If the connection ended before, Mosquitto would send messages again: those that it has released, if it resumes
        the session, and those whose confirmations it has not read when the next connection begins.
        """
        most = 1 if self._context.takes_whole_batches else self._limits.messages
        started = time.monotonic()
        while len(self._waiting) < most and self._size < self._limits.batch_bytes:
            self._context.require_wanted()
            packet = self._session.receive(self._limits.gap_seconds)
            if packet is not None:
                self._handle(packet)
            elif self._waiting or (
                not self._pings and time.monotonic() - started > self._limits.quiet_seconds
            ):
                break
            elif time.monotonic() - started > self._limits.answer_seconds:
                raise TimeoutError
        messages, self._waiting = self._waiting[:most], self._waiting[most:]
        self._size = sum(len(message.payload) for message in self._waiting)
        return messages

    def _handle(self, packet: Packet) -> None:
        match packet.kind:
            case PacketType.PUBLISH:
                self._add_waiting(message_of(packet))
            case PacketType.PUBREL:  # released before this connection, and not answered
                self._session.confirm(PacketType.PUBCOMP, number_of(packet))
            case PacketType.PINGRESP:
                self._pings -= 1
            case _:
                raise NotMqtt(text=f"unexpected {packet.kind.name}")

    def _add_waiting(self, message: Message) -> None:
        self._waiting.append(message)
        self._size += len(message.payload)
        if self._size > self._limits.waiting_bytes:
            raise NotMqtt(
                text=f"more than {self._limits.waiting_bytes} bytes arrived before they could be committed"
            )

    def _as_fetched(self, messages: Sequence[Message]) -> FetchedMessages:
        number = max(self._received.number, self._note.last_batch) + 1
        exact = tuple(message.number for message in messages if message.qos is MqttQos.ExactlyOnce)
        self._received = MqttProgress(
            client=self._client, number=number, ids=exact, digest=str(_digest(messages))
        )
        before, self._before = self._before, self._received.state()
        return FetchedMessages(
            label=str(self._broker),
            values=tuple(message.payload for message in messages),
            places=tuple(f"message {number} ({message.topic})" for number, message in enumerate(messages, 1)),
            event_time=self._context.event_time(None, "", None),
            before=before,
            state=self._before,
        )

    def _confirm(self, messages: Sequence[Message]) -> None:
        """Confirm messages whose block is committed."""
        for message in messages:
            match message.qos:
                case MqttQos.AtLeastOnce:
                    self._session.confirm(PacketType.PUBACK, message.number)
                case MqttQos.ExactlyOnce:
                    self._session.confirm(PacketType.PUBREC, message.number)
                case MqttQos.AtMostOnce:
                    pass
        if self._received.ids and not self._release(self._received):
            raise TimeoutError
        self._ping()

    def _ping(self) -> None:
        self._pings += 1
        self._session.ping()

    def _release(self, batch: MqttProgress) -> bool:
        """Let the broker use a committed batch's packet identifiers again; confirm again the messages that it repeats.

        Return False if it is silent before it has asked for all.
        """
        free = set(self._note.ids) if batch.number == self._note.released + 1 else set()
        waiting, released = set(batch.ids) - free, set[int]()
        until = time.monotonic() + self._limits.answer_seconds
        while len(released) < len(waiting):
            self._context.require_wanted()
            packet = self._session.receive(self._limits.gap_seconds)
            if packet is not None and packet.kind is PacketType.PUBREL and number_of(packet) in waiting:
                released.add(number_of(packet))
            elif packet is not None and _is_among(packet, waiting):
                self._session.confirm(PacketType.PUBREC, message_of(packet).number)
            elif packet is not None:
                self._handle(packet)
            elif released:  # it may send the others only after these
                free |= released
                self._keep(replace(self._note, released=batch.number - 1, ids=tuple(sorted(free))))
                self._complete(released)
                waiting, released = waiting - released, set()
                until = time.monotonic() + self._limits.answer_seconds
            if not released and time.monotonic() > until:
                return False
        self._keep(replace(self._note, released=batch.number, ids=()))
        self._complete(released)
        return True

    def _complete(self, numbers: set[int]) -> None:
        for number in sorted(numbers):
            self._session.confirm(PacketType.PUBCOMP, number)

    def _keep(self, note: _SubscriptionNote) -> None:
        self._note = note
        self._context.note.write(note.text())


def _is_among(packet: Packet, numbers: set[int]) -> bool:
    if packet.kind is not PacketType.PUBLISH:
        return False
    message = message_of(packet)
    return message.qos is MqttQos.ExactlyOnce and message.number in numbers


def _digest(messages: Sequence[Message]) -> Multihash:
    digest = hashlib.sha3_256()
    for message in messages:
        for part in (message.topic.encode(), message.payload):
            digest.update(len(part).to_bytes(8) + part)
    return Multihash.sha3(digest.digest())


def _topics(step: FetchStepMqtt) -> tuple[tuple[str, MqttQos], ...]:
    """Return the topic filters with their guarantees; `AtMostOnce` by default, as specified."""
    topics = tuple((topic.path, topic.qos or MqttQos.AtMostOnce) for topic in step.topics)
    if not topics:
        raise InvalidInput(where="fetch.topics", text="is empty")
    for number, (path, _) in enumerate(topics):
        levels = path.split("/")
        is_wrong = any(("#" in level and level != "#") or ("+" in level and level != "+") for level in levels)
        if not path or is_wrong or "#" in levels[:-1]:
            raise InvalidInput(where=f"fetch.topics[{number}].path", text=f"not a topic filter: {path!r}")
    return topics


def _client(dataset: DatasetId, topics: Sequence[tuple[str, MqttQos]]) -> str:
    """Return the client identifier: other topics are another session. Every broker takes 23 letters and digits."""
    text = json.dumps([str(dataset), sorted(topics)])
    return "odf" + hashlib.sha3_256(text.encode()).hexdigest()[:20]
