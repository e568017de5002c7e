"""Topological order of datasets that read each other, inputs first."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from graphlib import CycleError, TopologicalSorter
from typing import TypeVar

T = TypeVar("T")


def in_order(before: Mapping[T, Collection[T]]) -> Iterator[T]:
    """Yield the keys, each one after the keys in its collection.

    Keys in a cycle, and keys that depend on a cycle, follow at the end, in the order of the mapping.
    """
    sorter = TopologicalSorter(before)
    with suppress(CycleError):  # the sorter still yields all keys that no cycle blocks
        sorter.prepare()
    waiting = dict.fromkeys(before)
    while ready := sorter.get_ready():
        for dataset in ready:
            del waiting[dataset]
            yield dataset
        sorter.done(*ready)
    yield from waiting
