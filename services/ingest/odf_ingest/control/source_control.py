"""User operations on sources: show, resume, skip a message, change settings."""

import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from odf_common.chain.state import DEFAULT_SOURCE, ChainState
from odf_common.errors import InvalidInput, NotFound, OdfError, Refused
from odf_common.hashing.multihash import Multihash
from odf_common.identity.did import DatasetId
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.bus import TopicInfo, Topics
from odf_common.ports.store import BlobStore, CatalogEntry
from odf_ingest.commit.commit_queue import CommitQueues
from odf_ingest.commit.committer import position_of
from odf_ingest.commit.file_commit import chosen_source
from odf_ingest.commit.position import SourcePosition, TopicPosition
from odf_ingest.commit.watermark import KEEP_WATERMARK, NONE_LATE, Lateness, NewWatermark
from odf_ingest.errors import (
    AlreadyCommitted,
    NoMessageToSkip,
    NoTopic,
    SourceNotRead,
    SourceNotStopped,
    SourceStopped,
    StillSearching,
    TopicGone,
    TopicReplaced,
)
from odf_ingest.poll.schedule import PollSchedule, seconds_of
from odf_ingest.prepare.batch import MessagePosition, Search
from odf_ingest.prepare.preparer import Prepared
from odf_ingest.push.assigned_sources import AssignedSources
from odf_ingest.push.source_record import Key, SourceRecord
from odf_ingest.push.start_position import messages_after, require_same
from odf_ingest.push.state_machine import Phase
from odf_ingest.source_settings import SourceSettings, load_settings, save_settings

SEARCH_TIMEOUT_SECONDS: Final = 60.0  # to find the message to skip
ACTION_TIMEOUT_SECONDS: Final = 5.0  # for the reader's thread to execute an action
OFFSET: Final = r"[0-9]{1,18}"
OFFSETS: Final = rf"[0-9]{{1,9}}:{OFFSET}(,[0-9]{{1,9}}:{OFFSET})*"
NO_TOPIC: Final = "no-topic"  # state of a source whose dataset came from another node and was not pulled yet
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
    """When it is polled next (RFC 3339), if it has an interval."""


