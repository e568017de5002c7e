"""`odf up`: start the embedded node."""

import contextlib
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import click

from odf_cli.embedded.checks import require_home
from odf_cli.embedded.node_file import Node, NoNode, Part, read_node
from odf_cli.embedded.parts.log_excerpt import log_excerpt
from odf_cli.embedded.parts.log_files import open_log, rotate
from odf_cli.embedded.supervisor import Start, supervise
from odf_cli.output import output_option, print_object, remark
from odf_common.adapters.local.durable import keep_files_private
from odf_common.adapters.socket_users import are_users_known
from odf_common.errors import Refused
from odf_common.service.protection import USERS_UNKNOWN
from odf_common.service.settings import Settings, child_environment, load, unknown_variables

STARTUP_POLL_SECONDS: Final = 0.1
STARTUP_REPORT_SECONDS: Final = 10.0  # without news before the missing parts are named
SHOW_LOG_AFTER_SECONDS: Final = 30.0  # after which the last log line of each missing part is shown
STOP_TIMEOUT_SECONDS: Final = 40.0  # for a supervisor to stop its parts


class UpFailed(Refused):
    """The node did not start; `text` is the message of its supervisor."""


@click.command("up", short_help="Start the node.")
@click.option("-d", "--detach", is_flag=True, help="Return once the node is ready; it keeps running.")
@click.option("--new-ports", is_flag=True, help="Choose a new port for each one that another process uses.")
@click.option("--take-over", is_flag=True, help="Take over the Kafka topics of a node that is gone for good.")
@click.argument("services", nargs=-1, metavar="[SERVICE]...")
@output_option
def up_command(
    *, detach: bool, new_ports: bool, take_over: bool, services: tuple[str, ...], output: str
) -> None:
    """Start the node: the services, and Kafka and Redis unless ODF_KAFKA and ODF_REDIS are set.

    Without SERVICE, all services are started. Data is stored in $ODF_HOME (default: ./.odf). Nodes that share a Kafka
    each need their own prefix: ODF_KAFKA_PREFIX. A node keeps its ports across restarts.

    \b
    Example:
      odf up --detach
      odf up ingest coordinator
      ODF_KAFKA=kafka:9092 ODF_KAFKA_PREFIX=staging. odf up --detach
    """
    settings = load()
    for text in unknown_variables(child_environment()):
        remark(f"warning: {text}")
    if not are_users_known():
        remark(f"warning: {USERS_UNKNOWN}")
    started_at = time.monotonic()
    report = _StartReport(
        settings.home / "logs", lambda node: _where(node, output, time.monotonic() - started_at)
    )
    keep_files_private()
    require_home(settings.home)
    running = _find_running_node(settings.home)
    if running is not None:
        remark(f"a node is already running for {settings.home}")
        _await_ready(settings.home, report, lambda: _find_running_node(settings.home) is not None)
        if not report.is_complete:
            raise UpFailed(text=f"the running node of {settings.home} stopped before it was ready")
        return
    start = Start(services=services, new_ports=new_ports, take_over=take_over)
    remark(f"starting a node in {settings.home}")
    if detach:
        _start_detached(settings, start, report)
    else:
        supervise(settings, start, report)


class _StartReport:
    """Reports each part when it is ready, in between the parts that are not, and finally all addresses."""

    def __init__(self, logs: Path, when_ready: Callable[[Node], None]) -> None:
        self._logs = logs
        self._when_ready = when_ready
        self._started_at = self._reported_at = time.monotonic()
        self._ready: set[str] = set()
        self.is_complete = False

    def __call__(self, node: Node) -> None:
        parts = (*node.parts, *node.services)
        now = time.monotonic()
        for part in parts:
            if part.state == "ready" and part.name not in self._ready:
                self._ready.add(part.name)
                self._reported_at = now
                seconds = now - self._started_at
                remark(
                    f"  {part.name:<14} ready after {seconds:4.1f} s  ({len(self._ready)} of {len(parts)})"
                )
        if not self.is_complete and len(self._ready) == len(parts) > 0:
            self.is_complete = True
            self._when_ready(node)
        elif not self.is_complete and now - self._reported_at >= STARTUP_REPORT_SECONDS:
            self._reported_at = now
            self._report_waiting([part for part in parts if part.name not in self._ready])

    def _report_waiting(self, parts: Sequence[Part]) -> None:
        """Report the parts that are not ready yet; later reports have the last log line of each."""
        remark(f"  waiting for {', '.join(part.name for part in parts)}")
        if self._reported_at - self._started_at < SHOW_LOG_AFTER_SECONDS:
            return
        width = shutil.get_terminal_size().columns
        for part in parts:
            with contextlib.suppress(OSError):
                for line in log_excerpt((self._logs / f"{part.name}.log").read_text(errors="replace"), 1):
                    remark(f"    {part.name}: {line}"[:width])


def _start_detached(settings: Settings, start: Start, report: _StartReport) -> None:
    log = settings.home / "logs" / "node.log"
    rotate(log)
    with open_log(log) as file:
        supervisor = subprocess.Popen(
            [sys.executable, "-m", "odf_cli.embedded", *start.arguments()],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
            env=child_environment(),
            umask=keep_files_private(),
        )
    try:
        _await_ready(settings.home, report, lambda: supervisor.poll() is None)
    except BaseException:
        # For example Ctrl-C: a failed start leaves no process running.
        supervisor.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            supervisor.wait(STOP_TIMEOUT_SECONDS)
        supervisor.kill()
        raise
    if not report.is_complete:
        text = log.read_text(errors="replace").strip()
        raise UpFailed(text=text.removeprefix("error: ") or f"the supervisor stopped; its log is {log}")


def _await_ready(home: Path, report: _StartReport, is_running: Callable[[], bool]) -> None:
    """Wait until the node is ready, or until `is_running` returns False."""
    while not report.is_complete:
        node = _find_running_node(home)
        if node is not None:
            report(node)
        elif not is_running():
            return
        if not report.is_complete:
            time.sleep(STARTUP_POLL_SECONDS)


def _find_running_node(home: Path) -> Node | None:
    try:
        return read_node(home)
    except NoNode:
        return None


def _where(node: Node, output: str, seconds: float) -> None:
    if output == "table":
        remark(f"the node is ready after {seconds:.1f} s")
    print_object(node.addresses(), output)
