"""Topics of a broker that is too busy for a moment."""

from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import NewTopic

from odf_common.adapters.kafka import admin
from odf_common.adapters.kafka.admin import KafkaTopics
from odf_common.errors import Unavailable


class Fenced:
    """Takes no topics for the first `times` requests, as a cluster whose only broker is fenced."""

    def __init__(self, times: int) -> None:
        """Begin."""
        self.times = times
        self.asked: list[list[str]] = []

    def create_topics(self, topics: list[NewTopic], **_: object) -> dict[str, "Future[None]"]:
        """Answer as the client does."""
        self.asked.append([topic.topic for topic in topics])
        found = {}
        for topic in topics:
            found[topic.topic] = future = Future[None]()
            if topic.topic == "slow" and len(self.asked) <= self.times:
                error = KafkaError(KafkaError.INVALID_REPLICATION_FACTOR, "All brokers are currently fenced")
                future.set_exception(KafkaException(error))
            else:
                future.set_result(None)
        return found


def creating(monkeypatch: pytest.MonkeyPatch, times: int) -> tuple[KafkaTopics, Fenced]:
    topics, fenced = KafkaTopics("127.0.0.1:1"), Fenced(times)
    monkeypatch.setattr(topics, "_admin", fenced)
    monkeypatch.setattr(topics, "_are_led", lambda _: True)
    return topics, fenced


def create(topics: Any) -> None:
    topics._create([NewTopic("quick", 1), NewTopic("slow", 1)])


def test_topics_are_made_once_the_broker_is_fenced_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    topics, fenced = creating(monkeypatch, 2)
    create(topics)
    assert fenced.asked == [["quick", "slow"], ["slow"], ["slow"]]


def test_a_broker_that_stays_fenced_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    topics, _ = creating(monkeypatch, 10**9)
    monkeypatch.setattr(admin, "TIMEOUT", 0.1)
    with pytest.raises(Unavailable, match="All brokers are currently fenced"):
        create(topics)
