"""User commands for a push source, executed by the instance of ingest that reads it.

If another instance reads the source, the command is sent to the dataset's partition of the ingest command topic. The
reply is matched by correlation id.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from odf_common.codec.envelopes import Envelope, body_of, envelope
from odf_common.errors import InvalidInput, NotFound, OdfError, Refused, Unavailable, with_advice
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import DatasetId
from odf_common.ports.bus import COORDINATOR_REPLIES, INGEST_COMMANDS
from odf_common.ports.store import Catalog, CatalogEntry
from odf_common.proto.odf.bus.v1 import bus_pb2 as bus
from odf_common.service.request_reply import Replies
from odf_common.service.run import OutgoingMessage
from odf_ingest.control.source_control import SEARCH_TIMEOUT_SECONDS, ResumeResult, SourceControl
from odf_ingest.push.lifecycle.assigned_sources import AssignedSources

COMMAND_REPLY_SECONDS: Final = 20.0  # for another instance's reply, plus its search for a message to skip


@dataclass(eq=False, kw_only=True)
class SourceCommands:
    """Resumes sources and skips messages, whichever instance reads the source.

    `control` serves sources that this instance reads; `replies` sends commands to other instances.
    """

    control: SourceControl
    owned: AssignedSources
    catalog: Catalog
    replies: Replies

    def resume(self, entry: CatalogEntry, name: str, start: str, topic: str = "") -> ResumeResult:
        """Resume a stopped source; see `SourceControl.resume`. The result is that of the last topic."""
        return self._execute(entry, bus.SourceCommand(source_name=name, start=start, topic=topic))

    def skip(self, entry: CatalogEntry, name: str) -> ResumeResult:
        """Skip the message that blocks a source; see `SourceControl.skip`."""
        return self._execute(entry, bus.SourceCommand(source_name=name, skips=True))

    def handle(self, message: Envelope) -> Iterable[OutgoingMessage]:
        """Execute a command of another instance and return the reply."""
        if message.WhichOneof("body") != "source_command":
            raise InvalidInput(text=f"unknown command {message.WhichOneof('body')}")
        answer: bus.SourceContinues | bus.Refused
        try:
            entry = self.catalog.by_id(DatasetId.parse(message.dataset_id))
            if entry is None:
                raise NotFound(what=f"dataset {message.dataset_id}")
            answer = _encode(self._execute_here(entry, message.source_command))
        except OdfError as error:
            answer = bus.Refused(code=error.code, text=with_advice(error))
        return (
            OutgoingMessage(
                topic=COORDINATOR_REPLIES, envelope=envelope(message.dataset_id, answer, cause=message)
            ),
        )

    def _execute(self, entry: CatalogEntry, command: bus.SourceCommand) -> ResumeResult:
        if self.owned.is_owned(entry.dataset_id):
            return self._execute_here(entry, command)
        wait = COMMAND_REPLY_SECONDS + SEARCH_TIMEOUT_SECONDS if command.skips else COMMAND_REPLY_SECONDS
        answer = self.replies.request(INGEST_COMMANDS, entry.dataset_id, command, timeout=wait)
        match None if answer is None else body_of(answer):
            case bus.SourceContinues() as continues:
                return _decode(continues)
            case bus.Refused(code=code, text=text):
                raise Refused(reason=code, text=text)
            case _:
                raise Unavailable(
                    what="the instance of ingest that reads the source", why=f"no reply within {wait:g} s"
                )

    def _execute_here(self, entry: CatalogEntry, command: bus.SourceCommand) -> ResumeResult:
        if command.skips:
            return self.control.skip(entry, command.source_name)
        return self.control.resume(entry, command.source_name, command.start, command.topic)[-1]


def _encode(done: ResumeResult) -> bus.SourceContinues:
    partition, offset = (None, None) if done.skipped is None else done.skipped
    return bus.SourceContinues(
        source_name=done.source,
        topic=done.topic,
        head=b"" if done.head is None else done.head.raw,
        next=done.next,
        partition=partition,
        offset=offset,
    )


def _decode(done: bus.SourceContinues) -> ResumeResult:
    return ResumeResult(
        source=done.source_name,
        topic=done.topic,
        head=Multihash.from_bytes(done.head) if done.head else None,
        next=dict(done.next),
        skipped=(done.partition, done.offset) if done.HasField("partition") else None,
    )
