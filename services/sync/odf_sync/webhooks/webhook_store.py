"""Webhooks in `webhooks.db`, a private database of sync: what was asked for, and the state of each delivery.

Apart from `access.db`: a delivery is written with each event, and a damaged file must not keep anyone out.
"""

import sqlite3
from pathlib import Path
from typing import Any, Final

from odf_common.errors import AlreadyExists, Damaged, NotFound, Refused
from odf_common.identity.did import DatasetId
from odf_sync.private_database import Definition, PrivateDatabase
from odf_sync.webhooks.webhook import Delivery, HookEvent, Webhook

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
    """The database of webhooks cannot be read; none is delivered until it can."""

    file: str = FILE

    def advice(self) -> str:
        """Return the remedy."""
        return f"stop the node, restore {FILE} from a backup, or move it away: all webhooks are then gone"


class TooManyWebhooks(Refused):
    """The node's limit of webhooks is reached."""

    text: str = f"there are {MAX_WEBHOOKS} webhooks already; delete one first"


DATABASE: Final = Definition(
    file=FILE, version=1, tables=TABLES, unreadable=lambda why: WebhooksUnreadable(why=why)
)


class WebhookStore:
    """The database; thread-safe."""

    def __init__(self, home: Path | None) -> None:
        """Open the database of a node on first use; without a home, keep everything in memory."""
        self._database = PrivateDatabase(home, DATABASE)

    def add(self, hook: Webhook) -> None:
        """Add a webhook; raises `AlreadyExists` if its dataset has one for the URL, `TooManyWebhooks`."""
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
        """Return all webhooks, oldest first."""
        query = f"SELECT {COLUMNS} FROM webhooks ORDER BY created_ms, id"  # noqa: S608 - constants
        return tuple(_webhook(*row) for row in self._database.rows(query))

    def save_delivery(self, hook: Webhook) -> bool:
        """Store a webhook's delivery and the name of its dataset; return whether the webhook still exists."""
        statement = (
            "UPDATE webhooks SET alias = ?, event_id = ?, event = ?, head = ?, is_pending = ?, failures = ?, "
            "next_ms = ?, delivered_ms = ?, error = ? WHERE id = ?"
        )
        return self._database.change(statement, hook.alias, *_values(hook.delivery), hook.id) > 0

    def remove(self, id: str) -> None:
        """Remove a webhook; raises `NotFound`."""
        if not self.discard(id):
            raise NotFound(what=f"webhook {id}")

    def discard(self, id: str) -> bool:
        """Remove a webhook; return whether it existed."""
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
