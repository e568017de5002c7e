"""The topics that a push source reads: its own, or external ones that its settings name.

External topics belong to other applications; the node never creates, changes or deletes them. Until the chain has a
position, the start offset is a note of this node. It is stored when it is determined, so a restart uses the same one.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from odf_common.chain.state import ChainState
from odf_common.errors import InvalidInput, NotFound, OdfError
from odf_common.identity.dataset_refs import DatasetId
from odf_common.ports.bus import TopicInfo, Topics
from odf_common.ports.store import BlobStore, CatalogEntry
from odf_ingest.commit.committer import position_of
from odf_ingest.message_columns import NO_COLUMNS, MessageColumns
from odf_ingest.source_settings import EARLIEST, LATEST, ReservedTopics, TopicNames, TopicStart, load_settings

STARTS: Final = "topic-starts"  # the note


class Key(NamedTuple):
    """The key of a topic to read: the source's own topic, or an external one."""

    dataset: DatasetId
    source: str
    topic: str = ""
    """The name of an external topic; empty for the source's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicOffsets:
    """Offsets of a topic by partition; the topic's id distinguishes it from a later topic of the same name."""

    topic_id: str
    next: Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTopic:
    """A topic that a source reads."""

    source: str
    name: str
    described: TopicInfo | OdfError
    is_own: bool = True
    """Whether it is the source's own topic; an external topic is only read."""
    start: TopicOffsets | None = None
    """The offsets at which to start, if the user has chosen them."""
    columns: MessageColumns = NO_COLUMNS
    """The columns that are read from keys, headers and timestamps of messages."""

    def key(self, dataset: DatasetId) -> Key:
        """Return the key of the source's reader for this topic."""
        return Key(dataset, self.source, "" if self.is_own else self.name)

    def starts(self, described: TopicInfo) -> Mapping[int, int]:
        """Return per partition the first offset to read: that of the chosen start, or else the first of the topic."""
        start = self.start
        chosen = start.next if start is not None and start.topic_id == described.topic_id else {}
        return {number: chosen.get(number, low) for number, low in described.low.items()}


@dataclass(slots=True)
class _Request:
    """The topics of one dataset that have to be described.

    `topics` has source, topic, and whether it is the source's own; `faults` the errors of sources.
    """

    topics: list[tuple[str, str, bool]] = field(default_factory=list)
    faults: dict[str, OdfError] = field(default_factory=dict)
    columns: dict[str, MessageColumns] = field(default_factory=dict)
    starts: Mapping[str, Mapping[str, TopicOffsets]] = field(default_factory=dict)


