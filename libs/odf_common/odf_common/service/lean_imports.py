"""Quick starts of processes: imports without garbage collection, and without unused packages."""

import gc
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType


class _Without:
    """A finder that does not find some packages (PEP 451).

    `sys.modules["pandas"] = None` would be shorter, but Arrow's compiled code takes the None for the module.
    """

    def __init__(self, *names: str) -> None:
        self._names = names

    def find_spec(
        self, name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> None:
        """Raise `ModuleNotFoundError` for these packages, as if they were not installed."""
        if name in self._names:
            raise ModuleNotFoundError(f"this process does without {name}", name=name)


@contextmanager
def lean_imports(*unused: str) -> Iterator[None]:
    """Import faster; imports of the `unused` packages fail in this process from now on.

    Arrow would import pandas before it first converts Python's values, to look whether they are pandas' own, and
    structlog imports rich, for tracebacks of a kind that we do not log. Both take time and memory in each process.
    What is imported stays, so the garbage collector need not look at it, neither meanwhile nor later.
    """
    sys.meta_path.insert(0, _Without(*unused))
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
