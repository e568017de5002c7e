"""Checks before a node starts: the home is writable, addresses are free, Kafka and Redis answer."""

import contextlib
import errno
import os
import socket
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from odf_common.adapters.kafka.admin import KafkaTopics
from odf_common.errors import OdfError, Unavailable
from odf_common.metadata.scalars import Timestamp
from odf_common.service.settings import Settings
from odf_common.service.topic_claim import claim_topics, require_original

CONNECT_SECONDS: Final = 2.0
ANSWER_SECONDS: Final = 5.0


@dataclass(eq=False, kw_only=True)
class HomeUnusable(OdfError):
    """The folder $ODF_HOME is not writable."""

    home: Path
    why: str

    def __str__(self) -> str:
        """Return which folder, and why."""
        return f"the home {self.home} cannot be written: {self.why}"

    def advice(self) -> str:
        """Return how to choose another."""
        return "set ODF_HOME to a folder that this user can write to"


@dataclass(eq=False, kw_only=True)
class AddressTaken(OdfError):
    """A part of the node cannot listen on its configured address."""

    variable: str
    address: str
    why: str

    def __str__(self) -> str:
        """Return which setting, which address, and why."""
        return f"{self.variable}={self.address}: {self.why}"

    def advice(self) -> str:
        """Return what to change."""
        return f"stop the process that listens there, or set {self.variable} to another address"


@dataclass(eq=False, kw_only=True)
class NotReachable(Unavailable):
    """A configured server does not answer."""

    variable: str
    address: str

    def __str__(self) -> str:
        """Return which server, its address, the setting, and why."""
        return f"{self.what} cannot be reached at {self.address}, which {self.variable} names: {self.why}"

    def advice(self) -> str:
        """Return what to check."""
        return (
            f"check the address and that {self.what} is running; without {self.variable}, odf starts its own"
        )


def require_home(home: Path) -> None:
    """Raise `HomeUnusable` unless files can be created in the home; a missing home is created."""
    probe = home / f".writable-{uuid.uuid4().hex}"
    try:
        (home / "logs").mkdir(parents=True, exist_ok=True)
        probe.touch()
    except OSError as error:
        raise HomeUnusable(home=home, why=error.strerror or str(error)) from error
    finally:
        with contextlib.suppress(OSError):
            probe.unlink()


def require_free(addresses: Mapping[str, str]) -> None:
    """Raise `AddressTaken` unless a server can listen on each address; the keys are the settings' variables."""
    for variable, address in addresses.items():
        try:
            family, kind, protocol, _, at = socket.getaddrinfo(*split(address), type=socket.SOCK_STREAM)[0]
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(at)
                probe.listen(1)
        except OSError as error:
            why = error.strerror or str(error)
            if error.errno == errno.EADDRINUSE:
                why = "another process listens there"
            elif error.errno == errno.EADDRNOTAVAIL:
                why = "not an address of this machine"
            raise AddressTaken(variable=variable, address=address, why=why) from error


def require_kafka(settings: Settings, *, is_taking_over: bool = False) -> None:
    """Raise `NotReachable` unless Kafka answers, `TopicsTaken` or `HomeCopied` unless its topics are this node's.

    Takes about ten seconds at most.
    """
    address = settings.required("kafka")
    require_connected("Kafka", "ODF_KAFKA", address, address.split(","))
    try:
        KafkaTopics(address).require_answer(ANSWER_SECONDS)
    except Unavailable as error:
        why = f"a server is listening there, but it does not answer as Kafka does ({error.why})"
        raise NotReachable(what="Kafka", variable="ODF_KAFKA", address=address, why=why) from error
    now = Timestamp.from_ms(time.time_ns() // 1_000_000)
    try:
        owner = claim_topics(settings, now, is_taking_over=is_taking_over)
    except Unavailable as error:
        why = f"{error.why}; check its advertised.listeners"
        raise NotReachable(what="Kafka", variable="ODF_KAFKA", address=address, why=why) from error
    if not is_taking_over:
        require_original(settings.home, owner)


def require_redis(address: str) -> None:
    """Raise `NotReachable` unless Redis's address accepts a connection; Unix sockets are not checked."""
    if address.startswith("unix://"):
        return
    if "://" in address:
        url = urlsplit(address)
        host = url.hostname or "localhost"
        shown = f"[{host}]:{url.port or 6379}" if ":" in host else f"{host}:{url.port or 6379}"
    else:
        shown = address
    require_connected("Redis", "ODF_REDIS", shown, [shown])


def require_connected(what: str, variable: str, shown: str, addresses: list[str]) -> None:
    """Raise `NotReachable` unless one of the first three addresses accepts a connection."""
    why = ""
    for address in addresses[:3]:
        try:
            socket.create_connection(split(address), CONNECT_SECONDS).close()
        except TimeoutError:
            why = f"no answer within {CONNECT_SECONDS:g} s"
        except OSError as error:
            number = error.errno or 0  # negative: name resolution failed
            why = os.strerror(number) if number > 0 else error.strerror or str(error)
        else:
            return
    raise NotReachable(what=what, variable=variable, address=shown, why=why)


def split(address: str) -> tuple[str, int]:
    """Return host and port of `host:port`; an IPv6 address is in brackets."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)