class SourceTopics:
    """Finds and describes the topics of sources."""

    def __init__(self, topics: Topics, blobs: BlobStore) -> None:
        """Use the settings and start offsets that are stored as notes in `blobs`."""
        self.cluster = topics
        self._blobs = blobs

    def topics_of(self, entry: CatalogEntry, state: ChainState) -> Sequence[SourceTopic]:
        """Return the topics of a dataset's sources; raises `InvalidInput` for damaged settings, `Unavailable`."""
        (topics,) = self.of_many([(entry, state)])
        if isinstance(topics, OdfError):
            raise topics
        return topics

    def of_many(
        self, datasets: Sequence[tuple[CatalogEntry, ChainState]]
    ) -> Sequence[Sequence[SourceTopic] | OdfError]:
        """Return for each dataset the topics of its sources, or an error. All topics are described in one request."""
        listing = _Listing(self.cluster)
        requests = [self._request_or_error(entry, state, listing) for entry, state in datasets]
        names = {
            name for request in requests if isinstance(request, _Request) for _, name, _ in request.topics
        }
        described = self._describe(names)
        return [
            request if isinstance(request, OdfError) else list(_topics(request, described))
            for request in requests
        ]

    def choose_start(
        self, entry: CatalogEntry, state: ChainState, source: str, names: TopicNames, start: TopicStart
    ) -> None:
        """Store durably where to start reading a source's topics. Raises `InvalidInput` for topics that cannot be read.

        A topic for which the chain has a position continues there. Topics that are created later are read from their
        beginning.
        """
        topics = self.cluster.list_names() if names else ()
        reserved = ReservedTopics(self.cluster.prefix, topics)
        for name in names.exact:
            why = reserved.why(name) or (None if name in topics else "does not exist")
            if why is not None:
                raise InvalidInput(where="topics", text=f"topic {name} {why}")
        committed = position_of(state, source).topics
        fresh = [name for name in names.among(topics, reserved) if name not in committed]
        starts = {} if start == EARLIEST else {name: self._offsets(name, start) for name in fresh}
        with self._blobs.lock_notes(entry.dataset_id):
            self._save_starts(entry.dataset_id, source, starts)

    def _request_or_error(
        self, entry: CatalogEntry, state: ChainState, listing: "_Listing"
    ) -> "_Request | OdfError":
        try:
            return self._request(entry, state, listing)
        except OdfError as error:
            return error

    def _request(self, entry: CatalogEntry, state: ChainState, listing: "_Listing") -> _Request:
        request = _Request()
        for source, own in entry.push_topics.items():
            if source not in state.push_sources:
                continue
            names = self._settled_names(entry.dataset_id, source, request)
            if not names:
                request.topics.append((source, own, True))
                continue
            committed = position_of(state, source).topics.keys() - {own}
            topics = listing.names() if names.patterns else ()
            # Topics that were read before are missed if they are gone.
            reserved = ReservedTopics(self.cluster.prefix, topics)
            request.topics += [(source, name, False) for name in names.among({*topics, *committed}, reserved)]
            request.starts = request.starts or load_starts(self._blobs, entry.dataset_id)
        return request

    def _settled_names(self, dataset: DatasetId, source: str, request: _Request) -> TopicNames:
        """Return the topic names in a source's settings. Add its columns, or the error, to `request`."""
        try:
            settings = load_settings(self._blobs, dataset, source)
        except InvalidInput as error:
            request.faults[source] = error  # it stops this source only
            return TopicNames()
        request.columns[source] = settings.message_columns
        return settings.topics

    def _describe(self, names: Collection[str]) -> Mapping[str, TopicInfo | OdfError]:
        if not names:
            return {}
        try:
            return self.cluster.describe(names)
        except OdfError as error:
            return dict.fromkeys(names, error)

    def _offsets(self, name: str, start: TopicStart) -> TopicOffsets:
        topic = self.cluster.describe([name])[name]
        if isinstance(topic, OdfError):
            raise topic
        ms = start.ms
        offsets = topic.high if start == LATEST or ms is None else self.cluster.offsets_at(name, ms)
        return TopicOffsets(topic_id=topic.topic_id, next=dict(offsets))

    def _save_starts(self, dataset: DatasetId, source: str, starts: Mapping[str, TopicOffsets]) -> None:
        others = {name: start for name, start in load_starts(self._blobs, dataset).items() if name != source}
        sources = {**others, source: starts} if starts else others
        plain = {
            name: {
                topic: {"id": position.topic_id, "next": _by_text_number(position.next)}
                for topic, position in topics.items()
            }
            for name, topics in sources.items()
        }
        text = json.dumps(plain, indent=1, sort_keys=True) if plain else None
        self._blobs.set_note(dataset, STARTS, text)


class _Listing:
    """The names of all topics of the cluster, listed at most once."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._names: Collection[str] | None = None

    def names(self) -> Collection[str]:
        """Return the names; raises `Unavailable`."""
        if self._names is None:
            self._names = self._topics.list_names()
        return self._names


def load_starts(blobs: BlobStore, dataset: DatasetId) -> Mapping[str, Mapping[str, TopicOffsets]]:
    """Return the chosen starts by source and topic; raises `InvalidInput` if they are damaged."""
    text = blobs.note(dataset, STARTS)
    try:
        plain = {} if text is None else json.loads(text)
        return {
            str(source): {str(topic): _parse_offsets(position) for topic, position in topics.items()}
            for source, topics in plain.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        where = f"starts of the topics of {dataset}"
        raise InvalidInput(where=where, text=f"cannot be read: {error}") from error


def as_of(state: ChainState, key: Key) -> object:
    """Return the parts of the chain's state that may cause a stop: definition and position of a source, and the schema.

    For an external topic only the position in this topic is included, because the source continues to read the others.
    """
    defined = state.push_sources.get(key.source), state.definitions.vocab, state.schema
    if not key.topic:
        return defined, state.source_states.get(key.source)
    position = position_of(state, key.source)
    return defined, position.topics.get(key.topic), position.receipts


def existing(topics: Iterable[SourceTopic]) -> Sequence[SourceTopic]:
    """Return the topics without those that are known not to exist."""
    return [topic for topic in topics if not isinstance(topic.described, NotFound)]


def _topics(request: _Request, described: Mapping[str, TopicInfo | OdfError]) -> Iterable[SourceTopic]:
    for source, name, is_own in request.topics:
        start = None if is_own else request.starts.get(source, {}).get(name)
        topic = request.faults.get(source) or described[name]
        columns = request.columns.get(source, NO_COLUMNS)
        yield SourceTopic(
            source=source, name=name, described=topic, is_own=is_own, start=start, columns=columns
        )


def _parse_offsets(plain: Mapping[str, Mapping[str, int]]) -> TopicOffsets:
    return TopicOffsets(
        topic_id=str(plain["id"]), next={int(number): int(offset) for number, offset in plain["next"].items()}
    )


def _by_text_number(offsets: Mapping[int, int]) -> dict[str, int]:
    return {str(number): offset for number, offset in sorted(offsets.items())}
