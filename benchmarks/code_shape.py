"""What a module does, whatever its parts are called: so that a benchmark that was only renamed need not run again."""

import ast
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent
AROUND: Final = ("memory.py", "report.py", "rows.py")  # they change no number
WORDS: Final = (str, bytes, type(None))
DIGITS: Final = 8


def shapes_of(case: str) -> dict[str, str]:
    """Return the digest of each module that a case is made of, by its file's name, in their order."""
    found: dict[str, str] = {}
    names = [case]
    while names:
        file = FOLDER / f"{names.pop()}.py"
        if file.exists() and file.name not in {*found, *AROUND}:
            found[file.name] = shape_of(file)
            names += _imported(ast.parse(file.read_text()))
    return dict(sorted(found.items()))


def shape_of(file: Path) -> str:
    """Return a digest of a module's statements, operators and numbers, without its names, texts and imports."""
    shape = " ".join(_shape(ast.parse(file.read_text())))
    return hashlib.sha256(shape.encode()).hexdigest()[:DIGITS]


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield node.module or ""
        elif isinstance(node, ast.Import):
            yield from (one.name for one in node.names)


def _shape(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import | ast.ImportFrom):
        return
    yield type(node).__name__
    if isinstance(node, ast.Constant) and not isinstance(node.value, WORDS):
        yield repr(node.value)
    for child in ast.iter_child_nodes(node):
        yield from _shape(child)
