"""The peer of catching up with the field's stream processor: a Faust worker that writes the topic as Parquet files.

Messages are parsed by pyarrow in batches. Each file is fsynced before it takes its name, and only then are its messages
acknowledged; their offsets are committed at the end. So every message is written at least once: after a kill, what was
written since the last commit of offsets is written again. There are no transactions and no hashes. Arguments:
bootstrap server, topic, number of messages, folder to create. Prints seconds and processor seconds from the assignment
of the partition to the commit of the last offset, of the second, warm copy.
"""

import asyncio
import json
import logging
import os
import sys
import time
import uuid
from pathlib import Path
from typing import Final

import faust
import pyarrow.parquet as pq
from departures import parse
from faust.types import StreamT
from peer_io import BATCH, processor_seconds

WITHIN: Final = 1.0  # seconds until a file is written of fewer messages
SIZE: Final = BATCH // 256  # messages of a file: about the bytes of the other peers' commits


class Copy:
    """One copy of a topic; done when `count` messages are written and their offsets committed."""

    def __init__(self, bootstrap: str, topic: str, count: int, folder: Path) -> None:
        """Copy into a new folder, in a separate consumer group."""
        folder.mkdir(parents=True)
        self._count = count
        self._folder = folder
        self._written = 0
        self._is_done = asyncio.Event()
        self._begun = (0.0, 0.0)
        self._app = faust.App(
            f"benchmark-{uuid.uuid4().hex}",
            broker=[f"kafka://{bootstrap}"],
            consumer_auto_offset_reset="earliest",
            datadir=folder / "faust",
            store="memory://",
            stream_wait_empty=False,
            topic_allow_declare=False,
            topic_disable_leader=True,
            web_enabled=False,
            worker_redirect_stdouts=False,
        )
        source = self._app.topic(topic, value_type=bytes, value_serializer="raw", key_serializer="raw")
        self._app.agent(source)(self._write)
        self._app.on_partitions_assigned.connect(self._assigned)

    async def run(self) -> tuple[float, float]:
        """Return seconds, and processor seconds."""
        await self._app.start()
        await self._is_done.wait()
        await self._app.consumer.commit()
        begun, used = self._begun
        cost = time.perf_counter() - begun, processor_seconds() - used
        await self._app.stop()
        return cost

    async def _assigned(self, *_: object, **__: object) -> None:
        self._begun = time.perf_counter(), processor_seconds()

    async def _write(self, stream: StreamT[bytes]) -> None:
        async for values in stream.take(SIZE, within=WITHIN):
            self._write_file(b"\n".join(values))
            self._written += len(values)
            if self._written >= self._count:
                self._is_done.set()

    def _write_file(self, raw: bytes) -> None:
        pending = self._folder / f"{self._written}.pending"
        with pending.open("wb") as file:
            pq.write_table(parse(raw), file)
            file.flush()
            os.fsync(file.fileno())
        pending.rename(self._folder / f"{self._written}.parquet")
        handle = os.open(self._folder, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)


async def main() -> None:
    """Copy twice."""
    bootstrap, topic, count, name = sys.argv[1:]
    logging.disable(logging.CRITICAL)
    await Copy(bootstrap, topic, int(count), Path(name) / "warm").run()
    seconds, used = await Copy(bootstrap, topic, int(count), Path(name) / "timed").run()
    print(json.dumps({"seconds": seconds, "cpu": used}))


if __name__ == "__main__":
    asyncio.run(main())
