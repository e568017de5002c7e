"""Bodies of the coordinator's bus messages."""

from typing import assert_never

from odf_common.chain.state import ChainState
from odf_common.codec.envelopes import Body
from odf_common.codec.times import time_message, time_message_or_none
from odf_common.metadata.events import DatasetKind
from odf_common.proto.odf.bus.v1 import bus_pb2 as bus
from odf_coordinator.commit.outcomes import Committed, Outcome, Overtaken, Refusal


def committed(state: ChainState, *, alias: str = "", already: bool = False) -> bus.Committed:
    """Return the message that the head is at least that of `state`."""
    return bus.Committed(
        head=state.head.raw,
        sequence_number=state.sequence_number,
        already=already,
        last_offset=state.last_offset,
        watermark=time_message_or_none(state.watermark),
        system_time=time_message(state.system_time),
        alias=alias,
        is_derivative=state.kind is DatasetKind.Derivative,
    )


def reply(outcome: Outcome) -> Body:
    """Return the reply to a proposal."""
    match outcome:
        case Committed(state=state, already=already):
            return committed(state, already=already)
        case Overtaken(head=head):
            return bus.HeadMoved(head=b"" if head is None else head.raw)
        case Refusal(code=code, text=text):
            return bus.Refused(code=code, text=text)
        case _:
            assert_never(outcome)
