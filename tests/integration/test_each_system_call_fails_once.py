"""Each system call of each service fails once: the service goes on, and all records are there once.

The calls of one unit of work are counted first. Then one of them fails, by the kernel's own answer; a sample of them
here, and all in `make soak`.
"""

import http.client
import json
import os
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Final

import pytest
from odf_testing.chains import read_chain
from odf_testing.embedded import EmbeddedNode
from odf_testing.failing_calls import ERRORS, Calls, FailingCalls
from odf_testing.story import Story, derivative, root

COLUMNS: Final = ("id BIGINT", "at TIMESTAMP(3)")
STREAMED: Final = "each.streamed"
PUSHED: Final = "each.pushed"
DERIVED: Final = "each.derived"
BATCH: Final = 3  # records of a unit, in each root
SERVICES: Final = ("ingest", "coordinator", "verifier", "sync", "views")
SAMPLE: Final = 1  # calls of a service that fail, of each error
ANSWER_SECONDS: Final = 5.0  # of an HTTP request
TRIES: Final = 40
LAST_CALLS: Final = 1000
"""More than a unit has."""
RETRIED: Final = frozenset({503, 507})
SEED: Final = int(os.environ.get("ODF_TEST_SEED", "1"))


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    retry_after: str | None
    body: bytes


class World:
    """A node, and the records that its clients know to be accepted."""

    def __init__(self, node: EmbeddedNode, calls: FailingCalls) -> None:
        self.node, self.calls, self.story = node, calls, Story(node)
        self.story.add(root(STREAMED, COLUMNS, event_time="at"), root(PUSHED, COLUMNS, event_time="at"))
        self.story.add(derivative(DERIVED, {"i": STREAMED}, "SELECT at AS event_time, id FROM i"))
        self._folders = {name: self.story.folder(name) for name in (STREAMED, PUSHED, DERIVED)}
        self._units = count()

    def work(self) -> None:
        """Do one unit of work: records arrive by topic and by HTTP, are derived, verified, read and shown."""
        unit = next(self._units)
        records = [record(id_) for id_ in range(unit * BATCH, (unit + 1) * BATCH)]
        self.story.publish(STREAMED, records)
        self._push(b"\n".join(records), key=f"unit {unit}")
        expected = list(range((unit + 1) * BATCH))
        self.node.eventually(lambda: all(self.ids(name) == expected for name in self._folders))
        for path in (f"/{STREAMED}/tail", f"/{STREAMED}/refs/head"):
            self._until_answered(partial(self.ask, "GET", path))
        self._until_answered(lambda: self.ask("GET", "/datasets", url=str(self.node.node.views)))
        self._verify()

    def ids(self, name: str) -> list[int]:
        """Return the ids of all records, read from the store: the invariants of the chain hold."""
        return read_chain(self._folders[name]).column("id")

    def ask(
        self, method: str, path: str, body: bytes | None = None, *, url: str | None = None, **headers: str
    ) -> Answer:
        """Return the answer of the node, which has to come soon."""
        begun = time.monotonic()
        address = (url or str(self.node.node.http)).removeprefix("http://")
        connection = http.client.HTTPConnection(address, timeout=10 * ANSWER_SECONDS)
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            found = Answer(answer.status, answer.headers["Retry-After"], answer.read())
        finally:
            connection.close()
        assert time.monotonic() - begun < ANSWER_SECONDS, (path, found)
        return found

    def _push(self, body: bytes, key: str) -> None:
        path = f"/{PUSHED}/ingest?wait=commit"
        headers = {"Content-Type": "application/x-ndjson", "Idempotency-Key": key}
        self._until_answered(lambda: self.ask("POST", path, body, **headers))

    def _until_answered(self, ask: Callable[[], Answer]) -> None:
        """Repeat a request as its answers say, until it succeeds."""
        for _ in range(TRIES):
            answer = ask()
            if answer.status == 200:
                return
            assert answer.status in RETRIED, answer
            assert answer.retry_after is not None, answer
            time.sleep(float(answer.retry_after) / 4)
        raise AssertionError("no request succeeds")

    def _verify(self) -> None:
        """Verify everything; a verification that could not be made is repeated, and none says `invalid`."""
        for _ in range(TRIES):
            done = self.node.attempt("verify --all --incremental --output json")
            verdicts = {row["verdict"] for row in json.loads(done.stdout or b"[]")}
            assert verdicts <= {"valid", "failed"}, done.stdout
            if verdicts == {"valid"}:
                return
        raise AssertionError("no verification succeeds")

    def pid(self, service: str) -> int | None:
        """Return the process of a service."""
        return self.node.pid(service)


def record(id_: int) -> bytes:
    return json.dumps({"id": id_, "at": "2026-01-01T00:00:00Z"}).encode()


@pytest.fixture(scope="module")
def world(node: EmbeddedNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A node whose services can be made to fail; its engine and Kafka are another's."""
    home = tmp_path_factory.mktemp("failing")
    calls = FailingCalls(home)
    made = node.guest(home, calls.environment())
    made.up(*SERVICES[:-1])
    yield World(made, calls)
    made.down()


@pytest.fixture(scope="module")
def world_with_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A node with its own engine, which can be made to fail, too."""
    home = tmp_path_factory.mktemp("failing")
    calls = FailingCalls(home)
    made = EmbeddedNode(home, calls.environment())
    made.up()
    yield World(made, calls)
    made.down()


def fail(world: World, service: str, error: str, after: int) -> Calls:
    """Do a unit of work while one call of a service fails; the service goes on, and takes it for no bug."""
    log = world.node.home / "logs" / f"{service}.log"
    size, pid = log.stat().st_size, world.pid(service)
    world.calls.order(service, error, after)
    try:
        world.work()
    except Exception as raised:
        raised.add_note(f"call {after} of {service} failed: {world.calls.end(service).failed}")
        raise
    calls = world.calls.end(service)
    assert world.pid(service) == pid, f"{service} has ended: {calls.failed}{world.node.logs()}"
    with log.open("rb") as opened:
        opened.seek(size)
        said = opened.read().decode()
    assert "a bug" not in said, f"{calls.failed}: {said}"
    return calls


@pytest.fixture(scope="module")
def counts(world: World) -> dict[tuple[str, str], int]:
    """Return how many calls of each service one unit of work makes that could fail, by service and error."""
    found = {}
    world.work()  # the calls of the first unit are others
    for error in ERRORS:
        for service in SERVICES:
            world.calls.order(service, error, LAST_CALLS)
        world.work()
        found.update({(service, error): len(world.calls.end(service).made) for service in SERVICES})
    return found


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("service", SERVICES)
def test_a_call_that_fails_stops_nothing_and_loses_nothing(
    world: World, counts: dict[tuple[str, str], int], service: str, error: str
) -> None:
    calls = counts[service, error]
    # Most threads exist already.
    assert calls > 0 or service == "views" or error == "EAGAIN", "no call is seen"
    for after in random.Random(f"{SEED} {service} {error}").sample(range(calls), min(SAMPLE, calls)):
        fail(world, service, error, after)


@pytest.mark.soak
@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("service", [*SERVICES, "engine-spark"])
def test_each_call_that_fails_stops_nothing_and_loses_nothing(
    world_with_engine: World, service: str, error: str
) -> None:
    world_with_engine.work()
    for after in count():
        if fail(world_with_engine, service, error, after).failed is None:
            break
