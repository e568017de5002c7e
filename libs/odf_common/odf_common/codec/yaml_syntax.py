"""Conversion between YAML or JSON text and plain values (dicts, lists, scalars), as strict as JSON.

Manifests are untrusted, so only what JSON can express is accepted: no tags, no repeated keys, and only string keys.
An unquoted scalar is null, a boolean or a number only in the notations of YAML 1.2; `yes` and dates are strings. Only
manifests of resources may have aliases, up to a size, and underscores in integers. The line and column of every value
are recorded for error messages.
"""

import contextlib
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, Final

import yaml

from odf_common.codec.visible_text import is_visible, visible
from odf_common.errors import InvalidInput

MAX_YAML_DEPTH: Final = 200  # nested mappings and lists
_NUMBER: Final = re.compile(r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?", re.ASCII)
MAX_ALIASED: Final = 1_000_000  # characters, as JSON, of what the aliases of a text stand for
_GROUPED: Final = re.compile(r"[-+]?\d{1,20}(?:_\d{1,20})+", re.ASCII)
_INTEGER: Final = re.compile(r"[-+]?\d{1,40}", re.ASCII)
_CONSTANTS: Final[dict[str, bool | None]] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_ENDS: Final = ("", ".", "[")  # what may follow a step in a path
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(slots=True)
class _Location:
    """The position of a value, and of its inner values by path step: storing full paths would take quadratic space."""

    line: int
    column: int
    below: "dict[str, _Location]"

    def nearest(self, path: str) -> "_Location":
        """Return the position of the value at `path`, or of the innermost value that contains it."""
        location = self
        while path:
            path = path.removeprefix(".")
            steps = [
                step for step in location.below if path.startswith(step) and path[len(step) :][:1] in _ENDS
            ]
            if not steps:
                return location
            step = max(steps, key=len)
            location, path = location.below[step], path[len(step) :]
        return location


@dataclass(frozen=True, slots=True)
class Document:
    """A document: its value and, computed on demand, the positions of values in it."""

    value: Any
    root: Callable[[], _Location | None]

    def location_of(self, path: str) -> tuple[int, int] | None:
        """Return line and column (from 1) of `path`, or of the nearest enclosing value; None if unknown."""
        root = self.root()
        if root is None:
            return None
        location = root.nearest(path)
        return location.line, location.column


def documents(text: bytes, name: str, *, is_of_resources: bool = False) -> tuple[Document, ...]:
    """Return the non-empty documents in `text`; raises `InvalidInput` with file, line and column."""
    try:
        decoded = text.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidInput(text=f"not UTF-8 at byte {error.start}", where=name) from error
    as_json = _json_document(decoded, name)
    if as_json is not None:
        return (as_json,)
    try:
        plain = _Reader(decoded, name, is_of_resources=is_of_resources).read()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
        raise InvalidInput(text=getattr(error, "problem", None) or str(error), where=where) from error
    return tuple(document for document in plain if document.value is not None)


def scalar_of(text: str) -> str | int | float | bool | None:
    """Return the value of an unquoted scalar."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    if _NUMBER.fullmatch(text) and math.isfinite(float(text)):
        return float(text)
    return text


def child(path: str, key: str | int) -> str:
    """Return the path of the item or key `key` below `path`."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    return f"{path}.{key}" if path else key


def write(value: object) -> str:
    """Return `value` as a YAML document with keys in the given order; invisible characters are escaped."""
    text = yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=math.inf)
    return visible(text)  # they are only in double quotes, where YAML reads the escapes


class _Dumper(yaml.SafeDumper):
    """Quotes strings that a reader of YAML 1.1 or 1.2 would take for another type; multi-line strings become blocks."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style: str | None = None
    if not text.replace("\n", "").isprintable() or not is_visible(text):
        style = '"'  # PyYAML would fold some of Unicode's line separators
    elif "\n" in text:
        style = "|"  # PyYAML ignores this where it would change the string
    elif not isinstance(scalar_of(text), str):
        style = "'"
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def _json_document(text: str, name: str) -> Document | None:
    """Parse JSON, of which PyYAML cannot read everything (tabs, surrogates); return None if the text is YAML."""
    if not text.lstrip().startswith(("{", "[")):
        return None

    try:
        value = json_value(text, name)
    except ValueError:
        return None
    except InvalidInput:
        _refuse_as_yaml(text, name)
        raise
    return Document(value, lambda: _locations_in_json(text))


def json_value(text: str, name: str) -> Any:
    """Parse JSON; raises `ValueError` if the text is not JSON, `InvalidInput` if it is JSON that is not accepted."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        for key, value in pairs:
            if key in mapping:
                raise InvalidInput(text=f"key {key!r} is given twice", where=name)
            mapping[key] = value
        return mapping

    def constant(word: str) -> float:
        raise InvalidInput(text=f"{word} is not JSON", where=name)

    def finite(word: str) -> float:
        number = float(word)
        if not math.isfinite(number):
            raise InvalidInput(text=f"number {word[:40]} is too large; put it in quotes", where=name)
        return number

    try:
        value = json.loads(text, object_pairs_hook=unique, parse_constant=constant, parse_float=finite)
    except RecursionError as error:
        raise InvalidInput(text=f"nested deeper than {MAX_YAML_DEPTH}", where=name) from error
    _check_depth(value, name)
    return value


