"""The queue of derivatives to run: pure bookkeeping, without threads or a clock of its own.

Marks set while a derivative is queued or running coalesce into one more run. A run covers all marks set before it
started, so the holder of a ticket from `enqueue` knows when the requested work is done.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of a run: the state after it, or its error; `blocks` and `records` are what it added."""

    state: ChainState | None = None
    blocks: int = 0
    records: int = 0
    error: OdfError | None = None


class ReaderGraph:
    """Which datasets read which."""

    def __init__(self) -> None:
        self._inputs: dict[DatasetId, frozenset[DatasetId]] = {}
        self._readers: defaultdict[DatasetId, set[DatasetId]] = defaultdict(set)

    def note(self, state: ChainState) -> None:
        """Record a dataset's inputs."""
        inputs = frozenset(state.inputs)
        if self._inputs.get(state.dataset_id, frozenset()) == inputs:
            return
        self.forget(state.dataset_id)
        self._inputs[state.dataset_id] = inputs
        for input_ in inputs:
            self._readers[input_].add(state.dataset_id)

    def forget(self, dataset: DatasetId) -> None:
        """Drop a dataset's inputs."""
        for input_ in self._inputs.pop(dataset, frozenset()):
            readers = self._readers[input_]
            readers.discard(dataset)
            if not readers:
                del self._readers[input_]

    def of(self, dataset: DatasetId) -> frozenset[DatasetId]:
        """Return the derivatives that read the dataset directly."""
        return frozenset(self._readers.get(dataset, ()))


class JobState(Enum):
    """The state of a derivative in the queue."""

    IDLE = auto()
    QUEUED = auto()
    FORCED = auto()
    """Queued by a user: ignores pauses and known problems."""
    RUNNING = auto()
    MARKED = auto()
    """Running, and marked since: another run follows."""
    RUNNING_FORCED = auto()
    """Running, and requested by a user since."""
    POSTPONED = auto()
    """A dependency was unavailable: paused; its tickets stay open."""
    FAILED = auto()
    """Failed and reported to its tickets: paused before another run."""


class JobEvent(Enum):
    """What happens to a derivative."""

    MARK = auto()
    FORCE = auto()
    TAKE = auto()
    FINISH = auto()
    FAIL = auto()
    """Finished with an error, to be retried automatically."""
    POSTPONE = auto()


_S, _E = JobState, JobEvent
# Ends of runs of datasets removed in the meantime: ignored, as their jobs are not running.
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
    """A derivative; tickets are increasing numbers, so a result answers all earlier ones."""

    state: JobState = JobState.IDLE
    place: int = 0
    """Position in the queue; each is used once."""
    until: float = 0.0
    """End of a pause."""
    pauses: int = 0
    """Consecutive runs that have to be repeated."""
    asked: int = 0
    """Last ticket given."""
    covered: int = 0
    """Last ticket covered by the running or last run."""
    answered: int = 0
    """Last ticket with a result."""
    result: Result = field(default_factory=Result)


class WorkQueue:
    """Derivatives waiting to run, first come first served, each at most once at a time."""

    def __init__(self) -> None:
        self._jobs: dict[DatasetId, _Job] = {}
        self._places = 0
        # Heaps with lazy deletion: an entry is valid while its job still has that place and is not running.
        self._queue: list[tuple[int, DatasetId]] = []
        self._pauses: list[tuple[float, int, DatasetId]] = []

    def __len__(self) -> int:
        """Return the number of known derivatives."""
        return len(self._jobs)

    def enqueue(self, dataset: DatasetId, *, is_forced: bool = False) -> int:
        """Enqueue a derivative and return a ticket. Forced: at once, and despite a known problem."""
        job = self._jobs.setdefault(dataset, _Job())
        job.asked += 1
        self._enter(dataset, job, JobEvent.FORCE if is_forced else JobEvent.MARK)
        return job.asked

    def pop(self, now: float) -> tuple[DatasetId, bool] | None:
        """Take the next due derivative, and whether it is forced; None if there is none."""
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
        # What is asked for from here on may not be seen by this run: it gets another ticket, and another run.
        job.covered = job.asked
        self._enter(dataset, job, JobEvent.TAKE)
        return dataset, is_forced

    def finish(self, dataset: DatasetId, result: Result, *, again_at: float | None = None) -> None:
        """End a run; with `again_at` the error is reported, and another run follows then."""
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

    def reschedule(self, dataset: DatasetId, until: float) -> None:
        """End a run that has to be repeated after `until`; its tickets stay open."""
        job = self._jobs.get(dataset)
        if job is None or job.state not in RUNNING:
            return
        job.pauses += 1
        job.until = until
        self._enter(dataset, job, JobEvent.POSTPONE)

    def pauses(self, dataset: DatasetId) -> int:
        """Return the number of consecutive runs that have to be repeated."""
        job = self._jobs.get(dataset)
        return 0 if job is None else job.pauses

    def result(self, dataset: DatasetId, ticket: int) -> Result | None:
        """Return the result for a ticket; None while its run has not ended; an empty one for a removed dataset."""
        job = self._jobs.get(dataset)
        if job is None:
            return Result()
        return job.result if job.answered >= ticket else None

    def waiting(self) -> int:
        """Return the number of queued and running derivatives, without paused ones."""
        return sum(job.state in RUNNING or job.state in QUEUED for job in self._jobs.values())

    def next_due(self) -> float | None:
        """Return when the next run is due; None if nothing is waiting."""
        self._drop_stale()
        if self._queue:
            return 0.0
        return self._pauses[0][0] if self._pauses else None

    def forget(self, datasets: Iterable[DatasetId]) -> None:
        """Drop removed datasets."""
        for dataset in datasets:
            self._jobs.pop(dataset, None)

    def drop_idle(self, dataset: DatasetId) -> None:
        """Drop a removed dataset, unless it was added again and enqueued."""
        job = self._jobs.get(dataset)
        if job is not None and job.state is JobState.IDLE:
            del self._jobs[dataset]

    def _enter(self, dataset: DatasetId, job: _Job, event: JobEvent) -> None:
        """Apply the transition, and push the job to the heap of its new state."""
        before, job.state = job.state, TRANSITIONS[job.state, event]
        if job.state in QUEUED and before not in QUEUED:
            self._places += 1
            job.place = self._places
            heappush(self._queue, (job.place, dataset))
        elif job.state in PAUSED and before in RUNNING:
            heappush(self._pauses, (job.until, job.place, dataset))

    def _drop_stale(self) -> None:
        """Remove invalid entries from the front of each heap."""
        while self._queue and not self._counts(*self._queue[0]):
            heappop(self._queue)
        while self._pauses and not self._counts(*self._pauses[0][1:]):
            heappop(self._pauses)

    def _counts(self, place: int, dataset: DatasetId) -> bool:
        job = self._jobs.get(dataset)
        return job is not None and job.place == place and job.state not in RUNNING
