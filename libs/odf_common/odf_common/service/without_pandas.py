"""Processes without pandas, which only the engine needs: Spark's Python half does."""

import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Final

PANDAS: Final = "pandas"


class _NoPandas:
    """A finder that finds no pandas (PEP 451).

    `sys.modules["pandas"] = None` would be shorter, but Arrow's compiled code takes the None for the module.
    """

    @staticmethod
    def find_spec(name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None) -> None:
        """Raise `ModuleNotFoundError` for pandas, as if it were not installed."""
        if name == PANDAS:
            raise ModuleNotFoundError("this process does without pandas", name=name)


def forbid_pandas() -> None:
    """Make imports of pandas fail in this process from now on.

    Arrow would import it before it first converts Python's values, to look whether they are pandas' own. That
    takes time and memory in each process of a node.
    """
    sys.meta_path.insert(0, _NoPandas)
