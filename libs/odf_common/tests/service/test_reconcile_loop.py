"""The loop of controllers over a store that keeps what it is asked."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from odf_common.errors import Unavailable
from odf_common.service.reconcile_loop import Json, Leased, ReconcileLoop, Report, Work

SCHEMA = "https://example.com/schemas/home/v1/Thing"


@dataclass
class AskedStore:
    due: Sequence[str]
    held: set[str] = field(default_factory=set)
    lost_answers: int = 0
    begun: list[Sequence[str]] = field(default_factory=list)
    ended: dict[str, Report] = field(default_factory=dict)
    transactions: int = 0
    is_done: threading.Event = field(default_factory=threading.Event)

    def due_ids(self, _: Sequence[str], is_wanted: Callable[[], bool]) -> Iterator[str]:
        yield from self.due
        while is_wanted():
            time.sleep(0.01)

    def begin(self, ids: Sequence[str], *, lease_ms: int) -> Leased:
        assert lease_ms
        self.begun.append(ids)
        free = [one for one in ids if one not in self.held and one != "gone"]
        works = [
            Work(
                resource={"$schema": SCHEMA, "headers": {"id": one, "generation": 3}},
                token=7,
                is_deleting=False,
            )
            for one in free
        ]
        return Leased(works=works, held=[*self.held.intersection(ids)])

    def end(self, reports: Mapping[str, Report]) -> Mapping[str, int]:
        if self.lost_answers:
            self.lost_answers -= 1
            raise Unavailable(what="store")
        self.transactions += 1
        self.ended |= reports
        if len(self.ended) == len([one for one in self.due if one not in self.held and one != "gone"]):
            self.is_done.set()
        return {}


class Things:
    def __init__(self, seconds: float = 0) -> None:
        self._seconds = seconds
        self.reconciled: list[str] = []

    def reconcile(self, resource: Json) -> Mapping[str, Json | None]:
        time.sleep(self._seconds)
        self.reconciled.append(resource["headers"]["id"])
        if resource["headers"]["id"] == "broken":
            raise ValueError
        return {}

    def finalize(self, _: Json) -> None: ...


def run(store: AskedStore, things: Things) -> None:
    stop = threading.Event()
    loop = threading.Thread(target=ReconcileLoop(store, {SCHEMA: things}).run, args=(stop,))
    loop.start()
    try:
        assert store.is_done.wait(10)
    finally:
        stop.set()
        loop.join()


def test_quick_attempts_share_transactions() -> None:
    store, things = AskedStore([str(n) for n in range(1000)]), Things()
    run(store, things)
    assert sorted(things.reconciled) == sorted(store.due)
    assert 40 < max(map(len, store.begun)) <= 100
    assert len(store.begun) + store.transactions < 500


def test_slow_attempts_are_not_leased_long_before_they_begin() -> None:
    store, things = AskedStore([str(n) for n in range(40)]), Things(0.05)
    run(store, things)
    first, *_ = store.begun
    assert len(first) <= 20  # the pace is not known yet


def test_what_is_gone_or_held_has_no_attempt_and_a_bug_is_reported() -> None:
    store, things = AskedStore(["gone", "held", "broken", "good"], held={"held"}), Things()
    run(store, things)
    assert sorted(things.reconciled) == ["broken", "good"]
    assert {key: report.failure for key, report in store.ended.items()} == {"broken": "internal", "good": ""}
    assert store.ended["good"] == Report(token=7, generation=3)


def test_an_attempt_whose_outcome_could_not_be_written_is_repeated() -> None:
    store, things = AskedStore(["one"], lost_answers=1), Things()
    run(store, things)
    assert things.reconciled == ["one", "one"]
