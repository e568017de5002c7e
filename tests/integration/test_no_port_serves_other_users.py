"""Every port of a node, found in the kernel's own table, as another user of the machine."""

import os
import re
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from odf_testing.embedded import EmbeddedNode
from odf_testing.story import APPEND, Story, root
from odf_testing.stranger import CLOSED, NOBODY, Request, Seen, methods, see

from odf_common.service.settings import child_environment

COLUMNS = ("id BIGINT", "at TIMESTAMP(3)", "note STRING")
VALUE = "a value that only its owner may read"
RECORD = f'{{"id": 1, "at": "2026-01-01T00:00:00Z", "note": "{VALUE}"}}'
METRIC = "odf_messages_total"
COMMAND = f"""
import encodings.idna, os, pwd
import odf_cli.commands.list
from odf_cli.main import main
os.setresuid({NOBODY}, {NOBODY}, {NOBODY})
raise SystemExit(main(["list"]))
"""


@dataclass(frozen=True)
class Port:
    """A port on which a process of the node listens."""

    address: tuple[str, int]
    part: str


def ports_of(node: EmbeddedNode) -> list[Port]:
    """Return all ports on which the supervisor and its descendants listen."""
    listening = dict(listening_sockets())
    found: list[Port] = []
    for pid in descendants(node.node.pid):
        with suppress(FileNotFoundError, ProcessLookupError):  # a process that has ended listens on none
            part = environment_of(pid).get("ODF_PART", "supervisor")
            inodes = sockets_of(pid) & listening.keys()
            found += [Port(address=listening[inode], part=part) for inode in inodes]
    return found


def listening_sockets() -> Iterator[tuple[int, tuple[str, int]]]:
    """Yield the inode and the address of each TCP socket that listens."""
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            _, local, _, state, _, _, _, _, _, inode, *_ = line.split()
            if state == "0A":
                yield int(inode), address_of(local)


def address_of(text: str) -> tuple[str, int]:
    host, _, port = text.partition(":")
    words = [int(host[start : start + 8], 16) for start in range(0, len(host), 8)]
    raw = struct.pack(f"={len(words)}I", *words)
    # JVMs take connections over IPv4 by sockets of IPv6.
    raw = raw.removeprefix(bytes(10) + b"\xff\xff")
    return socket.inet_ntop(socket.AF_INET if len(raw) == 4 else socket.AF_INET6, raw), int(port, 16)


