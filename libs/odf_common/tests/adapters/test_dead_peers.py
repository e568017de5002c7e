"""Channels over networks that break without a word: a call in flight ends, and the next one gets a new connection."""

import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TypeVar

import grpc
import pytest
import urllib3
from confluent_kafka import TopicPartition
from odf_testing.black_hole import BlackHole, black_hole
from odf_testing.minioserver import MinioServer
from odf_testing.secure_kafka import kafka_behind

from odf_cli.embedded.parts.kafka_redis import redis_server
from odf_cli.embedded.parts.tcp_ports import allocate
from odf_common.adapters.grpc import server as server_module
from odf_common.adapters.grpc.client import CALL_TIMEOUT_SECONDS, ServiceSilent, calling, channel
from odf_common.adapters.grpc.server import GrpcServer, serve
from odf_common.adapters.kafka.admin import KafkaTopics
from odf_common.adapters.kafka.client_config import (
    group_config,
    new_consumer,
    new_producer,
    producer_config,
)
from odf_common.adapters.kafka.cluster import KafkaCluster
from odf_common.adapters.kafka.quiet_partitions import QuietPartitions
from odf_common.adapters.kafka.records import KafkaRecords, _settings
from odf_common.adapters.networks import Networks, Pools, restricted_pools
from odf_common.adapters.redis import RedisConnection
from odf_common.adapters.s3.bucket import Bucket
from odf_common.errors import StorageUnavailable, Unavailable
from odf_common.proto.odf.node.v1 import ingest_pb2 as pb
from odf_common.proto.odf.node.v1 import ingest_pb2_grpc
from odf_common.service.settings import child_environment

pytestmark = pytest.mark.waits
NAME = "odf.node.v1.Ingest"
LATE_SECONDS = 45.0  # a deadline that no call here may reach: the default of a request to Kafka is a minute
Break = Callable[[BlackHole], None]
BREAKS: tuple[Break, ...] = (BlackHole.swallow, BlackHole.drop)


class Servicer(ingest_pb2_grpc.IngestServicer):
    """Its streams, and its calls while it is slow, end when the test does; `left` is set when a stream's caller has gone."""

    def __init__(self) -> None:
        self.end = threading.Event()
        self.is_slow = False
        self.left = threading.Event()
        self.asked = threading.Semaphore(0)

    def Polls(self, request: pb.PollsRequest, context: grpc.ServicerContext) -> pb.PollsReply:  # noqa: N802
        self.asked.release()
        if self.is_slow:
            self.end.wait()
        return pb.PollsReply()

    def Drain(self, request: pb.DrainRequest, context: grpc.ServicerContext) -> Iterator[pb.DrainProgress]:  # noqa: N802
        context.add_callback(self.left.set)
        yield pb.DrainProgress(waiting=1)
        self.end.wait()


@contextmanager
def serving() -> Iterator[tuple[Servicer, GrpcServer]]:
    servicer = Servicer()

    def register(server: grpc.Server) -> tuple[str, ...]:
        ingest_pb2_grpc.add_IngestServicer_to_server(servicer, server)
        return (NAME,)

    server = serve("127.0.0.1:0", register)
    try:
        yield servicer, server
    finally:
        servicer.end.set()
        server.stop(0)


def fails_without_its_deadline(call: object) -> None:
    begun = time.monotonic()
    with pytest.raises(ServiceSilent) as raised, calling("ingest"):
        call()  # type: ignore[operator]
    assert raised.value.why == "its process is stopped, or the network to it is broken"
    print(f"noticed after {time.monotonic() - begun:.1f} s: {raised.value.why}")


@pytest.mark.parametrize("breaks", BREAKS)
def test_a_call_in_flight_ends_when_the_network_breaks_and_the_next_one_is_answered(breaks: Break) -> None:
    with serving() as (servicer, server), black_hole(server.port) as hole, channel(hole.address) as opened:
        stub = ingest_pb2_grpc.IngestStub(opened)
        servicer.is_slow = True
        call = stub.Polls.future(pb.PollsRequest(), timeout=LATE_SECONDS)
        assert servicer.asked.acquire(timeout=LATE_SECONDS)
        breaks(hole)
        fails_without_its_deadline(call.result)
        servicer.is_slow = False
        hole.restore()
        assert stub.Polls(pb.PollsRequest(), timeout=LATE_SECONDS) == pb.PollsReply()


