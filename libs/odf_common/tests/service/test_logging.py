import json
import os
import pty
import subprocess
import sys

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
