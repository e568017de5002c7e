"""The order of datasets that read each other, for whoever goes through many of them."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from graphlib import CycleError, TopologicalSorter
from typing import TypeVar

T = TypeVar("T")


def in_order(before: Mapping[T, Collection[T]]) -> Iterator[T]:
    """Iterate over the keys, each after those that stand in its collection.

    Those of a circle, and what comes after it, follow at the end in the order of the mapping.
    """
    sorter = TopologicalSorter(before)
    with suppress(CycleError):  # then it still gives all that no circle holds up
        sorter.prepare()
    waiting = dict.fromkeys(before)
    while ready := sorter.get_ready():
        for one in ready:
            del waiting[one]
            yield one
        sorter.done(*ready)
    yield from waiting
