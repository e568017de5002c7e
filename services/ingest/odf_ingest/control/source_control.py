"""User operations on sources: show, resume, skip a message, change settings."""

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final

from odf_common.chain.state import DEFAULT_SOURCE, ChainState
from odf_common.codec.plain_values import camel
from odf_common.dataset.open_rejects import KIND
from odf_common.dataset.resume_position import checked_position
from odf_common.errors import (
    InvalidInput,
    NotFound,
    OdfError,
    Refused,
    Unavailable,
    advice_while_retried,
    name_dataset,
    with_advice,
)
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import DatasetId
from odf_common.ports.bus import TopicInfo
from odf_common.ports.store import BlobStore, CatalogEntry
from odf_common.resources.scalar_formats import is_uuid
from odf_ingest.commit.committer import CommitQueues, position_of
from odf_ingest.commit.file_commit import chosen_source
from odf_ingest.commit.watermark import NONE_LATE, Lateness
from odf_ingest.control.position_move import PositionMove
from odf_ingest.errors import (
    NoMessageToSkip,
    NoTopic,
    SettingsDeclared,
    SourceNotRead,
    SourceNotStopped,
    SourceStopped,
    StillSearching,
    TopicGone,
    TopicReplaced,
)
from odf_ingest.poll.polled_batch import require_rejectable
from odf_ingest.poll.schedule import PollSchedule, seconds_of
from odf_ingest.prepare.batch import MessagePosition, SkipSearch
from odf_ingest.prepare.message_values import require_possible
from odf_ingest.prepare.plan import plan_of
from odf_ingest.push.lifecycle.assigned_sources import AssignedSources
from odf_ingest.push.lifecycle.source_record import Phase, SourceRecord
from odf_ingest.push.lifecycle.start_position import messages_after, require_same, stop_at
from odf_ingest.push.source_topics import Key, SourceTopic, SourceTopics
from odf_ingest.registry import REGISTRY_SETTING, json_step
from odf_ingest.source_settings import SourceSettings, load_settings, save_settings
from odf_ingest.sources.source_resource import SETTINGS

