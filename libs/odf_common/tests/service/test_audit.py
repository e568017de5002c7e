"""Calls over gRPC that change something, or are refused, are in the audit log: who, which method, which dataset, outcome."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import grpc
import pytest
from google.protobuf.descriptor_pb2 import MethodOptions
from odf_testing.builders import a_dataset
from odf_testing.bus import MemoryBus
from odf_testing.certificates import self_signed

from odf_common.adapters.grpc.calls import Call
from odf_common.adapters.grpc.client import await_channel, channel
from odf_common.adapters.grpc.peer_credentials import PeerTls
from odf_common.adapters.grpc.server import serve
from odf_common.codec.envelopes import Envelope, decode
from odf_common.errors import NotFound, OdfError, Refused, Unavailable
from odf_common.ports.bus import AUDIT
from odf_common.proto.odf.bus.v1.bus_pb2 import AccessDecision
from odf_common.proto.odf.node.v1 import access_pb2 as access
from odf_common.proto.odf.node.v1 import (
    access_pb2_grpc,
    coordinator_pb2_grpc,
    ingest_pb2,
    ingest_pb2_grpc,
    push_pb2,
    resources_pb2,
    sync_pb2,
    verifier_pb2,
    webhooks_pb2,
)
from odf_common.proto.odf.node.v1 import coordinator_pb2 as pb
from odf_common.service.audit import DROPPED_ENTRIES, MAX_NAME_CHARACTERS, Audit

READS: Final = {
    *("Access.ListAccounts", "Access.ListTokens", "Access.ShowAccess", "Access.ListLogIns"),
    *(
        "Coordinator.List",
        "Coordinator.Describe",
        "Coordinator.Log",
        "Coordinator.LastEvent",
        "Coordinator.Tail",
    ),
    *("Coordinator.Query", "Coordinator.ListRefs", "Coordinator.Compare"),
    *(
        "Ingest.Drain",
        "Ingest.Future",
        "Ingest.Stuck",
        "Ingest.Rejected",
        "Ingest.ShowSources",
        "Ingest.CountSourceRecords",
        "Ingest.Polls",
        "Ingest.Sample",
    ),
    *("Push.Check", "Push.Show", "Sync.Compare", "Sync.ListAliases", "Sync.Search", "Verifier.Verify"),
    "Webhooks.ListWebhooks",
    *("Resources.GetResource", "Resources.ListResources", "Resources.ShowHistory"),
    *("Resources.ListResourceTypes", "Resources.WatchResources", "Resources.WatchDueResources"),
    "Resources.WatchDatasetGrants",
    "Flows.ListFlowRuns",
}
CHANGES: Final = {
    *("Access.AddAccount", "Access.SetPassword", "Access.RemoveAccount", "Access.CreateToken"),
    *("Access.RevokeToken", "Access.ChangeAccess", "Access.LogIn", "Access.LogOut"),
    *("Coordinator.Add", "Coordinator.Pull", "Coordinator.Rename", "Coordinator.Delete", "Coordinator.Reset"),
    "Coordinator.UpgradeEngine",
    *("Coordinator.DropData", "Coordinator.CommitEvent", "Coordinator.SetRef", "Coordinator.DeleteRef"),
    "Coordinator.FastForward",
    *(
        "Ingest.Push",
        "Ingest.SettleRejected",
        "Ingest.CancelPush",
        "Ingest.ResumeSource",
        "Ingest.SkipMessage",
    ),
    *(
        "Ingest.Poll",
        "Ingest.SetSource",
        "Push.Accept",
        "Push.Stream",
        "Sync.Pull",
        "Sync.Push",
        "Sync.ChangeAliases",
    ),
    *("Webhooks.AddWebhook", "Webhooks.DeleteWebhook", "Webhooks.CallWebhook"),
    *("Resources.ApplyResources", "Resources.DeleteResource", "Resources.RenameResource"),
    *("Resources.ReconcileResource", "Resources.AddResourceTypes", "Resources.RotateSecretKeys"),
    *("Resources.BeginAttempts", "Resources.EndAttempts", "Flows.RunFlow"),
}
PREFIX: Final = "/odf.node.v1."
DATASET: Final = str(a_dataset())


class Coordinator(coordinator_pb2_grpc.CoordinatorServicer):
    fault: Exception | None = None

    def _check(self) -> None:
        if self.fault is not None:
            raise self.fault

    def Add(self, request: pb.AddRequest, context: Any) -> pb.AddReply:  # noqa: N802
        results = [pb.AddReply.Result(alias=one) for one in ("orders", "daily")]
        return pb.AddReply(results=results)

    def Delete(self, request: pb.DeleteRequest, context: Any) -> pb.DeleteReply:  # noqa: N802
        self._check()
        return pb.DeleteReply()

    def List(self, request: pb.ListRequest, context: Any) -> pb.ListReply:  # noqa: N802
        self._check()
        return pb.ListReply()

    def Log(self, request: pb.LogRequest, context: Any) -> Iterator[pb.BlockItem]:  # noqa: N802
        self._check()
        yield pb.BlockItem()

    def Pull(self, request: pb.PullRequest, context: Any) -> Iterator[pb.PullItem]:  # noqa: N802
        yield pb.PullItem()
        self._check()
        yield pb.PullItem()


class Access(access_pb2_grpc.AccessServicer):
    def SetPassword(self, request: Any, context: Any) -> access.AccountItem:  # noqa: N802
        return access.AccountItem()


class Ingest(ingest_pb2_grpc.IngestServicer):
    def Push(self, request_iterator: Any, context: Any) -> ingest_pb2.PushReply:  # noqa: N802
        list(request_iterator)
        return ingest_pb2.PushReply()


class Node:
    """A server of three services, and the audit entries of its calls."""

    def __init__(self, tls: PeerTls | None = None) -> None:
        self.servicer, self.audit, self.bus = Coordinator(), Audit(), MemoryBus()

        def register(server: grpc.Server) -> tuple[str, ...]:
            coordinator_pb2_grpc.add_CoordinatorServicer_to_server(self.servicer, server)
            access_pb2_grpc.add_AccessServicer_to_server(Access(), server)
            ingest_pb2_grpc.add_IngestServicer_to_server(Ingest(), server)
            return ()

        self.server = serve("127.0.0.1:0", register, credentials=tls, on_call=self.audit.note_call)
        self.address = f"127.0.0.1:{self.server.port}"

    def noted(self, count: int = 1) -> list[AccessDecision]:
        """Return the entries since the last call, once there are that many; the client may get its response first."""
        found: list[AccessDecision] = []
        until = time.monotonic() + 10
        while len(found) < count and time.monotonic() < until:
            self.audit.finish(self.bus)
            found += [decode(*message).access_decision for message in self.bus.topics.pop(AUDIT, [])]
            time.sleep(0.01)
        return found


@contextmanager
def serving(tls: PeerTls | None = None) -> Iterator[Node]:
    node = Node(tls)
    try:
        yield node
    finally:
        node.server.stop(0)


@pytest.fixture
def node() -> Iterator[Node]:
    with serving() as node:
        yield node


@pytest.fixture
def stub(node: Node) -> Iterator[coordinator_pb2_grpc.CoordinatorStub]:
    with channel(node.address) as open_channel:
        yield coordinator_pb2_grpc.CoordinatorStub(open_channel)


def test_each_method_says_whether_it_changes_something() -> None:
    modules = (access, pb, ingest_pb2, push_pb2, resources_pb2, sync_pb2, verifier_pb2, webhooks_pb2)
    methods = {
        f"{service.name}.{method.name}": method.GetOptions().idempotency_level
        for module in modules
        for service in module.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }
    reads = {name for name, level in methods.items() if level == MethodOptions.NO_SIDE_EFFECTS}
    assert (reads, methods.keys() - reads) == (READS, CHANGES)


def plain(entry: AccessDecision) -> tuple[Any, ...]:
    return entry.method, entry.route, entry.dataset, entry.is_allowed, entry.status, entry.error


def test_a_change_is_noted_with_its_dataset_and_its_caller(
    node: Node, stub: coordinator_pb2_grpc.CoordinatorStub
) -> None:
    stub.Delete(pb.DeleteRequest(ref=DATASET))
    (entry,) = node.noted()
    assert plain(entry) == ("gRPC", f"{PREFIX}Coordinator/Delete", DATASET, True, 0, "")
    assert (entry.address, entry.account) == ("127.0.0.1", "")
    assert entry.user_agent.startswith("grpc-python")


def test_the_entry_of_a_change_has_the_datasets_key(
    node: Node, stub: coordinator_pb2_grpc.CoordinatorStub
) -> None:
    stub.Delete(pb.DeleteRequest(ref=DATASET))
    deadline = time.monotonic() + 10
    while not node.bus.topics.get(AUDIT) and time.monotonic() < deadline:
        node.audit.finish(node.bus)
    assert [decode(*message).dataset_id for message in node.bus.topics[AUDIT]] == [DATASET]


def test_datasets_that_were_added_are_named(node: Node, stub: coordinator_pb2_grpc.CoordinatorStub) -> None:
    stub.Add(pb.AddRequest())
    assert [entry.dataset for entry in node.noted()] == ["orders,daily"]


@pytest.mark.parametrize(
    ("fault", "status", "error"),
    [(NotFound(what="orders"), 5, "NotFound"), (Refused(reason="InUse", text="in use"), 9, "InUse")],
)
def test_a_refused_call_is_noted_also_if_it_only_reads(
    node: Node, stub: coordinator_pb2_grpc.CoordinatorStub, fault: OdfError, status: int, error: str
) -> None:
    node.servicer.fault = fault
    for call in (
        lambda: stub.Delete(pb.DeleteRequest(ref="orders")),
        lambda: list(stub.Log(pb.LogRequest(ref="orders"))),
        lambda: list(stub.Pull(pb.PullRequest(refs=["orders", "daily"]))),
    ):
        with pytest.raises(grpc.RpcError):
            call()
    found = {plain(entry) for entry in node.noted(3)}
    assert found == {
        ("gRPC", f"{PREFIX}Coordinator/Delete", "orders", False, status, error),
        ("gRPC", f"{PREFIX}Coordinator/Log", "orders", False, status, error),
        ("gRPC", f"{PREFIX}Coordinator/Pull", "orders,daily", False, status, error),
    }


def test_reads_and_those_that_cannot_be_answered_now_are_not_noted(
    node: Node, stub: coordinator_pb2_grpc.CoordinatorStub
) -> None:
    stub.List(pb.ListRequest())
    node.servicer.fault = Unavailable(what="Kafka")
    with pytest.raises(grpc.RpcError):
        stub.List(pb.ListRequest())
    node.servicer.fault = None
    stub.Delete(pb.DeleteRequest(ref="orders"))
    assert [entry.route for entry in node.noted()] == [f"{PREFIX}Coordinator/Delete"]


def test_a_bug_and_a_caller_that_has_gone_are_outcomes(
    node: Node, stub: coordinator_pb2_grpc.CoordinatorStub
) -> None:
    node.servicer.fault = ZeroDivisionError("a secret")
    with pytest.raises(grpc.RpcError):
        stub.Delete(pb.DeleteRequest(ref="orders"))
    (entry,) = node.noted()
    assert (entry.is_allowed, entry.status, entry.error) == (False, 13, "INTERNAL")
    assert "secret" not in str(entry)


def test_passwords_are_not_noted_and_accounts_are(node: Node) -> None:
    with channel(node.address) as open_channel:
        stub = access_pb2_grpc.AccessStub(open_channel)
        stub.SetPassword(access.SetPasswordRequest(name="ann", password="ann's password"))
    (entry,) = node.noted()
    assert (entry.subject, entry.dataset) == ("ann", "")
    assert "password" not in str(entry).replace("SetPassword", "")


def test_a_stream_of_requests_is_noted_once_with_the_dataset_of_its_header(node: Node) -> None:
    parts = [ingest_pb2.PushPart(header=ingest_pb2.PushHeader(ref="orders")), *[ingest_pb2.PushPart()] * 3]
    with channel(node.address) as open_channel:
        ingest_pb2_grpc.IngestStub(open_channel).Push(iter(parts))
    assert [plain(entry)[1:3] for entry in node.noted()] == [(f"{PREFIX}Ingest/Push", "orders")]


def test_with_mutual_tls_the_name_in_the_certificate_is_noted(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    tls = PeerTls.read(certificate=certificate, key=key, authority=certificate)
    with serving(tls) as node:
        with await_channel("node", node.address, credentials=tls, user_agent="odf (ann)") as open_channel:
            coordinator_pb2_grpc.CoordinatorStub(open_channel).Delete(pb.DeleteRequest(ref="orders"))
        (entry,) = node.noted()
    assert entry.account == "127.0.0.1"
    assert entry.user_agent.startswith("odf (ann) grpc-python")


def test_a_full_queue_delays_no_call(stub: coordinator_pb2_grpc.CoordinatorStub, node: Node) -> None:
    node.audit._waiting.maxsize, lost = 1, DROPPED_ENTRIES._value.get()
    for _ in range(3):
        stub.Delete(pb.DeleteRequest(ref="orders"))
    until = time.monotonic() + 10
    while DROPPED_ENTRIES._value.get() - lost < 2 and time.monotonic() < until:
        time.sleep(0.01)
    assert DROPPED_ENTRIES._value.get() - lost == 2


def test_a_call_that_cannot_be_noted_is_answered(
    node: Node, stub: coordinator_pb2_grpc.CoordinatorStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The work is done: after an error, the client would repeat the call."""

    def broken(*_: object) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr(node.audit, "put", broken)
    stub.Delete(pb.DeleteRequest(ref="orders"))


