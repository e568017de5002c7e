"""Packets of MQTT 3.1.1 that a subscriber needs, as bytes and back; whatever a broker sends is checked.

Our own, since clients of the usual libraries confirm an exactly-once message (PUBREC) when it arrives, while here a
block has to be durable first; and since they read packets of any size. Pure: no socket, no clock.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from odf_common.errors import InvalidInput
from odf_common.metadata.fetching import MqttQos

PROTOCOL: Final = b"\x00\x04MQTT\x04"
PERSISTENT_SESSION: Final = 0x00  # the flag CleanSession is not set
USER_FLAG, PASSWORD_FLAG = 0x80, 0x40
MAX_STRING_BYTES: Final = 65_535
MAX_HEADER_BYTES: Final = 5  # the type, and up to four of the length
REFUSED_SUBSCRIPTION: Final = 0x80


class PacketType(IntEnum):
    """The upper four bits of a packet's first byte."""

    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7
    SUBSCRIBE = 8
    SUBACK = 9
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14


@dataclass(frozen=True, slots=True, kw_only=True)
class Packet:
    """A packet of a broker; `flags` are the lower four bits of its first byte."""

    kind: PacketType
    flags: int
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A published message; `number` is the packet identifier, 0 with `AtMostOnce`."""

    topic: str
    payload: bytes
    qos: MqttQos
    number: int = 0
    is_repeated: bool = False
    """Whether the broker may have sent it before."""


class NotMqtt(InvalidInput):
    """A server sent a packet that no MQTT broker sends."""


def connect(client: str, username: str | None, password: str | None) -> bytes:
    """Return a CONNECT for a session that outlives the connection, without a keep-alive: a commit may take long."""
    flags = PERSISTENT_SESSION | (USER_FLAG if username is not None else 0)
    flags |= PASSWORD_FLAG if password is not None else 0
    credentials = [text for text in (username, password) if text is not None]
    body = PROTOCOL + bytes([flags, 0, 0]) + b"".join(_string(text) for text in (client, *credentials))
    return _packet(PacketType.CONNECT, 0, body)


def subscribe(number: int, topics: tuple[tuple[str, MqttQos], ...]) -> bytes:
    """Return a SUBSCRIBE to topic filters."""
    filters = b"".join(_string(path) + bytes([qos]) for path, qos in topics)
    return _packet(PacketType.SUBSCRIBE, 2, number.to_bytes(2) + filters)


def confirmation(kind: PacketType, number: int) -> bytes:
    """Return a PUBACK, PUBREC or PUBCOMP."""
    return _packet(kind, 0, number.to_bytes(2))


PINGREQ: Final = bytes([PacketType.PINGREQ << 4, 0])
DISCONNECT: Final = bytes([PacketType.DISCONNECT << 4, 0])


def split(buffer: bytes | bytearray, limit: int) -> tuple[Packet, int] | None:
    """Return the first packet and its length; None if more bytes are needed. Raises `NotMqtt`, also above `limit`."""
    length = shift = 0
    for index in range(1, MAX_HEADER_BYTES):
        if index >= len(buffer):
            return None
        length |= (buffer[index] & 0x7F) << shift
        shift += 7
        if not buffer[index] & 0x80:
            break
    else:
        raise NotMqtt(text="a packet's length has more than four bytes")
    if length > limit:
        raise NotMqtt(text=f"a packet has {length} bytes, more than {limit}")
    end = index + 1 + length
    if len(buffer) < end:
        return None
    try:
        kind = PacketType(buffer[0] >> 4)
    except ValueError as error:
        raise NotMqtt(text=f"unknown packet type {buffer[0] >> 4}") from error
    return Packet(kind=kind, flags=buffer[0] & 0x0F, body=bytes(buffer[index + 1 : end])), end


def message_of(packet: Packet) -> Message:
    """Return the message of a PUBLISH; raises `NotMqtt`."""
    size = int.from_bytes(packet.body[:2])
    level = packet.flags >> 1 & 3
    start = 2 + size + (2 if level else 0)
    if level == 3 or len(packet.body) < start:
        raise NotMqtt(text="a PUBLISH is malformed")
    try:
        topic = packet.body[2 : 2 + size].decode()
    except UnicodeDecodeError as error:
        raise NotMqtt(text="a topic is not UTF-8") from error
    number = int.from_bytes(packet.body[2 + size : start])
    if level and not number:
        raise NotMqtt(text="a PUBLISH has no packet identifier")
    return Message(
        topic=topic,
        payload=packet.body[start:],
        qos=MqttQos(level),
        number=number,
        is_repeated=bool(packet.flags & 8),
    )


def number_of(packet: Packet) -> int:
    """Return the packet identifier of a confirmation; raises `NotMqtt`."""
    if len(packet.body) < 2:
        raise NotMqtt(text=f"a {packet.kind.name} is malformed")
    return int.from_bytes(packet.body[:2])


def _packet(kind: PacketType, flags: int, body: bytes) -> bytes:
    rest, length = len(body), bytearray()
    while True:
        rest, digit = rest >> 7, rest & 0x7F
        length.append(digit | (0x80 if rest else 0))
        if not rest:
            return bytes([kind << 4 | flags]) + bytes(length) + body


def _string(text: str) -> bytes:
    raw = text.encode()
    if len(raw) > MAX_STRING_BYTES or "\0" in text:
        raise InvalidInput(where="fetch", text=f"a string of {len(raw)} bytes cannot be sent over MQTT")
    return len(raw).to_bytes(2) + raw
