"""Bytes in headers and queries that are no text are the fault of the client, at each route and in each header."""

import logging
import socket
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pytest
from aiohttp import hdrs
from odf_testing.http import proxied

from odf_sync.smart.messages import CHOSEN_HEADER, VERSION_HEADER

from .ingest_node import Here
from .ingest_node import here as here  # noqa: PLC0414 - a fixture
from .ingest_node import make_here as make_here  # noqa: PLC0414 - a fixture
from .test_openapi import ask, description, node  # noqa: F401 - fixtures

# What this node reads, and what aiohttp does.
HEADERS: Final = (
    hdrs.ACCEPT,
    hdrs.AUTHORIZATION,
    hdrs.CONNECTION,
    hdrs.CONTENT_ENCODING,
    hdrs.CONTENT_LENGTH,
    hdrs.CONTENT_RANGE,
    hdrs.CONTENT_TYPE,
    hdrs.COOKIE,
    hdrs.EXPECT,
    hdrs.FORWARDED,
    hdrs.HOST,
    hdrs.IF_MATCH,
    hdrs.IF_MODIFIED_SINCE,
    hdrs.IF_NONE_MATCH,
    hdrs.IF_RANGE,
    hdrs.LAST_EVENT_ID,
    hdrs.ORIGIN,
    hdrs.RANGE,
    hdrs.REFERER,
    hdrs.SEC_WEBSOCKET_EXTENSIONS,
    hdrs.SEC_WEBSOCKET_KEY,
    hdrs.SEC_WEBSOCKET_PROTOCOL,
    hdrs.SEC_WEBSOCKET_VERSION,
    hdrs.TRANSFER_ENCODING,
    hdrs.UPGRADE,
    hdrs.USER_AGENT,
    hdrs.X_FORWARDED_FOR,
    CHOSEN_HEADER,
    VERSION_HEADER,
    "Idempotency-Key",
    "Sec-Fetch-Site",
    "odf-event-time",
    "X-Unknown",
)
NO_TEXT: Final = (b"\xff", b"Bearer \xff", b"text/csv; charset=\xfe\xff", b"\xed\xa0\x80")
ODD: Final = (*NO_TEXT, b"\0", "\u202etxt.\u2066".encode(), b"x" * 8192, b"x" * 8000, b"", b"\x7f")
ODD_QUERIES: Final = ("%FF", "%00", quote("\u202e"), "%ED%A0%80", "x" * 7000, "%", "")
UPGRADE: Final = {hdrs.CONNECTION: "Upgrade", hdrs.UPGRADE: "websocket", VERSION_HEADER: "1"}
KEY: Final = {hdrs.SEC_WEBSOCKET_VERSION: "13", hdrs.SEC_WEBSOCKET_KEY: "bm9uY2Vub25jZW5vbmNlbg=="}


@pytest.fixture(params=[False, True], ids=["direct", "behind-a-proxy"])
def front(request: pytest.FixtureRequest, node: tuple[str, str], tmp_path: Path) -> Iterator[str]:  # noqa: F811
    """The address at which the node is reached."""
    url = f"http://{node[0]}"
    with proxied(tmp_path / "proxy", url) if request.param else nullcontext(url) as url:
        yield url.removeprefix("http://")


def status_of(base: str, method: str, path: str, headers: dict[str, bytes]) -> int:
    """Return the status of the answer to a request in raw bytes; 0 if the connection is closed without one."""
    body = b"{}" if method in {"POST", "PUT"} else b""
    given = {"Host": b"localhost", "Content-Length": str(len(body)).encode(), **headers}
    lines = b"".join(name.encode() + b": " + value + b"\r\n" for name, value in given.items())
    host, _, port = base.partition(":")
    with socket.create_connection((host, int(port)), timeout=30) as client:
        client.sendall(f"{method} {path} HTTP/1.1\r\n".encode() + lines + b"\r\n" + body)
        answer = client.recv(1000)
    return int(answer.split()[1]) if answer else 0


def operations(description: Any) -> Iterator[tuple[str, str, list[str]]]:  # noqa: F811
    """Yield method, path and parameters of a query of each operation, on the one dataset that exists."""
    own = {"account": "ann", "dataset": "cities.population", "ref": "head", "receipt": "a" * 32, "id": "x"}
    own["name"] = "f16205b32358ba1169824af9f5f71d362beb5f58932cfca42013f210e16672a94399f"
    own |= {"context": "config", "version": "v1alpha1", "type": "variableset"}
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            parameters = operation.get("parameters", ())
            queries = [one["name"] for one in parameters if one["in"] == "query"]
            yield method.upper(), path.format(**own), queries


def test_odd_headers_and_queries_are_no_fault_of_the_node(
    node: tuple[str, str],  # noqa: F811
    front: str,
    description: Any,  # noqa: F811
    caplog: pytest.LogCaptureFixture,
) -> None:
    base, token = front, node[1]
    found = list(operations(description))
    faults = []
    with caplog.at_level(logging.WARNING):
        for method, path, queries in found:
            is_socket = path.endswith(("/pull", "/push"))
            more = {name: value.encode() for name, value in (UPGRADE | KEY if is_socket else {}).items()}
            more[hdrs.AUTHORIZATION] = b"Bearer " + token.encode()
            tried = [(path, {**more, name: value}) for name in HEADERS for value in ODD]
            tried += [
                (f"{path}?{name}={value}", more) for name in [*queries, "unknown"] for value in ODD_QUERIES
            ]
            for sent, headers in tried:
                status = status_of(base, method, sent, headers)
                if status >= 500 and status != 501:  # 501: not implemented
                    faults.append((method, sent[:100], headers, status))
    assert faults == []
    assert len(found) > 25
    assert [
        record.getMessage()
        for record in caplog.records
        if record.levelno >= logging.ERROR and _is_of_us(record)
    ] == []


def _is_of_us(record: logging.LogRecord) -> bool:
    """Return whether a record is more than that of a request that is not HTTP."""
    error = record.exc_info[1] if record.exc_info else None
    return not any(kind.__name__ == "HttpProcessingError" for kind in type(error).__mro__)


@pytest.mark.parametrize("header", ["Content-Type", "Idempotency-Key", "odf-event-time", "X-Unknown"])
@pytest.mark.parametrize("value", NO_TEXT)
def test_a_push_with_a_header_that_is_no_text_is_refused_by_its_name(
    here: Here, header: str, value: bytes
) -> None:
    base = here.base.removeprefix("http://")
    assert status_of(base, "POST", "/orders/ingest", {header: value}) == 400
    assert here.ingest.requests == []


def test_the_answer_names_the_header(here: Here) -> None:
    status, answer, _ = here.ask("POST", "/orders/ingest", b"x", Idempotency_Key="\xff")  # as one byte
    assert (status, answer) == (400, {"message": "header Idempotency-Key: it is not UTF-8"})


@pytest.mark.parametrize("path", ["/orders/ingest", "/orders/refs/head", "/no/such/route/here"])
def test_an_expectation_that_is_no_text_is_refused(here: Here, path: str) -> None:
    base = here.base.removeprefix("http://")
    answers = [status_of(base, "GET", path, {hdrs.EXPECT: value}) for value in (b"\xff", b"200-ok")]
    assert set(answers) <= {400, 404, 405, 417}


def test_a_header_in_any_language_is_text(here: Here) -> None:
    key = "schlüssel-\u202e".encode()
    assert (
        status_of(here.base.removeprefix("http://"), "POST", "/orders/ingest", {"Idempotency-Key": key})
        == 200
    )
    assert here.ingest.requests[0].idempotency_key == key.decode()
