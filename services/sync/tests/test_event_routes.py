"""Event streams over a real socket: moved heads, resumption, authorization for their whole duration."""

import asyncio
import http.client
import json
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from odf_testing.builders import a_chain, a_dataset, a_time
from odf_testing.guarded import GuardedDict
from odf_testing.http import running

from odf_common.adapters.local.catalog import LocalCatalog
from odf_common.adapters.local.stores import LocalBlobStore, LocalRefStore
from odf_common.chain.walk import iterate
from odf_common.codec.envelopes import envelope
from odf_common.dataset.state_cache import ChainStates, NoStateCache
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import DatasetId, Name
from odf_common.metadata.events import AddData, Seed
from odf_common.ports.bus import NOTIFICATIONS
from odf_common.ports.store import CatalogEntry, incarnation
from odf_common.proto.odf.bus.v1 import bus_pb2 as bus
from odf_common.service.consumer.consumer_loop import Subscription
from odf_sync.access.access_store import AccessStore
from odf_sync.access.directory import Directory
from odf_sync.access.rules import Visibility
from odf_sync.http import head_events
from odf_sync.http.authorization import Authorizer
from odf_sync.http.endpoints import application
from odf_sync.http.head_events import EventRoutes, HeadWatch, head_facts

VECTOR = Path(__file__).parents[3] / "tests" / "vectors" / "datasets" / "cities.population"
CHAIN = tuple(
    iterate(
        (lambda name: (VECTOR / "blocks" / str(name)).read_bytes()),
        Multihash.parse((VECTOR / "refs" / "head").read_text()),
    )
)
HEAD, PREVIOUS = (name for name, _, _ in CHAIN[:2])
SEED = CHAIN[-1][1].block.event
assert isinstance(SEED, Seed)
DATASET = SEED.dataset_id
OTHER = DatasetId.of_key(bytes(32))


@dataclass(slots=True)
class Node:
    """A server of one dataset, whose head moves as a test wants."""

    base: str
    catalog: LocalCatalog
    refs: LocalRefStore
    directory: Directory
    heads: HeadWatch
    streams: "list[Stream]" = field(default_factory=list)

    def move(self, new: Multihash) -> None:
        """Move the head, and publish that."""
        self.refs.compare_and_set(DATASET, expected=self.refs.head(DATASET), new=new)
        self.notify(DATASET)

    def notify(self, dataset: DatasetId) -> None:
        self.heads.subscription().handler(envelope(dataset, bus.Committed()))


@contextmanager
def serving(
    home: Path, alias: str, *, is_multi_tenant: bool = False, proxy: Path | None = None
) -> Iterator[Node]:
    catalog, refs, blobs = LocalCatalog(home), LocalRefStore(home), LocalBlobStore(home)
    shutil.copytree(VECTOR, home / "datasets" / DATASET.folder)
    catalog.add(CatalogEntry(alias=alias, dataset_id=DATASET))
    states = ChainStates(blobs, refs, NoStateCache())
    directory = Directory(AccessStore(home), is_multi_tenant=is_multi_tenant)
    authorizer, heads = Authorizer(catalog=catalog, local_writers="off", directory=directory), HeadWatch()
    stop = threading.Event()
    ending = threading.Thread(target=heads.end_streams, args=(stop,), daemon=True)
    ending.start()
    app = application(authorizer, EventRoutes(states, authorizer, heads).endpoints())
    with running(app, proxy) as base:
        node = Node(base.removeprefix("http://"), catalog, refs, directory, heads)
        yield node
        for stream in node.streams:
            stream.close()
        stop.set()
        ending.join()


@pytest.fixture(params=[False, True], ids=["direct", "behind-a-proxy"])
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Node]:
    with serving(tmp_path, "cities", proxy=tmp_path / "proxy" if request.param else None) as node:
        yield node


class Stream:
    """A client of an event stream; each read fails after some seconds."""

    def __init__(
        self, node: Node, path: str = "/cities/events", *, method: str = "GET", **headers: str
    ) -> None:
        self._connection = http.client.HTTPConnection(node.base, timeout=10)
        node.streams.append(self)
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        self._connection.request(method, path, headers=names)
        self.answer = self._connection.getresponse()

    def next(self) -> dict[str, str]:
        """Return the fields of the next event, without any for a heartbeat, or of none at the stream's end."""
        fields = {}
        while line := self.answer.readline().decode().rstrip("\n"):
            name, _, value = line.partition(":")
            fields[name] = value.strip()
        fields.pop("", None)
        return fields

    def close(self) -> None:
        self.answer.close()
        self._connection.close()


def test_the_head_is_sent_at_once_and_whenever_it_moves(node: Node) -> None:
    stream = Stream(node)
    assert stream.answer.getheader("Content-Type") == "text/event-stream"
    first = stream.next()
    facts = json.loads(first["data"])
    assert (first["event"], first["id"], facts["head"]) == ("head", str(HEAD), str(HEAD))
    assert (facts["dataset"], facts["alias"]) == (str(DATASET), "cities")
    assert facts["sequenceNumber"] == len(CHAIN) - 1
    node.move(PREVIOUS)
    assert stream.next()["id"] == str(PREVIOUS)
    node.move(HEAD)
    assert stream.next()["id"] == str(HEAD)


