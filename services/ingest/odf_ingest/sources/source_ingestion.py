"""Operations of Source resources: pushes are accepted into buffers, and runs of flows commit data to datasets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from odf_common.errors import Conflict, InvalidInput, NotFound
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.events import AddPushSource
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.store import Catalog, require_entry
from odf_common.resources import specs
from odf_common.resources.scalar_formats import TypeUri
from odf_ingest.commit.committer import CommitQueues, position_of
from odf_ingest.commit.file_commit import digest_of
from odf_ingest.errors import UnsupportedMediaType
from odf_ingest.poll.poller import Poller
from odf_ingest.prepare.plan import declared_schema
from odf_ingest.read import read_file, split_file
from odf_ingest.read.input_format import InputFormat
from odf_ingest.sources.message_drain import Drain, IsWanted, MessageDrain, Report
from odf_ingest.sources.message_feeds import BufferFeed, MessageFeed, Offsets
from odf_ingest.sources.push_buffer import AcceptedPush, NewPush, PushBuffer
from odf_ingest.sources.source_controller import SourceController
from odf_ingest.sources.source_resource import (
    SourceNotPushed,
    chain_name,
    decoded,
    has_whole_batches,
    push_definition,
    push_ingress,
    source_spec,
    topic_settings,
)
from odf_ingest.sources.topic_feeds import TopicFeeds

Json = Mapping[str, Any]
DELETION_POLICY: Final = str(TypeUri(context="resource", name="DeletionPolicy"))
FORCED: Final = "Force"


class RecordsUncommitted(Conflict):
    """A deleted source has accepted records that no flow has committed."""

    MESSAGE = "{records} accepted records are not committed"
    ADVICE = "run a flow that ingests them, or delete the source with --force, which discards them"

    records: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePush:
    """A push to a Source resource."""

    receipt: str
    key: str
    file: Path
    input_format: str
    event_time: Timestamp
    accepted_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceIngestion:
    """Accepts and commits data of Source resources, given as their documents; thread-safe."""

    controller: SourceController
    poller: Poller
    buffer: PushBuffer
    drain: MessageDrain
    queues: CommitQueues
    catalog: Catalog
    topics: TopicFeeds
    _drained: dict[tuple[DatasetId, str, str], tuple[Offsets, Offsets]] = field(default_factory=dict)
    """By dataset, source and topic: the position of the chain after a run, and the ends that were read."""

    def check(self, document: Json, input_format: str) -> AddPushSource:
        """Return the definition of a source; raises the error because of which a push would not be accepted."""
        definition = _push_source_of(document)
        InputFormat.parse(input_format).step(definition.read)
        return definition

    def accept(self, document: Json, push: SourcePush) -> AcceptedPush:
        """Store a push durably; raises `InvalidInput`, `BufferFull`."""
        definition = self.check(document, push.input_format)
        ingress = push_ingress(source_spec(document))
        assert isinstance(ingress, specs.IngressRestEndpoint)
        values, records = _messages(document, definition, push)
        return self.buffer.accept(
            document["headers"]["id"],
            NewPush(
                receipt=push.receipt,
                key=push.key,
                digest=digest_of(push.file),
                values=values,
                records=records,
                ms=push.event_time.ms,
                accepted_ms=push.accepted_ms,
            ),
            (ingress.buffer or specs.IngressBufferMemory()).buffer_size,
        )

    def ingest(
        self,
        dataset: DatasetId,
        document: Json,
        report: Report,
        is_wanted: IsWanted,
        *,
        consumers: Sequence[DatasetId] = (),
    ) -> None:
        """Commit all new data of a source; drop from its buffer what all `consumers` have."""
        ingress = push_ingress(source_spec(document))
        if ingress is None:
            source = self.controller.polled_source(dict(document))
            self.poller.poll(dataset, report, is_wanted, source=source)
            return
        definition = push_definition(document)
        drain = Drain(dataset=dataset, definition=definition, report=report, is_wanted=is_wanted)
        if isinstance(ingress, specs.IngressKafkaTopic):
            drain = replace(drain, settings=topic_settings(ingress))
        feeds = self._feeds(dataset, document)
        for feed in feeds:
            self.drain.run(drain, feed, [other.topic for other in feeds if other is not feed])
            self._drained[dataset, definition.source_name, feed.topic] = (
                self._start(dataset, definition, feed),
                feed.ends,
            )
        if isinstance(ingress, specs.IngressRestEndpoint):
            (feed,) = feeds
            positions = [self._start(one, definition, feed)[0] for one in {dataset, *consumers}]
            self.buffer.release(document["headers"]["id"], min(positions))

    def count(self, dataset: DatasetId, document: Json) -> int:
        """Return the number of records of a pushed source that a dataset does not have yet."""
        definition, count = push_definition(document), 0
        for feed in self._feeds(dataset, document):
            start = self._start(dataset, definition, feed)
            drained = self._drained.get((dataset, definition.source_name, feed.topic))
            if drained is not None and drained[0] == start:
                start = drained[1]  # only markers of transactions are between
            count += feed.count(start)
        return count

    def _feeds(self, dataset: DatasetId, document: Json) -> Sequence[MessageFeed]:
        ingress = push_ingress(source_spec(document))
        if not isinstance(ingress, specs.IngressKafkaTopic):
            return [BufferFeed.now(self.buffer, document["headers"]["id"])]
        name, entry = chain_name(document), require_entry(self.catalog, str(dataset))
        return self.topics.feeds(entry, self.queues.state(dataset), name, topic_settings(ingress))

    def _start(self, dataset: DatasetId, definition: AddPushSource, feed: MessageFeed) -> Offsets:
        """Return the offsets at which a dataset continues; the ends for a dataset that is gone."""
        try:
            state = self.queues.state(dataset)
        except NotFound:
            return feed.ends
        return feed.start(position_of(state, definition.source_name).topics.get(feed.topic)).positions


def forget_source(buffer: PushBuffer, document: Json) -> None:
    """Forget a source that is deleted; raises `RecordsUncommitted` if it holds records, unless that was forced."""
    source = document["headers"]["id"]
    waiting = buffer.count(source)
    if waiting and document["headers"]["annotations"].get(DELETION_POLICY) != FORCED:
        raise RecordsUncommitted(records=waiting)
    buffer.forget(source)


def _push_source_of(document: Json) -> AddPushSource:
    """Return the definition of a source with a buffer; raises `InvalidInput` for another one."""
    definition = push_definition(document)
    if not isinstance(push_ingress(source_spec(document)), specs.IngressRestEndpoint):
        raise SourceNotPushed(where="spec.ingress", text="the source reads topics; nothing is pushed to it")
    return definition


def _messages(document: Json, definition: AddPushSource, push: SourcePush) -> tuple[Sequence[bytes], int]:
    """Return the messages of a push, and the number of its records; raises `InvalidInput`."""
    own = source_spec(document).read
    step = InputFormat.parse(push.input_format).step(own)
    content, is_own = push.file.read_bytes(), decoded(step) == definition.read
    if is_own and has_whole_batches(definition):
        return [content], max(len(read_file(step, push.file, declared_schema(step))), 1)
    found = split_file(step, content) if is_own else None
    if found is None:
        known = f"send the format of the source, {type(own).__name__.removeprefix('ReadStep')}"
        raise UnsupportedMediaType(media_type=push.input_format, known=(known,))
    if not found.places:
        raise InvalidInput(text="the push has no records")
    return found.messages(0, len(found.places)), len(found.places)