def descendants(pid: int) -> Iterator[int]:
    yield pid
    children: list[str] = []
    with suppress(FileNotFoundError, ProcessLookupError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            children += (task / "children").read_text().split()
    for child in children:
        yield from descendants(int(child))


def sockets_of(pid: int) -> set[int]:
    links = [str(file.readlink()) for file in Path(f"/proc/{pid}/fd").iterdir() if file.is_symlink()]
    return {int(link[8:-1]) for link in links if link.startswith("socket:[")}


def environment_of(pid: int) -> Mapping[str, str]:
    entries = Path(f"/proc/{pid}/environ").read_text().split("\0")
    return dict(entry.partition("=")[::2] for entry in entries)


def grpc_is_closed(port: Port, seen: Seen, _: Iterable[str]) -> bool:
    if not seen["grpc"]:
        return False
    assert seen["grpc"] == {method: "UNAUTHENTICATED" for method, _ in methods()}, port
    return True


def http_shows_what_is_public(port: Port, seen: Seen, private: Iterable[str]) -> bool:
    if not seen["http"]:
        return False
    for status, body in seen["http"]:
        assert not [text for text in private if text in body], (port, body)
        assert status < 300 or 400 <= status < 500, (port, status)
    assert all(status >= 400 for status, _ in seen["http"][-WRITES:]), (port, seen["http"])
    return True


def redis_asks_for_a_password(port: Port, seen: Seen, _: Iterable[str]) -> bool:
    if not seen["redis"]:
        return False
    assert seen["redis"].startswith("-NOAUTH"), port
    return True


def kafka_tells_of_push_topics_only(port: Port, seen: Seen, _: Iterable[str]) -> bool:
    """What else a client without credentials may do there, a story of its own tells."""
    if not seen["kafka"]:
        return False
    # Whole names only: the first bytes of a long answer may end within one.
    topics = re.findall(r"(?:odf\.[\w.-]+|__\w+)(?=[^\w.-])", seen["kafka"])
    assert not [topic for topic in topics if not topic.startswith("odf.push.")], port
    assert topics or seen["kafka"] == CLOSED, port
    return True


def spark_answers_nothing(port: Port, seen: Seen, _: Iterable[str]) -> bool:
    """Between the engine's Python and its JVM, which know each other by tokens, and between parts of Spark."""
    if port.part != "engine-spark" or seen["grpc"] or seen["http"]:
        return False
    assert not seen["other"].startswith("!y"), (port, seen)
    return True


PROTOCOLS: tuple[Callable[[Port, Seen, Iterable[str]], bool], ...] = (
    grpc_is_closed,
    http_shows_what_is_public,
    redis_asks_for_a_password,
    kafka_tells_of_push_topics_only,
    spark_answers_nothing,
)
WRITES = 4  # at the end of the requests


def requests_for(dataset: str) -> list[Request]:
    reads = [
        *("/metrics", "/datasets", "/health", "/search?q=private"),
        *(f"/{dataset}/{path}" for path in ("tail", "refs/head", "events", "metadata", "pull")),
    ]
    writes = [
        ("POST", f"/{dataset}/ingest", RECORD),
        ("PUT", f"/{dataset}/refs/head", "f1620" + "00" * 32),
        ("PUT", f"/{dataset}/data/f1620" + "00" * 32, "x"),
        ("POST", "/platform/login", "{}"),
    ]
    assert len(writes) == WRITES
    return [*(("GET", path, "") for path in reads), *writes]


@pytest.fixture
def hidden(story: Story) -> str:
    """A private dataset with a record."""
    story.add(root("private.orders", COLUMNS, merge=APPEND, event_time="at"))
    story.node.run("ingest private.orders - --input-format ndjson", stdin=RECORD.encode())
    story.node.run("access set private.orders --visibility private")
    return "private.orders"


def test_no_port_of_a_single_tenant_node_serves_another_user(node: EmbeddedNode, hidden: str) -> None:
    ports = ports_of(node)
    private = (str(Story(node).summary(hidden)["id"]), VALUE, METRIC)
    require_closed(ports, see([port.address for port in ports], requests_for(hidden)), private)
    own = see([port.address for port in ports], requests_for(hidden), user=os.geteuid())
    shown = [text for seen in own.values() for _, body in seen["http"] for text in private if text in body]
    assert set(shown) == set(private), "the same requests tell its own user"


def require_closed(ports: Iterable[Port], answers: Mapping[int, Seen], private: Iterable[str]) -> None:
    parts = {port.part for port in ports}
    assert {"ingest", "coordinator", "verifier", "sync", "views"} <= parts
    for port in ports:
        assert port.address[0] == "127.0.0.1", f"{port} is open to other machines"
        known = [protocol for protocol in PROTOCOLS if protocol(port, answers[port.address[1]], private)]
        assert len(known) == 1, f"{port} is unknown: {answers[port.address[1]]}"


@pytest.mark.parametrize(
    ("has_own_home", "text"), [(False, "belongs to another user"), (True, "the call lacks its secret")]
)
def test_a_command_of_another_user_says_what_is_missing(
    node: EmbeddedNode, has_own_home: bool, text: str
) -> None:
    home = "/nowhere" if has_own_home else str(node.home)
    addresses = {"ODF_COORDINATOR_GRPC": node.node.grpc["coordinator"]} if has_own_home else {}
    environment = {**child_environment(), "ODF_HOME": home, **addresses}
    done = subprocess.run(
        [sys.executable, "-c", COMMAND],
        capture_output=True,
        text=True,
        env=environment,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert text in done.stderr
    assert "hint: run " in done.stderr
