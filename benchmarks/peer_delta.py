"""The peer of catching up: the same topic into a Delta table with the libraries a person would take, no hashes.

Arguments: bootstrap server, topic, number of messages, folder of the table. Prints seconds and processor seconds
from the first request to the last commit.
"""

import json
import os
import sys
import time
from typing import Final

from confluent_kafka import Consumer, TopicPartition
from deltalake import write_deltalake
from departures import parse

BATCH: Final = 32 * 1024 * 1024  # bytes of messages in a commit, as the node's own
COUNT: Final = 20_000
PATIENCE: Final = 30.0


def main() -> None:
    """Consume, parse, append."""
    bootstrap, topic, count, folder = sys.argv[1:]
    begun, used = time.perf_counter(), _processor()
    _copy(bootstrap, topic, int(count), folder)
    print(json.dumps({"seconds": time.perf_counter() - begun, "cpu": _processor() - used}))


def _copy(bootstrap: str, topic: str, count: int, folder: str) -> None:
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
    deadline = time.monotonic() + PATIENCE
    while taken < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{taken} of {count} messages came")
        values = [message.value() or b"" for message in consumer.consume(COUNT, 0.2)]
        taken += len(values)
        size += sum(map(len, values))
        waiting += values
        if size >= BATCH or taken >= count:
            write_deltalake(folder, parse(b"\n".join(waiting)), mode="append")
            waiting, size = [], 0
    consumer.close()


def _processor() -> float:
    times = os.times()
    return times.user + times.system


if __name__ == "__main__":
    main()
