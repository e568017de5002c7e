"""YAML or JSON text ⇄ plain values (dicts, lists, scalars), as strictly as JSON.

Manifests come from strangers, so only what JSON can say is read: no anchors, no tags, no repeated keys, keys
are text, and a plain scalar is null, a boolean or a number only in the spellings of YAML 1.2 (`yes` and dates
are text). Every value's line and column is remembered, so that a complaint about a path can say where it is.
"""

import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import yaml

from odf_common.errors import InvalidInput

MAX_DEPTH: Final = 200  # mappings and lists inside one another
_NUMBER: Final = re.compile(r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?", re.ASCII)
_INTEGER: Final = re.compile(r"[-+]?\d{1,40}", re.ASCII)
_CONSTANTS: Final[dict[str, bool | None]] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


Places = dict[str, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Document:
    """One document: its value, and on demand line and column (from 1) of each path in it."""

    value: Any
    places: Callable[[], Places]

    def place_of(self, path: str) -> tuple[int, int] | None:
        """Return line and column of `path`, or of the nearest thing around it, where they are known."""
        places = self.places()
        while path and path not in places:
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
        return places.get(path)


def documents(text: bytes, name: str) -> tuple[Document, ...]:
    """Return the documents in `text` that are not empty; raises `InvalidInput` with file, line, column."""
    try:
        decoded = text.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidInput(text=f"not UTF-8 at byte {error.start}", where=name) from error
    as_json = _json_document(decoded, name)
    if as_json is not None:
        return (as_json,)
    try:
        found = _Reader(decoded, name).read()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
        raise InvalidInput(text=getattr(error, "problem", None) or str(error), where=where) from error
    return tuple(document for document in found if document.value is not None)


def scalar_of(text: str) -> str | int | float | bool | None:
    """Return what an unquoted scalar stands for."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    if _NUMBER.fullmatch(text) and math.isfinite(float(text)):
        return float(text)
    return text


def child(path: str, key: str | int) -> str:
    """Return the path of an item or a key below `path`."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    return f"{path}.{key}" if path else key


def write(value: object) -> str:
    """Return `value` as a YAML document, keys in the order given."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=math.inf)


class _Dumper(yaml.SafeDumper):
    """Quotes what we, or readers of YAML 1.1, would take for something else; shows lines as lines."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style: str | None = None
    if not text.replace("\n", "").isprintable():
        style = '"'  # PyYAML would fold some line separators of Unicode
    elif "\n" in text:
        style = "|"  # which PyYAML overrules where it would change the text
    elif not isinstance(scalar_of(text), str):
        style = "'"
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def _json_document(text: str, name: str) -> Document | None:
    """Return the value of JSON text, which PyYAML cannot quite read (tabs, surrogates); None for YAML."""
    if not text.lstrip().startswith(("{", "[")):
        return None

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise InvalidInput(text=f"key {twice!r} is given twice", where=name)
        return found

    def constant(word: str) -> float:
        raise InvalidInput(text=f"{word} is not JSON", where=name)

    try:
        value = json.loads(text, object_pairs_hook=unique, parse_constant=constant)
    except RecursionError as error:
        raise InvalidInput(text=f"nested deeper than {MAX_DEPTH}", where=name) from error
    except ValueError:
        return None
    _check_depth(value, name)
    return Document(value, lambda: _places_in_json(text))


def _places_in_json(text: str) -> Places:
    try:
        return _Reader(text, "").read()[0].places()
    except (yaml.YAMLError, InvalidInput, IndexError):
        return {}  # what JSON allows and PyYAML does not


def _check_depth(value: object, name: str) -> None:
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise InvalidInput(text=f"nested deeper than {MAX_DEPTH}", where=name)
        below: list[object] = []
        for item in level:
            if isinstance(item, dict):
                below.extend(item.values())
            elif isinstance(item, list):
                below.extend(item)
        level = below


class _Reader:
    """Turns PyYAML's events into plain values."""

    def __init__(self, text: str, name: str) -> None:
        self._events: Iterator[Any] = iter(yaml.parse(text, Loader=_LOADER))
        self._name = name
        self._places: Places = {}

    def read(self) -> list[Document]:
        found = []
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                self._places = {}
                value = self._value(next(self._events), "", 0)
                found.append(Document(value, partial(dict, self._places)))
        return found

    def _value(self, event: Any, path: str, depth: int) -> Any:
        self._places.setdefault(path, _place(event))
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            raise self._refused("anchors and aliases are not allowed", event)
        if event.tag is not None:
            raise self._refused(f"tag {event.tag!r} is not allowed", event)
        if depth > MAX_DEPTH:
            raise self._refused(f"nested deeper than {MAX_DEPTH}", event)
        if isinstance(event, yaml.ScalarEvent):
            return event.value if event.style else scalar_of(event.value)
        if isinstance(event, yaml.SequenceStartEvent):
            return self._items(path, depth)
        return self._entries(path, depth)

    def _items(self, path: str, depth: int) -> list[Any]:
        items: list[Any] = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            items.append(self._value(event, child(path, len(items)), depth + 1))
        return items

    def _entries(self, path: str, depth: int) -> dict[str, Any]:
        entries: dict[str, Any] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            if not isinstance(event, yaml.ScalarEvent) or event.anchor is not None or event.tag is not None:
                raise self._refused("a key has to be plain text", event)
            key = event.value
            if key in entries:
                raise self._refused(f"key {key!r} is given twice", event)
            below = child(path, key)
            self._places[below] = _place(event)
            entries[key] = self._value(next(self._events), below, depth + 1)
        return entries

    def _refused(self, text: str, event: Any) -> InvalidInput:
        line, column = _place(event)
        return InvalidInput(text=text, where=f"{self._name}:{line}:{column}")


def _place(event: Any) -> tuple[int, int]:
    return event.start_mark.line + 1, event.start_mark.column + 1
