"""Small changes to a module's code, as a programmer may slip: where, and what stands there instead."""

import ast
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Final, TypeGuard

COMPARISONS: Final[dict[type[ast.cmpop], tuple[str, str]]] = {
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
OPERATORS: Final[dict[type[ast.operator], tuple[str, str]]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "+"),
    ast.BitOr: ("|", "&"),
    ast.BitAnd: ("&", "|"),
}
UNGUARDED: Final = '__import__("contextlib").nullcontext()'
CONSTRUCTOR: Final = "__init__"  # whose assignments stay: without one, every test fails
CALLS: Final = {"min": "max", "max": "min", "any": "all", "all": "any"}
LOGGER: Final = "log"


@dataclass(frozen=True, slots=True, order=True)
class Mutant:
    """A module with one change: `before`, at `start` in `function`, becomes `after`."""

    path: str
    start: int
    before: str
    after: str
    function: str
    line: int
    occurrence: int = 1
    """Which of the mutants of the module that are called the same otherwise, from the top."""

    @property
    def name(self) -> str:
        """Return a name that stays the same while other lines change, and that no other mutant has."""
        name = f"{self.path} {self.function}: {_on_one_line(self.before)} -> {_on_one_line(self.after)}"
        return name if self.occurrence == 1 else f"{name} ({self.occurrence})"

    def source(self, text: str) -> str:
        """Return the module's text with the change."""
        return text[: self.start] + self.after + text[self.start + len(self.before) :]


def mutants(root: Path, path: str) -> tuple[Mutant, ...]:
    """Return all mutants of a module, in the order of its text."""
    text = (root / path).read_text()
    finder = _Finder(path, text)
    finder.visit(ast.parse(text))
    seen: Counter[str] = Counter()
    found = []
    for mutant in sorted(set(finder.found)):
        seen[mutant.name] += 1
        found.append(replace(mutant, occurrence=seen[mutant.name]))
    return tuple(found)


def _on_one_line(text: str) -> str:
    return " ".join(text.split())


class _Finder(ast.NodeVisitor):
    """Collects the mutants of functions. Types, defaults, assertions, error texts and log entries stay."""

    def __init__(self, path: str, text: str) -> None:
        self.found: list[Mutant] = []
        self._path = path
        self._text = text
        self._lines = text.splitlines(keepends=True)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))
        self._names: list[str] = []
        self._depth = 0  # of functions

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._enter(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._visit_function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._visit_function(node)

    def _visit_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._depth += 1
        self._enter(node)
        self._depth -= 1

    def _enter(self, node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._names.append(node.name)
        self._change_order(node.body)
        for statement in node.body:
            self.visit(statement)
        self._names.pop()

    def generic_visit(self, node: ast.AST) -> None:
        """Change the order of a node's statements, and its children."""
        for _, value in ast.iter_fields(node):
            if isinstance(value, list):
                self._change_order(value)
        super().generic_visit(node)

    def _change_order(self, statements: Sequence[object]) -> None:
        for first, second in pairwise(statements):
            if self._is_effect(first) and self._is_effect(second):
                self._swap(first, second)

    def visit_Raise(self, node: ast.Raise) -> None:
        self._replace(node, "pass")

    def visit_Assert(self, node: ast.Assert) -> None:
        pass

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        pass

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_Expr(self, node: ast.Expr) -> None:
        if self._is_effect(node):
            self._replace(node, "pass")
            self.generic_visit(node)

    def _is_effect(self, node: object) -> TypeGuard[ast.Expr]:
        return (
            isinstance(node, ast.Expr)
            and not isinstance(node.value, ast.Constant)
            and not self._is_log(node.value)
        )

    def _is_log(self, node: ast.expr) -> bool:
        return (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id == LOGGER
        )

    def visit_Compare(self, node: ast.Compare) -> None:
        change = COMPARISONS.get(type(node.ops[0]))
        if change is not None and len(node.ops) == 1:
            self._change_between(node.left, node.comparators[0], *change)
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        change = OPERATORS.get(type(node.op))
        if change is not None:
            self._change_between(node.left, node.right, *change)
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        is_local = all(isinstance(one, ast.Name | ast.Tuple) for one in node.targets)
        if not is_local and self._names[-1:] != [CONSTRUCTOR]:
            self._replace(node, "pass")
        self.generic_visit(node)

    def visit_withitem(self, node: ast.withitem) -> None:
        if node.optional_vars is None:
            self._replace(node.context_expr, UNGUARDED)
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        change = OPERATORS.get(type(node.op))
        if change is not None:
            before, after = change
            self._change_between(node.target, node.value, f"{before}=", f"{after}=")
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        change = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        self._change_between(node.values[0], node.values[1], *change)
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self._replace(node, self._text_of(node.operand))
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self._replace(node, str(not node.value))
        elif isinstance(node.value, int):
            self._replace(node, str(node.value + 1))

    def visit_If(self, node: ast.If) -> None:
        self._replace(node.test, "False")
        self._replace(node.test, "True")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Name) and node.func.id in CALLS:
            self._replace(node.func, CALLS[node.func.id])
        if isinstance(node.func, ast.Name) and node.func.id == "zip":
            for one in node.args:  # `strict` is an assertion: it decides nothing where the code is right
                self.visit(one)
        else:
            self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is None:
            return
        if not isinstance(node.value, ast.Constant):
            self._replace(node.value, "None")
        self.visit(node.value)

    def visit_Break(self, node: ast.Break) -> None:
        self._replace(node, "continue")

    def visit_Continue(self, node: ast.Continue) -> None:
        self._replace(node, "break")

    def _change_between(self, left: ast.expr, right: ast.expr, before: str, after: str) -> None:
        """Change an operator between two operands, unless the text there has it twice or a comment."""
        start = self._end(left)
        between = self._text[start : self._start(right)]
        if between.count(before) == 1 and "#" not in between:
            self._add(start + between.index(before), before, after, left.lineno)

    def _swap(self, first: ast.stmt, second: ast.stmt) -> None:
        start, before = self._start(first), self._text[self._start(first) : self._end(second)]
        between = self._text[self._end(first) : self._start(second)]
        self._add(start, before, self._text_of(second) + between + self._text_of(first), first.lineno)

    def _replace(self, node: ast.expr | ast.stmt, after: str) -> None:
        self._add(self._start(node), self._text_of(node), after, node.lineno)

    def _add(self, start: int, before: str, after: str, line: int) -> None:
        if self._depth:
            function = ".".join(self._names)
            self.found.append(Mutant(self._path, start, before, after, function, line))

    def _text_of(self, node: ast.expr | ast.stmt) -> str:
        return self._text[self._start(node) : self._end(node)]

    def _start(self, node: ast.expr | ast.stmt) -> int:
        return self._place(node.lineno, node.col_offset)

    def _end(self, node: ast.expr | ast.stmt) -> int:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._place(node.end_lineno, node.end_col_offset)

    def _place(self, line: int, column: int) -> int:
        """Return the place in the text of a line, from 1, and a column in bytes."""
        return self._starts[line - 1] + len(self._lines[line - 1].encode()[:column].decode())
