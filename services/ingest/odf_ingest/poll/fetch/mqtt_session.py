"""A subscriber's connection to an MQTT broker: it confirms messages only on request. Not thread-safe."""

import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final, Self

from odf_common.adapters.networks import Networks
from odf_common.errors import InvalidInput
from odf_common.metadata.fetching import FetchStepMqtt, MqttQos
from odf_ingest.poll.fetch import mqtt_packets as packets
from odf_ingest.poll.fetch.fetch_step import SILENCE_SECONDS
from odf_ingest.poll.fetch.mqtt_packets import Message, NotMqtt, Packet, PacketType
from odf_ingest.poll.poll_errors import SourceRefusedRequest, SourceUnreachable

PORT_OF_TLS: Final = 8883
MQTT_SCHEMES: Final = {"mqtt": False, "mqtts": True}
MAX_PACKET_BYTES: Final = 16 << 20
READ_BYTES: Final = 1 << 16
SUBSCRIBE_PACKET_ID: Final = 1  # of the only SUBSCRIBE
REFUSALS: Final = {
    1: "it does not speak MQTT 3.1.1",
    2: "it refuses the client identifier",
    4: "wrong user or password",
    5: "not authorized",
}
SERVER_UNAVAILABLE: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """The address of a broker; `str` of it is for people."""

    host: str
    port: int
    is_tls: bool

    @classmethod
    def parse(cls, step: FetchStepMqtt) -> Self:
        """Read a step's host, such as `example.org` or `mqtts://example.org`; raises `InvalidInput`."""
        scheme, divider, host = step.host.rpartition("://")
        if divider and scheme.lower() not in MQTT_SCHEMES:
            raise InvalidInput(
                where="fetch.host", text=f"expected {' or '.join(MQTT_SCHEMES)}, got {scheme}://"
            )
        if not host or not host.isprintable() or set(host) & set("/@ "):
            raise InvalidInput(where="fetch.host", text=f"expected a host name or address, got {host!r}")
        if not 0 < step.port < 1 << 16:
            raise InvalidInput(where="fetch.port", text=f"expected 1 to 65535, got {step.port}")
        is_tls = MQTT_SCHEMES[scheme.lower()] if divider else step.port == PORT_OF_TLS
        return cls(host=host.strip("[]"), port=step.port, is_tls=is_tls)

    def __str__(self) -> str:
        """Return a URL without user and password."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'mqtts' if self.is_tls else 'mqtt'}://{host}:{self.port}"


class Session:
    """A connection with a session that the broker keeps when it ends."""

    def __init__(self, broker: Broker, connected: socket.socket) -> None:
        """Use a connection, and close it in the end."""
        self._broker = broker
        self._socket = connected
        self._buffer = bytearray()

    def open(self, client: str, username: str | None, password: str | None) -> bool:
        """Open the session; return whether the broker has kept an earlier one. Raises `SourceRefusedRequest`."""
        self._send(packets.connect(client, username, password))
        body = self._await(PacketType.CONNACK).body
        if len(body) != 2:
            raise NotMqtt(text="a CONNACK is malformed")
        if body[1] == SERVER_UNAVAILABLE:
            raise SourceUnreachable(what=str(self._broker), why="it reports that it is unavailable")
        if body[1]:
            why = REFUSALS.get(body[1], f"reason {body[1]}")
            raise SourceRefusedRequest(text=f"{self._broker} refuses the connection: {why}")
        return bool(body[0] & 1)

    def subscribe(self, topics: tuple[tuple[str, MqttQos], ...]) -> list[Message]:
        """Subscribe to topic filters; return messages that arrived before the answer."""
        early: list[Message] = []
        self._send(packets.subscribe(SUBSCRIBE_PACKET_ID, topics))
        codes = self._await(PacketType.SUBACK, early).body[2:]
        if len(codes) != len(topics):
            raise NotMqtt(text="a SUBACK is malformed")
        for (path, _), code in zip(topics, codes, strict=True):
            if code >= packets.REFUSED_SUBSCRIPTION:
                raise SourceRefusedRequest(text=f"{self._broker} refuses the subscription to {path!r}")
        return early

    def receive(self, seconds: float) -> Packet | None:
        """Return the next packet; None if none arrives in time."""
        until = time.monotonic() + seconds
        while True:
            split = packets.split(self._buffer, MAX_PACKET_BYTES)
            if split is not None:
                packet, length = split
                del self._buffer[:length]
                return packet
            left = until - time.monotonic()
            self._socket.settimeout(max(left, 0.001))
            try:
                chunk = self._socket.recv(READ_BYTES)
            except TimeoutError:
                return None
            if not chunk:
                raise EOFError
            self._buffer += chunk

    def confirm(self, kind: PacketType, number: int) -> None:
        """Send a PUBACK, PUBREC or PUBCOMP."""
        self._send(packets.confirmation(kind, number))

    def ping(self) -> None:
        """Ask for a PINGRESP, which follows whatever the broker sends before it reads this."""
        self._send(packets.PINGREQ)

    def close(self) -> None:
        """Close the connection; the broker keeps the session."""
        with suppress(OSError):
            self._send(packets.DISCONNECT)
        self._socket.close()

    def _send(self, raw: bytes) -> None:
        self._socket.settimeout(SILENCE_SECONDS)
        self._socket.sendall(raw)

    def _await(self, kind: PacketType, early: list[Message] | None = None) -> Packet:
        """Return the next packet of a kind; messages before it are added to `early`, if that is allowed."""
        while True:
            packet = self.receive(SILENCE_SECONDS)
            if packet is None:
                raise TimeoutError
            if packet.kind is kind:
                return packet
            if early is None or packet.kind not in (PacketType.PUBLISH, PacketType.PUBREL):
                raise NotMqtt(text=f"expected a {kind.name}, got a {packet.kind.name}")
            if packet.kind is PacketType.PUBLISH:
                early.append(packets.message_of(packet))
            else:
                self.confirm(PacketType.PUBCOMP, packets.number_of(packet))


@contextmanager
def connect(broker: Broker, networks: Networks) -> Iterator[Session]:
    """Connect inside the block; errors of the connection and of the protocol name the broker."""
    try:
        raw = _socket(broker, networks)
        session = Session(broker, raw)
        try:
            yield session
        finally:
            session.close()
    except NotMqtt as error:
        raise SourceRefusedRequest(text=f"{broker} does not speak MQTT: {error.text}") from None
    except TimeoutError:
        raise SourceUnreachable(what=str(broker), why="no answer in time") from None
    except EOFError:
        raise SourceUnreachable(what=str(broker), why="the connection was interrupted") from None
    except ssl.SSLError as error:
        raise SourceUnreachable(what=str(broker), why=f"TLS: {error.reason or error}") from None
    except ConnectionError as error:
        raise SourceUnreachable(what=str(broker), why=str(error.strerror or error)) from None


def _socket(broker: Broker, networks: Networks) -> socket.socket:
    try:
        raw = networks.connect(broker.host, broker.port)
    except (socket.gaierror, UnicodeError):
        raise SourceUnreachable(what=str(broker), why="its host name cannot be resolved") from None
    except OSError as error:
        raise SourceUnreachable(what=str(broker), why=str(error.strerror or error)) from None
    if not broker.is_tls:
        return raw
    try:
        return ssl.create_default_context().wrap_socket(raw, server_hostname=broker.host)
    except OSError:
        raw.close()
        raise
