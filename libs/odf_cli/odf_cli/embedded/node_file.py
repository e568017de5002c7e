"""`node.json` in the home: addresses and processes of the running node. Its supervisor writes it, commands read it."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, cast

from odf_cli.embedded.credentials import with_kafka, with_redis
from odf_common.adapters.local.secrets import HomeOfAnotherUser
from odf_common.errors import Unavailable
from odf_common.resources.secret_text import without_password
from odf_common.service.settings import Settings

FILE: Final = "node.json"
_ADDRESSES: Final = ("kafka", "kafka_sasl", "kafka_client_file", "redis", "engine", "http", "views")
ADVICE: Final = "start one with `odf up --detach`"


class NoNode(Unavailable):
    """No node is running for this home."""

    MESSAGE = "no node is running for {what}"

    def advice(self) -> str:
        """Return the advice to start a node."""
        return ADVICE


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One process of the node, or a server that it uses.

    A supervisor reports the states starting, ready, unresponsive (running, but does not answer), failed (the operating
    system refuses to start it), restarting, foreground and stopped. `located_node` adds unreachable (services cannot
    reach it) and degraded (it cannot reach what it needs). Without a supervisor, a part is ready or unreachable.
    """

    name: str
    pid: int | None
    state: str
    since: str | None = None
    problem: str | None = None
    """The reason for the state, if known."""
    remedy: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node: addresses are `host:port`, but `http` and `views` are URLs; None if the node does not have the part."""

    home: Path
    pid: int
    kafka: str | None = None
    kafka_sasl: str | None = None
    """The address of the embedded Kafka for clients with credentials; equal to `kafka` if all clients need some."""
    kafka_client_file: str | None = None
    """The property file for producers with credentials, such as Kafka's `client.properties`."""
    redis: str | None = None
    engine: str | None = None
    http: str | None = None
    views: str | None = None
    grpc: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, str] = field(default_factory=dict)
    services: tuple[Part, ...] = ()
    parts: tuple[Part, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the node as a JSON object."""
        return {**asdict(self), "home": str(self.home)}

    def addresses(self) -> dict[str, object]:
        """Return the home and the addresses to show to users.

        With Kafka's property file if all clients need credentials.
        """
        shown = {"home": str(self.home), "kafka": self.kafka}
        if self.kafka is not None and self.kafka == self.kafka_sasl:
            shown["kafka client"] = self.kafka_client_file
        return {**shown, "redis": self.redis, "engine": self.engine, "http": self.http, "views": self.views}

    def log(self, part: str) -> Path:
        """Return the log file of a part, which the supervisor writes."""
        return self.home / "logs" / f"{part}.log"

    def address(self, service: str) -> str:
        """Return the gRPC address of a service; raises `Unavailable` if this node does not run it."""
        address = self.grpc.get(service)
        if address is None:
            raise Unavailable(what=service, why="this node does not run it")
        return address


def read_node(home: Path) -> Node:
    """Return the running node of a home; raises `NoNode`, or `HomeOfAnotherUser` if the home is not readable."""
    try:
        raw = json.loads((home / FILE).read_bytes())
    except PermissionError as error:
        raise HomeOfAnotherUser.at(home) from error
    except (FileNotFoundError, NotADirectoryError, json.JSONDecodeError) as error:
        raise NoNode(what=str(home)) from error
    node = _from_json(raw)
    if not is_running(node.pid):
        raise NoNode(what=str(home))
    return node


def find_node(settings: Settings) -> Node:
    """Return a node with addresses from the settings, or else from the running node of the home; raises `NoNode`.

    If a node runs on several machines, there is no `node.json`: the settings must then have all addresses that are
    used.
    """
    configured = {
        name: address
        for name in ("coordinator", "ingest", "verifier", "sync")
        if (address := getattr(settings, f"{name}_grpc")) is not None
    }
    try:
        node = read_node(settings.home)
    except NoNode:
        if not configured:
            raise
        node = Node(home=settings.home, pid=os.getpid())
    merged = asdict(node) | {
        "grpc": {**node.grpc, **configured},
        "kafka": settings.kafka or node.kafka,
        "kafka_sasl": None if settings.kafka else node.kafka_sasl,
        "kafka_client_file": None if settings.kafka else node.kafka_client_file,
        "redis": without_password(settings.redis) if settings.redis else node.redis,
        "engine": settings.engine or node.engine,
        "http": settings.http_url or node.http,
        "views": f"http://{settings.views_http}" if settings.views_http else node.views,
        "services": node.services,
        "parts": node.parts,
    }
    return Node(**merged)


def client_settings_for(settings: Settings, node: Node) -> Settings:
    """Return settings with the addresses and credentials of the Kafka and Redis that the running node uses."""
    if settings.kafka is None:
        sasl = node.kafka_sasl
        settings = replace(settings, kafka=node.kafka) if sasl is None else with_kafka(settings, sasl)
    if settings.redis is None and node.redis is not None:
        is_embedded = any(part.name == "redis" for part in node.parts)
        settings = with_redis(settings, node.redis) if is_embedded else replace(settings, redis=node.redis)
    return settings


def write_node(node: Node) -> None:
    """Replace `node.json` atomically: readers see either the old or the new file."""
    temporary = node.home / f".{FILE}.{os.getpid()}"
    temporary.write_text(json.dumps(node.to_json(), indent=2) + "\n")
    temporary.replace(node.home / FILE)


def forget_node(home: Path) -> None:
    """Delete `node.json`."""
    (home / FILE).unlink(missing_ok=True)


def is_running(pid: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


def _from_json(raw: Mapping[str, Any]) -> Node:
    def parts(name: str) -> tuple[Part, ...]:
        return tuple(
            Part(
                name=part["name"],
                pid=part["pid"],
                state=part["state"],
                since=part.get("since"),
                problem=part.get("problem"),
                remedy=part.get("remedy"),
            )
            for part in raw[name]
        )

    addresses = {key: raw.get(key) for key in _ADDRESSES}
    return Node(
        home=Path(raw["home"]),
        pid=raw["pid"],
        grpc=raw["grpc"],
        metrics=raw["metrics"],
        services=parts("services"),
        parts=parts("parts"),
        **cast("dict[str, str | None]", addresses),
    )