@pytest.mark.parametrize("breaks", BREAKS)
def test_a_stream_ends_when_the_network_breaks(breaks: Break) -> None:
    with serving() as (_, server), black_hole(server.port) as hole, channel(hole.address) as opened:
        stub = ingest_pb2_grpc.IngestStub(opened)
        stream = stub.Drain(pb.DrainRequest(), timeout=LATE_SECONDS)
        assert next(stream).waiting == 1
        breaks(hole)
        fails_without_its_deadline(lambda: next(stream))


def test_a_server_ends_the_stream_of_a_client_that_has_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {**dict(server_module.OPTIONS), "grpc.http2.ping_timeout_ms": 1000}  # instead of a minute
    monkeypatch.setattr(server_module, "OPTIONS", tuple(options.items()))
    with serving() as (servicer, server), black_hole(server.port) as hole, channel(hole.address) as opened:
        stream = ingest_pb2_grpc.IngestStub(opened).Drain(pb.DrainRequest(), timeout=10 * LATE_SECONDS)
        assert next(stream).waiting == 1
        hole.drop()
        assert servicer.left.wait(LATE_SECONDS)


def test_a_call_on_a_connection_that_died_while_it_was_idle_reaches_the_server_at_its_new_port() -> None:
    with (
        serving() as (_, before),
        serving() as (_, after),
        black_hole(before.port) as hole,
        channel(hole.address) as opened,
    ):
        stub = ingest_pb2_grpc.IngestStub(opened)
        assert stub.Polls(pb.PollsRequest(), timeout=LATE_SECONDS) == pb.PollsReply()
        states: list[grpc.ChannelConnectivity] = []
        lost = threading.Event()

        def note(state: grpc.ChannelConnectivity) -> None:
            states.append(state)
            if state is not grpc.ChannelConnectivity.READY and grpc.ChannelConnectivity.READY in states:
                lost.set()

        opened.subscribe(note)
        hole.drop()
        assert lost.wait(LATE_SECONDS)  # no call was made
        before.stop(0)
        hole.restore(after.port)
        assert stub.Polls(pb.PollsRequest(), timeout=LATE_SECONDS, wait_for_ready=True) == pb.PollsReply()


def test_a_call_without_a_deadline_gets_that_of_a_short_call() -> None:
    deadlines: list[float] = []

    class Deadlines(Servicer):
        def Polls(self, request: pb.PollsRequest, context: grpc.ServicerContext) -> pb.PollsReply:  # noqa: N802
            deadlines.append(context.time_remaining())
            return pb.PollsReply()

    def register(server: grpc.Server) -> tuple[str, ...]:
        ingest_pb2_grpc.add_IngestServicer_to_server(Deadlines(), server)
        return (NAME,)

    server = serve("127.0.0.1:0", register)
    with channel(f"127.0.0.1:{server.port}") as opened:
        stub = ingest_pb2_grpc.IngestStub(opened)
        stub.Polls(pb.PollsRequest())
        stub.Polls(pb.PollsRequest(), timeout=1000)
    server.stop(0)
    assert 0 < deadlines[0] < 2 * CALL_TIMEOUT_SECONDS < deadlines[1]


T = TypeVar("T")
Kafka = tuple[BlackHole, KafkaCluster]


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    with black_hole(0) as hole, kafka_behind(tmp_path_factory.mktemp("kafka"), hole) as cluster:
        yield hole, cluster


@pytest.fixture
def topic(kafka: Kafka, request: pytest.FixtureRequest) -> str:
    name = f"t{abs(hash(request.node.name))}"
    failing_once(lambda: KafkaTopics(kafka[1]).create_push_topic(name))
    return name


def failing_once(ask: Callable[[], T]) -> T:
    """Return an answer; the first question may have met a connection that has died since."""
    try:
        return ask()
    except Unavailable:
        return ask()


def publish(kafka: Kafka, topic: str, value: bytes) -> None:
    """Publish by a client that has no dead connection."""
    producer = new_producer(producer_config(kafka[1]))
    producer.produce(topic, value)
    assert producer.flush(LATE_SECONDS) == 0


def within_lateness(condition: Callable[[], bool]) -> float:
    begun = time.monotonic()
    while not condition():
        assert time.monotonic() < begun + LATE_SECONDS
    return time.monotonic() - begun


