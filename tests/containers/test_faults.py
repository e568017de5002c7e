"""Each fault under load: nothing is lost, doubled or wrong, and commits go on within seconds, without any help.

`make containers` runs it; the table of what was measured is printed at the end.
"""

import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Final

import pytest
from tests.containers.conftest import Nodes
from tests.containers.faults import CASES, Case
from tests.containers.load import Answer, Datasets, Load, start_load, status_watched
from tests.containers.node import READY_SECONDS, Node
from tests.containers.outcome import (
    Outcome,
    lost_and_repeated,
    records,
    recovery,
    settle,
    verdicts,
    wrong_buckets,
    wrong_windows,
)
from tests.containers.report import table

WARM_SECONDS: Final = 10.0  # of load before a fault
AFTER_SECONDS: Final = 15.0  # and after it
RECOVERY_SECONDS: Final = 15.0
NAMED_SECONDS: Final = 12.0  # ten, and the time of the command
ANSWER_SECONDS: Final = (
    8.0  # five, and what a busy machine adds; of a push that was open before, from the fault's begin
)
SMALL_HOME: Final = 3 << 30


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_fault_loses_nothing_and_commits_go_on(case: Case, nodes: Nodes, outcomes: list[Outcome]) -> None:
    node, token = nodes.with_home(SMALL_HOME if case.fills_home else None)
    node.await_ready(READY_SECONDS)
    try:
        outcome = play(node, token, case)
    finally:
        node.stop_extra()
    outcomes.append(outcome)
    print(table([outcome]), flush=True)
    assert (outcome.lost, outcome.twice, list(outcome.wrong)) == (0, 0, [])
    assert set(outcome.verdicts.values()) == {"valid"}
    assert not outcome.by_hand
    assert (outcome.ingest_seconds or 0) <= RECOVERY_SECONDS
    assert (outcome.derivative_seconds or 0) <= RECOVERY_SECONDS
    assert not case.named or (outcome.status_seconds or 0) <= NAMED_SECONDS
    assert not case.named or outcome.status_seconds is not None
    failed = [one for one in outcome.answers if one.status != 200]
    # A client notices by its own timeout that the HTTP server is gone.
    assert {one.status for one in failed} <= {503, 507} | ({0} if case.breaks_http else set())
    assert all(one.retry_after and one.seconds <= ANSWER_SECONDS for one in failed if one.status)
    assert outcome.unacknowledged == 0


def play(node: Node, token: str, case: Case) -> Outcome:
    """Return the outcome of the faults of a case for datasets of its own, under load."""
    datasets = Datasets(f"case{CASES.index(case)}")
    datasets.add(node)
    load = start_load(node, datasets, token)
    time.sleep(WARM_SECONDS)
    broken = _break(node, case)
    time.sleep(AFTER_SECONDS)
    load.stop()
    outcome = _outcome(node, case, datasets, load, broken)
    datasets.delete(node)
    return outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """The time of faults, in seconds since 1970, and what `odf status` named after how many seconds.

    `start_seconds` are those of a broker or of Spark, before the end.
    """

    begun: float
    ended: float
    start_seconds: float | None
    status: str
    status_seconds: float | None


def _break(node: Node, case: Case) -> Broken:
    begun = time.time()
    with ExitStack() as faults, status_watched(node, case.named) as watch:
        for fault in case.faults:
            fault.begin(node)
            faults.callback(fault.end, node)
        there = time.monotonic()
        time.sleep(max(0.0, case.seconds - (time.time() - begun)))
        ending = time.time()
    ended = time.time()
    return Broken(
        begun=begun,
        ended=ended,
        start_seconds=ended - ending if case.starts_slowly else None,
        status=", ".join(watch.problems),
        status_seconds=None if watch.at is None else max(0.0, watch.at - there),
    )


def _outcome(node: Node, case: Case, datasets: Datasets, load: Load, broken: Broken) -> Outcome:
    by_hand = _settle(node, datasets, load)
    rows = records(node, datasets.root)
    lost, twice = lost_and_repeated(rows, load)
    recovered = recovery(node, datasets, rows, broken.begun, broken.ended)
    return Outcome(
        case=case.name,
        lost=lost,
        twice=twice,
        wrong=[
            *wrong_windows(rows, records(node, datasets.windows)),
            *wrong_buckets(rows, records(node, datasets.buckets)),
        ],
        verdicts=verdicts(node, datasets),
        ingest_seconds=recovered.ingest,
        derivative_seconds=recovered.derivatives,
        start_seconds=broken.start_seconds,
        stalled_seconds=recovered.stalled,
        status=broken.status,
        status_seconds=broken.status_seconds,
        by_hand=by_hand,
        unacknowledged=load.unacknowledged,
        answers=[
            _since(one, broken.begun) for one in load.answers if one.begun + one.seconds >= broken.begun
        ],
    )


def _since(answer: Answer, begun: float) -> Answer:
    """Return an answer with its seconds from the fault's begin, if its push was open then."""
    late = max(0.0, begun - answer.begun)
    return replace(answer, begun=answer.begun + late, seconds=round(answer.seconds - late, 2))


def _settle(node: Node, datasets: Datasets, load: Load) -> list[str]:
    """Wait until everything is derived; return what had to be done by hand for that."""
    if settle(node, datasets, load):
        return []
    node.restart_all()
    return ["restart of all services" if settle(node, datasets, load) else "restart, in vain"]
