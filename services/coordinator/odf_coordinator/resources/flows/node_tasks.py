"""Tasks as this node does them: transforms here, verification in the verifier, copies in sync."""

import json
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Final, TypeVar

import grpc

from odf_common.adapters.grpc.client import STREAM_TIMEOUT_SECONDS, await_channel, calling
from odf_common.adapters.grpc.peer_credentials import PeerCredentials
from odf_common.errors import Refused, Unavailable, count_of
from odf_common.identity.dataset_refs import DatasetId
from odf_common.ports.store import DatasetUnknown
from odf_common.proto.odf.node.v1.sync_pb2 import (
    ListAliasesRequest,
    SyncPullItem,
    SyncPullRequest,
    SyncPushRequest,
)
from odf_common.proto.odf.node.v1.sync_pb2_grpc import SyncStub
from odf_common.proto.odf.node.v1.verifier_pb2 import VerifyRequest
from odf_common.proto.odf.node.v1.verifier_pb2_grpc import VerifierStub
from odf_common.proto.odf.node.v1.webhooks_pb2 import CallWebhookRequest
from odf_common.proto.odf.node.v1.webhooks_pb2_grpc import WebhooksStub
from odf_common.resources import specs
from odf_common.resources.failures import DependencyMissing
from odf_common.resources.templates import IN_PAYLOAD, Template, json_text, payload_values
from odf_coordinator.catalog.datasets import DatasetHandle
from odf_coordinator.operations.pull import Puller, PullProgress
from odf_coordinator.resources.flow_checks import task_name
from odf_coordinator.resources.flows.task_port import Cancellation, TaskRequest
from odf_coordinator.resources.lookups import NODE_ACCOUNT

T = TypeVar("T")
VALID: Final = "valid"
WEBHOOK_SECONDS: Final = 15.0  # more than an attempt takes
MAX_PAUSE_SECONDS: Final = 60.0  # of the pause that a receiver asks for


class TaskImpossible(Refused):
    """The task cannot be done on this target, or by this flow."""


