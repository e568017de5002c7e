"""Reports how many messages wait for a stopped source: a source that is read reports that with each batch."""

from collections.abc import Callable

from odf_common.chain.state import ChainState
from odf_common.errors import OdfError
from odf_common.ports.bus import TopicInfo
from odf_common.ports.store import CatalogEntry
from odf_ingest.commit.committer import position_of
from odf_ingest.push.source_record import Key
from odf_ingest.push.start_position import messages_after

ReportWaiting = Callable[[Key, int], None]


class WaitingReports:
    """Reports each inspection of a stopped source, and the next opening, which may be after those messages."""

    def __init__(self, report: ReportWaiting) -> None:
        """Call `report` with a source and the number of messages that wait for it."""
        self._report = report
        self._stopped: set[Key] = set()

    def stopped(
        self, key: Key, entry: CatalogEntry, state: ChainState, described: TopicInfo | OdfError
    ) -> None:
        """Report what waits for a stopped source, unless its topic cannot be described."""
        self._stopped.add(key)
        self._tell(key, entry, state, described)

    def opened(
        self, key: Key, entry: CatalogEntry, state: ChainState, described: TopicInfo | OdfError
    ) -> None:
        """Report what waits for a source that was stopped before."""
        if key in self._stopped:
            self._stopped.discard(key)
            self._tell(key, entry, state, described)

    def forget(self, key: Key) -> None:
        """Forget a source that is no longer assigned."""
        self._stopped.discard(key)

    def _tell(
        self, key: Key, entry: CatalogEntry, state: ChainState, described: TopicInfo | OdfError
    ) -> None:
        if isinstance(described, TopicInfo):
            known = position_of(state, key[1]).topics.get(entry.push_topics[key[1]])
            self._report(key, messages_after(known, described))
