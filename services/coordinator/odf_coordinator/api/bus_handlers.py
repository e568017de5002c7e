"""Handlers of bus messages. Each command gets one reply; a commit of another instance triggers transforms."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import assert_never

import structlog

from odf_common.codec.envelopes import Body, Envelope, envelope
from odf_common.codec.flatbuffers import decode_event
from odf_common.codec.times import time_of
from odf_common.errors import InvalidInput, OdfError, StorageUnavailable, Unavailable
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import HEAD, DatasetId, check_ref_name
from odf_common.metadata.events import KnownEvent, UnknownEvent
from odf_common.ports.bus import COORDINATOR_REPLIES
from odf_common.proto.odf.bus.v1 import bus_pb2 as bus
from odf_common.service.run import OutgoingMessage
from odf_coordinator.catalog.datasets import Datasets
from odf_coordinator.commit.committer import Committed, Committer, Outcome, Overtaken, Refusal, refusal_of
from odf_coordinator.commit.head_publisher import committed_message
from odf_coordinator.operations.references import Importer
from odf_coordinator.storage import Slices
from odf_coordinator.transforms.runner import forget_late
from odf_coordinator.transforms.scheduler import Scheduler

log = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Commands:
    """Handles proposals and imports."""

    committer: Committer
    importer: Importer

    def handle(self, message: Envelope) -> Iterable[OutgoingMessage]:
        """Execute a command and return the reply. A command that cannot be decoded is refused."""
        try:
            outcome = self._outcome(message)
        except OdfError as error:
            if isinstance(error, Unavailable) and not isinstance(error, StorageUnavailable):
                raise
            # A fault of one dataset's files is answered at once: retrying would block a thread for other datasets.
            outcome = refusal_of(error)
        _note(message, outcome)
        return (OutgoingMessage(topic=COORDINATOR_REPLIES, envelope=_answer(message, outcome)),)

    def _outcome(self, message: Envelope) -> Outcome:
        dataset = DatasetId.parse(message.dataset_id)
        match message.WhichOneof("body"):
            case "propose":
                return self._propose(dataset, message.propose)
            case "import_chain":
                return self._import(dataset, message.import_chain)
            case other:
                raise InvalidInput(text=f"unknown command {other or '(empty)'}")

    def _propose(self, dataset: DatasetId, body: bus.Propose) -> Outcome:
        return self.committer.commit(
            dataset,
            expected_head=_hash(body.expected_head),
            events=tuple(known_event(raw) for raw in body.events),
            system_time=time_of(body.system_time),
        )

    def _import(self, dataset: DatasetId, body: bus.ImportChain) -> Outcome:
        return self.importer.import_chain(
            dataset,
            expected_head=_hash(body.expected_head),
            new_head=Multihash.from_bytes(body.new_head),
            alias=body.alias,
            ref=check_ref_name(body.ref or HEAD),
            is_forced=body.is_forced,
            creation=body.creation,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Notifications:
    """Triggers transforms after commits of other instances, and drops the state of deleted datasets."""

    scheduler: Scheduler
    datasets: Datasets
    slices: Slices

    def handle(self, message: Envelope) -> Iterable[OutgoingMessage]:
        """Enqueue the derivatives that a notification concerns; there is no reply."""
        match message.WhichOneof("body"):
            case "committed":
                self.scheduler.on_announced(DatasetId.parse(message.dataset_id))
            case "dataset_removed":
                gone = DatasetId.parse(message.dataset_id)
                self.scheduler.on_removed(gone)
                self.datasets.forget(gone)
                self.slices.forget(gone)
                forget_late(message.dataset_removed.alias)
            case _:
                pass
        return ()


def known_event(raw: bytes) -> KnownEvent:
    """Decode an event; raises `InvalidInput` if its kind is unknown to this version."""
    event = decode_event(raw)
    if isinstance(event, UnknownEvent):
        raise InvalidInput(text=f"an event of kind {event.discriminator} cannot be committed: {event.reason}")
    return event


def _answer(message: Envelope, outcome: Outcome) -> Envelope:
    return envelope(message.dataset_id, _reply(outcome), cause=message)


def _reply(outcome: Outcome) -> Body:
    """Return the reply to a proposal."""
    match outcome:
        case Committed(state=state, already=already):
            return committed_message(state, already=already)
        case Overtaken(head=head):
            return bus.HeadMoved(head=b"" if head is None else head.raw)
        case Refusal(code=code, text=text):
            return bus.Refused(code=code, text=text)
        case _:
            assert_never(outcome)


def _hash(raw: bytes) -> Multihash | None:
    return Multihash.from_bytes(raw) if raw else None


def _note(message: Envelope, outcome: Outcome) -> None:
    facts = {"dataset_id": message.dataset_id, "correlation": message.correlation_id}
    match outcome:
        case Committed(already=True):
            log.info("proposal repeated", **facts)
        case Refusal(code=code, text=text):
            log.warning("proposal refused", code=code, why=text, **facts)
        case Overtaken(head=head):
            log.info("proposal overtaken", head=None if head is None else str(head), **facts)
        case Committed():
            pass
