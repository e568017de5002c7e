"""After an outage of any part, of two, or of all at once, a node continues without a restart, in any order of return.

A part is frozen, or it is killed and its next process starts at its turn. Records keep arriving by topic and by HTTP.
Afterwards each is there once, and the seconds since the return of the last part are printed.
"""

import http.client
import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Final

import pytest
from odf_testing.chains import read_chain
from odf_testing.embedded import EmbeddedNode
from odf_testing.killed_process import freeze
from odf_testing.minioserver import ACCESS_KEY, SECRET_KEY, MinioServer, serving_s3
from odf_testing.story import Story, derivative, root

from odf_common.adapters.s3.location import S3Location

COLUMNS: Final = ("id BIGINT", "at TIMESTAMP(3)")
STREAMED: Final = "return.streamed"
PUSHED: Final = "return.pushed"
ROOTS: Final = (STREAMED, PUSHED)
DERIVED: Final = ("return.derived", "return.derived.again")
STORE: Final = "store"
PARTS: Final = ("kafka", "redis", STORE, "ingest", "coordinator", "engine-spark", "verifier", "sync")
SLOW_STARTS: Final = frozenset({"kafka", "engine-spark"})
"""Their own start is no part of the time until a node continues."""
BATCH: Final = 3  # records
AWAY_SECONDS: Final = 7.0  # longer than sessions with Kafka last
LONG_AWAY_SECONDS: Final = 20.0
PAUSE_SECONDS: Final = 1.0  # at most, between two returns
LATE_SECONDS: Final = 180.0  # 15 on a calm machine
LOOK_SECONDS: Final = 0.1
SINGLES, PAIRS = 1, 1  # outside of `make soak`, which plays each
ORDERS: Final = 4  # in `make soak`
SEED: Final = int(os.environ.get("ODF_TEST_SEED", "1"))
Ways = Mapping[str, bool]  # of each part that is away, whether it is killed


