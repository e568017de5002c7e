"""Times in protobuf messages: separate seconds and nanoseconds, since nanoseconds in 64 bits end in 2262."""

from google.protobuf.timestamp_pb2 import Timestamp as Message

from odf_common.metadata.scalars import NANOS, Timestamp


def time_message(timestamp: Timestamp) -> Message:
    """Return a time as a message."""
    seconds, nanos = divmod(timestamp.ns, NANOS)
    return Message(seconds=seconds, nanos=nanos)


def time_message_or_none(timestamp: Timestamp | None) -> Message | None:
    """Return a time as a message; None stays None, so that the field is absent."""
    return None if timestamp is None else time_message(timestamp)


def time_of(message: Message) -> Timestamp:
    """Return the time of a message; nanoseconds beyond one second are added up."""
    return Timestamp(message.seconds * NANOS + message.nanos)
