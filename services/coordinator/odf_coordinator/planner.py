"""Which derivatives are to be looked at, and when: pure bookkeeping, no threads and no clock of its own.

Marks that come while a derivative waits or is being worked on coalesce into one further look. A look covers all
marks made before it began, so whoever holds a ticket from `mark` knows when the work it asked for is done.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from odf_common.chain.state import ChainState
from odf_common.errors import OdfError
from odf_common.identity.did import DatasetId
from odf_coordinator.datasets import inputs_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How a look ended: the state it left, or why it failed; `blocks` and `records` are what it added."""

    state: ChainState | None = None
    blocks: int = 0
    records: int = 0
    error: OdfError | None = None


class Dependants:
    """Who reads whom."""

    def __init__(self) -> None:
        """Know nobody."""
        self._inputs: dict[DatasetId, frozenset[DatasetId]] = {}
        self._readers: defaultdict[DatasetId, set[DatasetId]] = defaultdict(set)

    def note(self, state: ChainState) -> bool:
        """Learn what a dataset reads; True when that is new."""
        inputs = frozenset(inputs_of(state))
        if self._inputs.get(state.dataset_id, frozenset()) == inputs:
            return False
        self.forget(state.dataset_id)
        self._inputs[state.dataset_id] = inputs
        for one in inputs:
            self._readers[one].add(state.dataset_id)
        return True

    def forget(self, dataset: DatasetId) -> None:
        """Drop what a dataset reads."""
        for one in self._inputs.pop(dataset, frozenset()):
            self._readers[one].discard(dataset)

    def of(self, dataset: DatasetId) -> frozenset[DatasetId]:
        """Return the derivatives that read the dataset directly."""
        return frozenset(self._readers.get(dataset, ()))


@dataclass(slots=True)
class _Job:
    since: int = 0  # place in the line
    wanted: int = 0  # last ticket given
    started: int = 0  # last ticket that the look under way covers
    done: int = 0  # last ticket whose work is done
    is_running: bool = False
    is_forced: bool = False
    not_before: float = 0.0
    pauses: int = 0  # looks in a row that are to be repeated
    result: Result = field(default_factory=Result)


class Line:
    """Derivatives waiting to be looked at, first come first served, each at most once at a time."""

    def __init__(self) -> None:
        """Begin empty."""
        self._jobs: dict[DatasetId, _Job] = {}
        self._count = 0

    def mark(self, dataset: DatasetId, *, is_forced: bool = False) -> int:
        """Have a derivative looked at; returns the ticket. Forced: at once, and despite a known problem."""
        job = self._jobs.setdefault(dataset, _Job())
        if job.wanted == job.done:
            self._count += 1
            job.since = self._count
        job.wanted += 1
        if is_forced:
            job.is_forced = True
            job.not_before = 0.0
        return job.wanted

    def take(self, now: float) -> tuple[DatasetId, bool] | None:
        """Begin the next look that is due, and tell whether it is forced; None when there is none."""
        due = (
            (job.since, dataset)
            for dataset, job in self._jobs.items()
            if job.wanted > job.done and not job.is_running and job.not_before <= now
        )
        first = min(due, default=None)
        if first is None:
            return None
        job = self._jobs[first[1]]
        job.is_running, job.started = True, job.wanted
        is_forced, job.is_forced = job.is_forced, False
        return first[1], is_forced

    def finish(self, dataset: DatasetId, result: Result, *, again_at: float | None = None) -> None:
        """End a look; with `again_at` the failure is told, and another look follows then."""
        job = self._jobs.get(dataset)
        if job is None:
            return
        job.is_running, job.done, job.result = False, job.started, result
        job.pauses = 0 if again_at is None else job.pauses + 1
        job.not_before = again_at or 0.0
        if again_at is not None:
            self.mark(dataset)
        elif job.wanted > job.done:
            self._count += 1
            job.since = self._count

    def postpone(self, dataset: DatasetId, until: float) -> None:
        """End a look that came to nothing; it is to be repeated, and its tickets are still open."""
        job = self._jobs.get(dataset)
        if job is None:
            return
        job.is_running, job.not_before = False, until
        job.pauses += 1

    def pauses(self, dataset: DatasetId) -> int:
        """Return how many looks in a row are to be repeated."""
        job = self._jobs.get(dataset)
        return 0 if job is None else job.pauses

    def result(self, dataset: DatasetId, ticket: int) -> Result | None:
        """Return how the work of a ticket ended, None while it has not; a removed dataset's is empty."""
        job = self._jobs.get(dataset)
        if job is None:
            return Result()
        return job.result if job.done >= ticket else None

    def is_running(self, dataset: DatasetId) -> bool:
        """Tell whether a look is under way."""
        job = self._jobs.get(dataset)
        return job is not None and job.is_running

    def next_due(self) -> float | None:
        """Return when the next look is due, None when nothing waits."""
        waiting = (
            job.not_before for job in self._jobs.values() if job.wanted > job.done and not job.is_running
        )
        return min(waiting, default=None)

    def forget(self, datasets: Iterable[DatasetId]) -> None:
        """Drop datasets that are gone."""
        for dataset in datasets:
            self._jobs.pop(dataset, None)
