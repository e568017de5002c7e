"""The bus over Kafka: one idempotent producer per process, one consumer per inbox."""

import threading
import time
import uuid
from typing import Final

import structlog
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from odf_common.adapters.kafka.client_config import (
    SESSION_TIMEOUT_MS,
    group_config,
    new_producer,
    note_connected,
    producer_config,
    unavailable,
)
from odf_common.adapters.kafka.cluster import KafkaCluster
from odf_common.adapters.kafka.dead_letter_messages import Headers, message_of, smaller_cuts
from odf_common.adapters.kafka.inbox import BroadcastInbox, GroupInbox
from odf_common.codec.envelopes import Envelope, encode, stamp
from odf_common.errors import Unavailable
from odf_common.ports.bus import DEAD_LETTERS, DeadLetter, Inbox, OnAssigned

log = structlog.stdlib.get_logger(__name__)

DELIVERY_POLL_SECONDS: Final = 0.5
IDLE_DELIVERY_POLL_SECONDS: Final = (
    2.0  # between polls for errors of the client while no message is in flight
)
MAX_UNFLUSHED_MESSAGES: Final = 1000  # messages
DEAD_LETTER_TIMEOUT_SECONDS: Final = 10.0  # for a dead letter sent alone


class _UnflushedMessages(threading.local):
    """The unflushed messages of one thread."""

    def __init__(self) -> None:
        self.pending: list[_Delivery] = []

    def add(self, delivery: "_Delivery") -> None:
        if len(self.pending) >= MAX_UNFLUSHED_MESSAGES:
            # Bounds the memory of a thread that never flushes.
            self.pending = [publication for publication in self.pending if not publication.is_good]
        self.pending.append(delivery)


class _Delivery:
    """The delivery state of one message; a dead letter is kept so that it can be truncated and sent again."""

    def __init__(self, letter: DeadLetter | None = None) -> None:
        self.letter = letter
        self.settled = threading.Event()
        self.error: KafkaError | None = None

    @property
    def is_good(self) -> bool:
        return self.settled.is_set() and self.error is None

    def settle(self, error: KafkaError | None, _: Message) -> None:
        if error is None:
            note_connected()
        self.error = error
        self.settled.set()


