"""Shared by the peers of catching up: messages of a topic as text to parse, and the duration of a copy."""

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, TopicPartition

BATCH: Final = 16 * 1024 * 1024  # bytes of messages per commit, as in the node
COUNT: Final = 500  # messages consumed at once
MESSAGES_TIMEOUT_SECONDS: Final = 120.0


def texts(bootstrap: str, topic: str, count: int) -> Iterator[bytes]:
    """Yield `count` messages from the beginning of a topic, one per line, in batches of `BATCH` bytes."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "benchmark",
            "enable.auto.commit": False,
            "queued.min.messages": 200_000,
            "max.partition.fetch.bytes": 16 * 1024 * 1024,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    taken, waiting, size = 0, list[bytes](), 0
    deadline = time.monotonic() + MESSAGES_TIMEOUT_SECONDS
    while taken < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{taken} of {count} messages came")
        values = [message.value() or b"" for message in consumer.consume(COUNT, 0.2)]
        taken += len(values)
        waiting.append(b"\n".join(values))
        size += len(waiting[-1])
        if size >= BATCH or taken >= count:
            yield b"\n".join(waiting)
            waiting, size = [], 0
    consumer.close()


def print_cost(copy: Callable[[Path], None], folder: Path) -> None:
    """Copy to two folders in this one; print seconds and processor seconds of the second, warm copy, as JSON."""
    copy(folder / "warm")
    begun, used = time.perf_counter(), processor_seconds()
    copy(folder / "timed")
    print(json.dumps({"seconds": time.perf_counter() - begun, "cpu": processor_seconds() - used}))


def processor_seconds() -> float:
    """Return the processor time of this process so far."""
    times = os.times()
    return times.user + times.system
