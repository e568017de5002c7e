"""The states of a node's services and other parts, as a command reports them."""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from odf_cli.embedded.node_file import Node, Part, find_node, is_running
from odf_common.adapters.local.outage_files import Outage, read_outages
from odf_common.errors import OdfError
from odf_common.service.part_checks import Check, checks_of, service_check, why_silent
from odf_common.service.protection import SERVICE_ADDRESSES, VIEWS, command_credentials, secret_of
from odf_common.service.settings import Settings

DISPENSABLE: Final = frozenset({"redis"})  # services work without it, if slower
RECONNECTS: Final = "look at its state and log where it runs; the services connect again by themselves"
SERVICE_REMEDY: Final = "look at its state and log where it runs"
WORKING: Final = frozenset({"ready", "degraded"})
SEEN_BY_OTHERS: Final = WORKING | {"unreachable"}
ENDED: Final = "its process has ended"
SILENT: Final = "it does not answer; its process may be busy, hang or be stopped"


def located_node(settings: Settings) -> Node:
    """Return the running node of the home with its current states, or the services at the configured addresses.

    The supervisor checks its parts rarely, so services that it reports as ready are checked here again. Services
    without a supervisor, and their Kafka, Redis and bucket, are ready or unreachable. A part that does not answer the
    services is unreachable, too. A ready service that cannot reach what it needs is degraded. Raises `NoNode`.
    """
    node = find_node(settings)
    if not node.services and not node.parts:
        node = replace(node, services=_probe_services(settings), parts=_configured_parts(settings))
    used = {part.name for part in (*node.services, *node.parts)} | {"kafka", "redis", "store"}
    used |= {name for name, field in SERVICE_ADDRESSES.items() if getattr(settings, field) is not None}
    # A node may run without services that it does not need, such as the engine.
    node = with_outages(node, [one for one in read_outages(settings.home) if one.part in used])
    return as_they_answer(node, settings)


def as_they_answer(node: Node, settings: Settings) -> Node:
    """Return the node with its parts checked now, because `node.json` may be outdated, for example on a full disk."""
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
    """Return the remedy for a part that does not answer; only parts of a supervisor have a process to kill."""
    if part.pid is None:
        return RECONNECTS
    return f"if it does not recover, `kill -9 {part.pid}`: the node restarts it; its log is {log}"


def with_outages(node: Node, outages: Sequence[Outage]) -> Node:
    """Return the node with the outages that its services report."""
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
    """Return a part with the outages that concern it; the state of a part that is not ready is kept."""
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


def _probe_services(settings: Settings) -> tuple[Part, ...]:
    import asyncio

    from odf_common.service.health import is_served, probe_of

    async def probe_all(names: Iterable[str]) -> list[bool]:
        return await asyncio.gather(*(is_served(probe_of(name, settings)) for name in names))

    fields = {**SERVICE_ADDRESSES, VIEWS: "views_http"}
    names = [name for name, field in fields.items() if getattr(settings, field) is not None]
    return tuple(
        Part(name=name, pid=None, state="ready")
        if answers
        else Part(name=name, pid=None, state="unreachable", remedy=SERVICE_REMEDY)
        for name, answers in zip(names, asyncio.run(probe_all(names)), strict=True)
    )


def _configured_parts(settings: Settings) -> tuple[Part, ...]:
    """Return Kafka, Redis and the bucket, and whether they answer this process."""
    checks = checks_of(settings, ())
    with ThreadPoolExecutor(len(checks) or 1) as pool:
        return tuple(pool.map(_check_part, checks, checks.values()))


def _check_part(name: str, check: Check) -> Part:
    try:
        check()
    except OdfError as error:
        return Part(name=name, pid=None, state="unreachable", problem=why_silent(error), remedy=RECONNECTS)
    return Part(name=name, pid=None, state="ready")
