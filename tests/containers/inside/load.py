"""Load on one dataset: 250 records a second by an idempotent producer, and 5 pushes a second over HTTP.

Runs in a container beside the node, until SIGTERM, and then waits for what is not acknowledged. Prints a JSON object
per line: ranges of acknowledged records (`acknowledged`), answers to pushes (`push`), and at its end `done`.
Records of the topic are numbered from 0, those of pushes from `FIRST_PUSH`.
"""

import asyncio
import json
import os
import signal
import threading
import time
from datetime import UTC, datetime

import aiohttp
from confluent_kafka import KafkaError, Message, Producer

TOPIC, URL, TOKEN = os.environ["TOPIC"], os.environ["URL"], os.environ["TOKEN"]
BATCH, BATCH_SECONDS = 25, 0.1
PUSH_SECONDS = 0.2
FIRST_PUSH = 1_000_000_000
MAX_CONNECTIONS = 50  # of one address; the node closes those beyond its own limit
ANSWER_SECONDS = 120  # of patience with one request
END_SECONDS = 90
STOP, WRITING = threading.Event(), threading.Lock()


def record(number: int, event_time: float) -> bytes:
    at = datetime.fromtimestamp(event_time, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    row = {"id": number, "at": at, "bucket": f"b{number % 10}", "value": number * 7919 % 100_003}
    return json.dumps(row).encode()


def write(**line: object) -> None:
    with WRITING:
        print(json.dumps(line), flush=True)


class TopicLoad:
    """Produces to the topic in a thread of its own."""

    def __init__(self) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": "kafka:9092",
                "enable.idempotence": True,
                "socket.timeout.ms": 10_000,
                "broker.address.ttl": 1000,
                "reconnect.backoff.max.ms": 500,
                "linger.ms": 5,
            }
        )
        self._acknowledged: list[list[int]] = []  # ranges, both ends included
        self._unacknowledged = 0

    def run(self) -> None:
        """Produce until the end; records that were sent are acknowledged or counted then."""
        number, due = 0, time.monotonic()
        while not STOP.is_set():
            for _ in range(BATCH):
                self._send(number, time.time())
                number += 1
            due += BATCH_SECONDS
            while (left := due - time.monotonic()) > 0:
                self._producer.poll(left)
            self._report()
        self._unacknowledged += self._producer.flush(END_SECONDS)
        self._report()
        write(done="topic", produced=number, unacknowledged=self._unacknowledged)

    def _send(self, number: int, event_time: float) -> None:
        def note(error: KafkaError | None, _message: Message) -> None:
            if error is not None:
                self._unacknowledged += 1
            elif self._acknowledged and self._acknowledged[-1][1] == number - 1:
                self._acknowledged[-1][1] = number
            else:
                self._acknowledged.append([number, number])

        self._producer.produce(TOPIC, record(number, event_time), on_delivery=note)

    def _report(self) -> None:
        if self._acknowledged:
            write(at=time.time(), acknowledged=self._acknowledged)
            self._acknowledged = []


async def push_all() -> None:
    """Start a push every `PUSH_SECONDS`, without waiting for earlier ones; then wait for all."""
    timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
    connector = aiohttp.TCPConnector(limit=0, ttl_dns_cache=1)
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/x-ndjson"}
    async with aiohttp.ClientSession(timeout=timeout, connector=connector, headers=headers) as session:
        pushes, number, free = set(), FIRST_PUSH, asyncio.Semaphore(MAX_CONNECTIONS)
        while not STOP.is_set():
            pushes.add(asyncio.create_task(push(session, free, number)))
            number += 1
            await asyncio.sleep(PUSH_SECONDS)
        _, pending = await asyncio.wait(pushes, timeout=END_SECONDS)
        write(done="http", produced=number - FIRST_PUSH, unacknowledged=len(pending))
        for one in pending:
            one.cancel()


async def push(session: aiohttp.ClientSession, free: asyncio.Semaphore, number: int) -> None:
    """Push a record with its key until it is answered with 200; any answer but 503 and 507 is final."""
    body, key = record(number, time.time()), {"Idempotency-Key": str(number)}
    while True:
        async with free:
            begun = time.time()
            status, retry_after, text = await post(session, body, key)
            seconds = round(time.time() - begun, 2)
        write(push=number, begun=begun, seconds=seconds, status=status, retry_after=retry_after, text=text)
        if status not in {0, 503, 507}:
            return
        await asyncio.sleep(float(retry_after or 1))


async def post(
    session: aiohttp.ClientSession, body: bytes, headers: dict[str, str]
) -> tuple[int, str | None, str]:
    """Return the status, 0 without an answer, `Retry-After` and the text of an error."""
    try:
        async with session.post(URL, data=body, headers=headers) as answer:
            text = "" if answer.status == 200 else (await answer.text())[:300]
            return answer.status, answer.headers.get("Retry-After"), text
    except (aiohttp.ClientError, TimeoutError) as error:
        return 0, None, f"{type(error).__name__}: {error}"


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: STOP.set())
    topic = threading.Thread(target=TopicLoad().run)
    topic.start()
    asyncio.run(push_all())
    topic.join()


if __name__ == "__main__":
    main()