class KafkaBus:
    """The message bus over Kafka (port `Bus`); thread-safe. Each thread flushes its own messages."""

    def __init__(
        self,
        cluster: KafkaCluster,
        *,
        prefix: str = "",
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
        instance: str | None = None,
    ) -> None:
        """Connect in the background; `prefix` applies to the names of topics and groups."""
        self._cluster = cluster
        self._prefix = prefix
        self._session_timeout_ms = session_timeout_ms
        self._instance = instance
        self._unflushed = _UnflushedMessages()
        self._producer = self._new_producer()
        self._is_useless = False  # after a fatal error
        self._closing = threading.Event()
        self._produced = threading.Event()
        self._poller = threading.Thread(target=self._serve, name="kafka-deliveries", daemon=True)
        self._poller.start()

    def send(self, topic: str, envelope: Envelope) -> None:
        """Queue a message with the dataset's id as key; an empty `message_id` or `sent_at` is filled in."""
        key, value = encode(stamp(envelope, message_id=uuid.uuid4().hex, sent_at=time.time_ns()))
        self._produce(self._prefix + topic, key, value, [])

    def send_dead_letter(self, letter: DeadLetter) -> None:
        """Queue a dead letter: the original message, with the reason in headers.

        If the topic refuses it as too large, `flush` truncates the value and sends it again.
        """
        value, headers = message_of(letter)
        self._produce(self._prefix + DEAD_LETTERS, letter.key, value, headers, letter)

    def flush(self, timeout: float = 10.0) -> None:
        """Wait until all messages that this thread has sent are durable; raises `Unavailable` if one is not."""
        deadline = time.monotonic() + timeout
        pending, self._unflushed.pending = self._unflushed.pending, []
        for delivery in pending:
            if not delivery.settled.wait(max(deadline - time.monotonic(), 0.0)):
                raise Unavailable(what="Kafka", why=f"no acknowledgement within {timeout:g} s")
            if delivery.error is not None:
                log.debug("message not delivered", why=delivery.error.str())
            if delivery.letter is not None and _is_too_large(delivery.error):
                self._send_shorter(delivery.letter)
            elif delivery.error is not None:
                raise unavailable(delivery.error)

    def subscribe(self, topic: str, *, group: str | None, on_assigned: OnAssigned | None = None) -> Inbox:
        """Open an inbox: as a member of a group that shares the partitions, or for all messages from now on."""
        topic = self._prefix + topic
        if group is None:
            return BroadcastInbox(
                self._cluster, topic, on_assigned, group=f"{self._prefix}odf.{uuid.uuid4().hex}"
            )
        # One static name per reader: a process may read several topics in the same group.
        instance = f"{self._instance}.{topic}" if self._instance else None
        config = group_config(
            self._cluster,
            group=self._prefix + group,
            session_timeout_ms=self._session_timeout_ms,
            instance=instance,
        )
        return GroupInbox(config, topic, on_assigned)

    def close(self) -> None:
        """Send queued messages for up to 5 s, then close."""
        self._producer.flush(5)
        self._closing.set()
        self._produced.set()
        self._poller.join()

    def _send_shorter(self, letter: DeadLetter) -> None:
        """Send as much of a dead letter as the topic accepts, and wait until it is durable; raises `Unavailable`."""
        for most in smaller_cuts(letter):
            value, headers = message_of(letter, most)
            self._produce(self._prefix + DEAD_LETTERS, letter.key, value, headers)
            delivery = self._unflushed.pending.pop()
            if not delivery.settled.wait(DEAD_LETTER_TIMEOUT_SECONDS):
                raise Unavailable(
                    what="Kafka", why=f"no acknowledgement within {DEAD_LETTER_TIMEOUT_SECONDS:g} s"
                )
            if delivery.error is None:
                return
            if not _is_too_large(delivery.error):
                raise unavailable(delivery.error)
        raise Unavailable(what="Kafka", why=f"{DEAD_LETTERS} accepts no message: raise its max.message.bytes")

    def _produce(
        self, topic: str, key: bytes, value: bytes, headers: Headers, letter: DeadLetter | None = None
    ) -> None:
        delivery = _Delivery(letter)
        deadline = time.monotonic() + 10
        while True:
            try:
                self._producer.produce(
                    topic, key=key, value=value, headers=list(headers), on_delivery=delivery.settle
                )
            except BufferError as error:
                if time.monotonic() > deadline:
                    raise Unavailable(what="Kafka", why="the queue of messages to send is full") from error
                time.sleep(0.01)
            except KafkaException as error:
                raise unavailable(error) from error
            else:
                break
        self._produced.set()
        self._unflushed.add(delivery)

    def _new_producer(self) -> Producer:
        return new_producer({**producer_config(self._cluster), "error_cb": self._on_error})

    def _on_error(self, error: KafkaError) -> None:
        # After a fatal error (for example, a broker lost acknowledged data) an idempotent producer cannot continue.
        if error.fatal():
            log.error("replacing the producer", why=error.str())
            self._is_useless = True

    def _replace_producer(self) -> None:
        """Replace a producer that has failed permanently; if no new one can be created, a later poll retries."""
        try:
            self._producer = self._new_producer()
        except (KafkaException, Unavailable) as error:
            log.warning("cannot replace the producer, retrying", why=str(error))
        else:
            self._is_useless = False

    def _serve(self) -> None:
        while not self._closing.is_set():
            # The client wakes five times a second while it polls, even when there is nothing to deliver.
            is_idle = len(self._producer) == 0
            self._producer.poll(0 if is_idle else DELIVERY_POLL_SECONDS)
            if self._is_useless:
                self._replace_producer()
            if is_idle:
                self._produced.wait(IDLE_DELIVERY_POLL_SECONDS)
                self._produced.clear()


def _is_too_large(error: KafkaError | None) -> bool:
    return error is not None and error.code() == KafkaError.MSG_SIZE_TOO_LARGE
