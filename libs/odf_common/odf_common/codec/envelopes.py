"""Conversion between bus messages (envelopes) and the keys and values of Kafka records."""

from typing import Final, TypeAlias

from google.protobuf.message import DecodeError

from odf_common.errors import InvalidInput
from odf_common.identity.dataset_refs import DatasetId
from odf_common.proto.odf.bus.v1.bus_pb2 import (
    AccessDecision,
    Committed,
    DatasetRemoved,
    Envelope,
    HeadMoved,
    ImportChain,
    IngestProgress,
    Propose,
    Refused,
    SourceCommand,
    SourceContinues,
    TransformProgress,
)

__all__ = ["Body", "Envelope", "body_of", "decode", "encode", "envelope", "stamp"]

Body: TypeAlias = (
    Propose
    | ImportChain
    | SourceCommand
    | SourceContinues
    | Committed
    | HeadMoved
    | Refused
    | DatasetRemoved
    | IngestProgress
    | TransformProgress
    | AccessDecision
)

_FIELDS: Final = {
    field.message_type.full_name: field.name
    for field in Envelope.DESCRIPTOR.oneofs_by_name["body"].fields
    if field.message_type is not None
}


def envelope(
    dataset: DatasetId | str,
    body: Body,
    *,
    cause: Envelope | None = None,
    correlation_id: str = "",
    may_ignore: bool = False,
) -> Envelope:
    """Return an envelope with this body. If it replies to `cause` or results from it, it has the same correlation id.

    An empty `message_id`, `sent_at` or `correlation_id` is filled in when the message is sent.
    """
    message = Envelope(dataset_id=str(dataset), correlation_id=correlation_id, may_ignore=may_ignore)
    if cause is not None:
        message.correlation_id = correlation_id or cause.correlation_id or cause.message_id
        message.causation_id = cause.message_id
    getattr(message, _FIELDS[body.DESCRIPTOR.full_name]).CopyFrom(body)
    return message


def stamp(message: Envelope, *, message_id: str, sent_at: int) -> Envelope:
    """Return the envelope with its id, time (ns since the epoch) and correlation id filled in where they are empty."""
    parsed = Envelope()
    parsed.CopyFrom(message)
    parsed.message_id = message.message_id or message_id
    parsed.sent_at = message.sent_at or sent_at
    parsed.correlation_id = message.correlation_id or parsed.message_id
    return parsed


def body_of(message: Envelope) -> Body | None:
    """Return the body of an envelope; None if this version does not know the kind of the body."""
    name = message.WhichOneof("body")
    if name is None:
        return None
    body: Body = getattr(message, name)
    return body


def encode(message: Envelope) -> tuple[bytes, bytes]:
    """Return the key and the value of the Kafka record: the dataset's id, and the encoded envelope."""
    return message.dataset_id.encode(), message.SerializeToString()


def decode(key: bytes, value: bytes) -> Envelope:
    """Decode a Kafka record; raises `InvalidInput` unless it is an envelope for the dataset in the key."""
    message = Envelope()
    try:
        message.ParseFromString(value)
    except DecodeError as error:
        raise InvalidInput(text=f"not an envelope: {error}") from error
    if message.dataset_id.encode() != key:
        raise InvalidInput(text=f"the envelope is about {message.dataset_id!r}, but its key is {key!r}")
    if message.dataset_id:
        DatasetId.parse(message.dataset_id)
    return message
