"""Summaries of the datasets of this node."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import structlog

from odf_common.dataset.node_datasets import NodeDatasets
from odf_common.errors import OdfError, Unavailable
from odf_common.ports.store import CatalogEntry
from odf_sync.search.summary import PAGE_BYTES, PAGE_DATASETS, DatasetSummary, Page, summary_of

log = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnDatasets:
    """This node's list of its datasets."""

    datasets: NodeDatasets
    in_bucket: bool
    """Whether they are all in one bucket, which may be out of reach."""

    def summaries(self, entries: Iterable[CatalogEntry]) -> Iterator[DatasetSummary]:
        """Yield summaries; datasets whose chain cannot be read, or that have none yet, are left out.

        Raises `Unavailable` if the node's bucket cannot be reached: a list without datasets would be believed.
        """
        for entry in entries:
            try:
                state = self.datasets.states.current(entry.dataset_id)
            except OdfError as error:
                self._require_reachable(error)
                log.debug(
                    "a dataset is not listed",
                    dataset=entry.alias,
                    dataset_id=str(entry.dataset_id),
                    why=str(error),
                )
                continue
            if state is not None:
                yield summary_of(entry.alias, state)

    def page(self, entries: Iterable[CatalogEntry], after: str) -> Page:
        """Return the page of datasets whose names follow `after`; the entries are sorted by lower-case name."""
        datasets: list[DatasetSummary] = []
        size = 0
        for summary in self.summaries(entry for entry in entries if entry.alias.lower() > after.lower()):
            if len(datasets) == PAGE_DATASETS or size > PAGE_BYTES:
                return Page(datasets=tuple(datasets), next=datasets[-1].name)
            datasets.append(summary)
            size += len(Page(datasets=(summary,)).to_bytes())
        return Page(datasets=tuple(datasets))

    def _require_reachable(self, error: OdfError) -> None:
        """Raise an error that concerns the datasets of a bucket together; that of a file concerns one dataset."""
        if isinstance(error, Unavailable) and self.in_bucket:
            raise error
