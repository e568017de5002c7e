"""`make containers` runs all that the compose files describe, and its checks find what they look for. No engine is needed."""

from typing import Any, Final

import pytest
import yaml
from docker.models.containers import Container
from tests.containers.faults import CASES
from tests.containers.images import COMPOSE, OURS, SERVICES
from tests.containers.load import HISTORY, Answer, Load
from tests.containers.node import COMMAND, ORDER
from tests.containers.outcome import current, lost_and_repeated, wrong_buckets, wrong_windows
from tests.containers.report import answers

AT: Final = "2026-01-01T00:00:0{}Z"


def record(number: int, second: int = 1, **columns: Any) -> dict[str, Any]:
    return {
        "offset": number,
        "op": 0,
        "id": number,
        "at": AT.format(second),
        "bucket": "b",
        "value": number,
        **columns,
    }


def window(second: int, n: int, total: int, op: int = 0) -> dict[str, Any]:
    return {"offset": 0, "op": op, "event_time": AT.format(second), "n": n, "total": total}


def bucket(n: int, top: int, op: int = 0) -> dict[str, Any]:
    return {"offset": 0, "op": op, "event_time": AT.format(1), "bucket": "b", "n": n, "top": top}


def test_all_services_of_the_compose_files_are_run() -> None:
    files = ("compose.yaml", "compose.development.yaml")
    described = {name for file in files for name in yaml.safe_load((COMPOSE / file).read_text())["services"]}
    assert {*ORDER, COMMAND} == described <= {*SERVICES, *OURS, COMMAND}


def test_faults_have_names_of_their_own() -> None:
    assert len({case.name for case in CASES}) == len(CASES)


def test_lost_and_repeated_records_are_counted() -> None:
    load = Load(Container(), acknowledged={1, 2, 3})
    assert lost_and_repeated([record(1), record(2), record(3), record(4)], load) == (0, 0)
    assert lost_and_repeated([record(1), record(1), record(1), record(3)], load) == (1, 2)
    assert Load(Container()).acknowledged == set(HISTORY)


def test_a_wrong_a_missing_and_a_repeated_window_are_found() -> None:
    rows = [record(1, 1), record(2, 4), record(7, 6), record(9, 9)]
    assert wrong_windows(rows, [window(0, 2, 3)]) == []
    assert wrong_windows(rows, [window(0, 2, 3), window(5, 2, 16)]) == []
    assert len(wrong_windows(rows, [window(0, 2, 4)])) == 2
    assert len(wrong_windows(rows, [window(5, 2, 16)])) == 1
    assert len(wrong_windows(rows, [window(0, 2, 3), window(0, 2, 3)])) == 1
    assert wrong_windows(rows, []) == ["no window was emitted"]


def test_a_bucket_is_what_its_corrections_leave() -> None:
    rows = [record(1), record(5)]
    corrected = [bucket(1, 1), bucket(1, 1, 2), bucket(2, 5, 3)]
    assert wrong_buckets(rows, corrected) == []
    assert len(wrong_buckets(rows, corrected[:1])) == 2
    assert len(wrong_buckets(rows, [*corrected, bucket(2, 5)])) == 1
    with pytest.raises(ValueError, match="retracts no record"):
        current([bucket(1, 1, 1)])


def test_answers_are_reported_by_kind_with_the_longest() -> None:
    given = [
        Answer(
            push=1, begun=0, seconds=seconds, status=status, retry_after=retry_after, text="TimeoutError: x"
        )
        for status, seconds, retry_after in (
            (200, 1, None),
            (503, 4, "1"),
            (503, 6, "1"),
            (507, 2, None),
            (0, 9, None),
        )
    ]
    assert answers(given) == (
        "507 without `Retry-After` (2); 503 with `Retry-After` (6); 200 (1); no answer, TimeoutError (9)"
    )
