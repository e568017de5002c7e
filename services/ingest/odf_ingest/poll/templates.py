"""Templates in fetch steps: `${{ env.NAME || 'default' }}`, filled in when data is fetched and never stored.

Every value that was filled in counts as a secret: it is masked in errors, logs and reports.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, Final, TypeVar
from urllib.parse import quote, unquote, urlsplit

from odf_common.errors import InvalidInput, OdfError
from odf_common.metadata.fetching import EnvVar, FetchStep, FetchStepContainer, FetchStepFilesGlob
from odf_common.resources.secret_text import MASK
from odf_common.resources.templates import Template, TemplateScope, TemplateValue

S = TypeVar("S")
MIN_SECRET_CHARACTERS: Final = 3  # shorter values would mask unrelated text
MIN_PARAMETER_CHARACTERS: Final = 6  # the same, of parameters such as format=csv
_TEMPLATE: Final = re.compile(r"\$\{\{(.*?)\}\}", re.DOTALL)
_IN_FETCH_STEP: Final = TemplateScope(
    re.compile(r"env\.[A-Za-z_][A-Za-z0-9_]*"),
    "env.NAME",
    "set it in the node's environment and restart the node",
)
_WILDCARD: Final = re.compile(r"[*?\[]")


class Secrets:
    """The values that templates were replaced by, which are masked in messages."""

    def __init__(self, values: frozenset[str] = frozenset()) -> None:
        """Mask these values, as they are and as they are written in URLs; of a URL, the parts that errors may show."""
        parts = {part for value in values for part in (value, *_parts_of_url(value))}
        written = {
            form for part in parts for form in (part, quote(part), quote(part, safe=""), unquote(part))
        }
        self._forms = sorted(
            (text for text in written if len(text) >= MIN_SECRET_CHARACTERS), key=len, reverse=True
        )

    def mask(self, text: str) -> str:
        """Return a text with the values replaced by `***`."""
        for form in self._forms:
            text = text.replace(form, MASK)
        return text

    def mask_error(self, error: OdfError) -> OdfError:
        """Return the error itself, or one of its class with masked facts if it has a value."""
        facts = error.facts()
        masked = {
            name: self.mask(value) if isinstance(value, str) else value for name, value in facts.items()
        }
        return error if masked == facts else type(error)(**masked)


def _parts_of_url(value: str) -> Iterator[str]:
    """Yield password, place and values of parameters, if the value is a URL."""
    if "://" not in value:
        return
    try:
        parts = urlsplit(value)
    except ValueError:
        return
    user, _, host = parts.netloc.rpartition("@")
    yield user.partition(":")[2]
    yield f"{parts.scheme}://{host}{parts.path}"
    for parameter in parts.query.split("&"):
        text = parameter.partition("=")[2]
        if len(text) >= MIN_PARAMETER_CHARACTERS:
            yield text


def has_template(step: object) -> bool:
    """Return whether any string of a step has a template."""
    return any("${{" in text for text in _texts(step))


def fill_in(step: FetchStep, environ: Mapping[str, str]) -> tuple[FetchStep, Secrets]:
    """Return the step with its templates filled in, and what has to be masked. Raises `InvalidInput`."""
    if isinstance(step, FetchStepFilesGlob):
        _require_fixed(step.path)
    if isinstance(step, FetchStepContainer):
        step = replace(step, env=tuple(_propagate(variable) for variable in step.env or ()))
    secrets: set[str] = set()

    def value(name: str) -> TemplateValue | None:
        text = environ.get(name.removeprefix("env."))
        return TemplateValue(text, is_secret=True) if text else None

    def fill(text: str) -> str:
        filled = Template.parse(text, _IN_FETCH_STEP).fill(value)
        secrets.update(filled.secrets)
        return filled.text

    try:
        return map_texts(step, fill), Secrets(frozenset(secrets))
    except InvalidInput as error:
        raise error.with_facts(where="fetch") from error


def _propagate(variable: EnvVar) -> EnvVar:
    """Return a variable of a container with a value: without one, it has the node's."""
    return (
        variable if variable.value is not None else replace(variable, value=f"${{{{ env.{variable.name} }}}}")
    )


def _require_fixed(path: str) -> None:
    """Raise `InvalidInput` if a template could become part of the names that blocks have."""
    masked = _TEMPLATE.sub(lambda match: "x" * len(match[0]), path)
    wildcard = _WILDCARD.search(masked)
    last = masked.rfind("/", 0, wildcard.start() if wildcard else len(masked))
    if "${{" in path[last + 1 :]:
        text = "a template may only be in the folders before the first wildcard, since blocks have the names below"
        raise InvalidInput(where="fetch.path", text=text)


def _texts(value: Any) -> list[str]:  # noqa: ANN401 - any part of a step
    if isinstance(value, str):
        return [value]
    if isinstance(value, tuple):
        return [text for item in value for text in _texts(item)]
    if is_dataclass(value):
        return [text for field in fields(value) for text in _texts(getattr(value, field.name))]
    return []


def map_texts(value: S, change: Callable[[str], str]) -> S:
    """Return a part of a step with each string changed."""
    result: Any = value
    if isinstance(value, str):
        result = change(value)
    elif isinstance(value, tuple):
        result = tuple(map_texts(item, change) for item in value)
    elif is_dataclass(value) and not isinstance(value, type):
        changed = {field.name: map_texts(getattr(value, field.name), change) for field in fields(value)}
        result = replace(value, **changed)
    part: S = result
    return part