SEARCH_TIMEOUT_SECONDS: Final = 60.0  # to find the message to skip
ACTION_TIMEOUT_SECONDS: Final = 5.0  # for the reader's thread to execute an action
CHANGE_POLL_SECONDS: Final = 0.02  # between checks whether a source is read with changed settings
TOPIC_SETTINGS: Final = frozenset({"topics", "topicStart"})
MESSAGE_SETTINGS: Final = TOPIC_SETTINGS | {
    "keyColumns",
    "keyFormat",
    "headerColumns",
    "messageFormat",
    "envelope",
    "timestampColumn",
}
NO_TOPIC: Final = "no-topic"  # state of a source whose dataset came from another node and was not pulled yet
IN_RESOURCE: Final = "resource"  # state of a source that a resource declares
ELSEWHERE: Final = "elsewhere"  # state of a source that another instance reads


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceView:
    """The state of a source; `waiting` is None while its topic cannot be described, or if it is polled."""

    name: str
    topic: str
    state: str
    since: str = ""
    why: str = ""
    advice: str = ""
    next: Mapping[int, int]
    waiting: int | None
    settings: SourceSettings
    late: Lateness = NONE_LATE
    next_poll: str = ""
    """Time of the next poll (RFC 3339), if the source has a poll interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeResult:
    """The result of resuming a source or skipping a message.

    `head` is the block that moved the position, if there is one; `next` is the position.
    """

    source: str
    topic: str = ""
    head: Multihash | None = None
    next: Mapping[int, int] = field(default_factory=dict)
    skipped: MessagePosition | None = None
    """The message that was skipped; None after a resume, and if no message failed when it was read again."""


@dataclass(eq=False, kw_only=True)
class SourceControl:
    """Executes the user operations; `request` runs an action on the reader's thread."""

    queues: CommitQueues
    topics: SourceTopics
    owned: AssignedSources
    blobs: BlobStore
    request: Callable[[Callable[[], None]], None]
    schedule: PollSchedule

    def show(self, entry: CatalogEntry, name: str = "") -> Iterator[SourceView]:
        """Yield the state of each of a dataset's sources, or of the source with this name."""
        state = self.queues.state(entry.dataset_id)
        if means_polling_source(state, name):
            yield self._view_polled(entry.dataset_id)
            return
        resources = [source for source in declared_sources(state) if name in {"", source}]
        for source in resources:
            yield self._view_declared(entry.dataset_id, state, source)
        if resources and (name or not state.push_sources):
            return
        names = [chosen_source(state, name).source_name] if name else sorted(state.push_sources)
        topics = self.topics.topics_of(entry, state)
        stuck = self.owned.stuck()
        for source in names:
            read = [topic for topic in topics if topic.source == source]
            settings = load_settings(self.blobs, entry.dataset_id, source)
            if not read:
                yield _view(state, source, None, settings, None)
            for topic in read:
                key = topic.key(entry.dataset_id)
                why, advice = _why_stalled(stuck.get(key), topic.described)
                why, advice = name_dataset(why, entry.alias), name_dataset(advice, entry.alias)
                yield replace(
                    _view(state, source, topic, settings, self.owned.record(key)),
                    why=why,
                    advice=advice,
                    late=self.queues.late.lateness_of(entry.dataset_id, source),
                    state=self._state(key, topic.described),
                )

    def _view_declared(self, dataset: DatasetId, state: ChainState, source: str) -> SourceView:
        positions = position_of(state, source).topics
        return SourceView(
            name=source,
            topic=", ".join(sorted(positions)),
            state=IN_RESOURCE,
            why=f"the resource Source {source} declares it, and runs of flows read it",
            next={} if len(positions) != 1 else dict(next(iter(positions.values())).next),
            waiting=None,
            settings=load_settings(self.blobs, dataset, source),
        )

    def resume(self, entry: CatalogEntry, name: str, start: str, topic: str = "") -> Sequence[ResumeResult]:
        """Resume a stopped source at one topic, or, if `topic` is empty, at all. Return one result per topic.

        Raises `InvalidInput` for a `start` outside of the topic, `Refused` for a source that is not stopped. A source
        whose topic was deleted or replaced counts as stopped, even if its reader has not noticed that yet.
        """
        if start:
            checked_position(start)
        state = self.queues.state(entry.dataset_id)
        source = chosen_source(state, name).source_name
        topics = [topic for topic in self.topics.topics_of(entry, state) if topic.source == source]
        chosen = [candidate for candidate in topics if candidate.name == topic] if topic else topics
        if not topics:
            why = _view(state, source, None, load_settings(self.blobs, entry.dataset_id, source), None).why
            raise NoTopic(what=f"the topic of push source {source}", dataset=entry.alias, why=why)
        if not chosen:
            raise NotFound(what=f"topic {topic} among those of push source {source}")
        if len(chosen) > 1:
            chosen = [topic for topic in chosen if self._is_resumable(entry, state, topic)] or chosen[:1]
        if len(chosen) > 1 and start[:1].isdigit():
            stopped = ", ".join(topic.name for topic in chosen)
            raise InvalidInput(
                where="--from", text=f"the source is stopped at several topics; add --topic: {stopped}"
            )
        return [self._resume(entry, state, topic, start) for topic in chosen]

    def _resume(self, entry: CatalogEntry, state: ChainState, topic: SourceTopic, start: str) -> ResumeResult:
        key = topic.key(entry.dataset_id)
        self._require_resumable(key, start, lambda: _stop_of(entry, state, topic))
        head = None
        if start:
            outcome = self.queues.commit(entry.dataset_id, self._move(topic, start))
            state, head = outcome.state, outcome.state.head
        self._continue(key)
        position = position_of(state, topic.source).topics.get(topic.name)
        return ResumeResult(
            source=topic.source, topic=topic.name, head=head, next={} if position is None else position.next
        )

    def _move(self, topic: SourceTopic, start: str) -> PositionMove:
        now = topic.described
        if isinstance(now, NotFound) and topic.is_own:
            # It was deleted; resuming the source means that it is needed again.
            self.topics.cluster.create_push_topic(topic.name)
            now = self.topics.cluster.describe([topic.name])[topic.name]
        if isinstance(now, NotFound):
            return PositionMove(source=topic.source, topic=topic.name, now=None, start=start)
        if isinstance(now, OdfError):
            raise now
        return PositionMove(source=topic.source, topic=topic.name, now=now, start=start)

    def _is_resumable(self, entry: CatalogEntry, state: ChainState, topic: SourceTopic) -> bool:
        """Return whether the source is stopped at a topic, or has a reason to stop there."""
        is_stopped = self.owned.phase(topic.key(entry.dataset_id)) is Phase.STOPPED
        return is_stopped or _stop_of(entry, state, topic) is not None

    def skip(self, entry: CatalogEntry, name: str) -> ResumeResult:
        """Skip the message that blocks a source.

        Raises `SourceStopped` if the source stops for another reason, `Refused` if no message blocks it.
        """
        state = self.queues.state(entry.dataset_id)
        source = chosen_source(state, name).source_name
        keys = [
            topic.key(entry.dataset_id)
            for topic in self.topics.topics_of(entry, state)
            if topic.source == source
        ]
        records = [(key, self.owned.record(key)) for key in keys]
        blocked = [
            (key, record.skips) for key, record in records if record is not None and record.skips is not None
        ]
        if not blocked:
            stuck = self.owned.stuck()
            why = next((stuck[key] for key in keys if key in stuck), None)
            held = (
                f"push source {source} is not stopped on this instance" if why is None else with_advice(why)
            )
            raise NoMessageToSkip(text=f"no message blocks it: {held}")
        key, search = blocked[0]
        self._continue(key, search)
        try:
            return ResumeResult(
                source=source,
                topic=key.topic or entry.push_topics[source],
                skipped=search.found.result(SEARCH_TIMEOUT_SECONDS),
            )
        except TimeoutError:
            text = f"push source {source} is still searching for the message; see `odf source show {entry.alias}`"
            raise StillSearching(text=text) from None

    def change(self, entry: CatalogEntry, name: str, changes: Mapping[str, str]) -> str:
        """Store changed settings of a source and return its name. They apply to later messages and commits."""
        state = self.queues.state(entry.dataset_id)
        _require_undeclared(state, name, changes)
        is_polled = means_polling_source(state, name)
        if "pollInterval" in changes and not is_polled:
            text = f"{entry.alias} has no polling source; push sources are read as messages arrive"
            raise InvalidInput(where="pollInterval", text=text)
        source = DEFAULT_SOURCE if is_polled else chosen_source(state, name).source_name
        settings = load_settings(self.blobs, entry.dataset_id, source).with_changes(changes)
        require_rejectable(state, settings)
        if changes.get(REGISTRY_SETTING):
            if is_polled:
                raise InvalidInput(where=REGISTRY_SETTING, text=f"{entry.alias} has no push source")
            json_step(state.push_sources[source].read)
        of_messages = changes.keys() & MESSAGE_SETTINGS
        if is_polled and of_messages:
            raise InvalidInput(where=min(of_messages), text=f"{entry.alias} has no push source")
        if of_messages:
            require_possible(
                settings.message_columns, plan_of(state, state.push_sources[source], settings.message_columns)
            )
        if of_messages & TOPIC_SETTINGS:
            self.topics.choose_start(entry, state, source, settings.topics, settings.topic_start)
        if of_topic := changes.keys() & {"partitions", "retention"}:
            if is_polled or settings.topics:
                text = f"source {source} of {entry.alias} has no topic of its own"
                raise InvalidInput(where=", ".join(sorted(of_topic)), text=text)
            self._configure(entry.push_topics[source], settings, of_topic)
        save_settings(self.blobs, entry.dataset_id, source, settings)
        self.schedule.rescan()
        if not is_polled:
            # At once: a setting may have been why the source is retried.
            self.request(lambda: self.owned.inspect(entry.dataset_id))
            self._await_change(entry, state, source)
        return source

    def _await_change(self, entry: CatalogEntry, state: ChainState, source: str) -> None:
        """Wait until all topics of a source are read with its current settings, or until a timeout."""
        deadline = time.monotonic() + ACTION_TIMEOUT_SECONDS
        try:
            topics = [topic for topic in self.topics.topics_of(entry, state) if topic.source == source]
        except Unavailable:  # nothing is read now
            return
        while self.owned.is_owned(entry.dataset_id) and time.monotonic() < deadline:
            if all(self._is_changed(entry.dataset_id, topic) for topic in topics):
                return
            time.sleep(CHANGE_POLL_SECONDS)

    def _is_changed(self, dataset: DatasetId, topic: SourceTopic) -> bool:
        record = self.owned.record(topic.key(dataset))
        if record is None or record.source is None:  # it may be about to be opened
            return record is not None and record.phase in {Phase.STOPPED, Phase.RETRYING}
        return record.source.columns == topic.columns

    def _configure(self, topic: str, settings: SourceSettings, changes: Collection[str]) -> None:
        """Apply settings of the source's own topic, such as its retention, to the Kafka topic."""
        if "partitions" in changes:
            self.topics.cluster.add_partitions(topic, settings.partitions)
        if "retention" in changes:
            retention = settings.retention
            self.topics.cluster.set_retention(topic, int(retention) if retention.is_limited else None)

    def _state(self, key: Key, described: TopicInfo | OdfError) -> str:
        record = self.owned.record(key)
        if record is not None:
            return record.phase.value
        if isinstance(described, Unavailable):  # without Kafka no instance knows which of them reads it
            return Phase.RETRYING.value
        return Phase.OPENING.value if self.owned.is_owned(key.dataset) else ELSEWHERE

    def _view_polled(self, dataset: DatasetId) -> SourceView:
        settings = load_settings(self.blobs, dataset, DEFAULT_SOURCE)
        view = self.schedule.view(dataset, seconds_of(settings.poll_interval))
        return SourceView(
            name=DEFAULT_SOURCE,
            topic="",
            state=view.state,
            since=str(view.last or ""),
            why=str(view.error or ""),
            advice="" if view.error is None else advice_while_retried(view.error),
            next={},
            waiting=None,
            settings=settings,
            late=self.queues.late.lateness_of(dataset, DEFAULT_SOURCE),
            next_poll=str(view.next or ""),
        )

    def _require_resumable(self, key: Key, start: str, stop: Callable[[], SourceStopped | None]) -> None:
        """Raise `Refused` unless the source is stopped, or the topic has a reason to `stop` it and `start` is given."""
        record = self.owned.record(key)
        if record is None:
            if not start:
                text = f"push source {key[1]} is not read yet; `odf status` shows whether it has a problem"
                raise SourceNotRead(text=text)
        elif record.phase not in {Phase.STOPPED, Phase.RETRYING}:
            why: Refused | None = stop()
            if why is None:
                text = f"push source {key[1]} is {record.phase}: there is nothing to resume"
                why = SourceNotStopped(text=text)
            elif start:
                return
            raise why

    def _continue(self, key: Key, search: SkipSearch | None = None) -> None:
        """Resume the source and wait until it is being opened. Then the reason of its stop is no longer shown."""
        done = threading.Event()

        def resume() -> None:
            record = self.owned.record(key)
            source = None if record is None else record.source
            if search is None and source is not None and self.owned.phase(key) is not Phase.WAITING:
                self.owned.reopen(source)  # its topic was replaced, which it has not noticed yet
            else:
                self.owned.resume(key, search)
            done.set()

        self.request(resume)
        done.wait(ACTION_TIMEOUT_SECONDS)


