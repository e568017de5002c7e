"""Health checks for containers: whether a service serves at its configured address.

`python -m odf_common.service.health SERVICE` exits with 0 if it does. Container supervisors do not restart a container
because its health check fails. With `--end-after SECONDS` the check therefore ends the container's main process once
the service has not answered at its own address for that long, and the restart policy starts it again. A service that
answers that it is not ready is not ended, because it is waiting for others.
"""

import argparse
import asyncio
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from odf_common.adapters.grpc.peer_credentials import PeerCredentials
from odf_common.codec.visible_text import visible
from odf_common.errors import InvalidInput, OdfError, explain
from odf_common.service.part_checks import CHECK_TIMEOUT_SECONDS
from odf_common.service.probes import Probe, grpc_answers, grpc_serves, http_answers
from odf_common.service.protection import SERVICE_ADDRESSES, VIEWS, command_credentials, secret_of
from odf_common.service.settings import ENGINE, Settings, load

CONTAINER_PROCESS: Final = 1  # the pid of a container's command
SCRATCH: Final = Path(tempfile.gettempdir())
ProbeOf = Callable[[str, PeerCredentials], Probe]


def probe_of(name: str, settings: Settings, grpc_probe: ProbeOf = grpc_serves) -> Probe:
    """Return the probe of a service by its name.

    Raises `InvalidInput` if there is no such service, `Unavailable` if its address is not configured.
    """
    if name == VIEWS:
        return http_answers(settings.required("views_http"), "/health")
    if name not in SERVICE_ADDRESSES:
        raise InvalidInput(
            text=f"unknown service {name}; choose from {', '.join((*SERVICE_ADDRESSES, VIEWS))}"
        )
    field = SERVICE_ADDRESSES[name]
    address = settings.engine or ENGINE if field == "engine" else settings.required(field)
    return grpc_probe(address, command_credentials(settings, address, secret_of(name)))


async def is_served(probe: Probe) -> bool:
    """Return whether a probe succeeds within `CHECK_TIMEOUT_SECONDS`."""
    try:
        return await asyncio.wait_for(probe(), CHECK_TIMEOUT_SECONDS)
    except TimeoutError:
        return False


def main(arguments: Sequence[str], *, process: int = CONTAINER_PROCESS, folder: Path = SCRATCH) -> int:
    """Return 0 if the service serves, 1 if it does not, 2 for misuse.

    With `--end-after`, `process` is sent SIGTERM once the service has not answered for that long. A file in `folder`
    records when the silence began, between runs of this check; the folder must be empty when a container starts.
    """
    try:
        chosen = _parser().parse_args(arguments)
    except SystemExit as misuse:
        return int(misuse.code or 0)
    silence = Silence(folder / f"odf-{chosen.service}-silent-since")
    try:
        settings = load()
        if asyncio.run(is_served(probe_of(chosen.service, settings))):
            silence.end()
            return 0
        if chosen.end_after is not None:
            if asyncio.run(is_served(probe_of(chosen.service, settings, grpc_answers))):
                silence.end()
            elif silence.seconds(time.monotonic()) >= chosen.end_after:
                os.kill(process, signal.SIGTERM)
    except OdfError as error:
        sys.stderr.write(f"{visible(explain(error))}\n")
    return 1


class Silence:
    """The time since which a service has not answered, kept in a file because each health check is its own process."""

    def __init__(self, file: Path) -> None:
        """Use `file`, which need not exist yet."""
        self._file = file

    def seconds(self, now: float) -> float:
        """Return for how many seconds the service has been silent at `now`; 0 if the silence has just begun."""
        try:
            since = float(self._file.read_text())
        except (FileNotFoundError, ValueError):
            self._file.write_text(str(now))
            return 0.0
        return now - since

    def end(self) -> None:
        """Record that the service has answered."""
        self._file.unlink(missing_ok=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m odf_common.service.health", description=__doc__)
    parser.add_argument("service", metavar="SERVICE", help=f"one of {', '.join((*SERVICE_ADDRESSES, VIEWS))}")
    parser.add_argument(
        "--end-after", type=float, metavar="SECONDS", help="end the process of a container then"
    )
    return parser


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
