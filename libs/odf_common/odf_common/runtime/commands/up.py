"""`odf up`: start the embedded node."""

import contextlib
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from odf_common.errors import OdfError
from odf_common.runtime.node import Node, NoNode, Part, read_node
from odf_common.runtime.output import output_option, print_object, remark
from odf_common.runtime.settings import Settings, child_environment, load
from odf_common.runtime.supervisor.checks import require_home
from odf_common.runtime.supervisor.node import Start, supervise
from odf_common.runtime.supervisor.process import rotate
from odf_common.runtime.supervisor.readable import readable

POLL_SECONDS: Final = 0.1
EVERY: Final = 10.0  # seconds without news before it is said what is waited for
LONG: Final = 30.0  # seconds after which the logs of what is waited for are shown
GRACE: Final = 40.0  # seconds for a supervisor to end its parts


@dataclass(eq=False, kw_only=True)
class UpFailed(OdfError):
    """The node did not start."""

    text: str

    def __str__(self) -> str:
        """Return the supervisor's words."""
        return self.text


@click.command("up", short_help="Start the node.")
@click.option("-d", "--detach", is_flag=True, help="Return when the node is ready, and leave it running.")
@click.option(
    "--new-ports", is_flag=True, help="Take another port where another process uses one of this node's."
)
@click.option(
    "--take-over", is_flag=True, help="Take the Kafka topics of another node, which is gone for good."
)
@click.argument("services", nargs=-1, metavar="[SERVICE]...")
@output_option
def command(
    *, detach: bool, new_ports: bool, take_over: bool, services: tuple[str, ...], output: str
) -> None:
    """Start the node: Kafka and Redis, unless ODF_KAFKA and ODF_REDIS name some, and the services.

    Without names all services are started. Data lies in $ODF_HOME (default: ./.odf). Nodes that share a Kafka each
    need a prefix of their own: ODF_KAFKA_PREFIX. A node has the same ports at each start.

    \b
    Example:
      odf up --detach
      odf up ingest coordinator
      ODF_KAFKA=kafka:9092 ODF_KAFKA_PREFIX=staging. odf up --detach
    """  # noqa: D301 - click's mark for text that is not to be wrapped
    settings = load()
    begun = time.monotonic()
    told = _Teller(settings.home / "logs", lambda node: _where(node, output, time.monotonic() - begun))
    require_home(settings.home)
    running = _running(settings.home)
    if running is not None:
        remark(f"a node is running already for {settings.home}")
        _await_ready(settings.home, told, lambda: _running(settings.home) is not None)
        if not told.is_complete:
            raise UpFailed(text=f"the node that was running for {settings.home} ended before it was ready")
        return
    start = Start(services=services, new_ports=new_ports, take_over=take_over)
    remark(f"starting a node in {settings.home}")
    if detach:
        _detached(settings, start, told)
    else:
        supervise(settings, start, told)


class _Teller:
    """Tells the person once when each part is ready, now and then what is waited for, at last where everything is."""

    def __init__(self, logs: Path, when_ready: Callable[[Node], None]) -> None:
        self._logs = logs
        self._when_ready = when_ready
        self._begun = self._said = time.monotonic()
        self._told: set[str] = set()
        self.is_complete = False

    def __call__(self, node: Node) -> None:
        parts = (*node.parts, *node.services)
        now = time.monotonic()
        for part in parts:
            if part.state == "ready" and part.name not in self._told:
                self._told.add(part.name)
                self._said = now
                seconds = now - self._begun
                remark(f"  {part.name:<14} ready after {seconds:4.1f} s  ({len(self._told)} of {len(parts)})")
        if not self.is_complete and len(self._told) == len(parts) > 0:
            self.is_complete = True
            self._when_ready(node)
        elif not self.is_complete and now - self._said >= EVERY:
            self._said = now
            self._tell_waiting([part for part in parts if part.name not in self._told])

    def _tell_waiting(self, parts: Sequence[Part]) -> None:
        """Say which parts are not ready, and where that takes long, what the log of each said last."""
        remark(f"  waiting for {', '.join(part.name for part in parts)}")
        if self._said - self._begun < LONG:
            return
        width = shutil.get_terminal_size().columns
        for part in parts:
            with contextlib.suppress(OSError):
                for line in readable((self._logs / f"{part.name}.log").read_text(errors="replace"), 1):
                    remark(f"    {part.name}: {line}"[:width])


def _detached(settings: Settings, start: Start, told: _Teller) -> None:
    log = settings.home / "logs" / "node.log"
    rotate(log)
    with log.open("ab") as file:
        supervisor = subprocess.Popen(
            [sys.executable, "-m", "odf_common.runtime.supervisor", *start.arguments()],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
            env=child_environment(),
        )
    try:
        _await_ready(settings.home, told, lambda: supervisor.poll() is None)
    except BaseException:
        # Ctrl-C while starting: a start that did not succeed leaves nothing behind.
        supervisor.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            supervisor.wait(GRACE)
        supervisor.kill()
        raise
    if not told.is_complete:
        text = log.read_text(errors="replace").strip()
        raise UpFailed(text=text.removeprefix("error: ") or f"the supervisor ended; its log is {log}")


def _await_ready(home: Path, told: _Teller, goes_on: Callable[[], bool]) -> None:
    """Return when the node is ready, or `goes_on` no more."""
    while not told.is_complete:
        node = _running(home)
        if node is not None:
            told(node)
        elif not goes_on():
            return
        if not told.is_complete:
            time.sleep(POLL_SECONDS)


def _running(home: Path) -> Node | None:
    try:
        return read_node(home)
    except NoNode:
        return None


def _where(node: Node, output: str, seconds: float) -> None:
    if output == "table":
        remark(f"the node is ready after {seconds:.1f} s")
    shown = {"home": str(node.home), "kafka": node.kafka, "redis": node.redis, "engine": node.engine}
    print_object({**shown, "http": node.http, "views": node.views}, output)
