"""Redis, a bucket and HTTP servers over a network that breaks without a word: no call meets a dead connection twice."""

import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import urllib3
from odf_testing.black_hole import BlackHole, black_hole
from odf_testing.minioserver import MinioServer

from odf_cli.embedded.parts.kafka_redis import redis_server
from odf_cli.embedded.parts.tcp_ports import allocate
from odf_common.adapters.networks import Networks, Pools, restricted_pools
from odf_common.adapters.redis import RedisConnection
from odf_common.adapters.s3.bucket import Bucket
from odf_common.errors import StorageUnavailable
from odf_common.service.settings import child_environment

LATE_SECONDS = 60.0
NOTICE_SECONDS = 10.0  # until a dead connection is closed
Break = Callable[[BlackHole], None]
BREAKS: tuple[Break, ...] = (BlackHole.swallow, BlackHole.drop)


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
