"""Templates in strings of resources: `${{ config.NAME || 'default' }}`, filled in when they are needed, never stored.

    expression := term ("||" term)*         the first term that has a value
    term       := a name, a number or 'text'

A template is read once, so inserted text is never a template itself. Nothing can be escaped. The result has the secrets
that were inserted: what is shown or stored of it has to be masked.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, NoReturn, Self, TypeAlias

from odf_common.codec.yaml_syntax import child
from odf_common.errors import InvalidInput

_START: Final = "${{"
_TERM: Final = re.compile(
    r"\s*(?:([A-Za-z_][\w.-]*)|(-?[0-9]+(?:\.[0-9]+)?)|'([^']*)')\s*(\|\||\}\})", re.ASCII
)
_LINE_BREAKS: Final = re.compile(r"[\r\n\0]")


@dataclass(frozen=True, slots=True)
class TemplateScope:
    """Names that templates of a field may use."""

    pattern: re.Pattern[str]
    expected: str
    remedy: str
    """The remedy for a name without a value."""


IN_SOURCE: Final = TemplateScope(
    re.compile(r"config\.[A-Za-z_][A-Za-z0-9_-]*"), "config.NAME", "add it to `config`"
)
IN_PAYLOAD: Final = TemplateScope(
    re.compile(r"(?:trigger\.(?:event|dataset)|target|flow|run)(?:\.[A-Za-z0-9_-]+)*"),
    "trigger.event, trigger.dataset, target, flow or run",
    "name a field that exists",
)


@dataclass(frozen=True, slots=True)
class TemplateValue:
    """A value to insert; its `repr` does not show it."""

    text: str = field(repr=False)
    is_secret: bool = False


TemplateValues: TypeAlias = Callable[[str], TemplateValue | None]
"""Returns the value of a name such as `config.token`; None if it has none."""


@dataclass(frozen=True, slots=True)
class FilledText:
    """A string with its templates filled in; its `repr` does not show it."""

    text: str = field(repr=False)
    secrets: frozenset[str] = field(default=frozenset(), repr=False)
    """The secrets that were inserted."""

    @property
    def is_secret(self) -> bool:
        """Return whether a secret was inserted."""
        return bool(self.secrets)


@dataclass(frozen=True, slots=True)
class _Expression:
    """Terms in order: names, and texts that always have a value."""

    terms: tuple[tuple[str, bool], ...]
    """Each a name or a text, and whether it is a name."""


@dataclass(frozen=True, slots=True)
class Template:
    """A string in parts: texts, and expressions between them."""

    parts: tuple[str | _Expression, ...]
    scope: TemplateScope

    @classmethod
    def parse(cls, text: str, scope: TemplateScope) -> Self:
        """Read a string; raises `InvalidInput` for a template that no value could complete."""
        parts: list[str | _Expression] = []
        position = 0
        while (start := text.find(_START, position)) >= 0:
            parts.append(text[position:start])
            expression, position = _parse_expression(text, start, scope)
            parts.append(expression)
        return cls((*parts, text[position:]), scope)

    @property
    def names(self) -> frozenset[str]:
        """Return the names that the string uses."""
        return frozenset(
            name
            for part in self.parts
            if isinstance(part, _Expression)
            for name, is_name in part.terms
            if is_name
        )

    def fill(self, values: TemplateValues) -> FilledText:
        """Return the string with values inserted; raises `InvalidInput` if an expression has none."""
        chosen = [
            TemplateValue(part) if isinstance(part, str) else self._choose(part, values)
            for part in self.parts
        ]
        secrets = frozenset(value.text for value in chosen if value.is_secret)
        return FilledText("".join(value.text for value in chosen), secrets)

    def _choose(self, expression: _Expression, values: TemplateValues) -> TemplateValue:
        for term, is_name in expression.terms:
            value = values(term) if is_name else TemplateValue(term)
            if value is not None:
                return value
        names = [name for name, _ in expression.terms]
        example = f"${{{{ {names[0]} || '…' }}}}"
        text = f"there is no value of {' or '.join(names)}; {self.scope.remedy}, or give a default: {example}"
        raise InvalidInput(text=text)


def names_in_strings(value: object, scope: TemplateScope) -> frozenset[str]:
    """Return the names that all strings of a JSON value use, but for keys; raises `InvalidInput` with the place."""
    names: set[str] = set()

    def collect(text: str) -> str:
        names.update(Template.parse(text, scope).names)
        return text

    _map_strings(value, collect, "")
    return frozenset(names)


def fill_strings(
    value: object, scope: TemplateScope, values: TemplateValues
) -> tuple[object, frozenset[str]]:
    """Return a JSON value with all strings filled in, but for keys, and the secrets; raises `InvalidInput`."""
    secrets: set[str] = set()

    def fill(text: str) -> str:
        filled = Template.parse(text, scope).fill(values)
        secrets.update(filled.secrets)
        return filled.text

    return _map_strings(value, fill, ""), frozenset(secrets)


def config_values(config: Mapping[str, TemplateValue]) -> TemplateValues:
    """Return the lookup of `config.NAME`."""
    return lambda name: config.get(name.removeprefix("config."))


def payload_values(roots: Mapping[str, object]) -> TemplateValues:
    """Return the lookup of names joined by dots in JSON objects; null counts as no value."""

    def value(name: str) -> TemplateValue | None:
        found = _walk(roots, name.split("."))
        return None if found is None else TemplateValue(json_text(found))

    return value


def require_one_line(value: FilledText, where: str) -> str:
    """Return the value of a header; raises `InvalidInput` for a line break, by which it could add others."""
    if _LINE_BREAKS.search(value.text):
        raise InvalidInput(
            where=where, text="the value of a header has a line break after its templates are filled in"
        )
    return value.text


def value_at_path(values: Mapping[str, str], path: str) -> str:
    """Return the value of a set at a path: its longest prefix that is a key, the rest leads into the value as JSON.

    Errors have the path and no value. Raises `InvalidInput`.
    """
    names = path.split(".")
    for length in range(len(names), 0, -1):
        key = ".".join(names[:length])
        if key in values:
            return values[key] if length == len(names) else _value_within(values[key], key, names[length:])
    raise InvalidInput(where=path, text="the set has no such key")


def json_text(value: object) -> str:
    """Return a string as it is, and other values as compact JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _map_strings(value: object, change: Callable[[str], str], where: str) -> object:
    match value:
        case str():
            try:
                return change(value)
            except InvalidInput as error:
                raise error.with_facts(where=where or None) from error
        case list() | tuple():
            return [_map_strings(item, change, child(where, index)) for index, item in enumerate(value)]
        case Mapping():
            return {key: _map_strings(item, change, child(where, key)) for key, item in value.items()}
        case _:
            return value


