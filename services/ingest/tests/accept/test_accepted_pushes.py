import errno
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from odf_testing.guarded import GuardedDict

from odf_common.errors import Refused, StorageUnavailable, Unavailable
from odf_common.metadata.events import MergeStrategyLedger
from odf_common.ports.clock import Backoff
from odf_common.service.outages import SilentParts
from odf_ingest import accepted_pushes as module
from odf_ingest import metrics
from odf_ingest.accepted_pushes import (
    PUSH_BACKOFF,
    AcceptedPushes,
    Parts,
    Receipt,
    Receipts,
    id_of,
)
from odf_ingest.commit import slice_writer
from odf_ingest.commit.committer import Outcome
from odf_ingest.commit.file_commit import FileCommit, digest_of
from odf_ingest.errors import NothingCommitted

LEDGER = MergeStrategyLedger(primary_key=("id",))


class Node:
    """A dataset, and pushes accepted for it; `restart` simulates a kill and a restart."""

    def __init__(self, bench: Any, home: Path) -> None:
        self.bench = bench
        self.home = home
        self._stops: list[threading.Event] = []
        self._pools: list[ThreadPoolExecutor] = []
        self.pushes = self.restart()

    def restart(self) -> AcceptedPushes:
        for stop in self._stops:
            stop.set()
        pool = ThreadPoolExecutor(4)
        self._pools.append(pool)
        receipts = Receipts(self.home)
        self.silent = SilentParts()
        self.pushes = AcceptedPushes(
            Parts(
                receipts=receipts,
                queues=self.bench.queues,
                preparer=self.bench.preparer,
                rejecting=self.bench.rejecting,
                pool=pool,
                silent=self.silent,
            )
        )
        return self.pushes

    def start(self) -> None:
        stop = threading.Event()
        self._stops.append(stop)
        threading.Thread(target=self.pushes.run, args=(stop,), daemon=True).start()

    def accept(self, text: str, key: str = "k", *, is_key_generated: bool = False, **fields: str) -> Receipt:
        self.home.mkdir(exist_ok=True)
        file = self.home / "staged"
        file.write_text(text)
        receipt = Receipt(
            id=id_of(self.bench.dataset, "default", key),
            source="default",
            key=key,
            is_key_generated=is_key_generated,
            input_format=fields.get("input_format", ""),
            event_time="2020-06-01T00:00:00Z",
            digest=digest_of(file),
            size=len(text),
            accepted_at=1,
        )
        stored = self.pushes.receipts.accept(self.bench.dataset, receipt, file)
        file.unlink()
        return stored

    def settled(self, receipt: Receipt, seconds: float = 20.0) -> Receipt:
        until = time.monotonic() + seconds
        while True:  # one that waits for the disk is returned at once
            found = self.waiting(receipt, until - time.monotonic())
            if not found.code or found.is_settled or time.monotonic() > until:
                return found
            time.sleep(0.01)

    def waiting(self, receipt: Receipt, seconds: float = 20.0) -> Receipt:
        found = self.pushes.await_settled(self.bench.dataset, receipt.id, seconds, lambda: True)
        assert found is not None
        return found

    def close(self) -> None:
        for stop in self._stops:
            stop.set()
        for pool in self._pools:
            pool.shutdown()


