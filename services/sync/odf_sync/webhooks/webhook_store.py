"""Webhooks in `webhooks.db`, a private database of sync: their settings, and the state of their deliveries.

They are not stored in `access.db`, because each event writes a delivery, and a damaged file must not lock users out.
"""

import sqlite3
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Self

from odf_common.errors import AlreadyExists, Damaged, NotFound, Refused
from odf_common.identity.dataset_refs import DatasetId
from odf_common.ports.clock import Backoff
from odf_sync.private_database import PrivateDatabase

FIRST_RETRY_MS: Final = 5_000
LONGEST_RETRY_MS: Final = 3_600_000
DELAY_SPREAD: Final = 0.2  # of the delay, up or down, so that receivers are not retried all at once
MAX_GONE_FAILURES: Final = 33  # about a day
MAX_ERROR_CHARACTERS: Final = 300


class HookEvent(StrEnum):
    """A type of event that a webhook reports."""

    HEAD = "head"
    """The head has moved."""
    GONE = "gone"
    """The dataset was deleted."""


class DeliveryState(StrEnum):
    """The delivery state of a webhook's newest event."""

    IDLE = "idle"
    """There has been no event yet."""
    PENDING = "pending"
    RETRYING = "retrying"
    DELIVERED = "delivered"


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """The newest event of a webhook and its delivery. A new event replaces one that has not been delivered."""

    event_id: str = ""
    """The id of the event, the same in each attempt; empty before the first event."""
    event: HookEvent = HookEvent.HEAD
    head: str = ""
    """The head that the event reports, as in `refs/head`; empty for a deletion."""
    is_pending: bool = False
    failures: int = 0
    """The number of failed attempts since the last success."""
    next_ms: int = 0
    """The earliest time of the next attempt, in ms since the epoch."""
    delivered_ms: int | None = None
    """The time of the last successful delivery, of any event, in ms since the epoch."""
    error: str = ""
    """The reason why the last attempt failed, empty after a success."""

    @property
    def state(self) -> DeliveryState:
        """Return the delivery state of the newest event."""
        if self.is_pending:
            return DeliveryState.RETRYING if self.failures else DeliveryState.PENDING
        return DeliveryState.DELIVERED if self.event_id else DeliveryState.IDLE

    @property
    def is_hopeless(self) -> bool:
        """Return whether delivery is given up: the dataset was deleted, and the receiver has failed for about a day."""
        return self.event is HookEvent.GONE and self.failures >= MAX_GONE_FAILURES

    def names(self, event: HookEvent, head: str) -> bool:
        """Return whether the newest event is `event` for `head`."""
        return bool(self.event_id) and (self.event, self.head) == (event, head)

    def with_event(self, event: HookEvent, head: str, *, event_id: str) -> Self:
        """Return the state with a new pending event.

        A failing receiver keeps its delay. Its failures are counted separately for each type of event.
        """
        failures = self.failures if event is self.event else 0
        return replace(self, event_id=event_id, event=event, head=head, is_pending=True, failures=failures)

    def withdrawn(self) -> Self:
        """Return the state after the event was withdrawn."""
        return replace(self, event_id="", is_pending=False, failures=0, next_ms=0, error="")

    def after_success(self, now_ms: int) -> Self:
        """Return the state after a successful attempt."""
        return replace(self, is_pending=False, failures=0, next_ms=0, delivered_ms=now_ms, error="")

    def after_failure(self, now_ms: int, error: str, *, spread: float, pause_ms: int = 0) -> Self:
        """Return the state after a failed attempt, with the time of the next one.

        The delay grows with each failure, and is at least `pause_ms`, the receiver's `Retry-After`, up to the longest
        delay. `spread` is a random number between -1 and 1 that varies the delay.
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
    """The outcome of one attempt to deliver an event."""

    error: str = ""
    """The reason why the attempt failed, empty for a success."""
    pause_ms: int = 0
    """The delay that the receiver requests by `Retry-After`, in ms."""
    is_unwanted: bool = False
    """Whether the receiver requests no more events (`410 Gone`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """A URL to which events of a dataset are posted, and the state of its delivery."""

    id: str
    dataset: DatasetId
    alias: str
    """The name of the dataset when its last event was prepared."""
    url: str
    """The URL as it is requested and signed."""
    events: frozenset[HookEvent]
    secret: str | None = field(default=None, repr=False)
    """The key of the HMAC; None if the node's key signs."""
    created_ms: int
    delivery: Delivery = Delivery()

    @property
    def log_facts(self) -> dict[str, str]:
        """Return the fields that identify the webhook in logs."""
        return {"webhook": self.id, "dataset": self.alias, "dataset_id": str(self.dataset)}


FILE: Final = "webhooks.db"
MAX_WEBHOOKS: Final = 1000  # on a node
TABLES: Final = """
CREATE TABLE webhooks (
    id TEXT PRIMARY KEY, dataset TEXT NOT NULL, alias TEXT NOT NULL, url TEXT NOT NULL, events TEXT NOT NULL,
    secret TEXT, created_ms INTEGER NOT NULL, event_id TEXT NOT NULL, event TEXT NOT NULL, head TEXT NOT NULL,
    is_pending INTEGER NOT NULL, failures INTEGER NOT NULL, next_ms INTEGER NOT NULL, delivered_ms INTEGER,
    error TEXT NOT NULL, UNIQUE (dataset, url)) STRICT;
"""
COLUMNS: Final = (
    "id, dataset, alias, url, events, secret, created_ms, "
    "event_id, event, head, is_pending, failures, next_ms, delivered_ms, error"
)


class WebhooksUnreadable(Damaged):
    """The database of webhooks cannot be read; no event is delivered until it is repaired."""

    file: str = FILE

    def advice(self) -> str:
        """Return the advice to restore or remove the database."""
        return f"stop the node, restore {FILE} from a backup, or move it away: all webhooks are then gone"


class TooManyWebhooks(Refused):
    """The node has the maximum number of webhooks."""

    text: str = f"there are {MAX_WEBHOOKS} webhooks already; delete one first"


class WebhookStore:
    """The database of webhooks; thread-safe."""

    def __init__(self, home: Path | None) -> None:
        """Use the database in the home of a node, opened on first use; without a home, a database in memory."""
        self._database = PrivateDatabase(home, FILE, TABLES, lambda why: WebhooksUnreadable(why=why))

    def add(self, hook: Webhook) -> None:
        """Add a webhook; raises `AlreadyExists` if the dataset has one for the same URL, and `TooManyWebhooks`."""
        marks = ", ".join("?" for _ in COLUMNS.split(","))
        statement = (
            f"INSERT INTO webhooks ({COLUMNS}) SELECT {marks} "  # noqa: S608 - constants
            f"WHERE (SELECT count(*) FROM webhooks) < {MAX_WEBHOOKS}"
        )
        events = " ".join(sorted(hook.events))
        try:
            is_added = self._database.change(
                statement,
                *(hook.id, str(hook.dataset), hook.alias, hook.url, events, hook.secret, hook.created_ms),
                *_values(hook.delivery),
            )
        except sqlite3.IntegrityError as error:
            raise AlreadyExists(what=f"a webhook of {hook.alias} for {hook.url}") from error
        if not is_added:
            raise TooManyWebhooks

    def all(self) -> tuple[Webhook, ...]:
        """Return all webhooks, ordered by creation time, oldest first."""
        query = f"SELECT {COLUMNS} FROM webhooks ORDER BY created_ms, id"  # noqa: S608 - constants
        return tuple(_webhook(*row) for row in self._database.rows(query))

    def save_delivery(self, hook: Webhook) -> bool:
        """Store the delivery state of a webhook and its dataset's name; returns whether the webhook still exists."""
        statement = (
            "UPDATE webhooks SET alias = ?, event_id = ?, event = ?, head = ?, is_pending = ?, failures = ?, "
            "next_ms = ?, delivered_ms = ?, error = ? WHERE id = ?"
        )
        return self._database.change(statement, hook.alias, *_values(hook.delivery), hook.id) > 0

    def remove(self, id: str) -> None:
        """Remove a webhook; raises `NotFound` if it does not exist."""
        if not self.discard(id):
            raise NotFound(what=f"webhook {id}")

    def discard(self, id: str) -> bool:
        """Remove a webhook, and return whether it existed."""
        return self._database.change("DELETE FROM webhooks WHERE id = ?", id) > 0


def _values(delivery: Delivery) -> tuple[object, ...]:
    return (
        *(delivery.event_id, delivery.event.value, delivery.head, int(delivery.is_pending)),
        *(delivery.failures, delivery.next_ms, delivery.delivered_ms, delivery.error),
    )


def _webhook(*row: Any) -> Webhook:  # noqa: ANN401 - SQLite's values
    id, dataset, alias, url, events, secret, created, *rest = row  # noqa: A001
    event_id, event, head, is_pending, failures, next_ms, delivered_ms, error = rest
    return Webhook(
        id=id,
        dataset=DatasetId.parse(dataset),
        alias=alias,
        url=url,
        events=frozenset(map(HookEvent, events.split())),
        secret=secret,
        created_ms=created,
        delivery=Delivery(
            event_id=event_id,
            event=HookEvent(event),
            head=head,
            is_pending=bool(is_pending),
            failures=failures,
            next_ms=next_ms,
            delivered_ms=delivered_ms,
            error=error,
        ),
    )
