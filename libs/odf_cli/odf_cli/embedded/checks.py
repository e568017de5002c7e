"""Checks before a node starts: the home is writable, addresses are free, Kafka, Redis and the bucket answer."""

import contextlib
import errno
import os
import socket
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from odf_common.adapters.kafka.admin import KafkaTopics
from odf_common.adapters.local import durable
from odf_common.errors import Conflict, InvalidInput, Unavailable
from odf_common.ports.bus import FIXED_TOPICS, NODE_CLAIMS
from odf_common.resources.secret_text import without_password
from odf_common.service.connections import kafka_cluster, redis_connection, s3_access
from odf_common.service.node_home import claim_topics, require_original
from odf_common.service.settings import Settings

STORE: Final = "store"  # the file of a home that names where its datasets are
HOME_STORE: Final = "its folder"
PROBE_CONNECT_SECONDS: Final = 2.0
ANSWER_SECONDS: Final = 5.0


class HomeUnusable(InvalidInput):
    """The folder $ODF_HOME is not writable."""

    MESSAGE = "the home {home} cannot be written: {why}"
    ADVICE = "set ODF_HOME to a folder that this user can write to"

    home: Path
    why: str


class AddressTaken(Conflict):
    """A part of the node cannot listen on its configured address."""

    MESSAGE = "{variable}={address}: {why}"
    ADVICE = "stop the process that listens there, or set {variable} to another address"

    variable: str
    address: str
    why: str


class NotReachable(Unavailable):
    """A configured server does not answer."""

    MESSAGE = "{what} cannot be reached at {address}, which {variable} names: {why}"
    ADVICE = "check the address and that {what} is running; without {variable}, odf starts its own"

    variable: str
    address: str


class StoreChanged(InvalidInput):
    """ODF_STORE does not name the store that contains the datasets of this home."""

    MESSAGE = "the datasets of this home are in {used}, and ODF_STORE names {configured}"

    used: str
    configured: str

    def advice(self) -> str:
        """Return the advice with both possible fixes."""
        return (
            f"set ODF_STORE as before, or copy all objects to the new place and then remove $ODF_HOME/{STORE}"
        )


def require_home(home: Path) -> None:
    """Raise `HomeUnusable` unless files can be created in the home. A missing home is created, for its owner only."""
    probe = home / f".writable-{uuid.uuid4().hex}"
    try:
        # Data that is private on the node is so for users of its machine, too.
        os.makedirs(home, 0o700, exist_ok=True)  # noqa: PTH103 - Path.mkdir gives the error of a parent another name
        (home / "logs").mkdir(exist_ok=True)
        probe.touch()
    except OSError as error:
        raise HomeUnusable(home=home, why=error.strerror or str(error)) from error
    finally:
        with contextlib.suppress(OSError):
            probe.unlink()


def require_free(addresses: Mapping[str, str]) -> None:
    """Raise `AddressTaken` unless a server can listen on each address; the keys are the variables of the settings."""
    for variable, address in addresses.items():
        try:
            family, kind, protocol, _, sockaddr = socket.getaddrinfo(
                *split(address), type=socket.SOCK_STREAM
            )[0]
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(sockaddr)
                probe.listen(1)
        except OSError as error:
            why = error.strerror or str(error)
            if error.errno == errno.EADDRINUSE:
                why = "another process listens there"
            elif error.errno == errno.EADDRNOTAVAIL:
                why = "not an address of this machine"
            raise AddressTaken(variable=variable, address=address, why=why) from error


def require_kafka(settings: Settings, *, is_taking_over: bool = False) -> None:
    """Raise `NotReachable` unless Kafka answers.

    Raises `TopicsTaken` or `HomeCopied` unless its topics belong to this node. Takes at most about ten seconds.
    """
    address = settings.required("kafka")
    require_connected("Kafka", "ODF_KAFKA", address, address.split(","))
    try:
        topics = KafkaTopics(kafka_cluster(settings), prefix=settings.kafka_prefix)
        topics.require_answer(ANSWER_SECONDS)
    except Unavailable as error:
        why = (
            f"a server is listening there, but it does not answer as Kafka with the settings ODF_KAFKA_… "
            f"does ({error.why})"
        )
        raise NotReachable(what="Kafka", variable="ODF_KAFKA", address=address, why=why) from error
    if not settings.kafka_manage_topics:
        topics.ensure_topics((*FIXED_TOPICS, NODE_CLAIMS))  # the error names all that are missing
    try:
        owner = claim_topics(settings, is_taking_over=is_taking_over)
    except Unavailable as error:
        why = f"{error.why}; check its advertised.listeners"
        raise NotReachable(what="Kafka", variable="ODF_KAFKA", address=address, why=why) from error
    if not is_taking_over:
        require_original(settings.home, owner)


def require_redis(settings: Settings) -> None:
    """Raise `NotReachable` unless Redis answers."""
    address = settings.required("redis")
    shown = without_password(address)
    if "://" not in address:
        require_connected("Redis", "ODF_REDIS", shown, [address])
    elif not address.startswith("unix://"):
        url = urlsplit(address)
        host = url.hostname or "localhost"
        shown = f"[{host}]:{url.port or 6379}" if ":" in host else f"{host}:{url.port or 6379}"
        require_connected("Redis", "ODF_REDIS", shown, [shown])
    connection = redis_connection(settings)
    try:
        connection.require_answer()
    except Unavailable as error:
        raise NotReachable(what="Redis", variable="ODF_REDIS", address=shown, why=error.why) from error
    finally:
        connection.close()


def require_store(settings: Settings) -> None:
    """Raise `StoreChanged` unless the home's datasets are in the configured store, which is recorded in the home.

    Raises `StorageUnavailable` unless a configured bucket can be read and written.
    """
    used, file = HOME_STORE, settings.home / STORE
    with contextlib.suppress(FileNotFoundError):
        used = file.read_text().strip()
    configured = str(settings.store or HOME_STORE)
    if used != configured and any((settings.home / "names").glob("*")):
        raise StoreChanged(used=used, configured=configured)
    if settings.store is not None:
        from odf_common.adapters.s3.bucket import Bucket

        Bucket(settings.store, s3_access(settings, settings.store)).require_usable()
    if used != configured:
        durable.write(file, f"{configured}\n".encode())


def require_connected(what: str, variable: str, shown: str, addresses: list[str]) -> None:
    """Raise `NotReachable` unless one of the first three addresses accepts a connection."""
    why = ""
    for address in addresses[:3]:
        try:
            socket.create_connection(split(address), PROBE_CONNECT_SECONDS).close()
        except TimeoutError:
            why = f"no answer within {PROBE_CONNECT_SECONDS:g} s"
        except OSError as error:
            number = error.errno or 0  # negative: name resolution failed
            why = os.strerror(number) if number > 0 else error.strerror or str(error)
        else:
            return
    raise NotReachable(what=what, variable=variable, address=shown, why=why)


def split(address: str) -> tuple[str, int]:
    """Return the host and port of `host:port`, in which an IPv6 address is in brackets."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)
