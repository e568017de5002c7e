"""New datasets that are being pushed: they have no name yet, but their objects are already accepted."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from odf_common.hashing.multihash import Multihash
from odf_common.identity.did import DatasetId
from odf_common.ports.store import ObjectKind

Listener = Callable[[ObjectKind, Multihash], None]

LINGERING_SECONDS: Final = (
    60.0  # after an exchange that was cut off: what its client still sends is not sent again
)


class OpenPushes:
    """The datasets that are being pushed and have no name yet: their objects are accepted already."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin with none."""
        self._clock = clock
        self._datasets: dict[str, list[DatasetId]] = {}
        self._ended: dict[str, tuple[DatasetId, float]] = {}
        self._listeners: dict[DatasetId, list[Listener]] = {}

    def dataset(self, alias: str) -> DatasetId | None:
        """Return the dataset that is being pushed to a name, or was a short time ago; None if there is none."""
        found = self._datasets.get(alias.lower())
        if found:
            return found[-1]
        dataset, until = self._ended.get(alias.lower(), (None, 0.0))
        return dataset if self._clock() < until else None

    def note_object(self, dataset: DatasetId, kind: ObjectKind, name: Multihash) -> None:
        """Note that an object of a dataset has been stored."""
        for listener in tuple(self._listeners.get(dataset, ())):
            listener(kind, name)

    @contextmanager
    def listening(self, dataset: DatasetId, listener: Listener) -> Iterator[None]:
        """Call a function, in any thread, for each object of a dataset that is stored."""
        found = self._listeners.setdefault(dataset, [])
        found.append(listener)
        try:
            yield
        finally:
            found.remove(listener)
            if not found:
                del self._listeners[dataset]

    @contextmanager
    def pushing(self, alias: str, dataset: DatasetId) -> Iterator[None]:
        """Accept objects of a dataset."""
        alias = alias.lower()
        found = self._datasets.setdefault(alias, [])
        found.append(dataset)
        try:
            yield
        finally:
            found.remove(dataset)
            if not found:
                del self._datasets[alias]
            now = self._clock()
            self._ended = {name: one for name, one in self._ended.items() if now < one[1]}
            self._ended[alias] = (dataset, now + LINGERING_SECONDS)
