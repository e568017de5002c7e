"""Outcomes of faults: lost and repeated records, wrong results, verdicts, and when commits went on.

Everything is computed from what `odf tail` and `odf log` show once the load has ended: each block has the time at
which it was committed. Results of the derivatives are recomputed here from the records of the root.
"""

import json
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import Any, Final

from tests.containers.load import FIRST_PUSH, WINDOW_SECONDS, Answer, Datasets, Load
from tests.containers.node import COMMAND, CommandFailed, Node

SETTLE_SECONDS: Final = 150.0
RECORDS: Final = "10000000"  # all
RETRACTING: Final = frozenset({1, 2})  # -R and -C
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of a case; seconds are from the fault's end, None: never."""

    case: str
    lost: int
    twice: int
    wrong: Sequence[str]
    verdicts: Mapping[str, str]
    ingest_seconds: float | None
    derivative_seconds: float | None
    start_seconds: float | None  # of a broker or of Spark, not counted in the two before
    stalled_seconds: (
        float  # longest time between two blocks of the root from the fault's begin to its recovery
    )
    status: str
    status_seconds: float | None
    by_hand: Sequence[str]
    unacknowledged: int  # records and pushes without an acknowledgement until their sender gave up
    answers: Sequence[Answer] = field(default_factory=tuple)


def settle(node: Node, datasets: Datasets, load: Load) -> bool:
    """Return whether every acknowledged record is in the root, and all of the root in the derivatives, in time."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while time.monotonic() < deadline:
        try:
            ends = [_end(node.odf("log", name, "--limit", "10"), name == datasets.root) for name in datasets]
        except CommandFailed:
            ends = []
        if ends and len(set(ends)) == 1 and ends[0] + 1 >= len(load.acknowledged):
            return True
        time.sleep(1)
    return False


def _end(blocks: Sequence[Row], is_root: bool) -> int:
    """Return the last offset of a root, or the last one that a derivative has read of it; -1 without."""
    for block in blocks:
        event = block["event"]
        if is_root and event.get("newData"):
            return int(event["newData"]["offsetInterval"]["end"])
        if event["kind"] == "ExecuteTransform":
            return int(event["queryInputs"][0]["newOffset"])
    return -1


def records(node: Node, dataset: str) -> Sequence[Row]:
    """Return all records of a dataset in the order of their offsets."""
    rows: Sequence[Row] = node.odf("tail", dataset, "--records", RECORDS)
    return rows


def lost_and_repeated(rows: Iterable[Row], load: Load) -> tuple[int, int]:
    """Return the number of acknowledged records that are missing, and of records that are there again."""
    counts = Counter(int(row["id"]) for row in rows)
    return len(load.acknowledged - counts.keys()), sum(count - 1 for count in counts.values())


def wrong_windows(rows: Iterable[Row], derived: Iterable[Row]) -> Sequence[str]:
    """Return differences between emitted windows and those of the root's records, up to the last that is emitted."""
    values: dict[float, list[int]] = {}
    for row in rows:
        begin = seconds_of(row["at"]) // WINDOW_SECONDS * WINDOW_SECONDS
        values.setdefault(begin, []).append(int(row["value"]))
    emitted = [(seconds_of(row["event_time"]), int(row["n"]), int(row["total"])) for row in current(derived)]
    if not emitted:
        return ["no window was emitted"]
    last = max(emitted)[0]
    expected = [(begin, len(one), sum(one)) for begin, one in values.items() if begin <= last]
    return _differences("window", emitted, expected)


def wrong_buckets(rows: Iterable[Row], derived: Iterable[Row]) -> Sequence[str]:
    """Return differences between the buckets' counts and maxima and those of the root's records."""
    values: dict[str, list[int]] = {}
    for row in rows:
        values.setdefault(str(row["bucket"]), []).append(int(row["value"]))
    emitted = [(str(row["bucket"]), int(row["n"]), int(row["top"])) for row in current(derived)]
    return _differences("bucket", emitted, [(name, len(one), max(one)) for name, one in values.items()])


def _differences(kind: str, emitted: Iterable[object], expected: Iterable[object]) -> Sequence[str]:
    there, wanted = Counter(emitted), Counter(expected)
    return [
        *(f"{kind} {one} is wrong or repeated" for one in (there - wanted).elements()),
        *(f"{kind} {one} is missing" for one in (wanted - there).elements()),
    ]


def verdicts(node: Node, datasets: Datasets) -> Mapping[str, str]:
    """Return the verdict of `odf verify` on each dataset, with its problems."""
    _, output, errors = node.execute(COMMAND, ["odf", "verify", *datasets, "--output", "json"])
    if not output:
        return {"odf verify": errors[-500:]}
    return {str(row["dataset"]): _verdict(row) for row in json.loads(output)}


def _verdict(row: Row) -> str:
    return "; ".join((str(row["verdict"]), *(str(problem["text"]) for problem in row["problems"])))


def current(rows: Iterable[Row]) -> Sequence[Row]:
    """Return the records that no later one retracts; raises `ValueError` if one is retracted that does not exist."""
    kept: Counter[tuple[tuple[str, Any], ...]] = Counter()
    for row in rows:
        content = tuple(
            (name, value) for name, value in row.items() if name not in {"offset", "op", "system_time"}
        )
        if row["op"] in RETRACTING:
            if not kept[content]:
                raise ValueError(f"{row} retracts no record")
            kept[content] -= 1
        else:
            kept[content] += 1
    return [dict(content) for content in kept.elements()]


@dataclass(frozen=True, slots=True)
class Recovery:
    """When commits went on after a fault, in seconds from its end, and the longest time without one."""

    ingest: float | None
    derivatives: float | None
    stalled: float


def recovery(node: Node, datasets: Datasets, rows: Sequence[Row], begun: float, ended: float) -> Recovery:
    """Return when a record was committed that was sent to the topic after a fault's end, and when it was derived.

    And when a push was committed after the end: it may have been sent before. The later of both counts.
    """
    topic = [row for row in rows if int(row["id"]) < FIRST_PUSH and seconds_of(row["at"]) >= ended]
    pushes = [row for row in rows if int(row["id"]) >= FIRST_PUSH and seconds_of(row["system_time"]) >= ended]
    if not topic or not pushes:
        return Recovery(None, None, _longest(rows, begun, None))
    committed = max(seconds_of(row["system_time"]) for row in (topic[0], pushes[0]))
    offset = max(int(row["offset"]) for row in (topic[0], pushes[0]))
    derived = [_derived_at(node.odf("log", name), offset) for name in (datasets.windows, datasets.buckets)]
    latest = None if None in derived else max(at for at in derived if at is not None) - ended
    return Recovery(committed - ended, latest, _longest(rows, begun, committed))


def _derived_at(blocks: Sequence[Row], offset: int) -> float | None:
    """Return when a derivative first read as far as an offset of its input; `blocks` are newest first."""
    for block in reversed(blocks):
        event = block["event"]
        if (
            event["kind"] == "ExecuteTransform"
            and int(event["queryInputs"][0].get("newOffset") or -1) >= offset
        ):
            return seconds_of(block["systemTime"])
    return None


def _longest(rows: Sequence[Row], begun: float, until: float | None) -> float:
    times = sorted({seconds_of(row["system_time"]) for row in rows})
    inside = [begun, *(at for at in times if at > begun and (until is None or at <= until))]
    return max((after - before for before, after in pairwise(inside)), default=0.0)


def seconds_of(text: str) -> float:
    """Return the seconds since 1970 of a time as `odf` prints it."""
    return datetime.fromisoformat(text).timestamp()
