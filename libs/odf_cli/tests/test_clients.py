import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest
from odf_testing.actors import VirtualTime
from odf_testing.fake_services import fake_service
from odf_testing.story import root

from odf_cli import clients
from odf_cli import main as cli
from odf_cli.commands.repositories import repository_lines
from odf_cli.embedded.node_file import Node
from odf_common.adapters.grpc.client import ServiceFailed, ServiceUnreachable
from odf_common.adapters.grpc.server import serve
from odf_common.errors import NotFound, Unavailable
from odf_common.proto.odf.node.v1 import coordinator_pb2 as wire
from odf_common.proto.odf.node.v1.access_pb2 import AccountItem, ListAccountsReply
from odf_common.proto.odf.node.v1.coordinator_pb2 import DeleteRequest
from odf_common.proto.odf.node.v1.sync_pb2 import (
    ListAliasesReply,
    ListAliasesRequest,
    SearchedRepository,
    SyncPullItem,
)
from odf_common.service.protection import peer_credentials
from odf_common.service.settings import Settings


@pytest.fixture
def listener() -> socket.socket:
    """A port at which no process listens yet."""
    made = socket.socket()
    made.bind(("127.0.0.1", 0))
    return made


def node_at(listener: socket.socket) -> Node:
    host, port = listener.getsockname()
    return Node(home=Path(), pid=1, grpc={"coordinator": f"{host}:{port}"})


