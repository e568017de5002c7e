"""Pushes in progress: which uploads are accepted before a head has moved.

A new dataset has no name yet, but its objects are already accepted. An archive of blocks belongs to no dataset before
it is read: it is accepted for a name only while a push to it may refer to it, so that nothing else fills the disk.
"""

import time
from collections import Counter as Tally
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from typing import Final

from odf_common.hashing.multihash import Multihash
from odf_common.identity.did import DatasetId
from odf_common.ports.store import ObjectKind
from odf_sync.smart.archive import ARCHIVE_BYTES_LIMIT

Listener = Callable[[ObjectKind, Multihash], None]

# An exchange that was interrupted takes uploads for this long: its client does not send them again.
LINGERING_SECONDS: Final = 60.0


@dataclass(eq=False, slots=True)
class _Exchange:
    archive_bytes: int
    """Maximum bytes of its archive."""
    archive: Multihash | None = None
    """The one that has been sent."""
    until: float = inf
    """When it is over: after its end, uploads that were interrupted may still be continued."""


class OpenPushes:
    """The pushes that are in progress, by the name that they are for."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._datasets: dict[str, list[DatasetId]] = {}
        self._ended: dict[str, tuple[DatasetId, float]] = {}
        self._exchanges: dict[str, list[_Exchange]] = {}
        self._received: Tally[str] = Tally()
        self._listeners: dict[DatasetId, list[Listener]] = {}

    def dataset(self, alias: str) -> DatasetId | None:
        """Return the dataset that is being pushed to a name, or was a short time ago; None if there is none."""
        reserved = self._datasets.get(alias.lower())
        if reserved:
            return reserved[-1]
        dataset, until = self._ended.get(alias.lower(), (None, 0.0))
        return dataset if self._clock() < until else None

    def are_of_others(self, alias: str, dataset: DatasetId) -> bool:
        """Return whether another dataset is being pushed to a name."""
        return any(other != dataset for other in self._datasets.get(alias.lower(), ()))

    def bytes_received(self, alias: str) -> int:
        """Return the number of bytes of objects that have arrived for a name while it is pushed to."""
        return self._received[alias.lower()]

    def note_received(self, alias: str, count: int) -> None:
        """Note that bytes of an object have arrived."""
        if alias.lower() in self._datasets:
            self._received[alias.lower()] += count

    @contextmanager
    def exchanging(self, alias: str, archive_bytes: int = ARCHIVE_BYTES_LIMIT) -> Iterator[None]:
        """Accept one archive of blocks for a name, of at most `archive_bytes`."""
        now = self._clock()
        remaining = {
            name: [exchange for exchange in exchanges if now < exchange.until]
            for name, exchanges in self._exchanges.items()
        }
        self._exchanges = {name: exchanges for name, exchanges in remaining.items() if exchanges}
        exchange = _Exchange(archive_bytes=min(archive_bytes, ARCHIVE_BYTES_LIMIT))
        self._exchanges.setdefault(alias.lower(), []).append(exchange)
        try:
            yield
        finally:
            exchange.until = self._clock() + (0 if exchange.archive is None else LINGERING_SECONDS)

    def takes_archive(self, alias: str, name: Multihash) -> bool:
        """Return whether an archive is accepted for a name; an exchange takes no other one then."""
        return self.archive_limit(alias, name) is not None

    def archive_limit(self, alias: str, name: Multihash) -> int | None:
        """Return the maximum bytes of an archive for a name, None if it is not accepted; an exchange takes one only."""
        now = self._clock()
        exchanges = [exchange for exchange in self._exchanges.get(alias.lower(), ()) if now < exchange.until]
        for wanted in (name, None):
            for exchange in exchanges:
                if exchange.archive == wanted:
                    exchange.archive = name
                    return exchange.archive_bytes
        return None

    def archives(self, alias: str) -> tuple[Multihash, ...]:
        """Return the archives that are accepted for a name, and may have been sent."""
        exchanges = self._exchanges.get(alias.lower(), ())
        return tuple(exchange.archive for exchange in exchanges if exchange.archive is not None)

    def note_object(self, dataset: DatasetId, kind: ObjectKind, name: Multihash) -> None:
        """Note that an object of a dataset has been stored."""
        for listener in tuple(self._listeners.get(dataset, ())):
            listener(kind, name)

    @contextmanager
    def listening(self, dataset: DatasetId, listener: Listener) -> Iterator[None]:
        """Call a function, in any thread, for each object of a dataset that is stored."""
        listeners = self._listeners.setdefault(dataset, [])
        listeners.append(listener)
        try:
            yield
        finally:
            listeners.remove(listener)
            if not listeners:
                del self._listeners[dataset]

    @contextmanager
    def pushing(self, alias: str, dataset: DatasetId) -> Iterator[None]:
        """Accept objects of a dataset."""
        alias = alias.lower()
        datasets = self._datasets.setdefault(alias, [])
        datasets.append(dataset)
        try:
            yield
        finally:
            datasets.remove(dataset)
            if not datasets:
                del self._datasets[alias]
                del self._received[alias]
            now = self._clock()
            self._ended = {name: ended for name, ended in self._ended.items() if now < ended[1]}
            self._ended[alias] = (dataset, now + LINGERING_SECONDS)