@pytest.mark.parametrize("breaks", BREAKS)
def test_a_reader_whose_fetch_is_lost_goes_on(
    kafka: Kafka, topic: str, breaks: Callable[[BlackHole], None]
) -> None:
    hole, cluster = kafka
    records = KafkaRecords(cluster)
    values: list[bytes | None] = []

    def has(count: int) -> bool:
        values.extend(value for chunk in records.take(10, 0.1).chunks for value in chunk.values)
        return len(values) == count

    records.assign({(topic, 0): 0})
    publish(kafka, topic, b"before")
    within_lateness(lambda: has(1))
    breaks(hole)
    hole.restore()
    publish(kafka, topic, b"after")
    print(f"read after {within_lateness(lambda: has(2)):.1f} s")
    assert values == [b"before", b"after"]
    records.close()


@pytest.mark.parametrize("breaks", BREAKS)
def test_a_message_on_a_dead_connection_is_sent_again_on_a_new_one(
    kafka: Kafka, topic: str, breaks: Callable[[BlackHole], None]
) -> None:
    hole, cluster = kafka
    producer = new_producer(producer_config(cluster))
    outcomes: list[object] = []
    producer.produce(topic, b"before", on_delivery=lambda error, _: outcomes.append(error))
    producer.flush(LATE_SECONDS)
    breaks(hole)
    hole.restore()
    producer.produce(topic, b"after", on_delivery=lambda error, _: outcomes.append(error))
    producer.flush(LATE_SECONDS)
    assert outcomes == [None, None]
    assert failing_once(lambda: KafkaTopics(cluster).watermarks(topic, 0)) == (0, 2)


@pytest.mark.parametrize("breaks", BREAKS)
def test_a_question_about_topics_fails_while_the_network_is_broken_and_is_answered_after(
    kafka: Kafka, topic: str, breaks: Callable[[BlackHole], None]
) -> None:
    hole, cluster = kafka
    topics = KafkaTopics(cluster)
    assert topics.partitions(topic) == 1
    breaks(hole)
    with pytest.raises(Unavailable):
        topics.require_answer(1.0)
    hole.restore()
    failing_once(lambda: topics.require_answer(LATE_SECONDS))  # on the dead connection, which ends by that
    assert topics.partitions(topic) == 1


def test_a_quiet_partition_is_watched_on_a_new_connection(kafka: Kafka, topic: str) -> None:
    hole, cluster = kafka
    watch = QuietPartitions(_settings(cluster, ""))
    watch.watch({(topic, 0): 0})
    time.sleep(1)  # its fetch is on its way, or will be, which is as good
    hole.drop()
    hole.restore()
    publish(kafka, topic, b"loud")
    within_lateness(lambda: bool(watch.news()[1]))
    watch.close()


def test_a_member_whose_request_to_join_is_lost_joins_its_group(kafka: Kafka, topic: str) -> None:
    """The answer comes when all others have joined again: as late as an hour, on a connection that had died by then."""
    hole, cluster = kafka
    config = group_config(cluster, group=f"group-{topic}", session_timeout_ms=6000, instance=None)
    topics = KafkaTopics(cluster)
    failing_once(lambda: topics.add_partitions(topic, 2))
    first, second = new_consumer(config), new_consumer(config)
    first.subscribe([topic])
    within_lateness(lambda: first.poll(0.1) is None and len(first.assignment()) == 2)
    second.subscribe([topic])
    until = time.monotonic() + 3
    while time.monotonic() < until:  # it waits for the first one, which does not poll
        second.poll(0.1)
    assert second.assignment() == []
    hole.drop()
    hole.restore()

    def both() -> bool:
        first.poll(0.1)
        second.poll(0.1)
        return [len(one.assignment()) for one in (first, second)] == [1, 1]

    print(f"joined after {within_lateness(both):.1f} s")
    assert {(one.topic, one.partition) for one in (*first.assignment(), *second.assignment())} == {
        (topic, 0),
        (topic, 1),
    }
    assert TopicPartition(topic, 0) in (*first.assignment(), *second.assignment())
    first.close()
    second.close()


NOTICE_SECONDS = 10.0  # until a dead connection is closed


def answer_of(connection: RedisConnection) -> bool:
    return connection.ask(lambda client: bool(client.ping()), otherwise=False)


