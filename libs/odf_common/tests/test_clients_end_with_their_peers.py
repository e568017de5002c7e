"""Every client of a server is made where its timeouts and the checks of its peer are, and nowhere else.

A connection that was made elsewhere would wait for a peer that has gone as long as its library does by default: a quarter
of an hour for most of them.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from odf_common.adapters import networks
from odf_common.adapters.grpc import client
from odf_common.adapters.kafka import client_config
from odf_common.adapters.kafka.quiet_partitions import QuietLimits
from odf_common.adapters.redis import REDIS_TIMEOUT_SECONDS
from odf_common.adapters.s3.bucket import READ_SECONDS
from odf_coordinator.resources.sql_database import STATEMENT_SECONDS

ROOT = Path(__file__).parents[3]
PACKAGES = sorted([*ROOT.glob("libs/*/odf_*"), *ROOT.glob("services/*/odf_*")])
ADAPTERS = "odf_common/adapters"
# What makes a client or a server, by the last part of its name, and the modules that may.
HOMES = {
    # gRPC
    "insecure_channel": {f"{ADAPTERS}/grpc/client.py"},
    "secure_channel": {f"{ADAPTERS}/grpc/client.py"},
    "aio.server": set(),
    "grpc.server": {f"{ADAPTERS}/grpc/server.py"},
    # Kafka
    "AdminClient": {f"{ADAPTERS}/kafka/client_config.py"},
    "Consumer": {f"{ADAPTERS}/kafka/client_config.py"},
    "Producer": {f"{ADAPTERS}/kafka/client_config.py"},
    "faust.App": {"odf_coordinator/views/app.py"},
    # Redis, buckets, HTTP
    "Redis": set(),
    "Redis.from_url": {f"{ADAPTERS}/redis.py"},
    "Minio": set(),
    "PoolManager": set(),
    "HTTPConnectionPool": set(),
    "HTTPSConnectionPool": set(),
    "ProxyManager": set(),
    # PostgreSQL
    "create_engine": {"odf_coordinator/resources/sql_database.py"},
    "_Bounded.connect": {"odf_coordinator/resources/sql_database.py"},
    "psycopg.connect": set(),
    # Besides those of the two adapters, they ask this machine's kernel, or whether a server listens, or connect a
    # service with its own JVM.
    "open_connection": {"odf_common/service/probes.py", "odf_coordinator/views/app.py"},
    "socket.socket": {
        f"{ADAPTERS}/networks.py",
        f"{ADAPTERS}/socket_users.py",
        "odf_cli/embedded/checks.py",
        "odf_cli/embedded/parts/tcp_ports.py",
        "odf_engine_spark/server/service.py",
        "odf_engine_spark/spark/jvm.py",
    },
    "FTP": set(),
}
# What may be made anywhere with these arguments.
ARGUMENTS = {
    "ClientSession": {"connector"},
    "TCPConnector": {"socket_factory"},
    "create_connection": {"timeout"},
    "urlopen": {"timeout"},
}
# A subclass has the constructor of its base.
BASES = {
    "Minio": {f"{ADAPTERS}/s3/bucket.py"},
    "PoolManager": {f"{ADAPTERS}/networks.py"},
    "FTP": {"odf_ingest/poll/fetch/ftp.py"},
    "HTTPConnection": {f"{ADAPTERS}/networks.py"},
    "HTTPSConnection": {f"{ADAPTERS}/networks.py"},
    "HTTPConnectionPool": {f"{ADAPTERS}/networks.py"},
    "HTTPSConnectionPool": {f"{ADAPTERS}/networks.py"},
}
LIBRARIES = {
    "requests",
    "httpx",
    "websockets",
    "boto3",
    "botocore",
    "aioboto3",
    "paho",
    "smtplib",
}


def named(expression: ast.expr, names: set[str]) -> str | None:
    """Return which of these names an expression ends with."""
    text = ast.unparse(expression)
    return max((name for name in names if text == name or text.endswith(f".{name}")), key=len, default=None)


def faults(module: str, tree: ast.AST) -> Iterator[str]:
    """Yield what a module makes that it may not."""
    for node in ast.walk(tree):
        match node:
            case ast.Call():
                yield from faults_of_call(module, node)
            case ast.ClassDef(bases=bases):
                names = [name for base in bases if (name := named(base, set(BASES))) is not None]
                yield from (f"{module} derives from {name}" for name in names if module not in BASES[name])
            case ast.Import(names=imported):
                yield from (f"{module} imports {one.name}" for one in imported if one.name in LIBRARIES)
            case ast.ImportFrom(module=str(source)) if source.partition(".")[0] in LIBRARIES:
                yield f"{module} imports {source}"
            case _:
                pass


def faults_of_call(module: str, call: ast.Call) -> Iterator[str]:
    if (name := named(call.func, set(HOMES))) is not None and module not in HOMES[name]:
        yield f"{module} makes {name}"
    if (name := named(call.func, set(ARGUMENTS))) is not None:
        # The second argument of `create_connection` is its timeout, too.
        given = {keyword.arg for keyword in call.keywords} | ({"timeout"} if len(call.args) > 1 else set())
        if ARGUMENTS[name] - given:
            yield f"{module} makes {name} without {', '.join(ARGUMENTS[name])}"


def modules() -> Iterator[tuple[str, ast.AST]]:
    for package in PACKAGES:
        for file in sorted(package.rglob("*.py")):
            if "proto" not in file.parts:
                yield file.relative_to(package.parent).as_posix(), ast.parse(file.read_text("utf-8"))


def test_no_module_makes_a_client_that_would_wait_for_a_peer_that_has_gone() -> None:
    assert [fault for module, tree in modules() for fault in faults(module, tree)] == []


def test_each_home_still_makes_what_it_is_the_home_of() -> None:
    made: dict[str, set[str]] = defaultdict(set)
    for module, tree in modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and (name := named(node.func, set(HOMES))) is not None:
                made[name].add(module)
    assert made == {name: homes for name, homes in HOMES.items() if homes}


def test_what_notices_a_dead_peer_takes_less_than_ten_seconds() -> None:
    kernel = networks.FIRST_PROBE_SECONDS + networks.MAX_LOST_PROBES * networks.NEXT_PROBE_SECONDS
    waits_ms = {
        "gRPC": client.PING_EVERY_MS + client.PING_TIMEOUT_MS,
        "gRPC, a new connection": client.CONNECT_MS,
        "Kafka": client_config.FETCH_WAIT_MS + client_config.ANSWER_MS,
        "Kafka, quiet partitions": QuietLimits().fetch_wait_ms + client_config.ANSWER_MS,
        "Kafka, a new connection": client_config.CONNECT_MS,
        "Kafka, idle": client_config.IDLE_MS,
        "PostgreSQL": STATEMENT_SECONDS * 1000,
        "Redis": REDIS_TIMEOUT_SECONDS * 1000,
        "a bucket": READ_SECONDS * 1000,
        "an idle socket": kernel * 1000,
        "a socket": networks.UNACKNOWLEDGED_MS,
    }
    assert {name: ms for name, ms in waits_ms.items() if ms > 10_000} == {}


def test_a_client_that_is_made_elsewhere_is_found() -> None:
    text = """
import requests
from httpx import Client
grpc.aio.insecure_channel("a:1")
confluent_kafka.Consumer({})
redis.Redis("a")
aiohttp.ClientSession()
socket.create_connection(("a", 1))
class Pool(urllib3.PoolManager): ...
"""
    assert [fault.partition(" ")[2] for fault in faults("odf_sync/new.py", ast.parse(text))] == [
        "imports requests",
        "imports httpx",
        "derives from PoolManager",
        "makes insecure_channel",
        "makes Consumer",
        "makes Redis",
        "makes ClientSession without connector",
        "makes create_connection without timeout",
    ]