class SourceControl:
    """Executes commands; `request` runs an action on the reader's thread."""

    def __init__(
        self,
        *,
        queues: CommitQueues,
        topics: Topics,
        owned: AssignedSources,
        blobs: BlobStore,
        request: Callable[[Callable[[], None]], None],
        schedule: PollSchedule,
    ) -> None:
        """Use these parts."""
        self._schedule = schedule
        self._queues = queues
        self._topics = topics
        self._owned = owned
        self._blobs = blobs
        self._request = request

    def show(self, entry: CatalogEntry, name: str = "") -> Iterator[SourceView]:
        """Iterate over a dataset's sources, or the one with this name."""
        state = self._queues.state(entry.dataset_id)
        if _is_polled(state, name):
            yield self._polled(entry.dataset_id)
            return
        names = [chosen_source(state, name).source_name] if name else sorted(state.push_sources)
        described = self._topics.describe(set(entry.push_topics.values()))
        stuck = self._owned.stuck()
        for one in names:
            key = (entry.dataset_id, one)
            topic = entry.push_topics.get(one, "")
            view = _view(state, one, topic, described.get(topic), self._owned.record(key))
            why = stuck.get(key)
            yield replace(
                view,
                why="" if why is None else why.text,
                advice="" if why is None else why.advice(),
                settings=load_settings(self._blobs, *key),
                late=self._queues.late.of(*key),
            )

    def resume(
        self, entry: CatalogEntry, name: str, start: str
    ) -> tuple[str, Multihash | None, Mapping[int, int]]:
        """Resume a stopped source; return its name, the block with the new position, if any, and the position.

        Raises `InvalidInput` for a `start` outside of the topic, `Refused` for a source that is not stopped. One whose
        topic was deleted or replaced counts as stopped, even if its reader has not noticed that yet.
        """
        _require_start(start)
        state = self._queues.state(entry.dataset_id)
        source = chosen_source(state, name).source_name
        key = (entry.dataset_id, source)
        topic = entry.push_topics.get(source)
        if topic is None:
            raise NoTopic(what=f"the topic of push source {source}", dataset=entry.alias)
        self._require_resumable(key, start, lambda: self._stop_of(entry, state, source, topic))
        head = None
        if start:
            move = PositionMove(source=source, topic=topic, now=self._described(topic), start=start)
            outcome = self._queues.commit(entry.dataset_id, move)
            state, head = outcome.state, outcome.state.head
        self._resumed(key)
        known = position_of(state, source).topics.get(topic)
        return source, head, {} if known is None else known.next

    def skip(self, entry: CatalogEntry, name: str) -> tuple[str, MessagePosition | None]:
        """Skip the message that blocks a source; return the source's name, and the message's place.

        Raises `SourceStopped` if the source stops for another reason, `Refused` if no message blocks it.
        """
        source = chosen_source(self._queues.state(entry.dataset_id), name).source_name
        key = (entry.dataset_id, source)
        record = self._owned.record(key)
        search = None if record is None else record.skips
        if search is None:
            why = self._owned.stuck().get(key)
            held = (
                f"push source {source} is not stopped on this instance"
                if why is None
                else f"{why}. {why.advice()}"
            )
            raise NoMessageToSkip(text=f"no message blocks it: {held}")
        self._resumed(key, search)
        try:
            return source, search.found.result(SEARCH_TIMEOUT_SECONDS)
        except TimeoutError:
            text = f"push source {source} is still searching for the message; see `odf source show {entry.alias}`"
            raise StillSearching(text=text) from None

    def change(self, entry: CatalogEntry, name: str, changes: Mapping[str, str]) -> str:
        """Store changed settings of a source, which apply from its next batch; return its name."""
        state = self._queues.state(entry.dataset_id)
        is_polled = _is_polled(state, name)
        if "pollInterval" in changes and not is_polled:
            text = f"{entry.alias} has no polling source; push sources are read as messages arrive"
            raise InvalidInput(where="pollInterval", text=text)
        source = DEFAULT_SOURCE if is_polled else chosen_source(state, name).source_name
        settings = load_settings(self._blobs, entry.dataset_id, source).changed(changes)
        save_settings(self._blobs, entry.dataset_id, source, settings)
        self._schedule.look_again()
        return source

    def _polled(self, dataset: DatasetId) -> SourceView:
        settings = load_settings(self._blobs, dataset, DEFAULT_SOURCE)
        seen = self._schedule.view(dataset, seconds_of(settings.poll_interval))
        return SourceView(
            name=DEFAULT_SOURCE,
            topic="",
            state=seen.state,
            since=str(seen.last or ""),
            why=str(seen.error or ""),
            advice="" if seen.error is None else seen.error.advice(),
            next={},
            waiting=None,
            settings=settings,
            late=self._queues.late.of(dataset, DEFAULT_SOURCE),
            next_poll=str(seen.next or ""),
        )

    def _require_resumable(self, key: Key, start: str, stop: Callable[[], SourceStopped | None]) -> None:
        """Raise `Refused` unless the source is stopped, or the topic has a reason to `stop` it and `start` is given."""
        record = self._owned.record(key)
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

    def _stop_of(
        self, entry: CatalogEntry, state: ChainState, source: str, topic: str
    ) -> SourceStopped | None:
        """Return why the source cannot continue with its topic as it is now; None if it can, or if that is unknown."""
        known = position_of(state, source).topics.get(topic)
        try:
            require_same(topic, self._topics.describe([topic])[topic], known)
        except (TopicGone, TopicReplaced) as why:
            return SourceStopped(dataset=entry.alias, source=source, reason=why.code, text=str(why))
        except OdfError:
            return None
        return None

    def _resumed(self, key: Key, search: Search | None = None) -> None:
        """Resume the source and wait until it is being opened, so that the old reason is no longer shown."""
        done = threading.Event()

        def resume() -> None:
            record = self._owned.record(key)
            source = None if record is None else record.source
            if search is None and source is not None and self._owned.phase(key) is not Phase.WAITING:
                self._owned.reopen(source)  # its topic was replaced, which it has not noticed yet
            else:
                self._owned.resume(key, search)
            done.set()

        self._request(resume)
        done.wait(ACTION_TIMEOUT_SECONDS)

    def _described(self, topic: str) -> TopicInfo:
        found = self._topics.describe([topic])[topic]
        if isinstance(found, NotFound):
            # It was deleted; resuming the source means that it is needed again.
            self._topics.create_push_topic(topic)
            found = self._topics.describe([topic])[topic]
        if isinstance(found, OdfError):
            raise found
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionMove:
    """Port `Batch` for a position chosen by the user in the topic as it is `now`; without records."""

    source: str
    topic: str
    now: TopicInfo
    start: str
    may_be_empty: bool = True

    def position_in(self, state: ChainState) -> SourcePosition:
        """Return the source's position in a state of the chain."""
        return position_of(state, self.source)

    def check(self, position: SourcePosition) -> None:
        """Raise `AlreadyCommitted` if the source is at that position."""
        if position.topics.get(self.topic) == self._moved(position):
            raise AlreadyCommitted

    def prepare(self, state: ChainState) -> Prepared:
        """Return no records."""
        declared = chosen_source(state, self.source)
        return Prepared(source=declared, records=None, moment=Timestamp(0), greatest={})

    def left_of(self, error: InvalidInput) -> Prepared:
        """Raise the error."""
        raise error

    def advance(self, position: SourcePosition, prepared: Prepared) -> tuple[SourcePosition, NewWatermark]:
        """Return the chosen position; the watermark stays."""
        return position.with_topic(self.topic, self._moved(position)), KEEP_WATERMARK

    def before_proposal(self) -> None:
        """Do nothing: a command cannot be canceled."""

    def _moved(self, position: SourcePosition) -> TopicPosition:
        known = position.topics.get(self.topic, TopicPosition(topic_id=self.now.topic_id))
        next_ = self._chosen(known)
        for number, at in next_.items():
            low, high = self.now.low[number], self.now.high[number]
            if not low <= at <= high:
                text = f"partition {number} has offsets {low} to {high}, not {at}"
                raise InvalidInput(where=f"topic {self.topic}", text=text)
        greatest = {number: moment for number, moment in known.greatest.items() if number in self.now.low}
        return TopicPosition(topic_id=self.now.topic_id, next=next_, greatest=greatest)

    def _chosen(self, known: TopicPosition) -> dict[int, int]:
        match self.start:
            case "earliest":
                return dict(self.now.low)
            case "latest":
                return dict(self.now.high)
            case "keep":
                return {number: at for number, at in known.next.items() if number in self.now.low}
            case offset if re.fullmatch(OFFSET, offset) and len(self.now.low) == 1:
                return dict.fromkeys(self.now.low, int(offset))
            case offsets if re.fullmatch(OFFSETS, offsets):
                return self._of_each([one.split(":") for one in offsets.split(",")])
            case other:
                text = f"expected earliest, latest, keep or an offset, {self._example()}, got {other!r}"
                raise InvalidInput(where="--from", text=text)

    def _of_each(self, pairs: Sequence[Sequence[str]]) -> dict[int, int]:
        chosen = {int(number): int(offset) for number, offset in pairs}
        if len(chosen) < len(pairs) or chosen.keys() != self.now.low.keys():
            text = f"give an offset for each partition of topic {self.topic}, {self._example()}"
            raise InvalidInput(where="--from", text=text)
        return chosen

    def _example(self) -> str:
        """Return an example of offsets for this topic."""
        numbers = sorted(self.now.low)
        return "such as " + (
            "1200" if len(numbers) == 1 else ",".join(f"{number}:1200" for number in numbers)
        )


def _is_polled(state: ChainState, name: str) -> bool:
    """Return whether the name, or its absence, means the dataset's polling source."""
    return state.polling_source is not None and not state.push_sources and name in {"", DEFAULT_SOURCE}


def _require_start(start: str) -> None:
    """Raise `InvalidInput` unless a start position is well-formed, for any topic."""
    if start and not re.fullmatch(f"earliest|latest|keep|{OFFSET}|{OFFSETS}", start):
        text = f"expected earliest, latest, keep or an offset, such as 1200 or 0:1200,1:1200, got {start!r}"
        raise InvalidInput(where="--from", text=text)


def _view(
    state: ChainState,
    name: str,
    topic: str,
    described: TopicInfo | OdfError | None,
    record: SourceRecord | None,
) -> SourceView:
    known = position_of(state, name).topics.get(topic)
    next_ = {} if known is None else dict(known.next)
    waiting = messages_after(known, described) if isinstance(described, TopicInfo) else None
    since = "" if record is None else datetime.fromtimestamp(record.since, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return SourceView(
        name=name,
        topic=topic,
        state=NO_TOPIC if not topic else ELSEWHERE if record is None else record.phase.value,
        since=since,
        next=next_,
        waiting=waiting,
        settings=SourceSettings(),
    )
