"""Times in protobuf messages: seconds and nanoseconds are separate, because 64-bit nanoseconds end in the year 2262."""

from google.protobuf.timestamp_pb2 import Timestamp as Message

from odf_common.metadata.scalars import NANOS, Timestamp


def time_message(timestamp: Timestamp) -> Message:
    """Return a timestamp as a protobuf message."""
    seconds, nanos = divmod(timestamp.ns, NANOS)
    return Message(seconds=seconds, nanos=nanos)


def time_message_or_none(timestamp: Timestamp | None) -> Message | None:
    """Return a timestamp as a protobuf message; None stays None, so that the field is absent."""
    return None if timestamp is None else time_message(timestamp)


def time_of(message: Message) -> Timestamp:
    """Return the timestamp in a message; nanoseconds beyond one second are carried over."""
    return Timestamp(message.seconds * NANOS + message.nanos)