class World:
    """A node over a bucket, and the records that its clients know to be accepted."""

    def __init__(self, node: EmbeddedNode, server: MinioServer, place: S3Location, mirror: Path) -> None:
        self.node, self.server, self.place, self.story = node, server, place, Story(node)
        self.story.add(*(root(name, COLUMNS, event_time="at") for name in ROOTS))
        for name, source in zip(DERIVED, (STREAMED, DERIVED[0]), strict=True):
            time_column = "at" if source == STREAMED else "event_time"
            self.story.add(derivative(name, {"i": source}, f"SELECT {time_column} AS event_time, id FROM i"))
        self._folders = {name: mirror / self.story.folder(name).name for name in (*ROOTS, *DERIVED)}
        self._sent = 0

    def send(self) -> None:
        """Send a batch by topic and one by HTTP, and return when both are accepted."""
        ids = range(self._sent, self._sent + BATCH)
        self._sent += BATCH
        records = [json.dumps({"id": id_, "at": "2026-01-01T00:00:00Z"}).encode() for id_ in ids]
        with ThreadPoolExecutor(1) as pool:
            pushing = pool.submit(self._push, b"\n".join(records), f"batch {ids.start}")
            self.story.publish(STREAMED, records)
            pushing.result()

    def _push(self, body: bytes, key: str) -> None:
        """Push until the records are committed, as a client does."""
        until = time.monotonic() + LATE_SECONDS
        while not self._is_committed(body, key):
            assert time.monotonic() < until, "no push succeeds"
            time.sleep(LOOK_SECONDS)

    def _is_committed(self, body: bytes, key: str) -> bool:
        address = str(self.node.node.http).removeprefix("http://")
        connection = http.client.HTTPConnection(address, timeout=5)
        headers = {"Content-Type": "application/x-ndjson", "Idempotency-Key": key}
        try:
            connection.request("POST", f"/{PUSHED}/ingest?wait=commit", body, headers)
            status = connection.getresponse().status
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
        assert status in {200, 202, 503, 507}
        return status == 200

    def await_records(self, names: Sequence[str], since: float) -> float:
        """Return the seconds since `since` after which each dataset has each record once."""
        expected = list(range(self._sent))
        until = time.monotonic() + LATE_SECONDS
        while any(self._ids(name) != expected for name in names):
            seen = {name: self._ids(name) for name in names}
            assert time.monotonic() < until, f"{seen}{self.node.logs()}"
            time.sleep(LOOK_SECONDS)
        return time.monotonic() - since

    def _ids(self, name: str) -> list[int]:
        """Return the ids of all records, read from a copy of the bucket: the invariants of the chain hold."""
        client, folder = self.server.client(), self._folders[name]
        start = f"{self.place.prefix}/{folder.name}/"
        with client.get_object(self.place.bucket, f"{start}refs/head") as head:
            content = head.read()
        for item in client.list_objects(self.place.bucket, start, recursive=True):
            file = folder / str(item.object_name).removeprefix(start)
            if not file.exists():
                client.fget_object(self.place.bucket, str(item.object_name), str(file))
        (folder / "refs" / "head").write_bytes(content)
        return read_chain(folder).column("id")

    def pids(self) -> Mapping[str, int | None]:
        """Return the process of each part."""
        return {part: self.node.pid(part) for part in PARTS if part != STORE}

    def is_ready(self, part: str) -> bool:
        """Return whether a part is ready."""
        return self.node.state(part) == "ready"

    def take_away(self, part: str, *, is_killed: bool) -> Callable[[], None]:
        """Freeze or kill a part; the result lets it return."""
        if part == STORE:
            return self._take_store(is_killed=is_killed)
        pid = self.node.pid(part)
        assert pid is not None
        if not is_killed:
            os.killpg(pid, signal.SIGSTOP)
            return lambda: os.killpg(pid, signal.SIGCONT)
        os.killpg(pid, signal.SIGKILL)
        self.node.eventually(lambda: self.node.pid(part) not in {pid, None})
        started = self.node.pid(part)
        assert started is not None
        os.killpg(started, signal.SIGSTOP)
        return lambda: os.killpg(started, signal.SIGCONT)

    def _take_store(self, *, is_killed: bool) -> Callable[[], None]:
        if is_killed:
            self.server.stop()
            return self.server.start
        process = self.server.process
        assert process is not None
        freeze(process)
        return lambda: process.send_signal(signal.SIGCONT)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A node with parts of its own, and a server of its bucket."""
    with serving_s3(tmp_path_factory.mktemp("minio")) as server:
        place = server.new_bucket("returning")
        access = {"ODF_S3_ACCESS_KEY": ACCESS_KEY, "ODF_S3_SECRET_KEY": SECRET_KEY}
        node = EmbeddedNode(tmp_path_factory.mktemp("returning"), {"ODF_STORE": str(place), **access})
        node.up()
        world = World(node, server, place, tmp_path_factory.mktemp("mirror"))
        world.send()
        world.await_records((*ROOTS, *DERIVED), time.monotonic())
        yield world
        node.down()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """The parts that go, in this order, each with whether it is killed; and the order in which they return."""

    ways: Ways
    returning: Sequence[str]

    def __str__(self) -> str:
        ways = [f"{part} {'killed' if is_killed else 'frozen'}" for part, is_killed in self.ways.items()]
        return f"{', '.join(ways)}; return: {', '.join(self.returning)}"


def outage_of(parts: Sequence[str], source: random.Random) -> Outage:
    """Draw how these parts go and return."""
    going = source.sample(parts, len(parts))
    ways = {part: source.random() < 0.5 for part in going}
    return Outage(ways=ways, returning=source.sample(parts, len(parts)))


def play(world: World, outage: Outage, away_seconds: float = AWAY_SECONDS) -> None:
    """Let parts go and return while records arrive; each record is there once, and nothing else was restarted."""
    before = world.pids()
    with ThreadPoolExecutor(1) as pool:
        returns = {part: world.take_away(part, is_killed=killed) for part, killed in outage.ways.items()}
        sending = pool.submit(world.send)
        time.sleep(away_seconds)
        pauses = random.Random(str(outage))
        for part in outage.returning:
            time.sleep(pauses.uniform(0, PAUSE_SECONDS))
            returns[part]()
        for part in SLOW_STARTS & {part for part, is_killed in outage.ways.items() if is_killed}:
            world.node.eventually(partial(world.is_ready, part), LATE_SECONDS)
        returned = time.monotonic()
        sending.result()
    world.send()
    ingested = world.await_records(ROOTS, returned)
    derived = world.await_records(DERIVED, returned)
    print(f"\n{outage}\ningest continues after {ingested:.1f} s, derivatives after {derived:.1f} s")
    unharmed = [part for part in before if not outage.ways.get(part, False)]
    assert {part: world.pids()[part] for part in unharmed} == {part: before[part] for part in unharmed}
    verdicts = world.node.run(f"verify {' '.join(DERIVED)} --incremental --output json")
    assert {row["verdict"] for row in verdicts} == {"valid"}


@pytest.mark.parametrize("part", random.Random(SEED).sample(PARTS, SINGLES))
def test_a_node_continues_after_an_outage_of_one_part(world: World, part: str) -> None:
    is_killed = random.Random(f"{SEED} {part}").random() < 0.5
    play(world, Outage(ways={part: is_killed}, returning=(part,)))


@pytest.mark.parametrize(
    "pair", random.Random(SEED).sample(list(combinations(PARTS, 2)), PAIRS), ids="+".join
)
def test_a_node_continues_after_an_outage_of_two_parts(world: World, pair: Sequence[str]) -> None:
    play(world, outage_of(pair, random.Random(f"{SEED} {pair}")))


def test_a_node_continues_after_an_outage_of_all_parts_in_any_order(world: World) -> None:
    play(world, outage_of(PARTS, random.Random(SEED)))


@pytest.mark.soak
@pytest.mark.parametrize("is_killed", [False, True], ids=["frozen", "killed"])
@pytest.mark.parametrize("part", PARTS)
def test_a_node_continues_after_a_long_outage_of_one_part(world: World, part: str, is_killed: bool) -> None:
    play(world, Outage(ways={part: is_killed}, returning=(part,)), LONG_AWAY_SECONDS)


@pytest.mark.soak
@pytest.mark.parametrize("pair", list(combinations(PARTS, 2)), ids="+".join)
def test_a_node_continues_after_a_long_outage_of_each_two_parts(world: World, pair: Sequence[str]) -> None:
    play(world, outage_of(pair, random.Random(f"{SEED} long {pair}")), LONG_AWAY_SECONDS)


@pytest.mark.soak
@pytest.mark.parametrize("number", range(ORDERS))
def test_a_node_continues_after_a_long_outage_of_all_parts(world: World, number: int) -> None:
    play(world, outage_of(PARTS, random.Random(f"{SEED} {number}")), LONG_AWAY_SECONDS)
