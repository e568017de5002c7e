"""gRPC clients of the `odf` command: a stub for each service, with failed calls raised as `OdfError`.

Each function imports its gRPC messages when it is called, because a command needs few of them.
"""

import json
import os
import pwd
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import grpc

from odf_cli.embedded.node_file import Node, find_node
from odf_cli.exit_codes import keeping_interrupts
from odf_cli.suggestions import future_remark
from odf_common.adapters.grpc.client import RESTART_TIMEOUT_SECONDS, await_channel, calling
from odf_common.errors import InvalidInput, NotFound, OdfError, Unavailable
from odf_common.metadata.scalars import Timestamp
from odf_common.service.protection import command_credentials
from odf_common.service.settings import TENANCY_FILE, load

if TYPE_CHECKING:
    from odf_common.proto.odf.node.v1.access_pb2_grpc import AccessStub
    from odf_common.proto.odf.node.v1.coordinator_pb2_grpc import CoordinatorStub
    from odf_common.proto.odf.node.v1.ingest_pb2 import PollsReply, StuckReply
    from odf_common.proto.odf.node.v1.ingest_pb2_grpc import IngestStub
    from odf_common.proto.odf.node.v1.resources_pb2_grpc import FlowsStub, ResourcesStub
    from odf_common.proto.odf.node.v1.sync_pb2_grpc import SyncStub
    from odf_common.proto.odf.node.v1.verifier_pb2_grpc import VerifierStub
    from odf_common.proto.odf.node.v1.webhooks_pb2_grpc import WebhooksStub

T = TypeVar("T")
COMMAND_TIMEOUT_SECONDS = 60.0  # deadline of a short call
OPTIONAL_CALL_TIMEOUT_SECONDS = 1.0  # deadline of optional information, shown only if it arrives at once
HEALTH_TIMEOUT_SECONDS = 2.0
HTTP_OK = 200
STREAM_TIMEOUT_SECONDS = 24 * 3600.0  # deadline of a call that streams its progress


def this_node() -> Node:
    """Return the node of $ODF_HOME, or at the configured addresses; raises `Unavailable` if none is running."""
    return find_node(load())


def coordinator(
    node: Node | None = None, *, timeout: float = RESTART_TIMEOUT_SECONDS
) -> AbstractContextManager["CoordinatorStub"]:
    """Connect to the coordinator; calls inside raise `OdfError`."""
    from odf_common.proto.odf.node.v1.coordinator_pb2_grpc import CoordinatorStub

    return _connect(CoordinatorStub, "coordinator", node, timeout)


def ingest(
    node: Node | None = None, *, timeout: float = RESTART_TIMEOUT_SECONDS, must_answer: bool = False
) -> AbstractContextManager["IngestStub"]:
    """Connect to ingest; calls inside raise `OdfError`. With `must_answer`, ingest must first pass a health check."""
    from odf_common.proto.odf.node.v1.ingest_pb2_grpc import IngestStub

    return _connect(IngestStub, "ingest", node, timeout, must_answer=must_answer)


def resources(*, timeout: float = RESTART_TIMEOUT_SECONDS) -> AbstractContextManager["ResourcesStub"]:
    """Connect to the resources of the coordinator; calls inside raise `OdfError`."""
    from odf_common.proto.odf.node.v1.resources_pb2_grpc import ResourcesStub

    return _connect(ResourcesStub, "coordinator", None, timeout)


