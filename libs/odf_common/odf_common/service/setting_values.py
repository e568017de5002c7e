"""Parsers of settings' values; each one raises `ValueError` if its text is not valid."""

import ipaddress
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, urlsplit

from odf_common.adapters.s3.location import S3Location, checked_endpoint
from odf_common.errors import InvalidInput

_ADDRESS: Final = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):(\d{1,5})", re.ASCII)
_TOPIC_PREFIX: Final = re.compile(r"[A-Za-z0-9._-]{0,64}", re.ASCII)
_LOCAL_SPARK: Final = re.compile(r"local\[([1-9]\d{0,3}|\*)\]", re.ASCII)
_TRUE: Final = frozenset({"1", "true", "yes", "on"})
_FALSE: Final = frozenset({"0", "false", "no", "off", ""})


def address(text: str) -> str:
    """Return the text if it is `host:port`."""
    match = _ADDRESS.fullmatch(text)
    if match is None or not 0 < int(match[1]) < 65536:
        raise ValueError(f"expected host:port, got {text!r}")
    return text


def host(text: str) -> str:
    """Return the text if it is a host name or IP address."""
    return address(f"{text}:1").removesuffix(":1")


def addresses(text: str) -> str:
    """Return a list of `host:port`, separated by commas, without spaces."""
    return ",".join(address(part.strip()) for part in text.split(","))


def prefix(text: str) -> str:
    """Return the text if it can be a prefix of topic names."""
    if _TOPIC_PREFIX.fullmatch(text) is None:
        raise ValueError(f"expected at most 64 letters, digits, dots, dashes and underscores, got {text!r}")
    return text


def redis_address(text: str) -> str:
    """Return the text if it is a URL of Redis, or `host:port`."""
    return text if text.startswith(("redis://", "rediss://", "unix://")) else address(text)


def postgres_url(text: str) -> str:
    """Return the text if it is the URL of a PostgreSQL database; options of libpq may follow a question mark."""
    try:
        url = urlsplit(text)
        _ = url.port
    except ValueError:  # its text may have the password
        raise ValueError("expected host:port; write / : @ of the password as %2F %3A %40") from None
    if url.scheme not in {"postgresql", "postgresql+psycopg"} or not url.path.strip("/"):
        raise ValueError("expected postgresql://user:password@host[:port]/database")
    if any(option.endswith("password") for option in parse_qs(url.query)):  # it would be shown
        raise ValueError("expected no password among the options, but before the host or in a passfile")
    return text


def http_url(text: str) -> str:
    """Return the text if it is an HTTP or HTTPS URL without user and password."""
    if not text.startswith(("http://", "https://")) or "@" in text:
        raise ValueError("expected a URL of http or https without a password")
    return text


def public_url(text: str) -> str:
    """Return an HTTP or HTTPS URL without query and fragment, after removing trailing slashes."""
    if "?" in text or "#" in text:
        raise ValueError("expected a URL without a query or a fragment")
    return http_url(text).rstrip("/")


def spark_master(text: str) -> str:
    """Return the text if it is a local Spark master: `local[N]` or `local[*]`."""
    if _LOCAL_SPARK.fullmatch(text) is None:
        raise ValueError(
            f"expected local[N] or local[*], as the engine runs Spark in its own process, got {text!r}"
        )
    return text


def networks(text: str) -> tuple[str, ...]:
    """Return the networks of a list in CIDR notation, separated by commas."""
    return tuple(str(ipaddress.ip_network(part.strip())) for part in text.split(","))


def switch(text: str) -> bool:
    """Return True for 1 and its synonyms, False for 0 and its synonyms."""
    if text.lower() not in _TRUE | _FALSE:
        raise ValueError(f"expected 1 or 0, got {text!r}")
    return text.lower() in _TRUE


def number(low: int, high: int) -> Callable[[str], int]:
    """Return a parser of integers from `low` to `high`."""

    def parse(text: str) -> int:
        if not text.isascii() or not text.isdigit() or not low <= int(text) <= high:
            raise ValueError(f"expected an integer from {low} to {high}, got {text!r}")
        return int(text)

    return parse


def one_of(*choices: str) -> Callable[[str], str]:
    """Return a parser that accepts one of the `choices` in any case, and returns it in lower case."""

    def parse(text: str) -> str:
        if text.lower() not in choices:
            raise ValueError(f"expected one of {', '.join(choices)}, got {text!r}")
        return text.lower()

    return parse


def folder(text: str) -> Path:
    """Return an absolute path; `~` is expanded."""
    return Path(text).expanduser().absolute()


def s3_location(text: str) -> S3Location:
    """Return the bucket, prefix and endpoint that a URL of a store names."""
    try:
        return S3Location.parse(text)
    except InvalidInput as error:
        raise ValueError(error.text) from error


def endpoint(text: str) -> str:
    """Return the URL of an S3 endpoint."""
    try:
        return checked_endpoint(text)
    except InvalidInput as error:
        raise ValueError(error.text) from error
