"""Limits on the bytes of large messages that are received or kept at a time, in total and per caller.

A message is in memory as a whole, more than once, until its archive is in a file. How long it may be is known before:
that of a push from its plan, a list of objects from the chain. A client that sends more is disconnected.
"""

import asyncio
from collections import Counter as Tally
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager
from typing import Final, TypeVar

from odf_sync.access.rate_limits import BODY_BYTES_PER_SECOND, Pace
from odf_sync.smart.channel import IDLE_SECONDS, MAX_SENT_MESSAGE_BYTES, Channel
from odf_sync.smart.exchange import TransferRefused
from odf_sync.smart.messages import Fault, Internal, Message, Phase, TransferPlan

SMALL_BYTES: Final = 4 * 1024**2  # messages up to this size are not counted
# Of one message: as much as other implementations receive. Longer ones would hold up the event loop, which joins them.
MAX_MESSAGE_BYTES: Final = MAX_SENT_MESSAGE_BYTES
LARGE_MESSAGES_BYTES: Final = (
    256 * 1024**2
)  # of all large ones that are received at a time; they take three times that
WAIT_SECONDS: Final = 300.0  # for others; then the push is refused
FIRST_SECONDS: Final = 60.0  # for a large message, and one second more for each of these bytes
BYTES_PER_SECOND: Final = 64 * 1024
AROUND_BYTES: Final = 64 * 1024  # of JSON, at most, around an archive
JSON_BYTES_PER_ARCHIVE_BYTE: Final = 4  # at most
ENTRY_BYTES: Final = 1536  # of an archive for each block: header, padding, and what does not compress
INCOMPRESSIBLE: Final = 1024  # bytes that do not compress take one more, at most
TOO_MANY_PUSHES: Final = "too many large pushes at a time; try again later"
REFUSED_PUSH: Final = Internal(phase=Phase.PUSH_METADATA, error_message=TOO_MANY_PUSHES)
FIRST_BYTES_SECONDS: Final = 60.0  # before bytes of a large message, or of its archive, have to arrive
LEAST_BYTES_PER_SECOND: Final = 32 * 1024  # after that
SILENT_SECONDS: Final = 120.0  # without a byte; a push keeps disk and memory from others
ARRIVAL_POLL_SECONDS: Final = 10.0  # between two checks of what has arrived
M = TypeVar("M", bound=Message)


def archive_bytes(plan: TransferPlan) -> int:
    """Return the greatest size in bytes of an archive with the blocks of a plan."""
    raw = plan.bytes_in_raw_blocks
    return raw + raw // INCOMPRESSIBLE + ENTRY_BYTES * plan.num_blocks


def message_bytes(plan: TransferPlan, most: int = MAX_MESSAGE_BYTES) -> int:
    """Return the greatest size in bytes of the message with the blocks of a plan, up to `most`."""
    archive = archive_bytes(plan)
    return min(most, max(SMALL_BYTES, AROUND_BYTES + JSON_BYTES_PER_ARCHIVE_BYTE * archive))


def seconds_for(size: int) -> float:
    """Return the seconds that a large message of this size may take."""
    return FIRST_SECONDS + size / BYTES_PER_SECOND


def pace_of_message(size: int) -> Pace:
    """Return the pace of the next message of up to `size` bytes, or of the archive that is uploaded in its place.

    The room that is reserved for a large one is not available to others, so it has to come faster.
    """
    if size > SMALL_BYTES:
        return Pace(FIRST_BYTES_SECONDS, LEAST_BYTES_PER_SECOND, subject="")
    return Pace(SILENT_SECONDS, BODY_BYTES_PER_SECOND, total_seconds=IDLE_SECONDS, subject="")


async def expect_in_pace(channel: Channel, kind: type[M], arrived: Callable[[], int], size: int = 0) -> M:
    """Return the next message, of a kind; raises `TimeoutError` once its bytes have not `arrived` fast enough."""
    now = asyncio.get_running_loop().time
    pace, before, since = pace_of_message(size), await asyncio.to_thread(arrived), now()
    while True:
        try:
            return await channel.expect(kind, min(ARRIVAL_POLL_SECONDS, pace.seconds_left))
        except TimeoutError as error:
            count, until = await asyncio.to_thread(arrived), now()
            pace.note(count - before, until - since)
            before, since = count, until
            if pace.seconds_left <= 0:
                raise TimeoutError(pace.too_slow()) from error


class LargeMessages:
    """Counts the bytes of large messages that are being received, or are kept; used in one event loop."""

    def __init__(
        self,
        most: int = LARGE_MESSAGES_BYTES,
        wait_seconds: float = WAIT_SECONDS,
        *,
        small: int = SMALL_BYTES,
        refusal: Fault = REFUSED_PUSH,
    ) -> None:
        """Receive up to `most` bytes at a time, of each caller half, or one message alone, however large it is.

        Messages of up to `small` bytes are not counted; others are refused if they wait too long.
        """
        self._most = most
        self._wait_seconds = wait_seconds
        self._small = small
        self._refusal = refusal
        self._reserved: Tally[Hashable] = Tally()
        self._changed: asyncio.Condition | None = None

    @asynccontextmanager
    async def receiving(self, size: int, caller: Hashable) -> AsyncIterator[None]:
        """Receive a message of up to this size inside the block, when there is room; raises `TransferRefused`."""
        if size <= self._small:
            yield
            return
        changed = self._changed = self._changed or asyncio.Condition()
        async with changed:
            try:
                async with asyncio.timeout(self._wait_seconds):
                    await changed.wait_for(lambda: self._has_room(size, caller))
            except TimeoutError as error:
                raise TransferRefused(fault=self._refusal) from error
            self._reserved[caller] += size
        try:
            yield
        finally:
            async with changed:
                self._reserved[caller] -= size
                self._reserved += Tally()  # forgets callers without messages
                changed.notify_all()

    def _has_room(self, size: int, caller: Hashable) -> bool:
        in_all, of_caller = self._reserved.total(), self._reserved[caller]
        # A message that is larger than all the room is received alone, else it would wait forever.
        return not in_all or (in_all + size <= self._most and of_caller + size <= self._most // 2)
