"""Which derivatives are to be looked at, and when: pure bookkeeping, no threads and no clock of its own.

Marks that come while a derivative waits or is being worked on coalesce into one further look. A look covers all
marks made before it began, so whoever holds a ticket from `mark` knows when the work it asked for is done.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from heapq import heappop, heappush
from typing import Final

from odf_common.chain.state import ChainState
from odf_common.errors import OdfError
from odf_common.identity.did import DatasetId
from odf_coordinator.catalog.registry import inputs_of


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
            readers = self._readers[one]
            readers.discard(dataset)
            if not readers:
                del self._readers[one]

    def of(self, dataset: DatasetId) -> frozenset[DatasetId]:
        """Return the derivatives that read the dataset directly."""
        return frozenset(self._readers.get(dataset, ()))


class JobState(Enum):
    """Where a derivative stands between two looks."""

    IDLE = auto()
    QUEUED = auto()
    FORCED = auto()
    """Queued by a person: neither a pause nor a known problem holds it up."""
    RUNNING = auto()
    MARKED = auto()
    """Running, and marked since: another look follows."""
    RUNNING_FORCED = auto()
    """Running, and asked for by a person since."""
    POSTPONED = auto()
    """What it needs was out of reach: waits, and those who asked wait with it."""
    FAILED = auto()
    """Those who asked know the error: waits for another look."""


class JobEvent(Enum):
    """What happens to a derivative."""

    MARK = auto()
    FORCE = auto()
    TAKE = auto()
    FINISH = auto()
    FAIL = auto()
    """Finished with an error, to be tried again by itself."""
    POSTPONE = auto()


_S, _E = JobState, JobEvent
# The end of a look at a dataset that was removed meanwhile: ignored, as its job is not running.
_ENDS: Final = (_E.FINISH, _E.FAIL, _E.POSTPONE)
TRANSITIONS: Final[Mapping[tuple[JobState, JobEvent], JobState]] = {
    (_S.IDLE, _E.MARK): _S.QUEUED,
    (_S.IDLE, _E.FORCE): _S.FORCED,
    (_S.QUEUED, _E.MARK): _S.QUEUED,
    (_S.QUEUED, _E.FORCE): _S.FORCED,
    (_S.QUEUED, _E.TAKE): _S.RUNNING,
    (_S.FORCED, _E.MARK): _S.FORCED,
    (_S.FORCED, _E.FORCE): _S.FORCED,
    (_S.FORCED, _E.TAKE): _S.RUNNING,
    (_S.RUNNING, _E.MARK): _S.MARKED,
    (_S.RUNNING, _E.FORCE): _S.RUNNING_FORCED,
    (_S.RUNNING, _E.FINISH): _S.IDLE,
    (_S.RUNNING, _E.FAIL): _S.FAILED,
    (_S.RUNNING, _E.POSTPONE): _S.POSTPONED,
    (_S.MARKED, _E.MARK): _S.MARKED,
    (_S.MARKED, _E.FORCE): _S.RUNNING_FORCED,
    (_S.MARKED, _E.FINISH): _S.QUEUED,
    (_S.MARKED, _E.FAIL): _S.FAILED,
    (_S.MARKED, _E.POSTPONE): _S.POSTPONED,
    (_S.RUNNING_FORCED, _E.MARK): _S.RUNNING_FORCED,
    (_S.RUNNING_FORCED, _E.FORCE): _S.RUNNING_FORCED,
    (_S.RUNNING_FORCED, _E.FINISH): _S.FORCED,
    (_S.RUNNING_FORCED, _E.FAIL): _S.FORCED,
    (_S.RUNNING_FORCED, _E.POSTPONE): _S.FORCED,
    (_S.POSTPONED, _E.MARK): _S.POSTPONED,
    (_S.POSTPONED, _E.FORCE): _S.FORCED,
    (_S.POSTPONED, _E.TAKE): _S.RUNNING,
    (_S.FAILED, _E.MARK): _S.FAILED,
    (_S.FAILED, _E.FORCE): _S.FORCED,
    (_S.FAILED, _E.TAKE): _S.RUNNING,
    **{
        (state, event): state
        for state in (_S.IDLE, _S.QUEUED, _S.FORCED, _S.POSTPONED, _S.FAILED)
        for event in _ENDS
    },
}
RUNNING: Final = frozenset((_S.RUNNING, _S.MARKED, _S.RUNNING_FORCED))
QUEUED: Final = frozenset((_S.QUEUED, _S.FORCED))
PAUSED: Final = frozenset((_S.POSTPONED, _S.FAILED))


@dataclass(slots=True)
class _Job:
    """A derivative; tickets are numbers, so that one that is answered answers all before it."""

    state: JobState = JobState.IDLE
    place: int = 0
    """In the line; each place is given once."""
    until: float = 0.0
    """End of a pause."""
    pauses: int = 0
    """Looks in a row that are to be repeated."""
    asked: int = 0
    """Last ticket given."""
    covered: int = 0
    """Last ticket that the look under way, or the last one, covers."""
    answered: int = 0
    """Last ticket with a result."""
    result: Result = field(default_factory=Result)


class Line:
    """Derivatives waiting to be looked at, first come first served, each at most once at a time."""

    def __init__(self) -> None:
        """Begin empty."""
        self._jobs: dict[DatasetId, _Job] = {}
        self._places = 0
        # Heaps; an entry counts while its job still has that place and waits.
        self._queue: list[tuple[int, DatasetId]] = []
        self._pauses: list[tuple[float, int, DatasetId]] = []

    def __len__(self) -> int:
        """Return how many derivatives are known."""
        return len(self._jobs)

    def mark(self, dataset: DatasetId, *, is_forced: bool = False) -> int:
        """Have a derivative looked at; returns the ticket. Forced: at once, and despite a known problem."""
        job = self._jobs.setdefault(dataset, _Job())
        job.asked += 1
        self._enter(dataset, job, JobEvent.FORCE if is_forced else JobEvent.MARK)
        return job.asked

    def take(self, now: float) -> tuple[DatasetId, bool] | None:
        """Begin the next look that is due, and tell whether it is forced; None when there is none."""
        self._drop_stale()
        while self._pauses and self._pauses[0][0] <= now:
            _, place, dataset = heappop(self._pauses)
            heappush(self._queue, (place, dataset))
            self._drop_stale()
        if not self._queue:
            return None
        _, dataset = heappop(self._queue)
        job = self._jobs[dataset]
        is_forced = job.state is JobState.FORCED
        job.covered = job.asked
        self._enter(dataset, job, JobEvent.TAKE)
        return dataset, is_forced

    def finish(self, dataset: DatasetId, result: Result, *, again_at: float | None = None) -> None:
        """End a look; with `again_at` the failure is reported, and another look follows then."""
        job = self._jobs.get(dataset)
        if job is None or job.state not in RUNNING:
            return
        job.answered, job.result = job.covered, result
        if again_at is None:
            job.pauses = 0
            self._enter(dataset, job, JobEvent.FINISH)
        else:
            job.pauses += 1
            job.until = again_at
            self._enter(dataset, job, JobEvent.FAIL)

    def postpone(self, dataset: DatasetId, until: float) -> None:
        """End a look that came to nothing; it is to be repeated, and its tickets are still open."""
        job = self._jobs.get(dataset)
        if job is None or job.state not in RUNNING:
            return
        job.pauses += 1
        job.until = until
        self._enter(dataset, job, JobEvent.POSTPONE)

    def pauses(self, dataset: DatasetId) -> int:
        """Return how many looks in a row are to be repeated."""
        job = self._jobs.get(dataset)
        return 0 if job is None else job.pauses

    def result(self, dataset: DatasetId, ticket: int) -> Result | None:
        """Return how the look for a ticket ended, None while it has not; what is gone needed none."""
        job = self._jobs.get(dataset)
        if job is None:
            return Result()
        return job.result if job.answered >= ticket else None

    def is_running(self, dataset: DatasetId) -> bool:
        """Tell whether a look is under way."""
        job = self._jobs.get(dataset)
        return job is not None and job.state in RUNNING

    def waiting(self) -> int:
        """Return how many derivatives are queued or looked at; those in a pause are left out."""
        return sum(job.state in RUNNING or job.state in QUEUED for job in self._jobs.values())

    def next_due(self) -> float | None:
        """Return when the next look is due, None when nothing waits."""
        self._drop_stale()
        if self._queue:
            return 0.0
        return self._pauses[0][0] if self._pauses else None

    def forget(self, datasets: Iterable[DatasetId]) -> None:
        """Drop datasets that are gone."""
        for dataset in datasets:
            self._jobs.pop(dataset, None)

    def drop_idle(self, dataset: DatasetId) -> None:
        """Drop a dataset that is gone, unless it has come back and is to be looked at."""
        job = self._jobs.get(dataset)
        if job is not None and job.state is JobState.IDLE:
            del self._jobs[dataset]

    def _enter(self, dataset: DatasetId, job: _Job, event: JobEvent) -> None:
        """Bring a job to the state that follows, and into the heap where that waits."""
        before, job.state = job.state, TRANSITIONS[job.state, event]
        if job.state in QUEUED and before not in QUEUED:
            self._places += 1
            job.place = self._places
            heappush(self._queue, (job.place, dataset))
        elif job.state in PAUSED and before in RUNNING:
            heappush(self._pauses, (job.until, job.place, dataset))

    def _drop_stale(self) -> None:
        """Have the first entry of each heap be one that counts."""
        while self._queue and not self._counts(*self._queue[0]):
            heappop(self._queue)
        while self._pauses and not self._counts(*self._pauses[0][1:]):
            heappop(self._pauses)

    def _counts(self, place: int, dataset: DatasetId) -> bool:
        job = self._jobs.get(dataset)
        return job is not None and job.place == place and job.state not in RUNNING
