"""Handlers of bus messages: commands of other instances, notifications, and assigned partitions."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from odf_common.codec.envelopes import Envelope
from odf_common.identity.dataset_refs import DatasetId
from odf_common.ports.bus import COORDINATOR_REPLIES, INGEST_COMMANDS, NOTIFICATIONS
from odf_common.service.request_reply import Replies
from odf_common.service.run import OutgoingMessage, Subscription
from odf_ingest.commit.committer import CommitQueues
from odf_ingest.control.source_commands import SourceCommands
from odf_ingest.push.lifecycle.assigned_sources import AssignedSources
from odf_ingest.push.reader import PushReader

COMMAND_THREADS: Final = 8  # finding a bad message takes a while


@dataclass(eq=False)
class Notices:
    """Passes notifications of other instances and new assignments of partitions to the reader.

    All actions run on the reader's thread. `assigned` is called there after the assignment has changed.
    """

    reader: PushReader
    owned: AssignedSources
    queues: CommitQueues
    assigned: Callable[[], None] = lambda: None

    def on_notification(self, message: Envelope) -> Iterable[OutgoingMessage]:
        """Inspect a changed dataset, or drop a deleted one."""
        match message.WhichOneof("body"):
            case "committed" if not message.committed.is_derivative:
                dataset, alias = DatasetId.parse(message.dataset_id), message.committed.alias
                # This process's own commits need no inspection.
                if not self.queues.is_own(dataset, message.committed.head):
                    self.reader.request(lambda: self.owned.inspect(dataset, alias))
            case "dataset_removed":
                gone = DatasetId.parse(message.dataset_id)
                self.reader.request(lambda: self.owned.remove(gone))
            case _:
                pass
        return ()

    def on_assigned(self, partitions: frozenset[int]) -> None:
        """Read the sources of the assigned partitions."""

        def own() -> None:
            self.owned.own(partitions)
            self.assigned()

        self.reader.request(own)


def subscriptions(notices: Notices, commands: SourceCommands, replies: Replies) -> tuple[Subscription, ...]:
    """Return the subscriptions of the service."""
    return (
        replies.subscription(COORDINATOR_REPLIES),
        Subscription(topic=NOTIFICATIONS, handler=notices.on_notification, group=False),
        Subscription(
            topic=INGEST_COMMANDS,
            handler=commands.handle,
            on_assigned=notices.on_assigned,
            threads=COMMAND_THREADS,
        ),
    )
