"""Detects credentials in plain text in polling sources, because the chain would keep and publish them forever.

A field, parameter, header or variable is judged by its name. Names that nearly always mean a secret match whatever the
value is. Ambiguous names such as `key` match only if the value looks like a generated key. Templates are not
credentials, nor are values that are public by convention, such as DEMO_KEY. Free text such as descriptions and queries
is not searched. The value of a credential is never returned.
"""

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from odf_common.codec.plain_values import camel
from odf_common.errors import InvalidInput
from odf_common.metadata.events import MetadataEvent, SetPollingSource
from odf_common.metadata.fetching import (
    EnvVar,
    FetchStepContainer,
    FetchStepEthereumLogs,
    FetchStepMqtt,
    FetchStepUrl,
    PrepStepPipe,
    RequestHeader,
)

# What a name ends with, in words: x-api-key, apiKey and API_KEY end with "api key".
SECRET_ENDINGS: Final = frozenset(
    {
        *("password", "passwd", "pwd", "passphrase", "user pass", "db pass"),
        *(
            "secret",
            "credential",
            "credentials",
            "session id",
            "jwt",
            "token",
            "apitoken",
            "accesstoken",
            "authtoken",
            "sastoken",
        ),
        *("apikey", "accesskey", "secretkey", "privatekey", "authkey", "accountkey"),
        *("api key", "access key", "secret key", "private key", "auth key", "account key", "shared key"),
        *("subscription key", "functions key", "amz signature", "goog signature"),
    }
)
# What the last word of a name ends with where words are run together: PGPASSWORD, clientsecret, SSHPASS.
SECRET_TAILS: Final = (
    "password",
    "passwd",
    "passphrase",
    "secret",
    "token",
    "apikey",
    "accesskey",
    "secretkey",
    "sshpass",
    "sessionid",
)
SECRET_NAMES: Final = frozenset(
    {
        *("authorization", "proxy authorization", "x authorization", "authentication", "x auth"),
        *("cookie", "bearer", "signature", "sig", "pass", "pw"),
    }
)
# Words before `token` that make it a place in a list.
PAGING: Final = frozenset(
    {"page", "next", "prev", "previous", "continuation", "cursor", "sync", "delta", "start", "resume"}
)
# Names of secrets if the value has the form of a generated key.
KEY_NAMES: Final = frozenset({"key", "auth", "appid", "app key", "service key", "client key", "user key"})
_KEY: Final = re.compile(r"(?=.*[A-Za-z])(?=.*[0-9])[A-Za-z0-9._~+/=-]{16,}")
_FUNCTIONS_KEY: Final = re.compile(r"(?=.*[A-Za-z])(?=.*[0-9])[A-Za-z0-9_+/=-]{32,}")  # `code`, at Azure
_KEY_AS_USER: Final = re.compile(r"(?=.*[A-Za-z])(?=.*[0-9])[A-Za-z0-9_-]{20,}")
PUBLIC_VALUES: Final = frozenset({"anonymous", "demo", "demo_key", "guest", "none", "null", "public"})
PUBLIC_USERS: Final = frozenset({"anonymous", "ftp"})
AUTH_SCHEMES: Final = frozenset({"bearer", "basic", "token", "apikey", "digest", "negotiate"})

_FILLED_IN: Final = "\ue000"  # in the place of a variable of the node
_TEMPLATE: Final = re.compile(r"\$\{\{(.{0,500}?)\}\}", re.DOTALL)  # bounded: chains of others are searched
_DEFAULT: Final = re.compile(r"'([^']*)'")
_WORD: Final = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+")
_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,20}://\S+")
_HEADER: Final = re.compile(r"(?:-H|--header=)?([A-Za-z][A-Za-z0-9-]*):\s*(.+)", re.DOTALL)
_OPTION: Final = re.compile(r"--?([A-Za-z][\w.-]*)(?:=(.*))?", re.DOTALL)
_ASSIGNMENT: Final = re.compile(r"([A-Z][A-Z0-9_]*)=(.+)", re.DOTALL)
_OF_SHELL: Final = re.compile(r"\$[A-Za-z_{(]")  # a variable, or the output of a command
MAX_NAMED: Final = 5  # credentials
MAX_WHAT_CHARACTERS: Final = 60
MAX_SEARCHED_CHARACTERS: Final = 1 << 16  # of a string that is searched
_CURL_USER: Final = ("-u", "--user")


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential:
    """A credential in plain text: its path in the event, and the remedy."""

    path: str
    """Path within the event, such as `fetch.headers[0].value`."""
    what: str
    instead: str


