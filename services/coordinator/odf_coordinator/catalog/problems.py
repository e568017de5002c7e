"""Problems of datasets: what is wrong, since when, and what to do about it."""

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from odf_common.errors import OdfError, Unavailable, advice_while_retried
from odf_common.identity.did import DatasetId
from odf_common.metadata.scalars import Timestamp


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Why a dataset makes no progress."""

    text: str
    remedy: str = ""
    cause: object = None
    """What has to change before an automatic retry; None: it is retried anyway."""
    since: Timestamp = field(compare=False)


class Problems:
    """The current problem of each dataset that has one; thread-safe."""

    def __init__(self) -> None:
        self._problems: dict[DatasetId, tuple[Problem, float]] = {}  # and when it was last recorded
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Return the number of datasets with a problem."""
        return len(self._problems)

    def get(self, dataset: DatasetId) -> Problem | None:
        """Return the problem of a dataset."""
        with self._lock:
            entry = self._problems.get(dataset)
        return None if entry is None else entry[0]

    def note(self, dataset: DatasetId, text: str, *, remedy: str = "", cause: object = None) -> bool:
        """Record a problem; return whether it is a new one. An unchanged problem keeps its `since`."""
        new = Problem(text=text, remedy=remedy, cause=cause, since=Timestamp(time.time_ns()))
        with self._lock:
            before, _ = self._problems.get(dataset, (new, 0.0))
            is_new = dataset not in self._problems or before != new
            self._problems[dataset] = (new if is_new else before, time.monotonic())
        return is_new

    def clear(self, dataset: DatasetId) -> None:
        """Record that a dataset has no problem."""
        with self._lock:
            self._problems.pop(dataset, None)

    def recent(self, dataset: DatasetId, seconds: float) -> Problem | None:
        """Return the problem of a dataset if it was recorded in the last `seconds`; forget an older one."""
        with self._lock:
            entry = self._problems.get(dataset)
            if entry is None:
                return None
            problem, recorded = entry
            if time.monotonic() - recorded > seconds:
                del self._problems[dataset]
                return None
        return problem

    def keep(self, datasets: Iterable[DatasetId]) -> None:
        """Forget all other datasets."""
        kept = frozenset(datasets)
        with self._lock:
            for gone in self._problems.keys() - kept:
                del self._problems[gone]


def remedy_of(error: Exception, otherwise: str) -> str:
    """Return what to do about an error of work that is retried: its own advice, else `otherwise`."""
    advice = advice_while_retried(error) if isinstance(error, OdfError) else ""
    if advice:
        return advice
    if isinstance(error, Unavailable):
        return "it is retried automatically; `odf status` shows which part of the node is down"
    return otherwise
