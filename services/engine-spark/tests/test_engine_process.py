"""The processes of a running engine: what they start with, and who may talk to the ports of the JVM."""

import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from odf_cli.embedded.parts.tcp_ports import allocate
from odf_common.adapters.grpc.client import require_server

PATIENCE = 120.0  # seconds
PLANTED = {
    "ODF_S3_SECRET_KEY": "planted-s3",
    "ODF_REDIS": "redis://:planted-redis@127.0.0.1:1",
    "DATABASE_URL": "postgres://planted-database@db",
    "SPARK_SUBMIT_OPTS": "-Dplanted=jvm",
    "JAVA_TOOL_OPTIONS": "-Dplanted=tool",
}
# Of Spark's scripts and of PySpark; none has a value from outside.
SPARKS_OWN = (
    *("PYTHONHASHSEED", "PWD", "OLDPWD", "SHLVL", "_"),
    *("SPARK_ENV_LOADED", "SPARK_SCALA_VERSION", "SPARK_HOME", "SPARK_CONF_DIR", "SPARK_BEELINE_OPTS"),
    *("SPARK_CONNECT_MODE", "_PYSPARK_DRIVER_CONN_INFO_PATH"),
)
OWN = ("ENGINE", "HOME", "PART", "LOG_LEVEL", "SPARK_MASTER")
OF_PROGRAMS = (
    "PATH",
    "LD_LIBRARY_PATH",
    "JAVA_HOME",
    "TMPDIR",
    "TZ",
    "TERM",
    "LANG",
    "LANGUAGE",
    "LC_ALL",
    "LC_CTYPE",
)
RPC_REQUEST = (
    3  # Spark's transport: a frame is its length, a type, a request id, the body's length, and the body
)
RPC_FAILURE = 5


@dataclass(frozen=True)
class Engine:
    pid: int
    jvm: int
    port: int


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    home = tmp_path_factory.mktemp("engine")
    port = allocate(home, ["engine"], must_keep=False)["engine"]
    variables = {
        "ODF_ENGINE": f"127.0.0.1:{port}",
        "ODF_HOME": str(home),
        "ODF_PART": "engine-spark",
        "ODF_SPARK_MASTER": "local[2]",
        "TMPDIR": str(home),
    }
    with subprocess.Popen(
        [sys.executable, "-m", "odf_engine_spark"],
        env={**os.environ, **PLANTED, **variables},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            require_server("the engine", f"127.0.0.1:{port}", PATIENCE)
            (jvm,) = [pid for pid in below(process.pid) if program(pid) == "java"]
            yield Engine(process.pid, jvm, port)
        finally:
            process.terminate()
            process.wait(PATIENCE)
    assert list(home.glob("odf-spark-*")) == [], "results are in there"


def below(pid: int) -> list[int]:
    """Return the descendants of a process, without those that end meanwhile."""
    try:
        children = [
            int(child)
            for thread in Path(f"/proc/{pid}/task").iterdir()
            for child in (thread / "children").read_text().split()
        ]
    except (FileNotFoundError, ProcessLookupError):
        return []
    return children + [deeper for child in children for deeper in below(child)]


def program(pid: int) -> str | None:
    try:
        return Path(f"/proc/{pid}/exe").readlink().name
    except FileNotFoundError:  # ended since: a JVM starts short-lived programs
        return None


def environment(pid: int) -> Mapping[str, str]:
    entries = Path(f"/proc/{pid}/environ").read_text().split("\0")
    return {name: value for name, _, value in (entry.partition("=") for entry in entries if entry)}


def listening(pid: int) -> set[int]:
    """Return the ports on which a process listens, by the kernel's own tables."""
    names = []
    for handle in Path(f"/proc/{pid}/fd").iterdir():
        try:
            names.append(str(handle.readlink()))
        except FileNotFoundError:  # closed since
            continue
    rows = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]
    ]
    return {
        int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in names
    }


def test_the_processes_of_an_engine_start_with_the_listed_variables_only(engine: Engine) -> None:
    python, jvm = environment(engine.pid), environment(engine.jvm)
    settings = {"ODF_ENGINE", "ODF_HOME", "ODF_PART", "ODF_SPARK_MASTER"}
    assert python.keys() - {*OF_PROGRAMS, "PYTHONPATH", "PYTHONUNBUFFERED"} == settings
    assert jvm.keys() - {*OF_PROGRAMS, *SPARKS_OWN} == {"ODF_HOME", "ODF_PART"}


def test_no_argument_of_an_engine_has_a_secret(engine: Engine) -> None:
    for pid in (engine.pid, engine.jvm):
        arguments = Path(f"/proc/{pid}/cmdline").read_text()
        assert "planted" not in arguments
        assert "secret" not in arguments.lower()


def test_every_port_of_the_jvm_refuses_a_peer_without_its_secret(engine: Engine) -> None:
    ports = listening(engine.jvm)
    refusals = [answer for port in ports if (answer := asked(port)) is not None]
    assert len(ports) == 3, "the driver, its block manager, and the gateway of PySpark"
    assert sum(b"SASL" in refusal for refusal in refusals) == 2
    assert sum(b"Authentication error" in refusal for refusal in refusals) == 1


def asked(port: int) -> bytes | None:
    """Return what a port answers to a request of Spark's transport, or to one of the gateway if it answers that."""
    body = b"\x00nobody"
    request = struct.pack(">BqI", RPC_REQUEST, 1, len(body)) + body
    spark = exchange(port, struct.pack(">q", 8 + len(request)) + request)
    return spark or exchange(port, b"c\nj\nexit\ne\n")


def exchange(port: int, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=2) as connection:
        connection.sendall(request)
        answer = b""
        try:
            while part := connection.recv(4096):
                answer += part
        except (TimeoutError, ConnectionError):
            pass
        return answer