Finding = tuple[str, str]  # what it is, and what to do instead
_FROM_FILE: Final = "have the command read it from a file, since prepare steps get no variables"


def credentials_in(event: MetadataEvent | None) -> tuple[Credential, ...]:
    """Return the credentials in plain text that an event contains."""
    return _search_source(event) if isinstance(event, SetPollingSource) else ()


@lru_cache(maxsize=1000)  # every list of datasets asks
def _search_source(event: SetPollingSource) -> tuple[Credential, ...]:
    return tuple(_search(event, ""))


def places_of(found: Sequence[Credential]) -> str:
    """Return a sentence that lists the credentials and their paths."""
    first = [f"{one.what} ({one.path})" for one in found[:MAX_NAMED]]
    more = len(found) - len(first)
    return ", ".join(first) + (f" and {more} more" if more else "")


def require_no_plain_credentials(event: MetadataEvent) -> None:
    """Raise `InvalidInput` if an event that is to be committed contains a credential in plain text."""
    found = credentials_in(event)
    if found:
        first, *others = found
        text = f"{first.what} is a credential, and all who read the dataset get its chain, for ever; {first.instead}"
        more = f" (the same holds for {places_of(others)})" if others else ""
        raise InvalidInput(text=text + more, where=first.path)


def _search(value: Any, path: str) -> Iterator[Credential]:  # noqa: ANN401 - any part of an event
    if isinstance(value, tuple):
        for number, item in enumerate(value):
            yield from _search(item, f"{path}[{number}]")
    if not is_dataclass(value):
        return
    for field in fields(value):
        below = f"{path}.{camel(field.name)}".removeprefix(".")
        check, item = SEARCHED_FIELDS.get((type(value), field.name)), getattr(value, field.name)
        if check is None:
            yield from _search(item, below)
        elif item is not None:
            for where, (what, instead) in check(value, _truncate(item)):
                yield Credential(path=below + where, what=what[:MAX_WHAT_CHARACTERS], instead=instead)


def _truncate(item: str | tuple[str, ...]) -> str | tuple[str, ...]:
    return (
        item[:MAX_SEARCHED_CHARACTERS]
        if isinstance(item, str)
        else tuple(word[:MAX_SEARCHED_CHARACTERS] for word in item)
    )


def _in_url(_: object, url: str) -> Iterator[tuple[str, Finding]]:
    return (("", found) for found in _search_url(url))


def _in_node_url(_: object, url: str) -> Iterator[tuple[str, Finding]]:
    """Yield the credentials that `_in_url` finds, and a key at the end of the path, as Ethereum providers use it."""
    yield from _in_url(_, url)
    if _KEY.fullmatch(_split(url)[1].rstrip("/").rpartition("/")[2]):
        yield "", ("the key in the URL's path", _write("API_KEY"))


def _in_header(header: RequestHeader, value: str) -> Iterator[tuple[str, Finding]]:
    if _is_secret(header.name, value):
        yield "", (f"the header {header.name}", _header_value(header.name, value))


def _in_variable(variable: EnvVar, value: str) -> Iterator[tuple[str, Finding]]:
    if _is_secret(variable.name, value):
        yield (
            "",
            (f"the variable {variable.name}", "leave its value out, and start the node with this variable"),
        )


def _in_password(_: object, value: str) -> Iterator[tuple[str, Finding]]:
    if _is_plain(value):
        yield "", ("the password", _write("PASSWORD"))


def _in_command(_: object, words: tuple[str, ...]) -> Iterator[tuple[str, Finding]]:
    for number, found in _search_words(words):
        yield f"[{number}]", found


def _in_pipe(_: object, words: tuple[str, ...]) -> Iterator[tuple[str, Finding]]:
    for number, (what, _instead) in _search_words(words):
        yield f"[{number}]", (what, _FROM_FILE)


Check = Callable[[Any, Any], Iterator[tuple[str, Finding]]]
SEARCHED_FIELDS: Final[Mapping[tuple[type, str], Check]] = {
    (FetchStepUrl, "url"): _in_url,
    (RequestHeader, "value"): _in_header,
    (EnvVar, "value"): _in_variable,
    (FetchStepContainer, "command"): _in_command,
    (FetchStepContainer, "args"): _in_command,
    (FetchStepMqtt, "host"): _in_url,
    (FetchStepMqtt, "password"): _in_password,
    (FetchStepEthereumLogs, "node_url"): _in_node_url,
    (PrepStepPipe, "command"): _in_pipe,
}
"""The fields of polling sources that may contain credentials, with the function that searches each one."""


