"""Dead letters that are larger than a message may be: cut, so that they never stop the source they come from."""

from collections.abc import Iterator

import pytest

from odf_common.adapters.kafka.bus import DEAD_LETTER_BYTES, KafkaBus
from odf_common.adapters.kafka.settings import producing
from odf_common.ports.bus import DeadLetter

MOST = int(producing("")["message.max.bytes"])


@pytest.fixture
def bus() -> Iterator[KafkaBus]:
    """A bus without a broker: what is sent is queued."""
    made = KafkaBus("127.0.0.1:1")
    yield made
    made._producer.purge()
    made.close()


@pytest.mark.parametrize("size", [0, DEAD_LETTER_BYTES + 1, MOST - 200, 2 * MOST])
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
