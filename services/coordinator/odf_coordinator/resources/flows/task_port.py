"""The port by which flows have tasks done."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from odf_common.errors import Refused
from odf_common.resources.specs import TaskSpec


class TaskCancelled(Refused):
    """A task has ended early, as it was asked to."""

    text: str = "the task was cancelled"


class Cancellation:
    """A request to end a task early; thread-safe."""

    def __init__(self) -> None:
        """Start without a request."""
        self._requested = threading.Event()
        self._listeners: list[Callable[[], object]] = []

    @property
    def is_requested(self) -> bool:
        """Return whether the task has to end."""
        return self._requested.is_set()

    def request(self) -> None:
        """Ask the task to end."""
        self._requested.set()
        for listener in [*self._listeners]:
            listener()

    def listen(self, listener: Callable[[], object]) -> None:
        """Call a function once the task has to end; at once if it has already."""
        self._listeners.append(listener)
        if self.is_requested:
            listener()

    def wait(self, seconds: float) -> bool:
        """Wait; return whether the task has to end."""
        return self._requested.wait(seconds)

    def check(self) -> None:
        """Raise `TaskCancelled` if the task has to end."""
        if self.is_requested:
            raise TaskCancelled


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRequest:
    """A task to do."""

    spec: TaskSpec
    target: Mapping[str, Any]
    """The document of the resource that it is for."""
    references: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Documents of the resources that the task refers to, by the name of the field."""
    task: str
    """Id of the Task resource, which is the same in each attempt."""
    attempt: int = 1
    flow: str
    """Name of the flow."""
    run: int
    event: Mapping[str, Any] | None = None
    """The event that led to the run."""
    consumers: Sequence[str] = ()
    """Ids of the chains of all targets that flows feed from the Source of an Ingest task."""
    cancellation: Cancellation = field(default_factory=Cancellation)

    @property
    def did(self) -> str:
        """Return the id of the target's chain; empty if it has none."""
        return str(self.target["spec"].get("did") or "")


class Tasks(Protocol):
    """Does tasks. A task may be done again after the node was killed: what was done before has to stay done once."""

    def perform(self, request: TaskRequest) -> str:
        """Do a task; return a remark on what was done, or an empty string.

        Raises errors of the classes in `resources.failures`, and `TaskCancelled`.
        """