@pytest.fixture
def make_node(make_bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(module, "SCAN_SECONDS", 0.1)
    made: list[Node] = []

    def make(*args: Any) -> Node:
        made.append(Node(make_bench(*args), tmp_path / "home"))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def node(make_node: Callable[..., Node]) -> Node:
    return make_node()


def line(number: int, value: str = "a") -> str:
    return f'{{"id":{number},"v":"{value}","event_time":"2020-01-01T00:00:00Z"}}\n'


def while_committing(monkeypatch: pytest.MonkeyPatch, *actions: Callable[[], object]) -> None:
    """Do one of these before each of the next commits."""
    commit, left = FileCommit.commit, list(actions)

    def acting(work: FileCommit, *arguments: Any) -> Outcome:
        if left:
            left.pop(0)()
        return commit(work, *arguments)

    monkeypatch.setattr(FileCommit, "commit", acting)


def fail(error: Exception) -> None:
    raise error


def test_a_push_is_committed_after_it_was_accepted(node: Node) -> None:
    node.start()
    receipt = node.accept(line(1) + line(2))
    assert receipt.state == "accepted"
    node.pushes.wake(node.bench.dataset)
    done = node.settled(receipt)
    assert (done.state, done.records, done.head) == ("committed", 2, str(node.bench.state.head))


def test_pushes_are_committed_in_the_order_of_acceptance(node: Node) -> None:
    receipts = [node.accept(line(number), f"key{number}") for number in (3, 1, 2)]
    node.start()
    assert [node.settled(one).state for one in receipts] == ["committed"] * 3
    assert node.bench.values("id") == [(3,), (1,), (2,)]


def test_a_refused_push_says_why_and_the_next_one_is_committed(node: Node) -> None:
    bad = node.accept('{"id":"x"}\n', "bad")
    good = node.accept(line(2), "good")
    node.start()
    refused = node.settled(bad)
    assert (refused.state, refused.code, refused.head) == ("refused", "InvalidInput", "")
    assert refused.text.startswith("line 1: column id")
    assert node.settled(good).state == "committed"
    assert node.bench.values("id") == [(2,)]


def test_a_receipt_has_the_number_of_rejected_rows_and_the_first_reason(
    node: Node,
) -> None:
    receipt = node.accept('{"id":1}\n{"id":"x"}\ny\n')
    node.pushes.wake(node.bench.dataset)
    done = node.settled(receipt)
    assert (done.state, done.records, done.rejected) == ("committed", 1, 2)
    text = "line 2: column id: 'x' is not a value of BIGINT; declare STRING, and convert it in preprocess"
    assert done.rejected_reason == text
    (first, _) = node.bench.coordinator.letters
    assert first.reason == f"push {receipt.id}, {done.rejected_reason}"


@pytest.mark.parametrize("is_key_generated", [False, True])
@pytest.mark.parametrize(
    "kill",
    [(FileCommit, "before_proposal", [], 1), (Receipts, "settle", [(1,)], None)],
    ids=["before the commit", "between the commit and the receipt"],
)
def test_a_kill_loses_and_doubles_nothing(
    node: Node,
    monkeypatch: pytest.MonkeyPatch,
    kill: tuple[type, str, list[tuple[int]], int | None],
    is_key_generated: bool,
) -> None:
    owner, name, rows, records = kill
    receipt = node.accept(line(1), is_key_generated=is_key_generated)
    reached = threading.Event()

    def killed(*_: object) -> None:
        reached.set()
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, killed)
        node.pushes.wake(node.bench.dataset)
        assert reached.wait(20)
    assert node.bench.values("id") == rows
    node.restart()
    node.start()
    done = node.settled(receipt)
    assert (done.state, done.records, node.bench.values("id")) == ("committed", records, [(1,)])


@pytest.mark.parametrize(
    ("owner", "name", "fault"),
    [
        (slice_writer, "write_slice", OSError(errno.ENOSPC, "full")),
        (Receipts, "pending", StorageUnavailable(file="accepted", why="Cannot allocate memory")),
    ],
    ids=["the disk is full", "pushes cannot be listed"],
)
def test_who_waits_for_a_push_is_told_at_once_what_fails(
    node: Node, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, fault: Exception
) -> None:
    faults, usual = [fault], getattr(owner, name)

    def failing(*args: Any) -> Any:
        if faults:
            raise faults[0]
        return usual(*args)

    monkeypatch.setattr(owner, name, failing)
    node.start()
    receipt = node.accept(line(1))
    waiting = node.waiting(receipt)
    assert (waiting.state, waiting.code) == ("accepted", "StorageUnavailable")
    faults.clear()
    assert (node.settled(receipt).state, node.settled(receipt).code) == ("committed", "")


@pytest.mark.parametrize(
    ("silent", "code", "text"),
    [
        ({"kafka": "no answer at 10.0.0.1"}, "PartSilent", "kafka does not answer"),
        ({"coordinator": "reset"}, "PartSilent", "coordinator does not answer"),
        ({"redis": "reset", "engine-spark": "reset"}, "", ""),  # no push waits for them
    ],
)
def test_who_waits_for_a_push_is_told_soon_which_part_does_not_answer(
    node: Node, silent: dict[str, str], code: str, text: str
) -> None:
    receipt = node.accept(line(1))  # nothing commits it
    node.silent.replace(silent)
    waiting = node.waiting(receipt, module.PATIENCE_SECONDS + 0.5)
    assert (waiting.state, waiting.code, waiting.text) == ("accepted", code, text)
    node.start()
    assert (node.settled(receipt).state, node.waiting(receipt).code) == ("committed", "")


