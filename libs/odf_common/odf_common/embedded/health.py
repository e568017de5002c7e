"""Whether services at configured addresses serve, where another process manager than `odf up` runs them.

`python -m odf_common.embedded.health SERVICE` exits with 0 if it does, for health checks of containers; the supervisor
of `odf up` uses the same probes itself.
"""

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from odf_common.codec.visible_text import visible
from odf_common.embedded.node_file import Node, Part, find_node
from odf_common.embedded.parts.readiness import Probe, grpc_serves, http_answers
from odf_common.embedded.plan import ADDRESSES, VIEWS, secret_of
from odf_common.errors import InvalidInput, OdfError, explained
from odf_common.service.protection import command_credentials
from odf_common.service.settings import ENGINE, Settings, load

ANSWER_SECONDS: Final = 5.0


def located_node(settings: Settings) -> Node:
    """Return the supervisor's node of the home, else the services at configured addresses; raises `NoNode`.

    The states of the latter are `ready` and `unreachable`.
    """
    node = find_node(settings)
    if node.services or node.parts:
        return node
    return replace(node, services=asyncio.run(_configured(settings)))


async def _configured(settings: Settings) -> tuple[Part, ...]:
    fields = {**ADDRESSES, VIEWS: "views_http"}
    names = [name for name, field in fields.items() if getattr(settings, field) is not None]
    served = await asyncio.gather(*(_is_served(probe_of(name, settings)) for name in names))
    return tuple(_part(name, is_served=is_served) for name, is_served in zip(names, served, strict=True))


async def _is_served(probe: Probe) -> bool:
    try:
        return await asyncio.wait_for(probe(), ANSWER_SECONDS)
    except TimeoutError:
        return False


def _part(name: str, *, is_served: bool) -> Part:
    if is_served:
        return Part(name=name, pid=None, state="ready")
    remedy = "look at its state and log where it runs: with containers, `docker compose ps` and `docker compose logs`"
    return Part(name=name, pid=None, state="unreachable", remedy=remedy)


def probe_of(name: str, settings: Settings) -> Probe:
    """Return the probe of a service; raises `InvalidInput` if it does not exist, `Unavailable` without an address."""
    if name == VIEWS:
        return http_answers(settings.required("views_http"), "/health")
    if name not in ADDRESSES:
        raise InvalidInput(text=f"unknown service {name}; choose from {', '.join((*ADDRESSES, VIEWS))}")
    field = ADDRESSES[name]
    address = settings.engine or ENGINE if field == "engine" else settings.required(field)
    return grpc_serves(address, command_credentials(settings, address, secret_of(name)))


def main(arguments: Sequence[str]) -> int:
    """Return 0 if the service serves, 1 if it does not, 2 if no service is named."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m odf_common.embedded.health SERVICE\n")
        return 2
    try:
        return 0 if asyncio.run(_answer(probe_of(arguments[0], load()))) else 1
    except OdfError as error:
        sys.stderr.write(f"{visible(explained(error))}\n")
        return 1


async def _answer(probe: Probe) -> bool:
    return await probe()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
