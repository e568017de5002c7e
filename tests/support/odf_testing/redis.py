"""What the node has in Redis, in memory for all processes of a simulation: locks that run out, and cached states."""

from collections.abc import Callable
from dataclasses import dataclass, field

from odf_common.identity.did import DatasetId


@dataclass
class MemoryLocks:
    """One lock for each dataset, as in Redis; `now` is in seconds, `written` is called before each change."""

    now: Callable[[], float]
    written: Callable[[], None] = lambda: None
    held: dict[DatasetId, tuple[object, float]] = field(default_factory=dict)

    def acquire(self, dataset: DatasetId, ttl_ms: int) -> "MemoryLock | None":
        """Return the dataset's lock, None while it is held; one that would be held for longer runs out in that time."""
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
        """Hold a lock for nobody."""
        self.held[dataset] = None, until


@dataclass(eq=False)
class MemoryLock:
    """A lock that is held until it is released or its time runs out."""

    locks: MemoryLocks
    dataset: DatasetId
    seconds: float

    def release(self) -> None:
        """Give it back unless it has become another's."""
        self.locks.written()
        if self._is_ours():
            del self.locks.held[self.dataset]

    def _is_ours(self) -> bool:
        holder, until = self.locks.held.get(self.dataset, (None, 0.0))
        return holder is self and self.locks.now() < until


class MemoryStateCache:
    """The last known state of each chain, as `RedisStateCache` keeps it."""

    def __init__(self) -> None:
        """Begin empty."""
        self._states: dict[DatasetId, bytes] = {}

    def get(self, dataset: DatasetId) -> bytes | None:
        """Return what was put last, None when nothing is known."""
        return self._states.get(dataset)

    def put(self, dataset: DatasetId, state: bytes) -> None:
        """Keep the bytes."""
        self._states[dataset] = state

    def forget(self, dataset: DatasetId) -> None:
        """Drop what is known of a dataset."""
        self._states.pop(dataset, None)