def _search_url(url: str) -> Iterator[Finding]:
    authority, _, parameters = _split(url)
    user, _, password = authority.rpartition("@")[0].partition(":")
    if user.lower() not in PUBLIC_USERS and _is_plain(password):
        yield "the password in the URL", _write("PASSWORD")
    elif not password and _KEY_AS_USER.fullmatch(user):
        yield "the user in the URL", _write("TOKEN")
    for name, value in parameters:
        if _is_secret(name, value):
            yield f"the parameter {name} of the URL", _write(name, f"{name}=")


def _split(url: str) -> tuple[str, str, list[tuple[str, str]]]:
    """Return the authority, the path, and all parameters of a URL, with templates filled in.

    Parameters are those of the path, the query and the fragment.
    """
    try:
        parts = urlsplit(_fill_templates(url))
    except ValueError:
        return "", "", []
    matrix = [
        pair
        for segment in parts.path.split("/")
        for pair in parse_qsl(segment.partition(";")[2], separator=";")
    ]
    return parts.netloc, parts.path, [*matrix, *parse_qsl(parts.query), *parse_qsl(parts.fragment)]


def _search_words(words: tuple[str, ...]) -> Iterator[tuple[int, Finding]]:
    """Yield credentials in the arguments of a command line, including those of a shell script in an argument."""
    for number, word in enumerate(words):
        after = words[number + 1] if number + 1 < len(words) else ""
        inner = _shell_words(word)
        if len(inner) > 1 and not _HEADER.fullmatch(word):
            yield from ((number, found) for _, found in _search_words(inner))
            continue
        yield from ((number, found) for url in _URL.findall(word) for found in _search_url(url))
        if (header := _HEADER.fullmatch(word)) and _is_secret(header[1], _argument(header[2], "")):
            yield number, (f"the header {header[1]}", _header_value(header[1], header[2]))
        if (option := _OPTION.fullmatch(word)) and _is_secret(option[1], _argument(option[2], after)):
            yield number, (f"the option {option[1]}", _write(option[1]))
        if (variable := _ASSIGNMENT.fullmatch(word)) and _is_secret(variable[1], _argument(variable[2], "")):
            yield number, (f"the variable {variable[1]}", _write(variable[1]))
        if word in _CURL_USER and _is_plain(_argument(None, after).partition(":")[2]):
            yield number + 1, ("the password of the user", _write("PASSWORD"))


def _shell_words(word: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(word))
    except ValueError:
        return tuple(word.split())


def _argument(value: str | None, after: str) -> str:
    """Return the value of an option, which is its own or the next word.

    Empty if that word is another option or a shell variable.
    """
    text = after if value is None else value
    return "" if text.startswith("-") or _OF_SHELL.search(text) else text


def _is_secret(name: str, value: str) -> bool:
    """Return whether a value with this name is a credential in plain text."""
    words = [word.lower() for word in _WORD.findall(name)]
    last, two = words[-1:], words[-2:]
    end = "".join(last)
    if end.endswith("token") and PAGING & {*two[:-1], end.removesuffix("token")}:
        return False
    is_named = " ".join(words) in SECRET_NAMES or {end, " ".join(two)} & SECRET_ENDINGS
    if is_named or end.endswith(SECRET_TAILS):
        return _is_plain(value)
    form = _FUNCTIONS_KEY if words == ["code"] else _KEY
    is_key = words == ["code"] or " ".join(words) in KEY_NAMES
    return is_key and form.fullmatch(unquote(_fill_templates(value))) is not None


def _is_plain(value: str) -> bool:
    """Return whether a value is an actual credential: not a variable, not public, and not only the name of a scheme."""
    text = unquote(_fill_templates(value)).strip()
    return _FILLED_IN not in text and text.lower() not in {"", *PUBLIC_VALUES, *AUTH_SCHEMES}


def _fill_templates(text: str) -> str:
    """Return a string with each template replaced by its default, or by `_FILLED_IN`."""
    return _TEMPLATE.sub(
        lambda match: default[1] if (default := _DEFAULT.search(match[1])) else _FILLED_IN, text
    )


def _header_value(name: str, value: str) -> str:
    scheme = value.split(maxsplit=1)[0]
    named = "TOKEN" if "authorization" in name.lower() else name
    return _write(named, f"{scheme} " if scheme.lower() in AUTH_SCHEMES else "")


def _write(name: str, before: str = "") -> str:
    """Return the advice to use a variable that is named like the credential."""
    variable = "_".join(word.upper() for word in _WORD.findall(name)).removeprefix("X_")
    return f"write {before}${{{{ env.{variable} }}}} instead, and start the node with this variable"
