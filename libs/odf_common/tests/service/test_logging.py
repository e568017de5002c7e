"""A warning that is repeated is logged less and less often, and what strangers send is counted instead."""

import asyncio
import json
import logging
import os
import pty
import socket
import subprocess
import sys
from collections.abc import Callable

from aiohttp import web
from aiohttp.http_exceptions import BadStatusLine

from odf_common.adapters import malformed_requests
from odf_common.adapters.malformed_requests import MALFORMED, SERVER, TEXT, MalformedRequests
from odf_common.service.logging import RepeatedLogs, RepeatLimits

SERVICE = """
import structlog
from odf_common.service import logging
logging.configure("info", service="ingest")
structlog.stdlib.get_logger("a").info("records committed", records=3, source="a\\u202eb")
password = "a-secret-" + "value"
try:
    raise ZeroDivisionError("at \\u202e")
except ZeroDivisionError:
    structlog.stdlib.get_logger("a").exception("a bug")
"""
COMMAND = """
import structlog
from odf_cli import main
main.odf.get_command(None, "status")
structlog.stdlib.get_logger("a").warning("redis is lost", why="closed\\u202e")
structlog.stdlib.get_logger("a").info("redis is back")
print("result")
"""


def test_a_service_logs_json_unless_stderr_is_a_terminal() -> None:
    done = subprocess.run([sys.executable, "-c", SERVICE], capture_output=True, check=True)
    first, second = map(json.loads, done.stderr.splitlines())
    assert (first["event"], first["records"], first["service"]) == ("records committed", 3, "ingest")
    assert "ZeroDivisionError" in second["exception"]
    assert done.stderr.isascii()
    assert first["source"] == "a\u202eb"


def test_a_service_in_a_terminal_logs_lines_for_people() -> None:
    reader, terminal = pty.openpty()
    subprocess.run([sys.executable, "-c", SERVICE], stderr=terminal, check=True)
    os.close(terminal)
    with os.fdopen(reader, "rb", buffering=0) as output:
        shown = output.read(20_000).decode()
    assert "records committed" in shown
    assert '"event"' not in shown
    assert "ZeroDivisionError" in shown
    assert "at \\u202e" in shown
    assert "\u202e" not in shown
    assert "a-secret-value" not in shown, "tracebacks do not show the values of variables"


def test_a_command_logs_warnings_to_stderr_since_stdout_is_for_results() -> None:
    done = subprocess.run([sys.executable, "-c", COMMAND], capture_output=True, check=True, text=True)
    assert done.stdout == "result\n"
    assert done.stderr == "[warning] redis is lost why=closed\\u202e\n"


Message = str | dict[str, object]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def a_record(
    message: Message, level: int = logging.WARNING, error: Exception | None = None
) -> logging.LogRecord:
    exc_info = None if error is None else (type(error), error, None)
    return logging.LogRecord("a", level, "", 1, message, (), exc_info)


def passed_at(
    message: Callable[[], Message], times: list[float], limits: RepeatLimits | None = None
) -> list[tuple[float, object]]:
    """Return when a warning that occurs at some times is logged, and how many were withheld before."""
    clock = Clock()
    repeated, found = RepeatedLogs(limits, clock), []
    for clock.now in times:
        record = a_record(message())
        if repeated.filter(record):
            assert isinstance(record.msg, dict)
            found.append((clock.now, record.msg.get("repeated")))
    return found


def a_problem(**facts: object) -> dict[str, object]:
    return {
        "event": "cannot read",
        "dataset_id": "did:odf:a",
        "timestamp": object(),
        "correlation": object(),
        **facts,
    }


def test_a_problem_that_lasts_is_logged_after_pauses_that_double() -> None:
    three_times_a_second = [second + part / 3 for second in range(16) for part in range(3)]
    assert passed_at(a_problem, three_times_a_second) == [(0, None), (1, 2), (3, 5), (7, 11), (15, 23)]


def test_the_pauses_have_a_limit() -> None:
    limits = RepeatLimits(first_seconds=1.0, most_seconds=2.0)
    assert [time for time, _ in passed_at(a_problem, [*range(10)], limits)] == [0, 1, 3, 5, 7, 9]


