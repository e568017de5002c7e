"""Whether services at configured addresses serve, where another process manager than `odf up` runs them.

`python -m odf_common.embedded.health SERVICE` exits with 0 if it does, for health checks of containers; the supervisor
of `odf up` uses the same probes itself. No supervisor of containers restarts one because its check fails, so with
`--end-after SECONDS` the check ends the container's process once the service has not answered at its own address for
that long; the restart policy then starts it again. A service that answers that it is not ready waits for others, and
is left alone.
"""

import argparse
import asyncio
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from odf_common.adapters.grpc.peer_secret import PeerCredentials
from odf_common.adapters.local.outage_files import Outage, read_outages
from odf_common.codec.visible_text import visible
from odf_common.embedded.node_file import ADDRESSES, VIEWS, Node, Part, find_node, is_running
from odf_common.embedded.parts.readiness import Probe, grpc_answers, grpc_serves, http_answers
from odf_common.errors import InvalidInput, OdfError, explained
from odf_common.service.part_checks import CHECK_TIMEOUT_SECONDS, Check, checks_of, service_check, why_silent
from odf_common.service.protection import command_credentials, secret_of
from odf_common.service.settings import ENGINE, Settings, load

CONTAINER_PROCESS: Final = 1  # the pid of a container's command
SCRATCH: Final = Path(tempfile.gettempdir())
ProbeOf = Callable[[str, PeerCredentials], Probe]
DISPENSABLE: Final = frozenset({"redis"})  # services work without it, if slower
RECONNECTS: Final = "look at its state and log where it runs; the services connect again by themselves"
SERVICE_REMEDY: Final = "look at its state and log where it runs"
WORKING: Final = frozenset({"ready", "degraded"})
SEEN_BY_OTHERS: Final = WORKING | {"unreachable"}
ENDED: Final = "its process has ended"
SILENT: Final = "it does not answer; its process may be busy, hang or be stopped"


def located_node(settings: Settings) -> Node:
    """Return the supervisor's node of the home, else the services at configured addresses; raises `NoNode`.

    The supervisor asks its parts seldom, so its ready services are asked here, too. The states of others, and of their
    Kafka, Redis and bucket, are `ready` and `unreachable`. A part that answers here, but not one of the services, is
    `unreachable` too; a service that is ready without what it needs `degraded`.
    """
    node = find_node(settings)
    if not node.services and not node.parts:
        node = replace(node, services=asyncio.run(_configured(settings)), parts=_configured_parts(settings))
    used = {part.name for part in (*node.services, *node.parts)} | {"kafka", "redis", "store"}
    used |= {name for name, field in ADDRESSES.items() if getattr(settings, field) is not None}
    # A node may run without services that it does not need, such as the engine.
    node = with_outages(node, [one for one in read_outages(settings.home) if one.part in used])
    return as_they_answer(node, settings)


def as_they_answer(node: Node, settings: Settings) -> Node:
    """Return a supervisor's node with its parts as they are now: `node.json` may be older, as on a full disk."""
    asked = [part for part in (*node.services, *node.parts) if part.pid is not None]
    with ThreadPoolExecutor(len(asked) or 1) as pool:
        found = pool.map(partial(_as_it_answers, node=node, settings=settings), asked)
        seen = {part.name: part for part in found}
    return replace(
        node,
        services=tuple(seen.get(part.name, part) for part in node.services),
        parts=tuple(seen.get(part.name, part) for part in node.parts),
    )


def _as_it_answers(part: Part, *, node: Node, settings: Settings) -> Part:
    if part.state in SEEN_BY_OTHERS and part.pid is not None and not is_running(part.pid):
        return replace(part, pid=None, state="restarting", since=None, problem=ENDED, remedy=None)
    address = node.grpc.get(part.name)
    if address is None or part.state not in WORKING:  # what has no address is asked by the services
        return part
    credentials = command_credentials(replace(settings, home=node.home), address, secret_of(part.name))
    try:
        service_check(part.name, address, credentials)()
    except OdfError:
        remedy = remedy_of(part, node.log(part.name))
        return replace(part, state="unresponsive", since=None, problem=SILENT, remedy=remedy)
    return part


def remedy_of(part: Part, log: Path) -> str:
    """Return the remedy for a part that does not answer; only a supervisor's part has a process to end."""
    if part.pid is None:
        return RECONNECTS
    return f"if it does not recover, `kill -9 {part.pid}`: the node restarts it; its log is {log}"


