"""Times in protobuf messages: seconds and nanoseconds apart, for one 64-bit number of nanoseconds ends in 2262."""

from google.protobuf.timestamp_pb2 import Timestamp as Message

from odf_common.metadata.scalars import NANOS, Timestamp


def time_message(moment: Timestamp) -> Message:
    """Return a time as it travels."""
    seconds, nanos = divmod(moment.ns, NANOS)
    return Message(seconds=seconds, nanos=nanos)


def time_message_or_none(moment: Timestamp | None) -> Message | None:
    """Return a time as it travels, None where there is none: the field is absent then."""
    return None if moment is None else time_message(moment)


def time_of(message: Message) -> Timestamp:
    """Return a time that has travelled; what no calendar has is as good as any other."""
    return Timestamp(message.seconds * NANOS + message.nanos)
