"""The node's data in Redis, in memory for all processes of a simulation: expiring locks, and cached states."""

from collections.abc import Callable
from dataclasses import dataclass, field

from odf_common.identity.dataset_refs import DatasetId


@dataclass
class MemoryLocks:
    """One lock for each dataset, as in Redis; `now` is in seconds, `written` is called before each change."""

    now: Callable[[], float]
    written: Callable[[], None] = lambda: None
    held: dict[DatasetId, tuple[object, float]] = field(default_factory=dict)

    def acquire(self, dataset: DatasetId, ttl_ms: int) -> "MemoryLock | None":
        """Return the dataset's lock, None while it is held; a lock expires after its time to live."""
        self.written()
        end = self.now() + ttl_ms / 1000
        holder, until = self.held.get(dataset, (None, 0.0))
        if self.now() < until:
            self.held[dataset] = holder, min(until, end)
            return None
        lock = MemoryLock(self, dataset, ttl_ms / 1000)
        self.held[dataset] = lock, end
        return lock

    def leave(self, dataset: DatasetId, until: float) -> None:
        """Hold a lock without an owner."""
        self.held[dataset] = None, until


@dataclass(eq=False)
class MemoryLock:
    """A lock that is held until it is released or expires."""

    locks: MemoryLocks
    dataset: DatasetId
    seconds: float

    def release(self) -> None:
        """Release it, unless it has a new owner."""
        self.locks.written()
        if self._is_ours():
            del self.locks.held[self.dataset]

    def _is_ours(self) -> bool:
        holder, until = self.locks.held.get(self.dataset, (None, 0.0))
        return holder is self and self.locks.now() < until


class MemoryStateCache:
    """The latest cached state of each chain, like `RedisStateCache`."""

    def __init__(self) -> None:
        self._states: dict[DatasetId, bytes] = {}

    def get(self, dataset: DatasetId) -> bytes | None:
        """Return the latest bytes, None if there are none."""
        return self._states.get(dataset)

    def put(self, dataset: DatasetId, state: bytes) -> None:
        """Store the bytes."""
        self._states[dataset] = state

    def forget(self, dataset: DatasetId) -> None:
        """Drop the state of a dataset."""
        self._states.pop(dataset, None)