def _stop_of(entry: CatalogEntry, state: ChainState, topic: SourceTopic) -> SourceStopped | None:
    """Return the error if the topic that a source has read was deleted or replaced.

    None if it was not, or if the topic cannot be described.
    """
    position = position_of(state, topic.source).topics.get(topic.name)
    try:
        require_same(topic.name, topic.described, position)
    except (TopicGone, TopicReplaced) as why:
        return stop_at(topic, why, dataset=entry.alias)
    except OdfError:
        return None
    return None


def _why_stalled(stalled: Refused | None, described: TopicInfo | OdfError) -> tuple[str, str]:
    """Return the reason why a source does not read its topic, and the advice; both empty if it reads."""
    if stalled is not None:
        return stalled.text, stalled.advice()
    if isinstance(described, Unavailable):
        return str(described), described.advice()
    return "", ""


def means_polling_source(state: ChainState, name: str) -> bool:
    """Return whether the name means the dataset's polling source; an empty name means the only source."""
    return state.polling_source is not None and not state.push_sources and name in {"", DEFAULT_SOURCE}


def declared_sources(state: ChainState) -> Sequence[str]:
    """Return the names of sources that are resources: the chain has only their positions, under their ids."""
    return sorted(
        name
        for name, source in state.source_states.items()
        if source.kind == KIND and is_uuid(name) and name not in state.push_sources
    )