CHANGE: Final = Call(method="/odf.node.v1.Coordinator/Delete", dataset=DATASET)


def noted(*calls: Call) -> list[Envelope]:
    audit, bus = Audit(), MemoryBus()
    for call in calls:
        audit.note_call(call)
    audit.finish(bus)
    return [decode(*message) for message in bus.topics[AUDIT]]


def test_calls_of_the_engine_are_parts_of_others() -> None:
    assert noted(replace(CHANGE, method="/odf.engine.Engine/ExecuteTransform")) == []


def test_a_method_that_is_not_known_may_have_changed_something() -> None:
    assert len(noted(replace(CHANGE, method="/odf.node.v1.Later/Delete"))) == 1


@pytest.mark.parametrize("status", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED])
def test_a_change_without_success_is_not_allowed_and_belongs_to_no_dataset(status: grpc.StatusCode) -> None:
    done, failed = noted(CHANGE, replace(CHANGE, status=status))
    assert (done.dataset_id, failed.dataset_id) == (DATASET, "")
    assert (done.access_decision.is_allowed, failed.access_decision.is_allowed) == (True, False)
    assert failed.access_decision.dataset == DATASET
    assert done.may_ignore


def test_strings_of_a_client_are_truncated_and_made_valid() -> None:
    sent = "\ud800" + "x" * 1000
    call = replace(CHANGE, dataset=sent, subject=sent, certificate_name=sent, address=sent, user_agent=sent)
    (entry,) = (message.access_decision for message in noted(call))
    found = {entry.dataset, entry.subject, entry.account, entry.address, entry.user_agent}
    assert found == {"?" + "x" * (MAX_NAME_CHARACTERS - 1)}
