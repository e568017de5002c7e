"""Names and docstrings are in the field's English: patterns that readers stumbled over do not come back."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = sorted([*ROOT.glob("libs/*/odf_*"), *ROOT.glob("services/*/odf_*")])
# The engine's own names are left to its rebuilding.
MODULES = [
    file
    for package in PACKAGES
    if package.name != "odf_engine_spark"
    for file in sorted(package.rglob("*.py"))
    if "proto" not in file.parts
]
IRREGULAR = "said|spoken|made|meant|brought|gone|lost|kept|held|known|sent|found|chosen|written|taken|begun|shown|done"
PARTICIPLE = re.compile(rf"_?([a-z]+ed|{IRREGULAR})")
RIDDLE = re.compile(r"_?(of|as|one|whole|place|below|behind|near|look|go_on|left_of)")
# Verbs that end like participles, and names that a framework asks for or that outlive their call.
VERBS = {"embed", "feed", "need", "proceed", "read_need", "seed", "speed", "succeed"}
MAX_PARTICIPLES = 40
PROSE = {
    "a docstring begins with a noun or a verb, not with a question": re.compile(
        r'^"""(What|How|Which|Where|Why|Who)\b'
    ),
    "a function returns a noun: the reason, the number, the address": re.compile(
        r'^"""Return (what|how|where|why|which|who)\b'
    ),
    "even if, even while, or a second sentence": re.compile(r"\balso (if|when|where|while|without)\b"),
    "occasionally, in total, anyway, permanently": re.compile(
        r"\b(now and then|all the same|at any rate|from soon on)\b"
    ),
    "no client, the caller, another process": re.compile(r"\b(somebody|whoever)\b"),
    "rebuilt, again": re.compile(r"\banew\b"),
    "a verb": re.compile(r'^"""Have '),
}


def functions() -> Iterator[tuple[str, str]]:
    """Yield the place and the name of each function and method."""
    for file in MODULES:
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{file.relative_to(ROOT)}:{node.lineno}", node.name


def prose(file: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of docstrings and comments with their numbers."""
    previous = tokenize.NEWLINE
    for token in tokenize.generate_tokens(io.StringIO(file.read_text("utf-8")).readline):
        is_docstring = token.type == tokenize.STRING and token.string.startswith('"""')
        if token.type == tokenize.COMMENT or (
            is_docstring and previous in {tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
        ):
            yield from enumerate(token.string.splitlines(), token.start[0])
        if token.type not in {tokenize.NL, tokenize.COMMENT, tokenize.ENCODING}:
            previous = token.type


def test_no_function_is_a_riddle() -> None:
    assert [(place, name) for place, name in functions() if RIDDLE.fullmatch(name)] == []


def test_functions_are_verbs_and_few_are_bare_participles() -> None:
    found = [(place, name) for place, name in functions() if PARTICIPLE.fullmatch(name) and name not in VERBS]
    assert len(found) <= MAX_PARTICIPLES, found


@pytest.mark.parametrize("rule", PROSE)
def test_docstrings_and_comments_are_plain(rule: str) -> None:
    hits = [
        f"{file.relative_to(ROOT)}:{number}: {line.strip()}"
        for file in MODULES
        for number, line in prose(file)
        if PROSE[rule].search(line.strip())
    ]
    assert hits == []