def _refuse_as_yaml(text: str, name: str) -> None:
    """Raise `InvalidInput` with line and column if JSON that was refused is not valid YAML either."""
    with contextlib.suppress(yaml.YAMLError):
        _Reader(text, name).read()


def _locations_in_json(text: str) -> _Location | None:
    try:
        return _Reader(text, "").read()[0].root()
    except (yaml.YAMLError, InvalidInput, IndexError):
        return None  # valid JSON that PyYAML cannot read


def _check_depth(value: object, name: str) -> None:
    level, depth = _containers([value]), 0
    while level:
        depth += 1
        if depth > MAX_YAML_DEPTH:
            raise InvalidInput(text=f"nested deeper than {MAX_YAML_DEPTH}", where=name)
        below = chain.from_iterable(one.values() if isinstance(one, dict) else one for one in level)
        level = _containers(below)


def _containers(values: Iterable[object]) -> list[dict[str, object] | list[object]]:
    return [one for one in values if isinstance(one, dict | list)]


class _Reader:
    """Converts PyYAML's events to plain values."""

    def __init__(self, text: str, name: str, *, is_of_resources: bool = False) -> None:
        self._events: Iterator[Any] = iter(yaml.parse(text, Loader=_LOADER))
        self._name, self._is_of_resources = name, is_of_resources
        self._anchors: dict[str, Any] = {}
        self._aliased = 0

    def read(self) -> list[Document]:
        documents = []
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                self._anchors.clear()
                first = next(self._events)
                root = _location(first)
                documents.append(Document(self._value(first, root, 0), partial(_same, root)))
        return documents

    def _value(self, event: Any, location: _Location, depth: int) -> Any:
        if event.anchor is None:
            return self._plain(event, location, depth)
        if not self._is_of_resources:
            raise self._refusal("anchors and aliases are not allowed", event)
        if isinstance(event, yaml.AliasEvent):
            return self._copy(event, depth)
        value = self._anchors[event.anchor] = self._plain(event, location, depth)
        return value

    def _copy(self, event: Any, depth: int) -> Any:
        """Return a copy of the value of an anchor, which has to end before its alias."""
        if event.anchor not in self._anchors:
            raise self._refusal(f"no value before has the anchor &{event.anchor}", event)
        value = self._anchors[event.anchor]
        if depth + _height(value) > MAX_YAML_DEPTH:
            raise self._refusal(f"nested deeper than {MAX_YAML_DEPTH}", event)
        text = json.dumps(value)
        self._aliased += len(text)
        if self._aliased > MAX_ALIASED:
            raise self._refusal(f"aliases stand for more than {MAX_ALIASED} characters", event)
        return json.loads(text)

    def _plain(self, event: Any, location: _Location, depth: int) -> Any:
        if event.tag is not None:
            raise self._refusal(f"tag {event.tag!r} is not allowed", event)
        if isinstance(event, yaml.ScalarEvent):
            return event.value if event.style else self._scalar(event.value)
        if depth == MAX_YAML_DEPTH:
            raise self._refusal(f"nested deeper than {MAX_YAML_DEPTH}", event)
        if isinstance(event, yaml.SequenceStartEvent):
            return self._items(location, depth)
        return self._entries(location, depth)

    def _scalar(self, text: str) -> str | int | float | bool | None:
        if self._is_of_resources and _GROUPED.fullmatch(text):
            return int(text.replace("_", ""))
        return scalar_of(text)

    def _items(self, location: _Location, depth: int) -> list[Any]:
        items: list[Any] = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            below = location.below[child("", len(items))] = _location(event)
            items.append(self._value(event, below, depth + 1))
        return items

    def _entries(self, location: _Location, depth: int) -> dict[str, Any]:
        entries: dict[str, Any] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            if not isinstance(event, yaml.ScalarEvent) or event.anchor is not None or event.tag is not None:
                raise self._refusal("a key has to be a plain string", event)
            key = event.value
            if key in entries:
                raise self._refusal(f"key {key!r} is given twice", event)
            below = location.below[key] = _location(event)
            entries[key] = self._value(next(self._events), below, depth + 1)
        return entries

    def _refusal(self, text: str, event: Any) -> InvalidInput:
        location = _location(event)
        return InvalidInput(text=text, where=f"{self._name}:{location.line}:{location.column}")


def _height(value: object) -> int:
    """Return the depth of containers in a value."""
    if isinstance(value, dict | list):
        inner = value.values() if isinstance(value, dict) else value
        return 1 + max(map(_height, inner), default=0)
    return 0


def _location(event: Any) -> _Location:
    return _Location(event.start_mark.line + 1, event.start_mark.column + 1, {})


def _same(location: _Location) -> _Location:
    return location