def test_a_stream_rests_until_the_head_moves_again(node: Node) -> None:
    stream = Stream(node)
    stream.next()
    node.move(PREVIOUS)
    stream.next()
    socket = stream.answer.fp.raw._sock  # type: ignore[attr-defined]
    socket.settimeout(0.3)
    with pytest.raises(TimeoutError):
        stream.answer.readline()


def test_a_client_that_has_seen_the_head_is_sent_only_the_next_one(node: Node) -> None:
    stream = Stream(node, Last_Event_ID=str(HEAD))
    assert stream.next() == {}
    node.move(PREVIOUS)
    assert stream.next()["id"] == str(PREVIOUS)


def test_a_client_that_missed_moves_gets_the_current_head(node: Node) -> None:
    node.move(PREVIOUS)
    assert Stream(node, Last_Event_ID=str(HEAD)).next()["id"] == str(PREVIOUS)


def test_a_lost_notification_costs_a_heartbeat(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_events, "HEARTBEAT_SECONDS", 0.05)
    stream = Stream(node, Last_Event_ID=str(HEAD))
    assert [stream.next(), stream.next()] == [{}, {}]
    node.refs.compare_and_set(DATASET, expected=HEAD, new=PREVIOUS)
    while not (event := stream.next()):
        pass
    assert event["id"] == str(PREVIOUS)


def test_a_notification_of_another_dataset_or_of_progress_wakes_up_no_stream(node: Node) -> None:
    stream = Stream(node)
    stream.next()
    node.notify(OTHER)
    node.heads.subscription().handler(envelope(DATASET, bus.IngestProgress()))
    node.move(PREVIOUS)
    assert stream.next()["id"] == str(PREVIOUS)


def test_every_process_receives_every_notification() -> None:
    async def subscribed() -> Subscription:
        return HeadWatch().subscription()

    subscription = asyncio.run(subscribed())
    assert (subscription.topic, subscription.group) == (NOTIFICATIONS, False)


def test_the_stream_of_a_deleted_dataset_ends(node: Node) -> None:
    stream = Stream(node)
    stream.next()
    node.catalog.remove("cities")
    node.heads.subscription().handler(envelope(DATASET, bus.DatasetRemoved()))
    assert (stream.next(), stream.next()) == ({"event": "gone", "data": "{}"}, {})


def test_a_stream_ends_when_its_dataset_becomes_private(tmp_path: Path) -> None:
    with serving(tmp_path, "alice/cities", is_multi_tenant=True) as node:
        node.directory.add_account(Name("alice"), None)
        node.directory.store.set_visibility(incarnation(DATASET, ""), Visibility.PUBLIC)
        stream = Stream(node, "/alice/cities/events")
        assert stream.next()["id"] == str(HEAD)
        node.directory.store.set_visibility(incarnation(DATASET, ""), Visibility.PRIVATE)
        node.move(PREVIOUS)
        assert stream.next()["event"] == "gone"
        assert Stream(node, "/alice/cities/events").answer.status == 404


@pytest.mark.parametrize("limit", ["MAX_STREAMS", "MAX_STREAMS_OF_CALLER"])
def test_streams_are_limited_and_end_with_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(head_events, limit, 1)
    with serving(tmp_path, "cities") as node:
        stream = Stream(node)
        stream.next()
        refused = Stream(node).answer
        assert (refused.status, refused.getheader("Retry-After")) == (503, "5")
        assert Stream(node, method="HEAD").answer.status == 503


def test_a_disconnected_client_is_forgotten(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_events, "HEARTBEAT_SECONDS", 0.02)
    streams = [Stream(node) for _ in range(3)]
    for stream in streams:
        stream.next()
        stream.close()
    deadline = time.monotonic() + 10
    while node.heads.is_watched(DATASET):
        assert time.monotonic() < deadline


def test_head_is_answered_without_a_stream(node: Node) -> None:
    answer = Stream(node, method="HEAD").answer
    assert (answer.status, answer.getheader("Cache-Control"), answer.read()) == (200, "no-store", b"")


def test_the_facts_of_a_head_are_those_of_its_state() -> None:
    entry = CatalogEntry(alias="cities", dataset_id=a_dataset())
    chain = a_chain().add_data()
    facts = head_facts(entry, chain.state)

    assert facts == {
        "dataset": str(a_dataset()),
        "alias": "cities",
        "head": str(chain.state.head),
        "sequenceNumber": 3,
        "lastOffset": 9,
        "watermark": None,
        "systemTime": "2026-01-01T00:00:03Z",
    }
    chain.add(AddData(prev_offset=9, new_watermark=a_time(5)))
    assert head_facts(entry, chain.state)["watermark"] == "2026-01-01T00:00:05Z"


def test_streams_are_added_and_removed_one_at_a_time() -> None:
    async def use(watch: HeadWatch) -> None:
        with watch.waiting(a_dataset()) as bell:
            assert watch.is_watched(a_dataset())
            watch.ring(str(a_dataset()))
            await bell.wait()
            stop = threading.Event()
            stop.set()
            watch.end_streams(stop)
        assert not watch.is_watched(a_dataset())

    watch = HeadWatch()
    watch._bells = GuardedDict(watch._lock)
    asyncio.run(use(watch))
