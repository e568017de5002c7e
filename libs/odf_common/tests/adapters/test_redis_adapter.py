import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from odf_testing.contracts import LocksContract, StateCacheContract
from odf_testing.redis import MemoryLocks

from odf_cli.embedded.credentials import with_redis
from odf_cli.embedded.parts.kafka_redis import redis_part, redis_server
from odf_cli.embedded.parts.tcp_ports import allocate
from odf_common.adapters.redis import RedisConnection, RedisLocks, RedisStateCache
from odf_common.identity.dataset_refs import DatasetId
from odf_common.service.connections import redis_connection
from odf_common.service.settings import Settings, child_environment

DATASET = DatasetId.of_key(bytes(32))
PREFIX = "staging."


Server = tuple["subprocess.Popen[bytes]", RedisConnection]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    port = allocate(tmp_path, ("redis",))["redis"]
    command = (redis_server(child_environment()), "--port", str(port), "--save", "", "--dir", str(tmp_path))
    with running(command, RedisConnection(f"127.0.0.1:{port}")) as started:
        yield started


@pytest.fixture
def node_server(tmp_path: Path) -> Iterator[Server]:
    """The Redis of `odf up`, whose user is limited to what the node needs."""
    port = allocate(tmp_path, ("redis",))["redis"]
    part = redis_part(tmp_path, port, child_environment(), prefix=PREFIX)
    settings = with_redis(Settings(home=tmp_path, kafka_prefix=PREFIX), f"127.0.0.1:{port}")
    with running(part.command, redis_connection(settings)) as started:
        yield started


@contextmanager
def running(command: tuple[str, ...], connection: RedisConnection) -> Iterator[Server]:
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 10
        while not connection.ask(lambda client: bool(client.ping()), otherwise=False):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        yield process, connection
        connection.close()
        process.kill()


class TestRedisLocks(LocksContract):
    @pytest.fixture
    def locks(self, server: Server) -> RedisLocks:
        return RedisLocks(server[1])


class TestLocksOfTheNodeSRedis(LocksContract):
    @pytest.fixture
    def locks(self, node_server: Server) -> RedisLocks:
        return RedisLocks(node_server[1])


class TestMemoryLocks(LocksContract):
    @pytest.fixture
    def locks(self) -> MemoryLocks:
        return MemoryLocks(time.monotonic)


class TestRedisStateCache(StateCacheContract):
    @pytest.fixture
    def cache(self, server: Server) -> RedisStateCache:
        return RedisStateCache(server[1])


class TestStateCacheOfTheNodeSRedis(StateCacheContract):
    @pytest.fixture
    def cache(self, node_server: Server) -> RedisStateCache:
        return RedisStateCache(node_server[1])


def test_a_lock_left_in_the_node_s_redis_expires(node_server: Server) -> None:
    connection = node_server[1]
    connection.client.set(f"{PREFIX}odf:lock:{DATASET}", "of a process long gone")
    assert RedisLocks(connection).acquire(DATASET, 50) is None
    assert 0 < connection.client.pttl(f"{PREFIX}odf:lock:{DATASET}") <= 50


def test_without_redis_locks_are_granted_and_no_state_is_cached(server: Server) -> None:
    process, connection = server
    cache, locks = RedisStateCache(connection), RedisLocks(connection)
    cache.put(DATASET, b"state")
    assert cache.get(DATASET) == b"state"
    held = locks.acquire(DATASET, 5000)
    process.kill()
    process.wait()
    assert cache.get(DATASET) is None
    cache.put(DATASET, b"other")
    assert held is not None
    held.release()
    assert locks.acquire(DATASET, 5000) is not None


@pytest.mark.parametrize("left_ms", [None, 3_600_000])
def test_a_lock_left_without_a_ttl_expires_like_any_other(server: Server, left_ms: int | None) -> None:
    connection = server[1]
    connection.client.set(f"odf:lock:{DATASET}", "of a process long gone", px=left_ms)
    locks = RedisLocks(connection)

    assert locks.acquire(DATASET, 50) is None

    time.sleep(0.1)
    assert locks.acquire(DATASET, 50) is not None


def test_a_key_of_another_type_disables_the_cache_of_its_dataset_only(server: Server) -> None:
    connection = server[1]
    other = DatasetId.of_key(bytes(31) + b"1")
    cache, locks = RedisStateCache(connection), RedisLocks(connection)
    cache.put(other, b"state")
    connection.client.lpush(f"odf:state:{DATASET}", "odd")

    assert cache.get(DATASET) is None
    assert cache.get(other) == b"state"
    assert locks.acquire(DATASET, 5000) is not None
    assert locks.acquire(DATASET, 5000) is None


def test_nodes_with_different_prefixes_share_neither_locks_nor_states(server: Server, tmp_path: Path) -> None:
    address = "127.0.0.1:{port}".format(**server[1].client.get_connection_kwargs())
    nodes = [Settings(home=tmp_path, redis=address, kafka_prefix=prefix) for prefix in ("", "staging.")]
    ours, theirs = (redis_connection(settings) for settings in nodes)
    for connection in (ours, theirs):
        RedisStateCache(connection).put(DATASET, f"of {connection.prefix}".encode())

    assert [RedisStateCache(one).get(DATASET) for one in (ours, theirs)] == [b"of ", b"of staging."]
    assert [RedisLocks(one).acquire(DATASET, 5000) is None for one in (ours, theirs)] == [False, False]
    assert RedisLocks(theirs).acquire(DATASET, 5000) is None
    keys = {f"{prefix}odf:{kind}:{DATASET}" for prefix in ("", "staging.") for kind in ("lock", "state")}
    assert {key.decode() for key in ours.client.scan_iter()} == keys

    RedisStateCache(theirs).forget(DATASET)
    assert RedisStateCache(ours).get(DATASET) == b"of "
    ours.close()
    theirs.close()