def test_a_service_that_is_being_restarted_is_waited_for(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Clock(VirtualTime):
        pauses = 0

        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            self.pauses += 1
            if self.pauses == 3:
                listener.listen()

    clock = Clock(monkeypatch)
    with listener, clients.coordinator(node_at(listener)) as coordinator:
        assert coordinator is not None
    assert clock.pauses == 3


def test_a_service_that_stays_down_is_reported_with_advice(listener: socket.socket) -> None:
    with (
        listener,
        pytest.raises(ServiceUnreachable) as caught,
        clients.coordinator(node_at(listener), timeout=0),
    ):
        pass
    assert str(caught.value).startswith("coordinator cannot be reached: no server answers at 127.0.0.1:")
    assert "`odf status`" in caught.value.advice()


def test_a_call_that_ctrl_c_made_fail_is_an_interrupt(listener: socket.socket) -> None:
    """A command that goes on after a failed call would go on after Ctrl-C."""

    def interrupted() -> None:
        try:
            raise KeyboardInterrupt
        finally:
            raise RuntimeError("cannot release un-acquired lock")

    listener.listen()
    with listener, pytest.raises(KeyboardInterrupt), clients.coordinator(node_at(listener)):
        interrupted()


def test_a_call_carries_the_secret_of_the_home_of_its_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ODF_HOME", str(tmp_path / "another"))
    home = tmp_path / "home"
    credentials = peer_credentials(Settings(home=home), "127.0.0.1:0")
    server = serve("127.0.0.1:0", lambda _: (), credentials=credentials)
    there = Node(home=home, pid=os.getpid(), grpc={"coordinator": f"127.0.0.1:{server.port}"})
    try:
        with (
            pytest.raises(ServiceFailed, match="Method not found"),
            clients.coordinator(there) as coordinator,
        ):
            coordinator.Delete(DeleteRequest(ref="orders"), timeout=10)
    finally:
        server.stop(0)


@dataclass
class FakeNode:
    """A node with the account ann, which accepts all requests."""

    is_multi_tenant: bool = True
    done: list[str] = field(default_factory=list)
    asked: int = 0
    has_sync: bool = True

    def list_accounts(self, _: object, timeout: float) -> ListAccountsReply:
        self.asked += 1
        if not self.has_sync:
            raise Unavailable(what="sync", why="this node does not run it")
        return ListAccountsReply(accounts=[AccountItem(name="ann")], is_multi_tenant=self.is_multi_tenant)

    def rename(self, request: wire.RenameRequest, timeout: float) -> wire.DatasetSummary:
        self.done.append(request.new_alias)
        return wire.DatasetSummary(alias=request.new_alias)

    def add(self, request: wire.AddRequest, timeout: float) -> wire.AddReply:
        self.done += [one.name for one in request.manifests]
        return wire.AddReply()

    def pull(self, request: object, timeout: float) -> Iterator[SyncPullItem]:
        self.done.append("pulled")
        yield SyncPullItem(alias="x", state="updated")


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> FakeNode:
    node = FakeNode()

    fake_service(monkeypatch, "access", ListAccounts=node.list_accounts)
    fake_service(
        monkeypatch,
        "coordinator",
        Rename=node.rename,
        Add=node.add,
        LastEvent=lambda *_, **__: wire.LastEventReply(),
    )
    fake_service(monkeypatch, "sync", Pull=node.pull)
    monkeypatch.setattr(clients, "this_node", lambda: None)
    return node


def manifest(folder: Path, name: str) -> str:
    file = folder / "manifest.yaml"
    file.write_text(json.dumps(root(name, ("id BIGINT",))))
    return str(file)


def commands(folder: Path, name: str) -> tuple[list[str], ...]:
    return (
        ["rename", "ann/orders", name],
        ["pull", "file:///srv/orders", "--as", name],
        ["pull", "file:///srv/orders", "--as", f"{name}@theirs"],
        ["add", manifest(folder, name)],
    )


def test_a_name_with_an_unknown_account_is_refused(
    node: FakeNode, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in commands(tmp_path, "zed/orders"):
        assert cli.main(command) == 1
        assert capsys.readouterr().err == (
            "error: account zed, which would own zed/orders, does not exist\n"
            "hint: add it with `odf account add zed`, or correct the name\n"
        )
    assert node.done == []


@pytest.mark.parametrize("name", ["ann/orders", "ANN/orders", "orders"])
def test_a_name_of_a_known_account_and_one_without_are_given(
    node: FakeNode, tmp_path: Path, name: str
) -> None:
    for command in commands(tmp_path, name):
        assert cli.main(command) == 0
    assert len(node.done) == 4
    assert node.asked == (0 if name == "orders" else 4)


def test_accounts_of_a_single_tenant_node_own_nothing(node: FakeNode, tmp_path: Path) -> None:
    node.is_multi_tenant = False
    for command in commands(tmp_path, "zed/orders"):
        assert cli.main(command) == 0
    assert len(node.done) == 4


@pytest.mark.parametrize("was_multi_tenant", [False, True])
def test_without_sync_names_are_given_where_accounts_never_owned_datasets(
    node: FakeNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, was_multi_tenant: bool
) -> None:
    monkeypatch.setenv("ODF_HOME", str(tmp_path))
    if was_multi_tenant:
        (tmp_path / "tenancy").touch()
    node.has_sync = False
    for command in commands(tmp_path, "zed/orders"):
        assert (cli.main(command) == 0) != was_multi_tenant
    assert len(node.done) == (0 if was_multi_tenant else 4)


def test_an_invalid_name_or_manifest_is_left_to_the_node(node: FakeNode, tmp_path: Path) -> None:
    (tmp_path / "odd.yaml").write_text("kind: [")
    assert cli.main(["add", str(tmp_path / "odd.yaml")]) == 0
    assert cli.main(["rename", "orders", "zed/a/b"]) == 0
    assert len(node.done) == 2


def test_each_repository_is_reported() -> None:
    searched = [
        SearchedRepository(name="shop", datasets=3),
        SearchedRepository(name="lone", datasets=1),
        SearchedRepository(name="disk", problem="no such folder"),
    ]
    assert repository_lines(searched) == [
        "shop: 3 datasets",
        "lone: 1 dataset",
        "disk: not searched: no such folder",
    ]


def test_the_aliases_of_no_dataset_are_not_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def listed(request: ListAliasesRequest, timeout: float) -> ListAliasesReply:
        del timeout
        if request.is_strict and request.refs:
            raise NotFound(what=f"dataset {request.refs[0]}")
        return ListAliasesReply()

    @contextmanager
    def opened() -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(ListAliases=listed)

    monkeypatch.setattr(clients, "sync", opened)

    assert cli.main(["alias", "list"]) == 0
    assert cli.main(["alias", "list", "nope"]) == 1
    assert "dataset nope does not exist" in capsys.readouterr().err