def test_a_problem_that_comes_back_is_logged_at_once_with_what_was_withheld_before() -> None:
    assert passed_at(a_problem, [0, 0.5, 1.0, 1.5, 61.6, 61.7]) == [(0, None), (1.0, 1), (61.6, 1)]


def test_a_problem_that_comes_at_longer_intervals_is_repeated_too() -> None:
    assert [time for time, _ in passed_at(a_problem, [*range(0, 120, 2)])] == [0, 2, 4, 8, 16, 32, 64]


def test_another_problem_is_logged_at_once() -> None:
    numbers = iter(range(3))
    assert len(passed_at(lambda: a_problem(why=f"{next(numbers)}"), [0, 0, 0])) == 3
    repeated = RepeatedLogs()
    for error in (ValueError("a"), ValueError("b"), KeyError("b")):
        assert repeated.filter(a_record("failed", logging.ERROR, error))
        assert not repeated.filter(a_record("failed", logging.ERROR, error))


def test_what_is_no_problem_is_always_logged() -> None:
    repeated = RepeatedLogs()
    assert all(repeated.filter(a_record("records committed", logging.INFO)) for _ in range(3))


def test_a_text_of_another_library_says_how_often_it_was_withheld() -> None:
    clock = Clock()
    repeated = RepeatedLogs(None, clock)
    found = []
    for clock.now in (0, 0.5, 0.6, 1.0):
        record = logging.LogRecord("kafka", logging.WARNING, "", 1, "%s is gone", ("broker 1",), None)
        if repeated.filter(record):
            found.append(record.getMessage())
    assert found == ["broker 1 is gone", "broker 1 is gone (repeated 2 times)"]


def test_the_lines_that_are_remembered_have_a_limit() -> None:
    clock = Clock()
    repeated = RepeatedLogs(RepeatLimits(remembered=2), clock)
    assert [repeated.filter(a_record(text)) for text in "abac"] == [True, True, False, True]
    assert [repeated.filter(a_record(text)) for text in "acb"] == [False, False, True], "b was the oldest"


FAILING_SERVICE = """
import structlog
from odf_common.service import logging
logging.configure("info", service="ingest")
log = structlog.stdlib.get_logger("a")
for number in range(50):
    log.info("records committed", records=number)
    try:
        raise ValueError("the same")
    except ValueError:
        log.exception("a bug", dataset_id="did:odf:a")
"""


def test_a_service_logs_a_bug_that_is_repeated_once() -> None:
    done = subprocess.run([sys.executable, "-c", FAILING_SERVICE], capture_output=True, check=True)
    events = [json.loads(line)["event"] for line in done.stderr.splitlines()]
    assert (events.count("records committed"), events.count("a bug")) == (50, 1)


def test_requests_that_are_no_http_are_counted_and_one_of_them_is_logged() -> None:
    async def serve() -> None:
        runner = web.AppRunner(web.Application(), access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        await asyncio.to_thread(send, runner.addresses[0][:2])
        await runner.cleanup()

    def send(address: tuple[str, int]) -> None:
        for request in requests:
            with socket.create_connection(address, timeout=30) as client:
                client.sendall(request)
                assert b" 400 " in client.recv(1000)

    requests = [
        b"GET /" + b"\xff" * 7900 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 9000 + b"\r\n\r\n",
        b"\x16\x03\x01 hello\r\n\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: x\r\n\r\n",
    ] * 10
    lines, before = list[str](), MALFORMED._value.get()

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(self.format(record))

    server, handler = logging.getLogger(SERVER), Lines()
    handler.addFilter(RepeatedLogs())
    server.addHandler(handler)
    try:
        malformed_requests.count_malformed_requests()
        asyncio.run(serve())
    finally:
        server.removeHandler(handler)
        server.filters[:] = []
        server.setLevel(logging.NOTSET)
    assert lines == [TEXT]
    assert MALFORMED._value.get() - before == len(requests)


def test_other_errors_of_a_server_keep_their_traceback() -> None:
    record = a_record("Error handling request", logging.ERROR, ValueError("a bug"))
    assert MalformedRequests().filter(record)
    assert record.exc_info is not None
    malformed = a_record("Error handling request", logging.ERROR, BadStatusLine("\xff" * 100))
    assert MalformedRequests().filter(malformed)
    assert (malformed.exc_info, malformed.levelno, malformed.getMessage()) == (None, logging.WARNING, TEXT)
