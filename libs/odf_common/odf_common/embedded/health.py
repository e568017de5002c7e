"""`python -m odf_common.embedded.health SERVICE`: exit 0 if the service at its configured address serves.

For health checks of containers and process managers; the supervisor of `odf up` uses the same probes itself.
"""

import asyncio
import sys
from collections.abc import Sequence

from odf_common.embedded.plan import ADDRESSES, VIEWS
from odf_common.embedded.readiness import Probe, grpc_serves, http_answers
from odf_common.errors import InvalidInput, OdfError, explained
from odf_common.service.protection import peer_tls
from odf_common.service.settings import ENGINE, Settings, load


def probe_of(name: str, settings: Settings) -> Probe:
    """Return the probe of a service; raises `InvalidInput` if it does not exist, `Unavailable` without an address."""
    if name == VIEWS:
        return http_answers(settings.required("views_http"), "/health")
    if name not in ADDRESSES:
        raise InvalidInput(text=f"unknown service {name}; choose from {', '.join((*ADDRESSES, VIEWS))}")
    field = ADDRESSES[name]
    address = settings.engine or ENGINE if field == "engine" else settings.required(field)
    return grpc_serves(address, peer_tls(settings))


def main(arguments: Sequence[str]) -> int:
    """Return 0 if the service serves, 1 if it does not, 2 if no service is named."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m odf_common.embedded.health SERVICE\n")
        return 2
    try:
        return 0 if asyncio.run(_answer(probe_of(arguments[0], load()))) else 1
    except OdfError as error:
        sys.stderr.write(f"{explained(error)}\n")
        return 1


async def _answer(probe: Probe) -> bool:
    return await probe()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