def test_a_push_is_tried_again_as_soon_as_the_part_that_it_waits_for_answers(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = threading.Event()
    monkeypatch.setattr(module, "PUSH_BACKOFF", Backoff(first=60.0, most=60.0))

    def once() -> None:
        failed.set()
        raise Unavailable(what="Kafka")

    while_committing(monkeypatch, once)
    node.silent.replace({"kafka": "no answer"})
    node.start()
    receipt = node.accept(line(1))
    assert failed.wait(20)
    assert node.waiting(receipt, 0.5).state == "accepted"
    node.silent.replace({})
    assert node.settled(receipt).state == "committed"


def test_a_push_that_hits_a_bug_does_not_delay_others(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    commit, tries = FileCommit.commit, Counter[str]()

    def failing(work: FileCommit, *args: Any) -> Any:
        tries[work._batch.key] += 1
        if work._batch.key == "bug" or (work._batch.key == "once" and tries["once"] == 1):
            raise ZeroDivisionError
        return commit(work, *args)

    monkeypatch.setattr(FileCommit, "commit", failing)
    receipts = [node.accept(line(number), key) for number, key in enumerate(("bug", "once", "fine"), 1)]
    node.start()
    assert [node.settled(one).code for one in receipts] == ["Bug", "", ""]
    assert tries == {"bug": module.MAX_ATTEMPTS_AFTER_BUG, "once": 2, "fine": 1}
    assert node.bench.values("id") == [(2,), (3,)]


def test_a_push_that_appends_nothing_is_unchanged(make_node: Callable[..., Node]) -> None:
    node = make_node(LEDGER)
    receipts = [node.accept(line(1), key, is_key_generated=key == "c") for key in "abc"]
    node.start()
    done = [(one.state, one.records) for one in map(node.settled, receipts)]
    assert done == [("committed", 1), ("unchanged", 0), ("unchanged", 0)]


def test_a_key_that_the_chain_knows_with_other_content_is_refused(node: Node, tmp_path: Path) -> None:
    node.start()
    node.settled(node.accept(line(1), "k"))
    for file in node.home.rglob("*.json"):
        file.unlink()  # as after a week
    done = node.settled(node.accept(line(2), "k"))
    assert (done.state, done.code, node.bench.values("id")) == ("refused", "KeyReused", [(1,)])


def test_pushes_of_a_deleted_dataset_are_refused(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    receipt = node.accept(line(1))
    monkeypatch.setattr(node.bench.states, "current", lambda _: None)
    node.start()
    assert node.settled(receipt).code == "NotFound"


def test_waiting_ends_at_the_timeout_or_when_the_caller_has_gone(node: Node) -> None:
    receipt = node.accept(line(1))
    begun = time.monotonic()
    assert node.settled(receipt, 0.3).state == "accepted"
    assert node.pushes.await_settled(node.bench.dataset, receipt.id, 60, lambda: False) is not None
    assert node.pushes.await_settled(node.bench.dataset, "0" * 32, 60, lambda: True) is None
    assert time.monotonic() - begun < 10


class LaterPool:
    """Runs submitted tasks on demand, in this thread, after `wake` was called."""

    def __init__(self, wake: Callable[[], object]) -> None:
        self._wake = wake
        self._calls: list[Callable[[], object]] = []

    def submit(self, call: Callable[..., object], *arguments: object) -> None:
        self._calls.append(partial(call, *arguments))

    def run(self) -> None:
        self._wake()
        while self._calls:
            self._calls.pop(0)()


@pytest.fixture
def later(node: Node, monkeypatch: pytest.MonkeyPatch) -> LaterPool:
    """Return the pool of a node, which settles pushes when it is run."""
    monkeypatch.setattr(module, "PUSH_BACKOFF", Backoff(first=0.0, most=0.0))
    pool = LaterPool(lambda: node.pushes.wake(node.bench.dataset))
    node.pushes._parts = replace(node.pushes._parts, pool=cast("Any", pool))
    return pool


def test_a_push_that_arrives_while_another_is_settled_is_settled_too(
    node: Node, later: LaterPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    receipts = [node.accept(line(1), "first")]
    node.pushes._working = GuardedDict(node.pushes._lock)

    def arrive() -> None:
        receipts.append(node.accept(line(2), "second"))
        node.pushes.wake(node.bench.dataset)

    while_committing(monkeypatch, arrive)
    later.run()
    assert [node.settled(one, 0).state for one in receipts] == ["committed"] * 2


def test_pushes_that_another_process_settles_are_left_to_it(node: Node, later: LaterPool) -> None:
    receipt = node.accept(line(1))
    with Receipts(node.home).working(node.bench.dataset):
        later.run()
    assert (node.settled(receipt, 0), node.bench.rows()) == (receipt, [])


@pytest.mark.parametrize(
    "error",
    [
        NothingCommitted.because(StorageUnavailable(what="the disk")),
        StorageUnavailable(file="x", why="the disk is full"),
        Unavailable(what="the bus"),
        Refused(reason="LockHeld", text="locked"),
    ],
)
def test_a_push_without_a_commit_is_retried(
    node: Node, later: LaterPool, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    receipt = node.accept(line(1))
    while_committing(monkeypatch, *2 * [partial(fail, error)])
    later.run()
    assert node.settled(receipt, 0).state == "committed"


class Waits(threading.Event):
    """Records the durations of waits, and does not wait."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.seconds.append(timeout)
        return False


def test_pauses_between_attempts_grow_up_to_five_seconds(
    node: Node, later: LaterPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PUSH_BACKOFF", PUSH_BACKOFF)
    node.pushes._stop = waits = Waits()
    node.accept(line(1))
    while_committing(monkeypatch, *8 * [partial(fail, Unavailable(what="the bus"))])
    later.run()
    assert waits.seconds == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0]


def test_a_push_is_counted_once_its_outcome_is_stored(
    node: Node, later: LaterPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    receipt, counted = node.accept(line(1)), metrics.PUSHES.labels("committed")
    before = counted._value.get()

    def full(*_: object) -> None:
        raise StorageUnavailable(file="x", why="the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(Receipts, "settle", full)
        later.run()
    assert (node.settled(receipt, 0), counted._value.get()) == (receipt, before)
    later.run()
    assert node.settled(receipt, 0).state == "committed"
    assert counted._value.get() == before + 1
    assert node.bench.values("id") == [(1,)]


def test_a_push_that_the_end_of_the_service_interrupts_stays_accepted(
    node: Node, later: LaterPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    receipt = node.accept(line(1))
    while_committing(monkeypatch, node.pushes._stop.set)
    later.run()
    assert (node.settled(receipt, 0), node.bench.rows()) == (receipt, [])


def test_a_service_that_was_stopped_settles_no_push(node: Node, later: LaterPool) -> None:
    receipt, stop = node.accept(line(1)), threading.Event()
    stop.set()
    node.pushes.run(stop)
    later.run()
    assert (node.settled(receipt, 0), node.bench.rows()) == (receipt, [])


def test_records_without_event_time_get_the_time_of_acceptance(node: Node, later: LaterPool) -> None:
    node.accept('{"id":1}\n')
    later.run()
    assert node.bench.values("event_time") == [(datetime(2020, 6, 1, tzinfo=UTC),)]


class QuarterHours(threading.Event):
    """Advances the clock by a quarter of an hour on each wait; set after two hours."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 5000.0
        self._end = self.now + 7200

    def monotonic(self) -> float:
        return self.now

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.now += 900
        if self.now > self._end:
            self.set()
        return self.is_set()


def test_receipts_are_cleaned_up_when_the_service_starts_and_every_hour(
    node: Node, later: LaterPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.home.mkdir(exist_ok=True)
    clock, tidied = QuarterHours(), list[float]()
    monkeypatch.setattr(Receipts, "tidy", lambda _: tidied.append(clock.now))
    monkeypatch.setattr(module, "time", clock)

    node.pushes.run(clock)

    assert tidied == [5000, 8600, 12200]