def flows() -> AbstractContextManager["FlowsStub"]:
    """Connect to the flows of the coordinator; calls inside raise `OdfError`."""
    from odf_common.proto.odf.node.v1.resources_pb2_grpc import FlowsStub

    return _connect(FlowsStub, "coordinator", None, RESTART_TIMEOUT_SECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stuck:
    """The stall of a dataset: its reason, start time and remedy; the latter two are None if unknown."""

    problem: str
    since: Timestamp | None = None
    remedy: str | None = None


OnSilence = Callable[[str, OdfError], None]  # called with a service that does not answer, and why


def require_health(node: Node, service: str) -> None:
    """Raise `Unavailable` unless a service quickly passes a health check.

    To be used before calls with a long timeout.
    """
    with _connect(_check_health, service, node, 0):
        pass


def _check_health(channel: grpc.Channel) -> None:
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    request = health_pb2.HealthCheckRequest()
    health_pb2_grpc.HealthStub(channel).Check(request, timeout=HEALTH_TIMEOUT_SECONDS)


def ignore_silence(_service: str, _error: OdfError) -> None:
    """Ignore a service that does not answer."""


def stuck_sources(node: Node, on_silence: OnSilence = ignore_silence) -> Mapping[str, Stuck]:
    """Return the datasets with stalled push sources, by id; empty if ingest cannot be reached.

    For a dataset with several such sources: all reasons and remedies, and the earliest start time.
    """
    from odf_common.proto.odf.node.v1.ingest_pb2 import StuckRequest

    try:
        with ingest(node, timeout=0) as service:
            sources = service.Stuck(StuckRequest(), timeout=OPTIONAL_CALL_TIMEOUT_SECONDS).sources
    except OdfError as error:
        on_silence("ingest", error)
        return {}
    by_id: dict[str, list[StuckReply.Source]] = {}
    for source in sources:
        by_id.setdefault(source.dataset_id, []).append(source)
    return {name: _stuck(sources) for name, sources in by_id.items()}


def polls(node: Node, on_silence: OnSilence = ignore_silence) -> Mapping[str, "PollsReply.Poll"]:
    """Return the datasets that are polled at an interval, by id; empty if ingest cannot be reached."""
    from odf_common.proto.odf.node.v1.ingest_pb2 import PollsRequest

    try:
        with ingest(node, timeout=0) as service:
            reply = service.Polls(PollsRequest(), timeout=OPTIONAL_CALL_TIMEOUT_SECONDS)
    except OdfError as error:
        on_silence("ingest", error)
        return {}
    return {poll.dataset_id: poll for poll in reply.polls}


def future_records(node: Node) -> Mapping[str, str]:
    """Return remarks on records whose event time is too far in the future, by alias; empty if ingest is unreachable."""
    from odf_common.proto.odf.node.v1.ingest_pb2 import FutureRequest

    try:
        with ingest(node, timeout=0) as service:
            sources = service.Future(FutureRequest(), timeout=OPTIONAL_CALL_TIMEOUT_SECONDS).sources
    except OdfError:
        return {}
    remarks: dict[str, list[str]] = {}
    for source in sources:
        text = future_remark(source.records, source.alias, source.name)
        remarks.setdefault(source.alias, []).append(text)
    return {alias: "; ".join(lines) for alias, lines in remarks.items()}


def _stuck(sources: Sequence["StuckReply.Source"]) -> Stuck:
    times = [source.since for source in sources if source.HasField("since")]
    return Stuck(
        problem="; ".join(source.why for source in sources),
        since=Timestamp(min(times)).whole_ms() if times else None,
        remedy="; ".join(dict.fromkeys(source.advice for source in sources if source.advice)) or None,
    )


def live_view(node: Node, timeout: float) -> list[dict[str, Any]]:
    """Return the rows of the live view, one per dataset; raises `Unavailable`."""
    from http.client import HTTPConnection, HTTPException

    if node.views is None:
        raise Unavailable(what="the live view", why="this node does not run it")
    try:
        with closing(HTTPConnection(node.views.removeprefix("http://"), timeout=timeout)) as connection:
            connection.request("GET", "/datasets")
            answer = connection.getresponse()
            if answer.status != HTTP_OK:
                raise Unavailable(what="the live view", why=f"{answer.status} {answer.reason}")
            rows: list[dict[str, Any]] = json.load(answer)
    except (OSError, ValueError, HTTPException) as error:
        raise Unavailable(what="the live view", why=str(error)) from error
    return rows


def verifier(node: Node | None = None) -> AbstractContextManager["VerifierStub"]:
    """Connect to the verifier; calls inside raise `OdfError`."""
    from odf_common.proto.odf.node.v1.verifier_pb2_grpc import VerifierStub

    return _connect(VerifierStub, "verifier", node)


def sync(
    node: Node | None = None, *, timeout: float = RESTART_TIMEOUT_SECONDS
) -> AbstractContextManager["SyncStub"]:
    """Connect to sync; calls inside raise `OdfError`."""
    from odf_common.proto.odf.node.v1.sync_pb2_grpc import SyncStub

    return _connect(SyncStub, "sync", node, timeout)


def access(
    node: Node | None = None, *, timeout: float = RESTART_TIMEOUT_SECONDS
) -> AbstractContextManager["AccessStub"]:
    """Connect to the access service of sync: accounts, tokens and roles. Calls inside raise `OdfError`."""
    from odf_common.proto.odf.node.v1.access_pb2_grpc import AccessStub

    return _connect(AccessStub, "sync", node, timeout)


class NoAccount(NotFound):
    """The account in a new dataset's name does not exist; one that is added later would own the dataset."""

    MESSAGE = "account {account}, which would own {what}, does not exist"
    ADVICE = "add it with `odf account add {account}`, or correct the name"

    account: str


def require_owners(names: Iterable[str], node: Node | None = None) -> None:
    """Raise `NoAccount` if a name for a new dataset contains an account that the multi-tenant node does not have.

    Raises `Unavailable` if sync, which knows the accounts, cannot be reached and the home is that of a multi-tenant
    node.
    """
    from odf_common.identity.dataset_refs import Alias, Name, parse_alias

    aliases: list[Alias] = []
    for name in names:
        with suppress(InvalidInput):  # which the node refuses
            aliases.append(parse_alias(name))
    aliases = [alias for alias in aliases if alias.account is not None]
    if not aliases:
        return
    from odf_common.proto.odf.node.v1.access_pb2 import ListAccountsRequest

    is_multi_tenant = (load().home / TENANCY_FILE).exists()
    try:
        with access(node, timeout=RESTART_TIMEOUT_SECONDS if is_multi_tenant else 0) as accounts:
            reply = accounts.ListAccounts(ListAccountsRequest(), timeout=COMMAND_TIMEOUT_SECONDS)
    except Unavailable:
        if is_multi_tenant:
            raise
        return
    existing = {Name(item.name) for item in reply.accounts}
    for alias in aliases if reply.is_multi_tenant else ():
        if alias.account not in existing:
            raise NoAccount(what=str(alias), account=str(alias.account))


def webhooks(node: Node | None = None) -> AbstractContextManager["WebhooksStub"]:
    """Connect to the webhooks service of sync; calls inside raise `OdfError`."""
    from odf_common.proto.odf.node.v1.webhooks_pb2_grpc import WebhooksStub

    return _connect(WebhooksStub, "sync", node)


@contextmanager
def _connect(
    stub: Callable[[grpc.Channel], T],
    name: str,
    node: Node | None,
    timeout: float = RESTART_TIMEOUT_SECONDS,
    *,
    must_answer: bool = False,
) -> Iterator[T]:
    """Connect to a service, and yield a stub; calls inside raise `OdfError`."""
    node = node or this_node()
    address = node.address(name)
    credentials = command_credentials(replace(load(), home=node.home), address)
    # An interrupt is no failed call: commands that go on with the next dataset after one must end.
    with (
        keeping_interrupts(),
        calling(name),
        await_channel(name, address, timeout, credentials=credentials, user_agent=_user_agent()) as channel,
    ):
        if must_answer:
            _check_health(channel)
        yield stub(channel)


def _user_agent() -> str:
    """Return the user agent for the audit log, which has the name of the operating system's user."""
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # of a container
        user = str(os.getuid())
    return f"odf ({user.encode('ascii', 'backslashreplace').decode()})"
