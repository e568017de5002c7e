"""The ancestry of datasets: a dataset derived from a private one is private (ADR 0070). No IO."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from odf_common.identity.dataset_refs import DatasetId


@dataclass(frozen=True, slots=True, kw_only=True)
class Ancestor:
    """A dataset with what decides its visibility: its inputs, and the private datasets that it was published with."""

    inputs: tuple[DatasetId, ...] = ()
    is_private: bool = False
    """Whether the dataset is private by choice or by default, regardless of its inputs."""
    is_known: bool = True
    """False if its chain or head is damaged or lost, so that its inputs are unknown and may be private."""
    published: frozenset[DatasetId] = frozenset()


class Lineage:
    """The ancestry of a node's datasets at one point in time; each dataset is loaded at most once."""

    def __init__(self, load: Callable[[DatasetId], Ancestor]) -> None:
        """Load datasets by `load`; all methods raise its errors."""
        self._load = load
        self._seen: dict[DatasetId, Ancestor] = {}
        self._sources: dict[DatasetId, frozenset[DatasetId]] = {}

    def sources(self, dataset: DatasetId) -> frozenset[DatasetId]:
        """Return the private datasets that `dataset` is derived from, except those that were published on all paths.

        Datasets whose inputs are unknown count as private, including `dataset` itself.
        """
        if dataset not in self._sources:
            self._solve(dataset)
        return self._sources[dataset]

    def to_publish(self, dataset: DatasetId) -> frozenset[DatasetId]:
        """Return the private datasets whose content becomes public if `dataset` is made public.

        Datasets that only count as private because their inputs are unknown are not included.
        """
        self.sources(dataset)
        reached = frozenset[DatasetId]().union(*map(self._origins, self._seen[dataset].inputs))
        return frozenset(origin for origin in reached if self._seen[origin].is_private)

    def _solve(self, dataset: DatasetId) -> None:
        new = dict(self._visit_new(dataset))
        self._seen.update(new)
        self._sources.update(dict.fromkeys(new, frozenset()))
        is_changed = True
        while is_changed:  # some rounds, since readers mostly come before what they read; more for circles
            is_changed = False
            for current in reversed(new):
                found = self._private_origins(current)
                is_changed |= found != self._sources[current]
                self._sources[current] = found

    def _visit_new(self, dataset: DatasetId) -> Iterator[tuple[DatasetId, Ancestor]]:
        seen, waiting = set(self._sources), [dataset]
        while waiting:
            if (current := waiting.pop()) not in seen:
                seen.add(current)
                ancestor = self._load(current)
                yield current, ancestor
                waiting.extend(ancestor.inputs)

    def _private_origins(self, dataset: DatasetId) -> frozenset[DatasetId]:
        ancestor = self._seen[dataset]
        reached = frozenset[DatasetId]().union(*map(self._origins, ancestor.inputs))
        # What was published with a dataset was known then; while it is damaged, it is unknown what it reads now.
        reached -= {origin for origin in ancestor.published & reached if self._seen[origin].is_known}
        return reached if ancestor.is_known else reached | {dataset}

    def _origins(self, dataset: DatasetId) -> frozenset[DatasetId]:
        """Return the private datasets whose content readers of `dataset` can see."""
        sources = self._sources[dataset]
        return sources | {dataset} if self._seen[dataset].is_private else sources
