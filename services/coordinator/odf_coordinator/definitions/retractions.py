"""Datasets whose records may be retracted later, and derivatives that could not read them.

Rows that wait for the watermark are final, so they are computed from inputs that never retract (docs/adr/0086). What
is not known here, such as sources of a chain's first blocks, is left to the engine, which refuses the retraction.
"""

from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Final

from odf_common.chain.walk import iterate
from odf_common.errors import InvalidQuery, NotFound
from odf_common.identity.did import DatasetId
from odf_common.metadata.events import (
    AddPushSource,
    DatasetVocabulary,
    KnownEvent,
    SetPollingSource,
    SetTransform,
)
from odf_common.metadata.steps import (
    MergeStrategy,
    MergeStrategyChangelogStream,
    MergeStrategySnapshot,
    MergeStrategyUpsertStream,
)
from odf_common.ports.engine import EngineNotAvailable, ValidatedQuery
from odf_coordinator.catalog.datasets import DatasetHandle, Datasets
from odf_coordinator.definitions.declared_schemas import Source, sources_of

MAX_BLOCKS: Final = 10_000  # read to find sources that were replaced or disabled
_DERIVED: Final = "has rows that are corrected or retracted later"


Describe = Callable[[SetTransform, DatasetVocabulary], ValidatedQuery]
"""Returns the engine's description of a chain's transform, over inputs as they are known now."""


class Retractions:
    """Reasons why records of datasets may be retracted, in the catalog and in drafts that are checked before."""

    def __init__(
        self, *, datasets: Datasets, describe: Describe, replacing: Mapping[DatasetId, SetTransform]
    ) -> None:
        """Know nothing yet: datasets are read when they are asked about.

        `replacing` has queries that are about to replace those of derivatives in the catalog.
        """
        self._datasets = datasets
        self._replacing = replacing
        self._describe = describe
        self._reasons: dict[DatasetId, str] = {}

    def why(self, ref: str) -> str:
        """Return the reason why a dataset's records may be retracted, such as "merges by UpsertStream".

        Empty if not known.
        """
        dataset = DatasetId.parse(ref)
        if dataset not in self._reasons:
            handle = self._datasets.find(ref)
            # Not asked again meanwhile: queries that are added may be a cycle, which is refused later.
            self._reasons[dataset] = ""
            self._reasons[dataset] = (
                self._why_derivative(handle) if handle.is_derivative else self._why_root(handle)
            )
        return self._reasons[dataset]

    def add_derivative(self, dataset: DatasetId, *, can_retract: bool) -> None:
        """Note what the engine says about a draft."""
        self._reasons[dataset] = _DERIVED if can_retract else ""

    def add_sources(self, dataset: DatasetId, events: Iterable[KnownEvent]) -> None:
        """Note the sources of a draft."""
        if why := why_retracted(
            event for event in events if isinstance(event, AddPushSource | SetPollingSource)
        ):
            self._reasons[dataset] = why
        elif self._datasets.by_id(dataset) is None:
            self._reasons.setdefault(dataset, "")

    def require_dependants(self, source: Source, root: DatasetHandle) -> None:
        """Raise `InvalidQuery` if the root may retract from now on, and a derivative cannot read that."""
        why = why_retracted((source,))
        if not why or self.why(str(root.id)):
            return
        self._reasons[root.id] = why
        waiting, seen = [*self._datasets.dependants(root.id)], set()
        while waiting:
            handle = waiting.pop()
            if handle.id in seen or not self._datasets.has_key(handle.id):
                continue
            seen.add(handle.id)
            validated = self._describe_derivative(handle)
            if validated is None:
                continue
            if validated.retraction_refusal:
                text = (
                    f"{handle.alias} reads {root.alias}, and its first retraction would stop it: "
                    f"{validated.retraction_refusal}; or add a root of its own for the source"
                )
                raise InvalidQuery(text=text, where="merge")
            if validated.can_retract:
                self._reasons[handle.id] = _DERIVED
                waiting += self._datasets.dependants(handle.id)

    def _why_derivative(self, handle: DatasetHandle) -> str:
        validated = self._describe_derivative(handle)
        return _DERIVED if validated is not None and validated.can_retract else ""

    def _describe_derivative(self, handle: DatasetHandle) -> ValidatedQuery | None:
        """Return the engine's answer about a derivative; None without a query, and for one refused today."""
        query = self._replacing.get(handle.id, handle.state.transform)
        if query is None:  # after a reset to before it
            return None
        try:
            return self._describe(query, handle.state.vocabulary)
        except (InvalidQuery, EngineNotAvailable, NotFound):
            return None

    def _why_root(self, handle: DatasetHandle) -> str:
        if why := why_retracted(sources_of(handle.state)):
            return why
        links = islice(iterate(self._datasets.reader(handle.id), handle.state.head), MAX_BLOCKS)
        earlier = (decoded.block.event for _, decoded, _ in links)
        return why_retracted(
            event for event in earlier if isinstance(event, AddPushSource | SetPollingSource)
        )


def why_retracted(sources: Iterable[Source]) -> str:
    """Return the reason why records of these sources may be retracted; empty if they only append."""
    return next((f"merges by {name}" for source in sources if (name := _retracting(source.merge))), "")


def _retracting(merge: MergeStrategy) -> str:
    match merge:
        case MergeStrategyChangelogStream():
            return "ChangelogStream"
        case MergeStrategySnapshot():
            return "Snapshot"
        case MergeStrategyUpsertStream():
            return "UpsertStream"
        case _:
            return ""
