"""Reports how many messages wait for a stopped source: a source that is read reports that with each batch."""

from collections.abc import Callable

from odf_common.chain.state import ChainState
from odf_ingest.commit.committer import position_of
from odf_ingest.push.source_record import Key
from odf_ingest.push.source_topics import SourceTopic
from odf_ingest.push.start_position import messages_after

ReportWaiting = Callable[[Key, int], None]


class WaitingReports:
    """Reports each inspection of a stopped source, and the next opening, which may be after those messages."""

    def __init__(self, report: ReportWaiting) -> None:
        """Call `report` with a source and the number of messages that wait for it."""
        self._report = report
        self._stopped: set[Key] = set()

    def stopped(self, key: Key, state: ChainState, topic: SourceTopic) -> None:
        """Report what waits for a stopped source, unless its topic cannot be described."""
        self._stopped.add(key)
        self._tell(key, state, topic)

    def opened(self, key: Key, state: ChainState, topic: SourceTopic) -> None:
        """Report what waits for a source that was stopped before."""
        if key in self._stopped:
            self._stopped.discard(key)
            self._tell(key, state, topic)

    def forget(self, key: Key) -> None:
        """Forget a source that is no longer assigned."""
        self._stopped.discard(key)

    def _tell(self, key: Key, state: ChainState, topic: SourceTopic) -> None:
        count = messages_after(position_of(state, topic.source).topics.get(topic.name), topic)
        if count is not None:
            self._report(key, count)
