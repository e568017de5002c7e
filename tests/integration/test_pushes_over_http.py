import http.client
import json
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any, BinaryIO
from urllib.request import urlopen

import pytest
from odf_testing.embedded import PATIENCE, EmbeddedNode
from odf_testing.story import APPEND, Story, root

COLUMNS = ("id BIGINT", "name STRING", "at TIMESTAMP(3)")
NUMBERS = count()
PUSHES = 24
RECORDS = 50  # of a push
GOOD = b'{"id": 3, "at": "2026-01-01T00:00:00Z"}'


@pytest.fixture
def orders(story: Story) -> str:
    name = f"pushed.over.http.{next(NUMBERS)}"
    story.add(root(name, COLUMNS, merge=APPEND, event_time="at"))
    return name


def post(
    node: EmbeddedNode, path: str, body: bytes, media_type: str = "application/x-ndjson", **headers: str
) -> tuple[int, Any]:
    address = str(node.node.http).removeprefix("http://")
    connection = http.client.HTTPConnection(address, timeout=PATIENCE)
    try:
        named = {"Content-Type": media_type, **{key.replace("_", "-"): held for key, held in headers.items()}}
        connection.request("POST", path, body, named)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read() or b"{}")
    finally:
        connection.close()


def lines(first: int, number: int = RECORDS) -> bytes:
    rows = ({"id": id_, "name": "x", "at": "2026-01-01T00:00:00Z"} for id_ in range(first, first + number))
    return b"\n".join(json.dumps(row).encode() for row in rows)


def test_a_push_is_committed_once_in_the_format_of_its_media_type(story: Story, orders: str) -> None:
    path = f"/{orders}/ingest?wait=commit"
    pushed = post(story.node, path, b"at,id,name\n2026-01-01,1,x\n", "text/csv", Idempotency_Key="csv")
    assert (pushed[0], pushed[1]["state"], pushed[1]["records"]) == (200, "committed", 1)
    assert (
        post(story.node, path, b"at,id,name\n2026-01-01,1,x\n", "text/csv", Idempotency_Key="csv") == pushed
    )
    assert post(story.node, path, b"at,id,name\n", "text/csv", Idempotency_Key="csv")[0] == 409
    path = f"/{orders}/ingest"
    assert post(story.node, path, b"at,id,name\n2026-01-01,1,x\n", "text/csv", Idempotency_Key="csv") == (
        200,
        {},
    )
    status, refused = post(story.node, path, b'[{"id": "y"}]', "application/json")
    assert status == 400
    assert refused["message"].startswith("line 1, record 1: column id: 'y' is not a value of BIGINT; ")
    story.node.run(f"ingest {orders} - --input-format csv", stdin=b"id,at,name\n2,2026-01-02,y\n")
    assert story.chain(orders).column("id") == [1, 2]
    assert str(story.chain(orders).head) == story.summary(orders)["head"]


def test_bad_rows_of_pushes_are_dead_letters_that_can_be_retried(story: Story, orders: str) -> None:
    path, bad = f"/{orders}/ingest?wait=commit", GOOD + b'\n{"id": 4, "at": "5.1.2026"}\nx\n'
    status, receipt = post(story.node, path, bad, "application/x-ndjson")
    assert (status, receipt["records"], receipt["rejected"]) == (200, 1, 2)
    assert (
        receipt["rejectedReason"]
        == "line 2: column at: '5.1.2026' is not a value of TIMESTAMP(3); write it as 2026-01-31T23:59:59Z, or set timestampFormat"
    )
    (file,) = story.node.run(f"ingest {orders} - --output json", stdin=GOOD + b"\ny\n")
    assert (file["outcome"], file["records"], file["rejected"]) == ("committed", 1, 1)
    listed = story.node.run(f"rejected list {orders} --output json")
    assert [(one["location"], one["value"]) for one in listed] == [
        ("row/0", '{"id": 4, "at": "5.1.2026"}'),
        ("row/1", "x"),
        ("row/2", "y"),
    ]
    assert listed[2]["reason"] == "standard input, line 2: expected one JSON object"
    assert story.node.run(f"rejected drop {orders} row/1 row/2 --output json")["open"] == 1
    assert story.summary(orders)["rejected"] == 1


def test_pushes_survive_kills_of_every_part_involved(story: Story, orders: str) -> None:
    """Clients repeat each push under its key until it is accepted; then each record is committed once, in order."""
    killed = _killing(story.node, ("ingest", "sync", "coordinator", "ingest"))
    pending = []
    for number in range(PUSHES):
        if number % 6 == 3:
            next(killed, None)
        pending.append(_accepted(story.node, f"/{orders}/ingest?wait=no", number))
    for _ in killed:
        pass
    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(lambda one: _settled(story.node, orders, one), pending))
    assert Counter(one["state"] for one in done) == {"committed": PUSHES}
    assert story.chain(orders).column("id") == list(range(PUSHES * RECORDS))
    assert [row["verdict"] for row in story.verify(orders)] == ["valid"]


def _killing(node: EmbeddedNode, parts: tuple[str, ...]) -> Iterator[None]:
    for part in parts:
        old = node.kill(part)
        yield
        node.await_restart(part, old)


def _accepted(node: EmbeddedNode, path: str, number: int) -> str:
    """Return the receipt of a push that is repeated until it is accepted."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        try:
            status, plain = post(node, path, lines(number * RECORDS), Idempotency_Key=f"push {number}")
        except (OSError, http.client.HTTPException):
            status, plain = 0, {}
        if status == 202:
            return str(plain["receipt"])
        assert status in {0, 503}, plain
        time.sleep(0.05)
    raise AssertionError("no push was accepted")


def _settled(node: EmbeddedNode, dataset: str, receipt: str) -> Any:
    address = str(node.node.http).removeprefix("http://")
    connection = http.client.HTTPConnection(address, timeout=PATIENCE)
    try:
        connection.request("GET", f"/{dataset}/ingest/{receipt}?wait=commit")
        return json.loads(connection.getresponse().read())
    finally:
        connection.close()


NAME = "followed.over.http"


def test_a_stream_sends_the_head_until_the_dataset_is_deleted(story: Story) -> None:
    story.add(root(NAME, ["n BIGINT"]))
    with urlopen(f"{story.node.node.http}/{NAME}/events", timeout=30) as stream:
        assert next_head(stream)["lastOffset"] is None
        story.ingest(NAME, [{"n": 1}, {"n": 2}])
        while (event := next_head(stream))["lastOffset"] is None:
            """The schema may be committed in an event of its own."""
        assert (event["lastOffset"], event["head"]) == (1, story.summary(NAME)["head"])
        story.node.run(f"delete {NAME} --yes")
        assert b"event: gone\n" in stream.readlines()


def next_head(stream: BinaryIO) -> dict[str, Any]:
    """Return the data of the next event, skipping heartbeats."""
    while not (line := stream.readline()).startswith(b"data: "):
        assert line, "the stream ended"
    head: dict[str, Any] = json.loads(line.removeprefix(b"data: "))
    return head
