"""Resources as commands name, delete, rename and print them."""

import json
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Final

import click

from odf_cli import clients
from odf_cli.exit_codes import ExitCode
from odf_cli.output import remark
from odf_common.errors import OdfError
from odf_common.metadata.scalars import Timestamp
from odf_common.proto.odf.node.v1 import resources_pb2 as pb
from odf_common.proto.odf.node.v1.resources_pb2_grpc import ResourcesStub

POLL_SECONDS: Final = 0.2
COMPLETED: Final = 1000  # names that a shell is offered
_NOT_FOUND: Final = frozenset({"ResourceNotFound", "ResourceGone"})


def is_resource(ref: str) -> bool:
    """Return whether an argument is TYPE:NAME, which no reference to a dataset is."""
    return ":" in ref and not ref.startswith("did:") and "//" not in ref


def resource_request(resource: str, account: str = "") -> pb.GetResourceRequest:
    """Return the request for a resource that is written as TYPE:NAME; raises `UsageError`."""
    kind, colon, name = resource.partition(":")
    if not colon or not kind or not name:
        raise click.UsageError(f"expected TYPE:NAME, such as VariableSet:env, got {resource!r}")
    return pb.GetResourceRequest(type=kind, ref=name, account=account)


def complete_type(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the types that begin with `incomplete`: those of the node, or without one those of the specification."""
    from odf_common.resources.registry import CORE_TYPES

    names = [kind.short_name for kind in CORE_TYPES]
    with suppress(OdfError), clients.resources(timeout=0) as service:
        reply = service.ListResourceTypes(
            pb.ListResourceTypesRequest(), timeout=clients.OPTIONAL_CALL_TIMEOUT_SECONDS
        )
        names = [one.short_name for one in reply.types if one.short_name]
    return _beginning_with(incomplete, names)


def complete_name(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the names of resources of the type in another argument that begin with `incomplete`."""
    found = _list_names(context.params.get("type_name") or "", incomplete)
    return _beginning_with(incomplete, [name for _, name in found])


def complete_flow(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the names of flows that begin with `incomplete`."""
    return _beginning_with(incomplete, [name for _, name in _list_names("Flow", incomplete)])


def complete_resource(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the resources, as TYPE:NAME, that begin with `incomplete`."""
    kind, colon, name = incomplete.partition(":")
    found = _list_names(kind if colon else "", name if colon else "")
    return _beginning_with(incomplete, [f"{type_name}:{name}" for type_name, name in found])


def _list_names(type_name: str, prefix: str) -> list[tuple[str, str]]:
    """Return type and name of up to 1,000 resources; none while the node does not answer at once."""
    account, _, start = prefix.rpartition("/")
    request = pb.ListResourcesRequest(
        types=[type_name] if type_name else [], account=account, name=f"{start}%", limit=COMPLETED
    )
    try:
        with clients.resources(timeout=0) as service:
            reply = service.ListResources(request, timeout=clients.OPTIONAL_CALL_TIMEOUT_SECONDS)
    except OdfError:
        return []
    rows = [resource_row(json.loads(one)) for one in reply.resources]
    return [(str(row["type"]), _name_from_node(str(row["account"]), str(row["name"]))) for row in rows]


def _name_from_node(account: str, name: str) -> str:
    from odf_common.resources.node_accounts import NODE_ACCOUNT

    return name if account in {NODE_ACCOUNT.text, name} else f"{account}/{name}"


def _beginning_with(incomplete: str, names: Iterable[str]) -> list[str]:
    return sorted({name for name in names if name.lower().startswith(incomplete.lower())}, key=str.lower)


def delete_resources(
    resources: Iterable[str], *, is_forced: bool, is_orphaning: bool, wait: str | None
) -> None:
    """Request the deletion of resources, and wait until they are gone for the time of `wait`, if it is given."""
    requests = [resource_request(one) for one in resources]
    with clients.resources() as service:
        found = [
            pb.GetResourceRequest(type=one.type, ref=_id(service, one), include_deleted=True)
            for one in requests
        ]
        for one in found:
            request = pb.DeleteResourceRequest(resource=one, force=is_forced, orphan=is_orphaning)
            service.DeleteResource(request, timeout=clients.COMMAND_TIMEOUT_SECONDS)
        for one, written in zip(found, requests, strict=True):
            remark(f"deleting {written.type}:{written.ref}")
            if wait is not None:
                _await_removal(one, f"{written.type}:{written.ref}", seconds_of(wait))


def rename_resource(resource: str, name: str) -> dict[str, Any]:
    """Give a resource another name; return it."""
    request = pb.RenameResourceRequest(resource=resource_request(resource), name=name)
    with clients.resources() as service:
        reply = service.RenameResource(request, timeout=clients.COMMAND_TIMEOUT_SECONDS)
    return resource_row(json.loads(reply.json))


def _id(service: ResourcesStub, request: pb.GetResourceRequest) -> str:
    reply = service.GetResource(request, timeout=clients.COMMAND_TIMEOUT_SECONDS)
    found: str = json.loads(reply.json)["headers"]["id"]
    return found


def _await_removal(request: pb.GetResourceRequest, written: str, seconds: float) -> None:
    """Wait until a resource is removed; end with exit code 1 if it is not in time."""
    end = time.monotonic() + seconds
    status: Mapping[str, Any] | None = {}
    while status is not None and time.monotonic() < end:
        status = _status(request)
        time.sleep(POLL_SECONDS)
    if status is not None:
        remark(f"{written} is not deleted yet{reason(status)}")
        sys.exit(ExitCode.FAILED)


def _status(request: pb.GetResourceRequest) -> Mapping[str, Any] | None:
    """Return the status of a resource; None once it is removed."""
    try:
        with clients.resources() as service:
            reply = service.GetResource(request, timeout=clients.COMMAND_TIMEOUT_SECONDS)
    except OdfError as error:
        if error.code in _NOT_FOUND:
            return None
        raise
    found: Mapping[str, Any] = json.loads(reply.json)["status"]
    return found


def reason(status: Mapping[str, Any]) -> str:
    """Return the messages of the conditions of a resource, after a colon; empty if there are none."""
    messages = [
        f"{condition.get('code', '')}: {condition['message']}"
        for condition in status.get("conditions", {}).values()
        if condition.get("message")
    ]
    return f": {'; '.join(messages)}" if messages else ""


def seconds_of(text: str) -> float:
    """Return the seconds of a duration such as `90s` or `5m`."""
    from odf_common.resources.scalar_formats import Duration

    return Duration.parse(text) / 1e9


def resource_row(document: Mapping[str, Any]) -> dict[str, object]:
    """Return a resource as a row of a table."""
    headers, status = document["headers"], document.get("status", {})
    observed = status.get("observedGeneration", 0)
    generation = headers.get("generation", "")
    return {
        "type": document["$schema"].rpartition("/")[2],
        "name": headers["name"],
        "account": headers.get("account", {}).get("name", ""),
        "phase": "Deleting" if "deletedAt" in headers else status.get("phase", ""),
        "generation": generation if observed == generation else f"{observed}/{generation}",
        "age": _age(headers.get("createdAt")),
    }


def _age(created: str | None) -> str:
    if created is None:
        return ""
    seconds = max(0, int(time.time() - Timestamp.parse(created).ms / 1000))
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"