def with_outages(node: Node, outages: Sequence[Outage]) -> Node:
    """Return the node with what its services cannot reach."""
    known = {part.name for part in (*node.services, *node.parts)}
    unlisted = tuple(
        Part(name=name, pid=None, state="ready")
        for name in dict.fromkeys(one.part for one in outages)
        if name not in known
    )
    return replace(
        node,
        services=tuple(_with_outages(part, outages, node) for part in node.services),
        parts=tuple(_with_outages(part, outages, node) for part in (*node.parts, *unlisted)),
    )


def _with_outages(part: Part, outages: Sequence[Outage], node: Node) -> Part:
    """Return a part as the services see it; what is not ready anyway stays as it is, with since when."""
    silent = [one for one in outages if one.part == part.name]
    if silent:
        since = min(one.since for one in silent)
        if part.state != "ready":
            return part if part.since else replace(part, since=since)
        names = ", ".join(dict.fromkeys(one.seen_by for one in silent))
        problem = f"{names} cannot reach it: {silent[0].why}"
        remedy = remedy_of(part, node.log(part.name))
        return replace(part, state="unreachable", since=since, problem=problem, remedy=remedy)
    lacking = [one for one in outages if one.seen_by == part.name and one.part not in DISPENSABLE]
    if not lacking or part.state != "ready":
        return part
    names = ", ".join(one.part for one in lacking)
    since = min(one.since for one in lacking)
    return replace(
        part, state="degraded", since=since, problem=f"cannot reach {names}", remedy=f"see {names}"
    )


async def _configured(settings: Settings) -> tuple[Part, ...]:
    fields = {**ADDRESSES, VIEWS: "views_http"}
    names = [name for name, field in fields.items() if getattr(settings, field) is not None]
    served = await asyncio.gather(*(_is_served(probe_of(name, settings)) for name in names))
    return tuple(
        Part(name=name, pid=None, state="ready")
        if is_served
        else Part(name=name, pid=None, state="unreachable", remedy=SERVICE_REMEDY)
        for name, is_served in zip(names, served, strict=True)
    )


def _configured_parts(settings: Settings) -> tuple[Part, ...]:
    """Return Kafka, Redis and the bucket, as they answer this process."""
    checks = checks_of(settings, ())
    with ThreadPoolExecutor(len(checks) or 1) as pool:
        return tuple(pool.map(_check_part, checks, checks.values()))


def _check_part(name: str, check: Check) -> Part:
    try:
        check()
    except OdfError as error:
        return Part(name=name, pid=None, state="unreachable", problem=why_silent(error), remedy=RECONNECTS)
    return Part(name=name, pid=None, state="ready")


async def _is_served(probe: Probe) -> bool:
    try:
        return await asyncio.wait_for(probe(), CHECK_TIMEOUT_SECONDS)
    except TimeoutError:
        return False


def probe_of(name: str, settings: Settings, grpc_probe: ProbeOf = grpc_serves) -> Probe:
    """Return the probe of a service; raises `InvalidInput` if it does not exist, `Unavailable` without an address."""
    if name == VIEWS:
        return http_answers(settings.required("views_http"), "/health")
    if name not in ADDRESSES:
        raise InvalidInput(text=f"unknown service {name}; choose from {', '.join((*ADDRESSES, VIEWS))}")
    field = ADDRESSES[name]
    address = settings.engine or ENGINE if field == "engine" else settings.required(field)
    return grpc_probe(address, command_credentials(settings, address, secret_of(name)))


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
        if asyncio.run(_is_served(probe_of(chosen.service, settings))):
            silence.end()
            return 0
        if chosen.end_after is not None:
            if asyncio.run(_is_served(probe_of(chosen.service, settings, grpc_answers))):
                silence.end()
            elif silence.seconds(time.monotonic()) >= chosen.end_after:
                os.kill(process, signal.SIGTERM)
    except OdfError as error:
        sys.stderr.write(f"{visible(explained(error))}\n")
    return 1


class Silence:
    """Since when a service has not answered, in a file: each health check is a process of its own."""

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
    parser = argparse.ArgumentParser(prog="python -m odf_common.embedded.health", description=__doc__)
    parser.add_argument("service", metavar="SERVICE", help=f"one of {', '.join((*ADDRESSES, VIEWS))}")
    parser.add_argument(
        "--end-after", type=float, metavar="SECONDS", help="end the process of a container then"
    )
    return parser


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