def _value_within(text: str, key: str, names: list[str]) -> str:
    path = ".".join((key, *names))
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        # Without a cause: the decoder's error has the value.
        raise InvalidInput(
            where=path, text=f"the value of {key} is not JSON, so no path leads into it"
        ) from None
    found = _walk(value, names)
    if found is None:
        raise InvalidInput(where=path, text=f"the value of {key} has nothing there")
    return json_text(found)


def _walk(value: object, names: list[str]) -> object:
    """Return the part of a JSON value that names lead to, in lists by position; None without one."""
    for name in names:
        if isinstance(value, Mapping):
            value = value.get(name)
        elif isinstance(value, list | tuple) and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        else:
            return None
    return value


def _parse_expression(text: str, start: int, scope: TemplateScope) -> tuple[_Expression, int]:
    """Return the expression that begins at `start`, and the position after it."""
    terms: list[tuple[str, bool]] = []
    position = start + len(_START)
    while match := _TERM.match(text, position):
        name, number, quoted, end = match.groups()
        if name is not None:
            _require_name(name, scope)
        terms.append((name, True) if name is not None else (quoted if number is None else number, False))
        position = match.end()
        if end == "}}":
            return _Expression(tuple(terms)), position
    shown = text[start : start + 60]
    expected = f"${{{{ NAME || 'default' }}}} with {scope.expected}"
    raise InvalidInput(text=f"cannot read the template {shown!r}; expected {expected}")


def _require_name(name: str, scope: TemplateScope) -> None:
    if scope.pattern.fullmatch(name):
        return
    if not name.startswith("env."):
        raise InvalidInput(text=f"{name} is not available in templates here; expected {scope.expected}")
    key = name.removeprefix("env.")
    remedy = (
        f"add {key} to `config`, and write config.{key}" if scope is IN_SOURCE else f"use {scope.expected}"
    )
    raise InvalidInput(text=f"{name} is not available: resources do not see the node's environment; {remedy}")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)
