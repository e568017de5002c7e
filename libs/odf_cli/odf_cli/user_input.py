"""User input: values of options, files, URLs and secrets; `-` is standard input.

Secrets are typed without echo or read from a file. They are never arguments, which all processes could read.
"""

import re
import sys
from collections.abc import Callable, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import click

from odf_cli.output import remark
from odf_common.adapters.local.secrets import MAX_SECRET_BYTES, read_secret, secret_in
from odf_common.adapters.repository_urls import require_no_credentials
from odf_common.errors import InvalidInput, NotFound, Unavailable
from odf_common.metadata.scalars import Timestamp

STDIN: Final = "-"
FETCH_SECONDS: Final = 30.0
MAX_COUNT: Final = 2**31 - 1
_FILE: Final = "file://"
_THIS_MACHINE: Final = "localhost/"


class Parsed(click.ParamType):
    """A parameter that is converted by a function; its `InvalidInput` becomes a usage error."""

    def __init__(self, name: str, parse: Callable[[str], object]) -> None:
        """Convert values by `parse`, which raises `InvalidInput`; `name` is the kind of value for the help."""
        self.name = name
        self._parse = parse

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> object:
        """Return the converted value."""
        try:
            return self._parse(value)
        except InvalidInput as error:
            self.fail(error.text or str(error), param, ctx)


class Count(click.ParamType):
    """An integer parameter from `least` to `MAX_COUNT`, which fits into all messages."""

    name = "integer"

    def __init__(self, least: int) -> None:
        """Refuse numbers below `least`."""
        self._least = least

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number; any other value is a usage error."""
        number: int = click.INT.convert(value, param, ctx)
        if not self._least <= number <= MAX_COUNT:
            self.fail(f"expected an integer from {self._least} to {MAX_COUNT}, got {number}", param, ctx)
        return number


TIME: Final = Parsed("time", Timestamp.parse)


def _read_option(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.isalnum():
        raise InvalidInput(text=f"expected KEY=VALUE, such as separator=';', got {text!r}")
    return key, value


read_options = click.option(
    "--read-option",
    "options",
    type=Parsed("option", _read_option),
    metavar="KEY=VALUE",
    multiple=True,
    help="An option of the format, as in a manifest: separator, quote, escape, header, nullValue, encoding, "
    "timestampFormat, subPath, … `tab` is a tab. May be repeated.",
)


def with_read_options(input_format: str, options: Sequence[tuple[str, str]]) -> str:
    """Return an input format with options, in the form of a media type; without a format, that of the source."""
    if not options:
        return input_format
    quoted = ((key, re.sub(r"([\\\"])", r"\\\1", value)) for key, value in options)
    return "; ".join((input_format or "source", *(f'{key}="{value}"' for key, value in quoted)))


def remark_on_typing(what: str) -> None:
    """Tell the user, if stdin is a terminal, that the command waits for input."""
    if sys.stdin.isatty():
        remark(f"reading {what} from the terminal; end with Ctrl-D")


def shown_name(name: str) -> str:
    """Return the name of a file as shown in messages."""
    return "standard input" if name == STDIN else name


def read_limited(name: str, most: int) -> bytes:
    """Return the content of a file; raises `NotFound`, `Unavailable`, or `InvalidInput` above `most` bytes."""
    try:
        if name == STDIN:
            content = sys.stdin.buffer.read(most + 1)
        else:
            with Path(name).open("rb") as file:
                content = file.read(most + 1)
    except FileNotFoundError as error:
        raise NotFound(what=f"file {name}") from error
    except OSError as error:
        raise Unavailable(what=shown_name(name), why=error.strerror) from error
    require_short(content, most, name)
    return content


def require_short(content: bytes, most: int, name: str) -> None:
    """Raise `InvalidInput` if the content has more than `most` bytes."""
    if len(content) > most:
        raise InvalidInput(text=f"longer than {most} bytes", where=shown_name(name))


def absolute_url(url: str) -> str:
    """Return the URL, with the path of a `file://` URL made absolute and escaped.

    `file://localhost/…` means `file:///…`; any other path is relative to the working directory. Raises `InvalidInput`
    if the URL contains a user or password.
    """
    if url[: len(_FILE)].lower() != _FILE:
        require_no_credentials(url)  # before anything shows the URL
        return url
    path = url[len(_FILE) :]
    if path.lower().startswith(_THIS_MACHINE):
        path = path[len(_THIS_MACHINE) - 1 :]
    return Path(unquote(path)).absolute().as_uri()


def enter_secret(file: str | None, prompt: str, *, is_new: bool = False) -> str:
    """Return the secret in a file, or ask the user for it; a new secret must be typed twice.

    Raises `UsageError` if there is neither a file nor a terminal, and `InvalidInput` for invalid content.
    """
    if file == STDIN:
        return secret_in(sys.stdin.buffer.read(MAX_SECRET_BYTES + 1), shown_name(file))
    if file is not None:
        return read_secret(Path(file))
    if not sys.stdin.isatty():
        raise click.UsageError(f"there is no terminal to ask for the {prompt.lower()} on; give it in a file")
    typed: str = click.prompt(prompt, hide_input=True, confirmation_prompt=is_new, err=True)
    return typed


def fetch(url: str, max_bytes: int) -> bytes:
    """Return the content of a URL without redirects, cut after `max_bytes`; raises `Unavailable`."""
    import urllib3

    from odf_common.adapters.networks import Pools, cause_of

    try:
        pools = Pools(timeout=urllib3.Timeout(total=FETCH_SECONDS), retries=False)
        with pools.request("GET", url, preload_content=False, redirect=False) as answer:
            content = answer.read(max_bytes)
    except urllib3.exceptions.HTTPError as error:
        raise Unavailable(what=url, why=cause_of(error)) from error
    if answer.status != HTTPStatus.OK:
        raise Unavailable(what=url, why=f"status {answer.status}")
    return content
