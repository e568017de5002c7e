"""Stalls of datasets: why one makes no progress, since when, and what to do about it."""

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, auto

from odf_common.errors import OdfError, Unavailable, advice_while_retried
from odf_common.identity.did import DatasetId
from odf_common.metadata.scalars import Timestamp


class Activity(Enum):
    """The activity that makes no progress."""

    READ = auto()
    """The dataset could not be read when last listed."""
    COMMIT = auto()
    """The last commit could not be tried, for example because the dataset's lock is held."""
    TRANSFORM = auto()
    """The last transform failed."""
    DEPENDENCY = auto()
    """A service that the last transform needs was unavailable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """The reason why a dataset makes no progress."""

    reason: str
    remedy: str = ""
    cause: object = None
    """The fact that has to change before an automatic retry; None: it is retried anyway."""
    since: Timestamp = field(compare=False)


class Stalls:
    """The current stall of each activity of each dataset; thread-safe."""

    def __init__(self) -> None:
        self._stalls: dict[
            DatasetId, dict[Activity, tuple[Stall, float]]
        ] = {}  # and when it was last recorded
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Return the number of datasets that stall."""
        return len(self._stalls)

    def get(self, dataset: DatasetId, *activities: Activity) -> Stall | None:
        """Return the stall of the first of these activities that has one."""
        with self._lock:
            stalls = self._stalls.get(dataset, {})
            return next((stalls[activity][0] for activity in activities if activity in stalls), None)

    def record(
        self, dataset: DatasetId, activity: Activity, reason: str, *, remedy: str = "", cause: object = None
    ) -> bool:
        """Record a stall; return whether it is a new one. An unchanged one keeps its `since`."""
        new = Stall(reason=reason, remedy=remedy, cause=cause, since=Timestamp(time.time_ns()))
        with self._lock:
            stalls = self._stalls.setdefault(dataset, {})
            before = stalls[activity][0] if activity in stalls else None
            stalls[activity] = (before if before == new else new, time.monotonic())
        return before != new

    def clear(self, dataset: DatasetId, *activities: Activity) -> None:
        """Record that these activities make progress; without any, all of them."""
        with self._lock:
            stalls = self._stalls.get(dataset, {})
            for activity in activities or Activity:
                stalls.pop(activity, None)
            if not stalls:
                self._stalls.pop(dataset, None)

    def recent(self, dataset: DatasetId, activity: Activity, seconds: float) -> Stall | None:
        """Return the stall of an activity if it was recorded in the last `seconds`; forget an older one."""
        with self._lock:
            stall, recorded = self._stalls.get(dataset, {}).get(activity, (None, 0.0))
        if stall is not None and time.monotonic() - recorded > seconds:
            self.clear(dataset, activity)
            return None
        return stall

    def keep(self, datasets: Iterable[DatasetId]) -> None:
        """Forget all other datasets."""
        kept = frozenset(datasets)
        with self._lock:
            for dataset in self._stalls.keys() - kept:
                del self._stalls[dataset]


def remedy_of(error: Exception, otherwise: str) -> str:
    """Return the remedy for an error of work that is retried: its own advice, else `otherwise`."""
    advice = advice_while_retried(error) if isinstance(error, OdfError) else ""
    if advice:
        return advice
    if isinstance(error, Unavailable):
        return "it is retried automatically; `odf status` shows which part of the node is down"
    return otherwise
