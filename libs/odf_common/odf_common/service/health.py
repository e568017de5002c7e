"""Whether a service at its configured address serves, for health checks of containers.

`python -m odf_common.service.health SERVICE` exits with 0 if it does. No supervisor of containers restarts one because
its check fails, so with `--end-after SECONDS` the check ends the container's process once the service has not answered
at its own address for that long; the restart policy then starts it again. A service that answers that it is not ready
waits for others, and is left alone.
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
    """Return the probe of a service; raises `InvalidInput` if it does not exist, `Unavailable` without an address."""
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

    With `--end-after`, SIGTERM is sent to `process` once the service has not answered for that long; `folder` keeps
    since when, and is empty when a container starts.
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
    """Since when a service has not answered, in a file: each health check is its own process."""

    def __init__(self, file: Path) -> None:
        """Use a file, which need not exist."""
        self._file = file

    def seconds(self, now: float) -> float:
        """Return for how long it has lasted; it begins now if no check has found it before."""
        try:
            since = float(self._file.read_text())
        except (FileNotFoundError, ValueError):
            self._file.write_text(str(now))
            return 0.0
        return now - since

    def end(self) -> None:
        """The service has answered."""
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
