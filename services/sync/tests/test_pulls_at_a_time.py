"""Two concurrent pulls of one name: one after the other, and none for a caller that has gone."""

import threading
from collections.abc import Iterator
from typing import Any, cast

import pytest

from odf_common.proto.odf.node.v1 import sync_pb2 as pb
from odf_sync import grpc_servicer
from odf_sync.grpc_servicer import Servicer
from odf_sync.transfer.local_copy import Step


class Caller:
    """The context of a call."""

    def __init__(self) -> None:
        self.has_gone = threading.Event()

    def is_active(self) -> bool:
        return not self.has_gone.is_set()


class Pulls:
    """Pulls that run until they are released."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.may_end = threading.Event()
        self.changed = threading.Condition()

    def __call__(self, *arguments: Any, **_: object) -> Iterator[Step]:
        with self.changed:
            self.begun.append(arguments[3])
            self.changed.notify_all()
        assert self.may_end.wait(10)
        yield Step(alias="a", state="updated")

    def wait_for(self, count: int) -> bool:
        with self.changed:
            return self.changed.wait_for(lambda: len(self.begun) == count, 10)


@pytest.fixture
def pulls(monkeypatch: pytest.MonkeyPatch) -> Pulls:
    made = Pulls()
    monkeypatch.setattr(grpc_servicer, "pull", made)
    monkeypatch.setattr(grpc_servicer, "CALLER_CHECK_SECONDS", 0.01)
    return made


@pytest.fixture
def servicer() -> Servicer:
    unused = cast("Any", None)
    return Servicer(
        datasets=unused,
        settings=unused,
        replies=unused,
        logins=cast("Any", Logins()),
        privacy=unused,
        search=unused,
    )


class Logins:
    def token(self, _: str) -> None:
        return None


def pulling(servicer: Servicer, alias: str, caller: Caller) -> threading.Thread:
    request = pb.SyncPullRequest(url="http://localhost/a", alias=alias)
    thread = threading.Thread(target=lambda: list(servicer.Pull(request, cast("Any", caller))), daemon=True)
    thread.start()
    return thread


def test_pulls_by_one_name_run_one_after_the_other(servicer: Servicer, pulls: Pulls) -> None:
    first = pulling(servicer, "cities", Caller())
    assert pulls.wait_for(1)
    second = pulling(servicer, "Cities", Caller())
    other = pulling(servicer, "towns", Caller())
    assert pulls.wait_for(2)
    assert pulls.begun == ["cities", "towns"]
    pulls.may_end.set()
    assert pulls.wait_for(3)
    for one in (first, second, other):
        one.join(10)
    assert len(servicer._busy) == 0


def test_a_caller_who_has_gone_does_not_wait(servicer: Servicer, pulls: Pulls) -> None:
    first = pulling(servicer, "cities", Caller())
    assert pulls.wait_for(1)
    caller = Caller()
    second = pulling(servicer, "cities", caller)
    caller.has_gone.set()
    second.join(10)
    assert not second.is_alive()
    assert pulls.begun == ["cities"]
    pulls.may_end.set()
    first.join(10)
