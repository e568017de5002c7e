"""Topics that a Source resource reads: which ones there are, and where reading begins."""

from collections.abc import Sequence
from dataclasses import dataclass

from odf_common.chain.state import ChainState
from odf_common.errors import InvalidInput, NotFound
from odf_common.ports.store import BlobStore, CatalogEntry
from odf_ingest.commit.committer import position_of
from odf_ingest.push.reader import NewClient
from odf_ingest.push.source_topics import SourceTopic, SourceTopics, load_starts
from odf_ingest.source_settings import EARLIEST, ReservedTopics, SourceSettings, load_settings, save_settings
from odf_ingest.sources.message_feeds import TopicFeed


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFeeds:
    """Finds topics in the cluster."""

    topics: SourceTopics
    blobs: BlobStore
    new_client: NewClient

    def feeds(
        self, entry: CatalogEntry, state: ChainState, source: str, settings: SourceSettings
    ) -> Sequence[TopicFeed]:
        """Return the topics that exist or were read before; raises `InvalidInput` for a topic of a node."""
        self._note(entry, source, settings)
        cluster = self.topics.cluster
        listed = cluster.list_names()
        reserved = ReservedTopics(cluster.prefix, listed)
        for name in settings.topics.exact:
            why = reserved.why(name)
            if why is not None:
                raise InvalidInput(where="spec.ingress.topics", text=f"topic {name} {why}")
        # Not the buffer of a source that took pushes before.
        committed = [name for name in position_of(state, source).topics if "/" not in name]
        names = settings.topics.among({*listed, *committed}, reserved)
        described = cluster.describe(names) if names else {}
        starts = load_starts(self.blobs, entry.dataset_id).get(source, {})
        if not starts and not committed and settings.topic_start != EARLIEST:
            self.topics.choose_start(entry, state, source, settings.topics, settings.topic_start)
            starts = load_starts(self.blobs, entry.dataset_id).get(source, {})
        missing = {
            name for name, topic in described.items() if isinstance(topic, NotFound) and name not in committed
        }
        if missing and missing == {*names}:
            raise NotFound(what=f"topic {', '.join(sorted(missing))}")
        return [
            TopicFeed(
                described=SourceTopic(
                    source=source,
                    name=name,
                    described=described[name],
                    is_own=False,
                    start=starts.get(name),
                    columns=settings.message_columns,
                ),
                new_client=self.new_client,
            )
            for name in names
            if name not in missing
        ]

    def _note(self, entry: CatalogEntry, source: str, settings: SourceSettings) -> None:
        """Store the settings of the resource where commits read, and commands show, those of sources."""
        with self.blobs.lock_notes(entry.dataset_id):
            if load_settings(self.blobs, entry.dataset_id, source) != settings:
                save_settings(self.blobs, entry.dataset_id, source, settings)
