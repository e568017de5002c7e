"""The queue of derivatives to run: pure bookkeeping, without threads or its own clock.

Requests made while a derivative is queued or running coalesce into one more run. A run covers all requests made before
it started, so the holder of a ticket from `enqueue` knows when the requested work is done.
"""

from collections import OrderedDict, defaultdict
from dataclasses import dataclass, field

from odf_common.chain.state import ChainState
from odf_common.errors import OdfError
from odf_common.identity.did import DatasetId


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of a run: its error, if it failed."""

    error: OdfError | None = None


class ReaderGraph:
    """The graph of datasets and their readers."""

    def __init__(self) -> None:
        self._inputs: dict[DatasetId, frozenset[DatasetId]] = {}
        self._readers: defaultdict[DatasetId, set[DatasetId]] = defaultdict(set)

    def record(self, state: ChainState) -> None:
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

    def readers_of(self, dataset: DatasetId) -> frozenset[DatasetId]:
        """Return the derivatives that read the dataset directly."""
        return frozenset(self._readers.get(dataset, ()))


@dataclass(slots=True)
class _Job:
    """A derivative; tickets are increasing numbers, so a result answers all earlier ones."""

    is_running: bool = False
    is_forced: bool = False
    """Whether a user requested the next run: it ignores pauses and known problems."""
    pauses: int = 0
    """Consecutive runs that have to be repeated."""
    requested: int = 0
    """Last ticket given."""
    covered: int = 0
    """Last ticket covered by the running or last run."""
    answered: int = 0
    """Last ticket with a result."""
    result: Result = field(default_factory=Result)


class WorkQueue:
    """Derivatives waiting to run, first come first served, each at most once at a time."""

    def __init__(self) -> None:
        # A job that is not running is in one of the two others, or idle.
        self._jobs: dict[DatasetId, _Job] = {}
        self._ready: OrderedDict[DatasetId, None] = OrderedDict()
        self._paused_until: dict[DatasetId, float] = {}

    def __len__(self) -> int:
        """Return the number of known derivatives."""
        return len(self._jobs)

    def enqueue(self, dataset: DatasetId, *, is_forced: bool = False) -> int:
        """Enqueue a derivative and return a ticket. Forced: at once, and despite a known problem."""
        job = self._jobs.setdefault(dataset, _Job())
        job.requested += 1
        job.is_forced |= is_forced
        if not job.is_running and (is_forced or dataset not in self._paused_until):
            self._make_ready(dataset)
        return job.requested

    def pop(self, now: float) -> tuple[DatasetId, bool] | None:
        """Begin the next due run; return its derivative, and whether it is forced, or None if no run is due."""
        for dataset in [dataset for dataset, until in self._paused_until.items() if until <= now]:
            self._make_ready(dataset)
        if not self._ready:
            return None
        dataset, _ = self._ready.popitem(last=False)
        job = self._jobs[dataset]
        # Later requests may not be seen by this run: they get another ticket, and another run.
        job.is_running, job.covered = True, job.requested
        is_forced, job.is_forced = job.is_forced, False
        return dataset, is_forced

    def finish(self, dataset: DatasetId, result: Result | None, *, again_at: float | None = None) -> None:
        """End a run; another follows at `again_at`. Without a result, its tickets stay open until then."""
        job = self._jobs.get(dataset)
        if job is None or not job.is_running:  # the dataset was removed in the meantime
            return
        job.is_running = False
        job.pauses = 0 if again_at is None else job.pauses + 1
        if result is not None:
            job.answered, job.result = job.covered, result
        if job.is_forced or (again_at is None and job.requested > job.covered):
            self._make_ready(dataset)
        elif again_at is not None:
            self._paused_until[dataset] = again_at

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
        return len(self._ready) + sum(job.is_running for job in self._jobs.values())

    def next_due(self) -> float | None:
        """Return when the next run is due; None if nothing is waiting."""
        return 0.0 if self._ready else min(self._paused_until.values(), default=None)

    def forget(self, dataset: DatasetId) -> None:
        """Drop a removed dataset."""
        self._jobs.pop(dataset, None)
        self._ready.pop(dataset, None)
        self._paused_until.pop(dataset, None)

    def drop_idle(self, dataset: DatasetId) -> None:
        """Drop a removed dataset, unless it was added again and enqueued."""
        job = self._jobs.get(dataset)
        if job and not (job.is_running or dataset in self._ready or dataset in self._paused_until):
            del self._jobs[dataset]

    def _make_ready(self, dataset: DatasetId) -> None:
        self._paused_until.pop(dataset, None)
        self._ready.setdefault(dataset)