def await_answer(connection: RedisConnection) -> None:
    until = time.monotonic() + LATE_SECONDS
    while not answer_of(connection):
        assert time.monotonic() < until
        time.sleep(0.1)


@pytest.mark.parametrize("breaks", BREAKS)
def test_redis_is_used_again_after_its_connection_died(tmp_path: Path, breaks: Break) -> None:
    port = allocate(tmp_path, ("redis",))["redis"]
    command = (redis_server(child_environment()), "--port", str(port), "--save", "", "--dir", str(tmp_path))
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process, black_hole(port) as hole:
        connection = RedisConnection(hole.address)
        try:
            await_answer(connection)
            breaks(hole)
            assert not answer_of(connection)
            hole.restore()
            await_answer(connection)
        finally:
            connection.close()
            process.kill()


@contextmanager
def bucket_behind(server: MinioServer) -> Iterator[tuple[BlackHole, Bucket]]:
    with black_hole(server.port) as hole:
        endpoint = f"http://{hole.address}"
        location = replace(server.new_bucket("prefix"), endpoint=endpoint)
        yield hole, Bucket(location, replace(server.access, endpoint=endpoint))


@pytest.mark.parametrize("breaks", BREAKS)
def test_a_request_on_a_dead_connection_to_a_bucket_is_sent_again_on_a_new_one(
    server: MinioServer, breaks: Break
) -> None:
    with bucket_behind(server) as (hole, bucket):
        assert bucket.put("name", b"1")
        breaks(hole)
        hole.restore()
        begun = time.monotonic()
        stored = bucket.read("name")
        assert stored is not None
        assert stored.content == b"1"
        assert time.monotonic() - begun < 2 * NOTICE_SECONDS


def test_a_bucket_that_stays_away_is_reported_and_used_again_when_it_is_back(server: MinioServer) -> None:
    with bucket_behind(server) as (hole, bucket):
        assert bucket.put("name", b"1")
        hole.drop()
        with pytest.raises(StorageUnavailable):
            bucket.read("name")
        hole.restore()
        assert bucket.size("name") == 1


@contextmanager
def slow_server() -> Iterator[tuple[int, threading.Semaphore, threading.Event]]:
    """Serve an answer at once at `/`, and one after the test at any other path."""
    asked, end = threading.Semaphore(0), threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            """Print nothing."""

        def do_GET(self) -> None:
            asked.release()
            if self.path != "/":
                end.wait()
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server.server_port, asked, end
    finally:
        end.set()
        server.shutdown()
        server.server_close()
        thread.join()


TIMEOUT = urllib3.Timeout(connect=5, read=LATE_SECONDS)


@pytest.mark.parametrize(
    "pools",
    [
        lambda: Pools(timeout=TIMEOUT, retries=False),
        lambda: restricted_pools(Networks.parse(("127.0.0.0/8",)), timeout=TIMEOUT, retries=False),
    ],
)
def test_a_request_that_waits_for_a_server_that_has_gone_ends_before_its_timeout(
    pools: Callable[[], Pools],
) -> None:
    with slow_server() as (port, asked, _), black_hole(port) as hole, pools() as client:
        failures: list[Exception] = []

        def wait_for_the_answer() -> None:
            try:
                client.request("GET", f"http://{hole.address}/slow")
            except urllib3.exceptions.HTTPError as error:
                failures.append(error)

        waiting = threading.Thread(target=wait_for_the_answer)
        waiting.start()
        assert asked.acquire(timeout=LATE_SECONDS)
        hole.drop()
        waiting.join(2 * NOTICE_SECONDS)
        assert not waiting.is_alive()
        assert len(failures) == 1
        hole.restore()
        assert client.request("GET", f"http://{hole.address}/").status == 200


def test_a_request_that_a_dead_connection_does_not_deliver_ends_before_its_timeout() -> None:
    with (
        slow_server() as (port, _, _),
        black_hole(port) as hole,
        Pools(timeout=TIMEOUT, retries=False) as client,
    ):
        url = f"http://{hole.address}/"
        assert client.request("GET", url).status == 200
        hole.drop()
        hole.restore()
        begun = time.monotonic()
        with pytest.raises(urllib3.exceptions.HTTPError):
            client.request("GET", url)
        assert time.monotonic() - begun < 2 * NOTICE_SECONDS
        assert client.request("GET", url).status == 200
