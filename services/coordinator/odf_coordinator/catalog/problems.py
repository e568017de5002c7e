"""What is wrong with datasets: in words, since when, and what to do about it."""

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from odf_common.errors import OdfError, Unavailable
from odf_common.identity.did import DatasetId
from odf_common.metadata.scalars import Timestamp


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Why a dataset makes no progress."""

    text: str
    remedy: str = ""
    cause: object = None
    """What has to change before it is tried again automatically; None: it is tried anyway."""
    since: Timestamp = field(compare=False)


class Problems:
    """The present problem of each dataset that has one; safe to use from many threads."""

    def __init__(self) -> None:
        """Know of none."""
        self._known: dict[DatasetId, Problem] = {}
        self._seen: dict[DatasetId, float] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Return how many datasets have one."""
        return len(self._known)

    def get(self, dataset: DatasetId) -> Problem | None:
        """Return the problem of a dataset."""
        with self._lock:
            return self._known.get(dataset)

    def note(self, dataset: DatasetId, text: str, *, remedy: str = "", cause: object = None) -> bool:
        """Note a problem; True when it is another one than before. Until it changes, it is as old as it was."""
        new = Problem(text=text, remedy=remedy, cause=cause, since=Timestamp(time.time_ns()))
        with self._lock:
            self._seen[dataset] = time.monotonic()
            if self._known.get(dataset) == new:
                return False
            self._known[dataset] = new
            return True

    def clear(self, dataset: DatasetId) -> None:
        """Note that a dataset has no problem."""
        with self._lock:
            self._known.pop(dataset, None)
            self._seen.pop(dataset, None)

    def recent(self, dataset: DatasetId, seconds: float) -> Problem | None:
        """Return the problem of a dataset if it was met in the last `seconds`; an older one is forgotten."""
        with self._lock:
            is_old = time.monotonic() - self._seen.get(dataset, 0.0) > seconds
        if is_old:
            self.clear(dataset)
        return self.get(dataset)

    def keep(self, datasets: Iterable[DatasetId]) -> None:
        """Forget all other datasets."""
        kept = frozenset(datasets)
        with self._lock:
            for gone in self._known.keys() - kept:
                del self._known[gone], self._seen[gone]


def remedy_of(error: Exception, otherwise: str) -> str:
    """Return what to do about an error; `otherwise` where it does not say so itself."""
    advice = error.advice() if isinstance(error, OdfError) else ""
    if advice:
        return advice
    if isinstance(error, Unavailable):
        return "it is tried again automatically; `odf status` shows which part of the node is down"
    return otherwise
