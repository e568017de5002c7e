"""Containers that fail when they are used without their lock: what a race would show only occasionally."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

K = TypeVar("K")
V = TypeVar("V")

OF_DICTS: Final = (
    "__contains__",
    "__getitem__",
    "__setitem__",
    "__delitem__",
    "__iter__",
    "get",
    "items",
    "keys",
    "move_to_end",
    "pop",
    "setdefault",
)
OF_SETS: Final = (
    "__and__",
    "__contains__",
    "__iter__",
    "add",
    "clear",
    "difference_update",
    "discard",
    "update",
)
OF_LISTS: Final = ("__contains__", "__iter__", "append", "remove")


class GuardedDict(OrderedDict[K, V]):
    """A dictionary that is used while a lock is held; its length is free."""

    def __init__(self, lock: threading.Lock, content: Mapping[K, V] | None = None) -> None:
        super().__init__()
        self.lock = lock
        for key, value in (content or {}).items():
            super().__setitem__(key, value)


class GuardedSet(set[V]):
    """A set that is used while a lock is held."""

    def __init__(self, lock: threading.Lock) -> None:
        super().__init__()
        self.lock = lock


class GuardedList(list[V]):
    """A list that is used while a lock is held."""

    def __init__(self, lock: threading.Lock) -> None:
        super().__init__()
        self.lock = lock


def _with_lock(use: Callable[..., Any]) -> Callable[..., Any]:
    def used(self: GuardedDict[Any, Any] | GuardedSet[Any] | GuardedList[Any], *arguments: object) -> object:
        assert self.lock.locked(), f"{use.__name__} without the lock"
        return use(self, *arguments)

    return used


for _kind, _uses in ((GuardedDict, OF_DICTS), (GuardedSet, OF_SETS), (GuardedList, OF_LISTS)):
    for _name in _uses:
        setattr(_kind, _name, _with_lock(getattr(_kind, _name)))
