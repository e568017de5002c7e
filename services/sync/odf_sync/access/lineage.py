"""The private datasets from which others of a node derive (ADR 0070)."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from odf_common.identity.did import DatasetId


@dataclass(frozen=True, slots=True, kw_only=True)
class Ancestor:
    """A dataset as its readers see it: what it reads, and what it was published with."""

    inputs: tuple[DatasetId, ...] = ()
    is_private: bool = False
    """By choice or by default, whatever it reads."""
    is_known: bool = True
    """False if its chain or its head is damaged or lost: it may read what is private."""
    published: frozenset[DatasetId] = frozenset()


class Lineage:
    """The datasets of a node at one moment: each is looked at once."""

    def __init__(self, look: Callable[[DatasetId], Ancestor]) -> None:
        """Look at a dataset by `look`, whose errors all methods pass on."""
        self._look = look
        self._seen: dict[DatasetId, Ancestor] = {}
        self._sources: dict[DatasetId, frozenset[DatasetId]] = {}

    def sources(self, dataset: DatasetId) -> frozenset[DatasetId]:
        """Return the private datasets that reach `dataset` on a way on which it was not published with them.

        So do datasets of which it is unknown what they read, itself included.
        """
        if dataset not in self._sources:
            self._solve(dataset)
        return self._sources[dataset]

    def to_publish(self, dataset: DatasetId) -> frozenset[DatasetId]:
        """Return the private datasets that `dataset` comes from, published or not; damage cannot be published."""
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
                ancestor = self._look(current)
                yield current, ancestor
                waiting.extend(ancestor.inputs)

    def _private_origins(self, dataset: DatasetId) -> frozenset[DatasetId]:
        ancestor = self._seen[dataset]
        reached = frozenset[DatasetId]().union(*map(self._origins, ancestor.inputs))
        # What was published with a dataset was known then; while it is damaged, it is unknown what it reads now.
        reached -= {origin for origin in ancestor.published & reached if self._seen[origin].is_known}
        return reached if ancestor.is_known else reached | {dataset}

    def _origins(self, dataset: DatasetId) -> frozenset[DatasetId]:
        """Return the private origins that reach readers of `dataset`."""
        sources = self._sources[dataset]
        return sources | {dataset} if self._seen[dataset].is_private else sources
