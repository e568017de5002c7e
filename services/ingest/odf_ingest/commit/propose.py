"""Proposals to the coordinator: sent over the bus, replies matched by correlation id."""

from typing import Final

from odf_common.codec.envelopes import Body, body_of
from odf_common.codec.flatbuffers import encode_event
from odf_common.codec.times import time_message
from odf_common.ports.bus import COORDINATOR_COMMANDS
from odf_common.proto.odf.bus.v1.bus_pb2 import Propose
from odf_common.service.request_reply import Replies
from odf_ingest.commit.slice_writer import Draft

REPLY_TIMEOUT_SECONDS: Final = 5.0  # for a reply


class Proposals:
    """Sends proposals and waits for their replies."""

    def __init__(self, replies: Replies) -> None:
        """Send over `replies`."""
        self.replies = replies

    def propose(self, draft: Draft, wait: float = REPLY_TIMEOUT_SECONDS) -> Body | None:
        """Return `Committed`, `HeadMoved` or `Refused`; None without a reply in time. Raises `Unavailable`."""
        body = Propose(
            expected_head=draft.before.head.raw,
            system_time=time_message(draft.system_time),
            events=[encode_event(event) for event in draft.events],
        )
        answer = self.replies.request(COORDINATOR_COMMANDS, draft.before.dataset_id, body, timeout=wait)
        return None if answer is None else body_of(answer)
