"""Locks shared by all processes of a node. They only avoid wasted work: the head is guarded by its compare-and-set."""

from typing import Protocol

from odf_common.identity.did import DatasetId


class Lock(Protocol):
    """A lock that is held."""

    def release(self) -> None:
        """Release it, unless it has expired and belongs to another process."""


class Locks(Protocol):
    """One lock per dataset."""

    def acquire(self, dataset: DatasetId, ttl_ms: int) -> Lock | None:
        """Return the dataset's lock, which expires after `ttl_ms`; None while another process holds it."""
