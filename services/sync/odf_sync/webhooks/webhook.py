"""A webhook, its newest event, and the state of that event's delivery. Pure."""

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, Self

from odf_common.identity.did import DatasetId
from odf_common.ports.clock import Backoff

FIRST_RETRY_MS: Final = 5_000
LONGEST_RETRY_MS: Final = 3_600_000
DELAY_SPREAD: Final = 0.2  # of the delay, up or down, so that receivers are not retried all at once
MAX_GONE_FAILURES: Final = 33  # about a day
MAX_ERROR_CHARACTERS: Final = 300


class HookEvent(StrEnum):
    """The event that a webhook reports."""

    HEAD = "head"
    """The head has moved."""
    GONE = "gone"
    """The dataset was deleted."""


class DeliveryState(StrEnum):
    """The delivery state of the newest event."""

    IDLE = "idle"
    """There has been no event."""
    PENDING = "pending"
    RETRYING = "retrying"
    DELIVERED = "delivered"


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """The newest event of a webhook; an older one that was not delivered is replaced by it."""

    event_id: str = ""
    """The same in each attempt; empty before the first event."""
    event: HookEvent = HookEvent.HEAD
    head: str = ""
    """The former head, as in `refs/head`."""
    is_pending: bool = False
    failures: int = 0
    """Attempts since the last success."""
    next_ms: int = 0
    """No attempt is made before; ms since the epoch."""
    delivered_ms: int | None = None
    """The last success, of any event."""
    error: str = ""
    """The reason why the last attempt failed; empty after a success."""

    @property
    def state(self) -> DeliveryState:
        """Return the delivery state of the event."""
        if self.is_pending:
            return DeliveryState.RETRYING if self.failures else DeliveryState.PENDING
        return DeliveryState.DELIVERED if self.event_id else DeliveryState.IDLE

    @property
    def is_hopeless(self) -> bool:
        """Return whether the dataset was deleted and its receiver keeps failing, so that delivery is given up."""
        return self.event is HookEvent.GONE and self.failures >= MAX_GONE_FAILURES

    def names(self, event: HookEvent, head: str) -> bool:
        """Return whether this is the newest event."""
        return bool(self.event_id) and (self.event, self.head) == (event, head)

    def with_event(self, event: HookEvent, head: str, *, event_id: str) -> Self:
        """Return a pending event; the delay of a receiver that fails stays, its failures count for each kind."""
        failures = self.failures if event is self.event else 0
        return replace(self, event_id=event_id, event=event, head=head, is_pending=True, failures=failures)

    def withdrawn(self) -> Self:
        """Return the state without an event."""
        return replace(self, event_id="", is_pending=False, failures=0, next_ms=0, error="")

    def after_success(self, now_ms: int) -> Self:
        """Return the state after a success."""
        return replace(self, is_pending=False, failures=0, next_ms=0, delivered_ms=now_ms, error="")

    def after_failure(self, now_ms: int, error: str, *, spread: float, pause_ms: int = 0) -> Self:
        """Return the state after a failure; `spread` between -1 and 1 is random, `pause_ms` what the receiver asks for.

        The receiver is not retried earlier, unless it asks for more than the longest delay.
        """
        delay = Backoff(first=FIRST_RETRY_MS, most=LONGEST_RETRY_MS).pause(self.failures + 1)
        delay_ms = max(int(delay * (1 + DELAY_SPREAD * spread)), min(pause_ms, LONGEST_RETRY_MS))
        return replace(
            self,
            failures=self.failures + 1,
            next_ms=now_ms + delay_ms,
            error=error[:MAX_ERROR_CHARACTERS],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of an attempt."""

    error: str = ""
    """The reason why it failed; empty for a success."""
    pause_ms: int = 0
    """The delay that the receiver requests (`Retry-After`)."""
    is_unwanted: bool = False
    """Whether the receiver wants no more events, ever (`410 Gone`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """A URL to which the moves of a dataset's head are posted."""

    id: str
    dataset: DatasetId
    alias: str
    """The dataset's name when it was last looked at."""
    url: str
    """As it is requested, and signed."""
    events: frozenset[HookEvent]
    secret: str | None = field(default=None, repr=False)
    """The key of the HMAC; None: the node's key signs."""
    created_ms: int
    delivery: Delivery = Delivery()
