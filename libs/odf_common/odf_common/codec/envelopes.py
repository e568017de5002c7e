"""Bus messages: envelope ⇄ (key, value) of a Kafka record."""

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
    """Wrap a body. A reply to `cause`, or a consequence of it, shares its correlation id.

    `message_id`, `sent_at` and an empty `correlation_id` are filled in on sending.
    """
    message = Envelope(dataset_id=str(dataset), correlation_id=correlation_id, may_ignore=may_ignore)
    if cause is not None:
        message.correlation_id = correlation_id or cause.correlation_id or cause.message_id
        message.causation_id = cause.message_id
    getattr(message, _FIELDS[body.DESCRIPTOR.full_name]).CopyFrom(body)
    return message


def stamp(message: Envelope, *, message_id: str, sent_at: int) -> Envelope:
    """Return the envelope with id, time (ns since the epoch) and correlation id where these were missing."""
    parsed = Envelope()
    parsed.CopyFrom(message)
    parsed.message_id = message.message_id or message_id
    parsed.sent_at = message.sent_at or sent_at
    parsed.correlation_id = message.correlation_id or parsed.message_id
    return parsed


def body_of(message: Envelope) -> Body | None:
    """Return the body, None if this version does not know its kind."""
    name = message.WhichOneof("body")
    if name is None:
        return None
    body: Body = getattr(message, name)
    return body


def encode(message: Envelope) -> tuple[bytes, bytes]:
    """Return key and value of the record: the dataset's id, and the envelope."""
    return message.dataset_id.encode(), message.SerializeToString()


def decode(key: bytes, value: bytes) -> Envelope:
    """Decode a record; raises `InvalidInput` unless it is an envelope about the dataset in its key."""
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
