"""Runs one service of a running node in the foreground: `python -m odf_cli.embedded.foreground SERVICE [--debug]`.

Its supervised process is stopped, and not restarted while this one runs. The service gets the same environment and the
terminal, so breakpoints work.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from odf_cli.embedded.node_file import Node, is_running, read_node
from odf_cli.embedded.parts.managed_process import held_in_foreground
from odf_cli.embedded.plan import installed_services
from odf_common.codec.visible_text import visible
from odf_common.errors import Conflict, InvalidInput, OdfError, Unavailable, explain
from odf_common.service.die_with_parent import with_parent_death_signal
from odf_common.service.logging import configure_command
from odf_common.service.settings import child_environment, load

STOP_SECONDS: Final = 15.0  # the supervised process may finish a commit
FOREGROUND_POLL_SECONDS: Final = 0.05
USAGE: Final = "usage: python -m odf_cli.embedded.foreground SERVICE [--debug]"


class AlreadyInForeground(Conflict):
    """The service is already running in the foreground of another terminal."""

    MESSAGE = "{service} already runs in the foreground of another terminal"

    service: str


def run(name: str, *, is_debugged: bool = False) -> int:
    """Run a service until it exits, and return its exit code. Ctrl-C stops it.

    Raises `NoNode` if no node is running, `InvalidInput` for a service that the node does not run, and `Conflict` if
    the service is already running in the foreground.
    """
    node = read_node(load().home)
    pid = _pid_of(node, name)
    environment = {**_environment_of(pid), **_levels()}
    try:
        with held_in_foreground(node.home, name):
            _stop(name, pid)
            module = installed_services()[name]
            debugger = ("-m", "pdb") if is_debugged else ()
            service = subprocess.Popen(
                with_parent_death_signal((sys.executable, *debugger, "-m", module)), env=environment
            )
            while True:
                with suppress(KeyboardInterrupt):  # the service has received it, too
                    return service.wait()
    except BlockingIOError as error:
        raise AlreadyInForeground(service=name) from error


def _pid_of(node: Node, name: str) -> int:
    parts = {part.name: part for part in (*node.services, *node.parts) if part.name in installed_services()}
    if name not in parts:
        raise InvalidInput(text=f"the node does not run {name!r}; it runs {', '.join(parts)}")
    pid = parts[name].pid
    if pid is None:
        raise Unavailable(
            what=name, why=f"it is {parts[name].state}; try again when `odf status` shows it as ready"
        )
    return pid


def _environment_of(pid: int) -> Mapping[str, str]:
    entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    pairs = (entry.decode(errors="surrogateescape").partition("=") for entry in entries if entry)
    return {name: value for name, _, value in pairs}


def _levels() -> Mapping[str, str]:
    """Return the environment variables that are taken from the caller instead of the supervised process."""
    own = child_environment()
    return {name: own[name] for name in ("ODF_LOG_LEVEL", "TERM", "PYTHONBREAKPOINT") if name in own}


def _stop(name: str, pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_SECONDS
    while is_running(pid):
        if time.monotonic() > deadline:
            raise Unavailable(what=name, why=f"process {pid} did not stop within {STOP_SECONDS:g} s")
        time.sleep(FOREGROUND_POLL_SECONDS)


def main(arguments: Sequence[str]) -> int:
    """Run the service that the arguments name, and return the exit code."""
    configure_command()
    names = [word for word in arguments if not word.startswith("-")]
    if len(names) != 1 or set(arguments) - {*names, "--debug"}:
        sys.stderr.write(f"{USAGE}\nservices: {', '.join(installed_services())}\n")
        return 2
    try:
        return run(names[0], is_debugged="--debug" in arguments)
    except OdfError as error:
        sys.stderr.write(f"{visible(explain(error))}\n")
        return 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