def _require_undeclared(state: ChainState, name: str, changes: Mapping[str, str]) -> None:
    """Raise `SettingsDeclared` for settings of a source that is a resource."""
    declared = declared_sources(state)
    if name not in declared and (name or not declared or state.push_sources or state.polling_source):
        return
    of_setting = {setting: field for field, setting in SETTINGS.items()}
    fields = sorted(f"spec.ingress.{camel(of_setting.get(setting, setting))}" for setting in changes)
    raise SettingsDeclared(source=name or ", ".join(declared), fields=", ".join(fields))


def _view(
    state: ChainState,
    name: str,
    topic: SourceTopic | None,
    settings: SourceSettings,
    record: SourceRecord | None,
) -> SourceView:
    position = None if topic is None else position_of(state, name).topics.get(topic.name)
    since = "" if record is None else datetime.fromtimestamp(record.since, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    why = ""
    if topic is None and settings.topics.patterns:
        why = f"no topic matches {', '.join(settings.topics.patterns)} yet; one that appears is read from its beginning"
    return SourceView(
        name=name,
        topic="" if topic is None else topic.name,
        state=NO_TOPIC,
        since=since,
        why=why,
        next={} if position is None else dict(position.next),
        waiting=None
        if topic is None
        else messages_after(position, topic, None if record is None else record.source),
        settings=settings,
    )
