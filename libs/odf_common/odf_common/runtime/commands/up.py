"""`odf up`: start the embedded node."""

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from odf_common.errors import OdfError
from odf_common.runtime.node import Node, NoNode, read_node
from odf_common.runtime.output import output_option, print_object, remark
from odf_common.runtime.settings import Settings, child_environment, load
from odf_common.runtime.supervisor.process import rotate

POLL_SECONDS: Final = 0.1
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
@click.argument("services", nargs=-1, metavar="[SERVICE]...")
@output_option
def command(*, detach: bool, services: tuple[str, ...], output: str) -> None:
    """Start the node: Kafka and Redis, unless ODF_KAFKA and ODF_REDIS name some, and the services.

    Without names all services are started. Data lies in $ODF_HOME (default: ./.odf).

    \b
    Example:
      odf up --detach
      odf up ingest coordinator
    """  # noqa: D301 - click's mark for text that is not to be wrapped
    settings = load()
    begun = time.monotonic()
    told = _Teller(lambda node: _where(node, output, time.monotonic() - begun))
    running = _running(settings.home)
    if running is not None:
        remark(f"a node is running already for {settings.home}")
        _await_ready(settings.home, told, lambda: _running(settings.home) is not None)
        return
    if detach:
        _detached(settings, services, told)
    else:
        from odf_common.runtime.supervisor.node import supervise

        supervise(settings, services, told)


class _Teller:
    """Tells the person once when each part is ready, and at last where everything is."""

    def __init__(self, when_ready: Callable[[Node], None]) -> None:
        self._when_ready = when_ready
        self._begun = time.monotonic()
        self._told: set[str] = set()
        self.is_complete = False

    def __call__(self, node: Node) -> None:
        parts = (*node.parts, *node.services)
        for part in parts:
            if part.state == "ready" and part.name not in self._told:
                self._told.add(part.name)
                seconds = time.monotonic() - self._begun
                remark(f"  {part.name:<14} ready after {seconds:4.1f} s  ({len(self._told)} of {len(parts)})")
        if not self.is_complete and len(self._told) == len(parts) > 0:
            self.is_complete = True
            self._when_ready(node)


def _detached(settings: Settings, services: Sequence[str], told: _Teller) -> None:
    logs = settings.home / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    log = logs / "node.log"
    rotate(log)
    with log.open("ab") as file:
        supervisor = subprocess.Popen(
            [sys.executable, "-m", "odf_common.runtime.supervisor", *services],
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
