"""Dead letters larger than the message limit are truncated, so that they never stop their source."""

from collections.abc import Iterator
from hashlib import sha3_256

import pytest

from odf_common.adapters.kafka.client_config import producing
from odf_common.adapters.kafka.cluster import KafkaCluster
from odf_common.adapters.kafka.dead_letter_messages import CUTS, message_of, smaller_cuts
from odf_common.adapters.kafka.kafka_bus import KafkaBus
from odf_common.ports.bus import DeadLetter

MOST = int(producing(KafkaCluster(""))["message.max.bytes"])


@pytest.fixture
def bus() -> Iterator[KafkaBus]:
    """A bus without a broker: what is sent is queued."""
    made = KafkaBus(KafkaCluster("127.0.0.1:1"))
    yield made
    made._producer.purge()
    made.close()


@pytest.mark.parametrize("size", [0, CUTS[0] + 1, MOST - 200, 2 * MOST])
def test_a_letter_of_any_size_is_sent(bus: KafkaBus, size: int) -> None:
    facts = {"dataset": "did:odf:" + "f" * 70, "source": "default"}
    letter = DeadLetter(
        topic="topic",
        partition=0,
        offset=1,
        reason="r" * 100_000,
        key=b"k" * 78,
        value=bytes(size),
        facts=facts,
    )
    bus.send_dead_letter(letter)
    (delivery,) = bus._unflushed.pending  # what is too large is refused, and not queued
    assert delivery.error is None


@pytest.mark.parametrize("size", [0, 10, 100_000, 2 * MOST])
def test_each_cut_of_a_letter_is_smaller_and_the_last_one_is_tiny(size: int) -> None:
    letter = DeadLetter(
        topic="topic", partition=0, offset=1, reason="r" * 100_000, key=b"k", value=bytes(size)
    )
    cuts = list(smaller_cuts(letter))
    sizes = [
        len(value) + sum(len(text) for _, text in headers)
        for value, headers in (message_of(letter, most) for most in cuts)
    ]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] < 500


def test_a_letter_that_was_cut_says_how_large_the_message_was_and_which() -> None:
    letter = DeadLetter(topic="topic", partition=2, offset=1, reason="r", value=b"x" * 5000)
    value, headers = message_of(letter, 1024)
    facts = {name: text.decode() for name, text in headers}
    assert value == b"x" * 1024
    assert (facts["size"], facts["sha3-256"]) == ("5000", sha3_256(b"x" * 5000).hexdigest())
    assert (facts["topic"], facts["partition"], facts["offset"]) == ("topic", "2", "1")