class NotVerified(Refused):
    """A verification has found an error, or could not check everything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Another service of the node."""

    name: str
    address: str | None
    credentials: PeerCredentials = None

    @contextmanager
    def connect(self) -> Iterator[grpc.Channel]:
        """Connect; errors of calls inside are raised as `OdfError`."""
        if self.address is None:
            raise Unavailable(what=self.name, why="its address is not configured")
        with (
            calling(self.name),
            await_channel(self.name, self.address, credentials=self.credentials) as channel,
        ):
            yield channel


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTasks:
    """Does the tasks of flows."""

    puller: Puller
    poll: Callable[[DatasetId, bytes, Sequence[str]], Generator[str, None, None]]
    """Commits all new data of a Source, given as its document, with all datasets that it feeds; yields its progress."""
    verifier: Peer
    sync: Peer
    is_multi_tenant: bool = False

    def perform(self, request: TaskRequest) -> str:
        """Do a task on the dataset of its target; return a remark."""
        match request.spec:
            case specs.TaskIngest():
                return self._ingest(request)
            case specs.TaskTransform():
                return self._transform(request)
            case specs.TaskVerify(with_replay=with_replay):
                return self._verify(request, with_replay=with_replay)
            case specs.TaskPush(to=to):
                self._require_node_account(request)
                push = SyncPushRequest(dataset=self._handle(request).alias, target=to or "")
                return self._copy(
                    request.cancellation, lambda stub: stub.Push(push, timeout=STREAM_TIMEOUT_SECONDS)
                )
            case specs.TaskPull(source=source):
                self._require_node_account(request)
                alias = self._handle(request).alias
                pull = SyncPullRequest(url=source or self._pulled_from(alias), alias=alias)
                return self._copy(
                    request.cancellation, lambda stub: stub.Pull(pull, timeout=STREAM_TIMEOUT_SECONDS)
                )
            case specs.TaskWebhookCall(payload=payload):
                return self._call_webhook(request, payload)
            case other:
                raise TaskImpossible(text=f"this node does not do {task_name(other)}")

    def _handle(self, request: TaskRequest) -> DatasetHandle:
        if not request.did:
            raise TaskImpossible(text="the target has no chain")
        handle = self.puller.datasets.by_id(DatasetId.parse(request.did))
        if handle is None:
            raise DatasetUnknown(what=request.did)
        return handle

    def _ingest(self, request: TaskRequest) -> str:
        handle = self._handle(request)
        source = request.references.get("source")
        if source is None:
            raise DependencyMissing(text="the Source of the task does not exist")
        before = handle.state.next_offset
        with closing(self.poll(handle.id, json.dumps(source).encode(), request.consumers)) as stages:
            for _ in stages:
                request.cancellation.check()
        after = self._handle(request).state.next_offset
        return f"{count_of(after - before, 'record')} from {source['headers']['name']}"

    def _transform(self, request: TaskRequest) -> str:
        handle = self._handle(request)
        if not handle.is_derivative:
            raise TaskImpossible(text=f"{handle.alias} is a root; Transform is for derivatives")
        last: PullProgress | None = None
        cancellation = request.cancellation
        with closing(
            self.puller.pull_one(handle, lambda: not cancellation.is_requested, is_explicit=True)
        ) as steps:
            for last in steps:  # noqa: B007 - the last one is needed
                cancellation.check()
        cancellation.check()
        return "" if last is None else f"{last.state}: {count_of(last.new_records, 'record')}"

    def _verify(self, request: TaskRequest, *, with_replay: bool) -> str:
        alias = self._handle(request).alias
        call = VerifyRequest(refs=[alias], integrity_only=not with_replay)
        with self.verifier.connect() as channel:
            items = VerifierStub(channel).Verify(call, timeout=STREAM_TIMEOUT_SECONDS)
            answers = _until_cancelled(items, request.cancellation)
            verdicts = [item.verdict for item in answers if item.HasField("verdict")]
        for verdict in verdicts:
            if verdict.verdict != VALID:
                problems = "; ".join(problem.text for problem in verdict.problems)
                raise NotVerified(text=f"{verdict.dataset} is {verdict.verdict}: {problems}".rstrip(": "))
        return f"{VALID}: {count_of(sum(verdict.blocks for verdict in verdicts), 'block')}"

    def _call_webhook(self, request: TaskRequest, payload: str | None) -> str:
        """Post the payload once; raises `Unavailable` for an answer after which a retry may succeed."""
        target = request.references.get("target")
        if target is None:
            raise DependencyMissing(text="the WebhookTarget of the task does not exist")
        name = target["headers"]["name"]
        call = CallWebhookRequest(
            target=json.dumps(target).encode(),
            payload=_payload(request, payload).encode(),
            delivery_id=request.task,
            attempt=request.attempt,
            event_type=str((request.event or {}).get("type", "")),
        )
        with self.sync.connect() as channel:
            reply = WebhooksStub(channel).CallWebhook(call, timeout=WEBHOOK_SECONDS)
        if reply.is_unwanted:
            raise TaskImpossible(text=f"{name} wants no more messages (410)")
        if reply.error:
            request.cancellation.wait(min(reply.pause / 1000, MAX_PAUSE_SECONDS))
            raise Unavailable(what=f"WebhookTarget {name}", why=reply.error)
        return f"posted to {name}"

    def _pulled_from(self, alias: str) -> str:
        with self.sync.connect() as channel:
            reply = SyncStub(channel).ListAliases(ListAliasesRequest(refs=[alias], is_strict=True))
        for dataset in reply.datasets:
            if dataset.pull:
                return str(dataset.pull[0])
        raise TaskImpossible(text=f"{alias} was not copied from anywhere; give `source` in the task")

    def _copy(
        self, cancellation: Cancellation, call: "Callable[[SyncStub], grpc.CallIterator[SyncPullItem]]"
    ) -> str:
        state = ""
        with self.sync.connect() as channel:
            for item in _until_cancelled(call(SyncStub(channel)), cancellation):
                state = item.state
        return state

    def _require_node_account(self, request: TaskRequest) -> None:
        """Raise `TaskImpossible` for another account's flow: copies use the node's own credentials and folders."""
        owner = request.target["headers"]["account"].get("name")
        if self.is_multi_tenant and owner != NODE_ACCOUNT.text:
            text = (
                f"on a node of several accounts, {task_name(request.spec)} is for the account {NODE_ACCOUNT}"
            )
            raise TaskImpossible(text=text)


def _payload(request: TaskRequest, template: str | None) -> str:
    """Return the body of a message: the event as JSON, unless the task has a template."""
    dataset = (request.event or {}).get("dataset")
    roots = {
        "trigger": {"event": request.event, "dataset": dataset},
        "target": dict(request.target),
        "flow": request.flow,
        "run": request.run,
    }
    if template is None:
        return json_text(request.event)
    return Template.parse(template, IN_PAYLOAD).fill(payload_values(roots)).text


def _until_cancelled(call: "grpc.CallIterator[T]", cancellation: Cancellation) -> Iterator[T]:
    """Yield the answers to a call, which is cancelled on request; raises `TaskCancelled` then."""
    cancellation.listen(call.cancel)
    try:
        yield from call
    except grpc.RpcError:
        cancellation.check()
        raise
    cancellation.check()
