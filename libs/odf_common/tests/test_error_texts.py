"""The texts of errors name fields that exist, and the text that a class declares last is what it says."""

import ast
import string
from collections.abc import Iterator
from pathlib import Path

import pytest

from odf_common.errors import OdfError, Unavailable

ROOT = Path(__file__).parents[3]
SOURCES = sorted(path for folder in ("libs", "services") for path in (ROOT / folder).glob("*/odf_*/**/*.py"))
TEXTS = ("MESSAGE", "ADVICE")


def classes() -> dict[str, ast.ClassDef]:
    trees = (ast.parse(path.read_text()) for path in SOURCES)
    return {node.name: node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}


def fields_of(name: str, known: dict[str, ast.ClassDef]) -> Iterator[str]:
    if name not in known:
        return
    for node in known[name].body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id
    for base in known[name].bases:
        yield from fields_of(getattr(base, "id", getattr(base, "attr", "")), known)


def texts() -> Iterator[tuple[str, str]]:
    for name, node in classes().items():
        for line in node.body:
            if isinstance(line, ast.Assign) and getattr(line.targets[0], "id", "") in TEXTS:
                yield name, ast.literal_eval(line.value)


def test_texts_name_fields_of_their_class() -> None:
    known, found = classes(), list(texts())
    assert len(found) > 100
    wrong = {
        (name, field)
        for name, text in found
        for _, field, _, _ in string.Formatter().parse(text)
        if field is not None and field not in fields_of(name, known)
    }
    assert not wrong


class Silent(Unavailable):
    """A part does not answer."""

    MESSAGE = "{what} is silent for {seconds:g} s"
    ADVICE = "ask {what!r} again"

    seconds: float


class Shouting(Silent):
    """A part answers too loudly."""

    def __str__(self) -> str:
        return f"{self.what} is loud"


@pytest.mark.parametrize(
    ("error", "message", "advice"),
    [
        (Silent(what="redis", seconds=0.5), "redis is silent for 0.5 s", "ask 'redis' again"),
        (Silent(what="{seconds}", seconds=1), "{seconds} is silent for 1 s", "ask '{seconds}' again"),
        (Shouting(what="redis", seconds=1), "redis is loud", "ask 'redis' again"),
        (Unavailable(what="redis", why="no"), "redis cannot be reached: no", ""),
        (OdfError(), "Something in the node went wrong", ""),
    ],
)
def test_the_text_of_the_nearest_class_is_used(error: OdfError, message: str, advice: str) -> None:
    assert (str(error), error.advice()) == (message, advice)


@pytest.mark.parametrize("facts", [{}, {"what": "x", "why": "y", "when": "z"}])
def test_an_error_is_built_from_all_its_facts_and_no_others(facts: dict[str, str]) -> None:
    with pytest.raises(TypeError, match="Unavailable has the facts what, why"):
        Unavailable(**facts)


def test_an_error_names_its_facts_and_keeps_those_that_are_not_changed() -> None:
    error = Unavailable(what="Kafka").with_facts(why="no route")
    assert repr(error) == "Unavailable(what='Kafka', why='no route')"
    assert str(error) == "Kafka cannot be reached: no route"
