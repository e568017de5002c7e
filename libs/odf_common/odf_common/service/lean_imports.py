"""Faster process starts: imports without garbage collection and without packages that are not needed."""

import gc
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType


class _Without:
    """An import finder that makes some packages appear not to be installed (PEP 451).

    `sys.modules["pandas"] = None` would be shorter, but Arrow's compiled code mistakes the None for the module.
    """

    def __init__(self, *names: str) -> None:
        self._names = names

    def find_spec(
        self, name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> None:
        """Raise `ModuleNotFoundError` if `name` is one of the hidden packages; otherwise leave it to other finders."""
        if name in self._names:
            raise ModuleNotFoundError(f"this process does without {name}", name=name)


@contextmanager
def lean_imports(*unused: str) -> Iterator[None]:
    """Speed up the imports in the `with` block; from then on, importing an `unused` package fails in this process.

    Arrow would import pandas when it first converts Python values, to check whether they are pandas types; structlog
    would import rich for tracebacks in a style that we do not log. Both cost time and memory in each process. Imported
    modules are never freed, so the garbage collector is off in the block and ignores them afterwards.
    """
    sys.meta_path.insert(0, _Without(*unused))
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
