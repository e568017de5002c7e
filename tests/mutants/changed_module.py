"""Imports one module with a change: `ODF_MUTANT` is its path, a colon, and the mutant's number.

No file changes, so an interrupted run leaves nothing behind, and several run at once.
"""

import importlib.machinery
import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import CodeType, ModuleType
from typing import Final

from tests.mutants.mutations import mutants

ROOT: Final = Path(__file__).parents[2]
VARIABLE: Final = "ODF_MUTANT"


class _Loader(importlib.machinery.SourceFileLoader):
    """Loads a text that is not the file's."""

    text = ""

    def get_code(self, fullname: str) -> CodeType:
        """Return the changed code, which is never cached."""
        return compile(self.text, self.path, "exec", dont_inherit=True)


class _Finder(MetaPathFinder):
    """Finds the one module whose text is changed."""

    def __init__(self, file: Path, text: str) -> None:
        self._file = file
        self._text = text

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the module's specification; None for all others."""
        if path is None or fullname.rpartition(".")[2] not in (self._file.stem, self._file.parent.name):
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.origin is None or Path(spec.origin).resolve() != self._file:
            return None
        spec.loader = loader = _Loader(fullname, spec.origin)
        loader.text = self._text
        return spec


def _install(chosen: str) -> None:
    path, _, number = chosen.rpartition(":")
    file = ROOT / path
    text = mutants(ROOT, path)[int(number)].source(file.read_text())
    sys.meta_path.insert(0, _Finder(file.resolve(), text))


if VARIABLE in os.environ:
    _install(os.environ[VARIABLE])
