"""Pushes in flight: withdrawn by key, joined by content."""

import errno
import os
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from odf_testing.guarded import GuardedList

from odf_common.errors import OdfError, Refused, Unavailable
from odf_ingest.commit import file_commit as module
from odf_ingest.commit.committer import Outcome
from odf_ingest.commit.file_commit import IsWanted, PushesInFlight, Target, cancellation


class Slow:
    """A commit that ends on demand; it then checks whether it was cancelled."""

    def __init__(self, state: Any) -> None:
        self.state = state
        self.begun = threading.Event()
        self.may_end = threading.Event()
        self.calls = 0
        self.error: OdfError | None = None

    def __call__(self, is_wanted: IsWanted) -> Outcome:
        self.calls += 1
        self.begun.set()
        assert self.may_end.wait(10)
        if not is_wanted():
            raise cancellation()
        if self.error is not None:
            raise self.error
        return Outcome(state=self.state, count=7, is_new=True)


@pytest.fixture
def push(make_bench: Any, tmp_path: Path) -> Any:
    """Return a function that starts a push of some bytes in the background."""
    state = make_bench().state
    pushes = PushesInFlight()
    pool = ThreadPoolExecutor(4)

    def begin(
        content: str,
        commit: Slow,
        key: str,
        *,
        may_join: bool = True,
        source: str = "default",
        is_there: Callable[[], bool] = lambda: True,
    ) -> Future[Outcome]:
        file = tmp_path / key
        file.write_text(content)
        target = Target(dataset=state.dataset_id, source=source, event_time=None, size=len(content))
        return pool.submit(pushes.run, target, file, commit, key=key, is_there=is_there, may_join=may_join)

    begin.pushes = pushes  # type: ignore[attr-defined]
    begin.slow = lambda: Slow(state)  # type: ignore[attr-defined]
    yield begin
    pool.shutdown()


def joined(push: Any, slow: Slow) -> bool:
    return any(len(one.callers) > 1 for one in push.pushes._pushes)


def wait(condition: Callable[[], bool]) -> None:
    for _ in range(1000):
        if condition():
            return
        threading.Event().wait(0.01)
    raise AssertionError("waited in vain")


def test_a_push_of_the_same_bytes_joins_the_one_in_flight(push: Any, tmp_path: Path) -> None:
    slow, other = push.slow(), push.slow()
    first = push("same", slow, "a")
    assert slow.begun.wait(10)
    (tmp_path / "a").unlink()  # its client has left
    second = push("same", other, "b")
    wait(lambda: joined(push, slow))
    slow.may_end.set()
    assert (first.result(10).count, first.result().is_new) == (7, True)
    assert (second.result(10).count, second.result().is_new) == (0, False)
    assert other.calls == 0


@pytest.mark.parametrize(
    ("content", "more"), [("else", {}), ("same", {"may_join": False}), ("same", {"source": "other"})]
)
def test_other_bytes_an_explicit_key_or_another_source_are_another_push(
    push: Any, content: str, more: dict[str, Any]
) -> None:
    slow, other = push.slow(), push.slow()
    first = push("same", slow, "a")
    assert slow.begun.wait(10)
    second = push(content, other, "b", **more)
    assert other.begun.wait(10)
    for one in (slow, other):
        one.may_end.set()
    assert [(one.result(10).count, one.result().is_new) for one in (first, second)] == [(7, True)] * 2


def test_a_push_is_withdrawn_by_its_key(push: Any) -> None:
    slow = push.slow()
    first = push("same", slow, "a")
    assert slow.begun.wait(10)
    assert not push.pushes.withdraw("b")
    assert push.pushes.withdraw("a")
    slow.may_end.set()
    with pytest.raises(Refused, match="nothing was committed"):
        first.result(10)


def test_a_push_whose_client_has_gone_is_withdrawn(push: Any) -> None:
    slow = push.slow()
    slow.may_end.set()
    with pytest.raises(Refused, match="nothing was committed"):
        push("same", slow, "a", is_there=lambda: False).result(10)


def test_a_push_that_another_client_has_joined_continues_without_the_first_client(push: Any) -> None:
    slow = push.slow()
    first = push("same", slow, "a")
    assert slow.begun.wait(10)
    second = push("same", push.slow(), "b")
    wait(lambda: joined(push, slow))
    push.pushes.withdraw("a")
    slow.may_end.set()
    assert first.result(10).count == 7
    assert not second.result(10).is_new


def test_a_client_that_has_joined_waits_without_a_timeout(push: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CALLER_POLL_SECONDS", 0.001)
    slow, looks = push.slow(), Counter[str]()

    def is_there() -> bool:
        looks["b"] += 1
        return True

    first = push("same", slow, "a")
    assert slow.begun.wait(10)
    second = push("same", push.slow(), "b", is_there=is_there)
    wait(lambda: looks["b"] > 3)
    slow.may_end.set()
    assert first.result(10).is_new
    assert not second.result(10).is_new


def test_a_push_that_cannot_be_compared_is_a_separate_one(push: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(*_: object) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    slow, other = push.slow(), push.slow()
    first = push("some", slow, "a")
    assert slow.begun.wait(10)
    monkeypatch.setattr(os, "pread", unreadable)
    second = push("same", other, "b")
    assert other.begun.wait(10)
    for one in (slow, other):
        one.may_end.set()
    assert [one.result(10).is_new for one in (first, second)] == [True, True]


def test_a_client_that_has_joined_and_withdraws_is_answered_at_once(push: Any) -> None:
    slow = push.slow()
    first = push("same", slow, "a")
    assert slow.begun.wait(10)
    second = push("same", push.slow(), "b")
    wait(lambda: joined(push, slow))
    push.pushes.withdraw("b")
    with pytest.raises(Refused, match="nothing was committed"):
        second.result(10)
    slow.may_end.set()
    assert first.result(10).is_new


def test_a_push_that_was_withdrawn_is_joined_by_none(push: Any) -> None:
    slow, other = push.slow(), push.slow()
    first = push("same", slow, "a")
    assert slow.begun.wait(10)
    push.pushes.withdraw("a")
    second = push("same", other, "b")
    assert other.begun.wait(10)
    for one in (slow, other):
        one.may_end.set()
    assert second.result(10).is_new
    with pytest.raises(Refused, match="cancelled"):
        first.result(10)


def test_clients_that_joined_a_push_get_its_error(push: Any) -> None:
    slow = push.slow()
    slow.error = Unavailable(what="Kafka")
    first = push("same", slow, "a")
    assert slow.begun.wait(10)
    second = push("same", push.slow(), "b")
    wait(lambda: joined(push, slow))
    slow.may_end.set()
    for one in (first, second):
        with pytest.raises(Unavailable):
            one.result(10)


def test_a_push_that_has_ended_is_no_longer_in_flight(push: Any) -> None:
    slow = push.slow()
    slow.may_end.set()
    assert push("same", slow, "a").result(10).is_new

    assert push.pushes._pushes == []
    assert not push.pushes.withdraw("a")


def test_pushes_are_joined_withdrawn_and_ended_under_their_lock(push: Any) -> None:
    pushes, slow = push.pushes, push.slow()
    pushes._pushes = GuardedList(pushes._lock)

    def is_joined() -> bool:
        with pushes._lock:
            return joined(push, slow)

    first = push("same", slow, "a")
    assert slow.begun.wait(10)
    second = push("same", push.slow(), "b")
    wait(is_joined)
    assert not pushes.withdraw("c")
    slow.may_end.set()
    assert [one.result(10).count for one in (first, second)] == [7, 0]
