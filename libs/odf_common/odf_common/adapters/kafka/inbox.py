"""Readers of one topic: as a member of a consumer group, or from the end of all partitions without a group."""

from typing import Final

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from odf_common.adapters.kafka.admin import KafkaTopics
from odf_common.adapters.kafka.client_config import LOGGER, Config, consumer_config, new_consumer, unavailable
from odf_common.adapters.kafka.cluster import KafkaCluster
from odf_common.errors import Unavailable
from odf_common.ports.bus import OnAssigned, ReceivedMessage

log = structlog.stdlib.get_logger(__name__)

# Errors in a polled message that mean the consumer is dead; `fatal()` is not set there. Public despite their names.
_CUT_OFF: Final = frozenset({KafkaError._FATAL, KafkaError._MAX_POLL_EXCEEDED})  # noqa: SLF001


class GroupInbox:
    """An inbox (port `Inbox`) that is a member of a consumer group with cooperative rebalancing."""

    def __init__(self, config: Config, topic: str, on_assigned: OnAssigned | None) -> None:
        """Join the group; partitions are assigned during later polls."""
        self._topic = topic
        self._on_assigned = on_assigned
        self._owned: frozenset[int] = frozenset()
        self.has_assignment = False
        self._consumer = new_consumer({**config, "on_commit": _on_commit})
        self._consumer.subscribe(
            [topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_revoke
        )

    def poll(self, timeout: float) -> ReceivedMessage | None:
        """Return the next message, or None after `timeout` seconds; raises `Unavailable` after a fatal error."""
        message = _poll(self._consumer, timeout)
        return None if message is None else _read_message(message)

    def commit(self, message: ReceivedMessage) -> None:
        """Commit the offset after this message, asynchronously."""
        position = TopicPartition(message.topic, message.partition, message.offset + 1)
        try:
            self._consumer.commit(offsets=[position], asynchronous=True)
        except KafkaException as error:
            # The next owner handles the message again, which is harmless.
            log.warning(
                "position not committed", topic=message.topic, partition=message.partition, why=str(error)
            )

    def close(self) -> None:
        """Commit the offsets of finished messages and leave the group.

        The partitions of a static member stay reserved until it returns or its session expires.
        """
        self._consumer.close()

    def _on_assign(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self._own(self._owned | {partition.partition for partition in partitions})

    def _on_revoke(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self._own(self._owned - {partition.partition for partition in partitions})

    def _own(self, partitions: frozenset[int]) -> None:
        log.debug(
            "partitions assigned",
            topic=self._topic,
            partitions=sorted(partitions),
            before=sorted(self._owned),
        )
        self._owned = partitions
        self.has_assignment = True
        if self._on_assigned is not None:
            self._on_assigned(partitions)


class BroadcastInbox:
    """An inbox (port `Inbox`) that reads all messages of all partitions from now on; it commits no offsets."""

    def __init__(
        self, cluster: KafkaCluster, topic: str, on_assigned: OnAssigned | None, *, group: str
    ) -> None:
        """Seek to the current end of all partitions: each message that is sent after this call returns will be read."""
        ends = KafkaTopics(cluster).ends(topic)
        config = {
            **consumer_config(cluster, group=group),
            "auto.offset.reset": "latest",
        }
        self._consumer = new_consumer(config)
        self._consumer.assign([TopicPartition(topic, number, end) for number, end in ends.items()])
        self.has_assignment = True
        if on_assigned is not None:
            on_assigned(frozenset(ends))

    def poll(self, timeout: float) -> ReceivedMessage | None:
        """Return the next message, or None after `timeout` seconds; raises `Unavailable` after a fatal error."""
        message = _poll(self._consumer, timeout)
        return None if message is None else _read_message(message)

    def commit(self, message: ReceivedMessage) -> None:
        """Do nothing: this inbox has no committed offsets."""

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()


def _poll(consumer: Consumer, timeout: float) -> Message | None:
    """Return the next message, if any; transient errors are logged, because the client recovers from them."""
    try:
        message = consumer.poll(timeout)
    except KafkaException as error:
        raise unavailable(error) from error
    if message is None:
        return None
    trouble = message.error()
    if trouble is None:
        return message
    if trouble.fatal() or trouble.code() in _CUT_OFF:
        raise Unavailable(what="Kafka", why=trouble.str())
    LOGGER.warning("POLL %s", trouble.str())  # this logger drops lines that repeat
    return None


def _read_message(message: Message) -> ReceivedMessage:
    return ReceivedMessage(
        topic=message.topic() or "",
        partition=message.partition() or 0,
        offset=message.offset() or 0,
        key=message.key() or b"",
        value=message.value() or b"",
    )


def _on_commit(error: KafkaError | None, _: list[TopicPartition]) -> None:
    if error is not None and error.code() != KafkaError._NO_OFFSET:  # noqa: SLF001 - public despite its name
        log.warning("position not committed", why=error.str())
