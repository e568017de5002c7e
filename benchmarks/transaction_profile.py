"""Where the time of the case `transactions` goes: its parts, each without nested ones, compared with the whole.

A part's time is the wall-clock time of one of our functions; the rest is the coordinator's own work, gRPC and
the reading and hashing of what the engine wrote. Spark reports its optimiser's and planner's time, in whole
milliseconds; both are part of `Spark runs the plan`.
"""

import os
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar
from unittest import mock

from chained import Coordinator, Pair, add
from rows import Row, held_against
from transactions import QUERIES, WARM, engine

from odf_engine_spark.spark.jvm import Java, Spark
from odf_engine_spark.spark.logical_plans import Plans
from odf_engine_spark.transform import execute_transform

TRANSACTIONS: Final = 100
RUNS: Final = "Spark runs the plan"
PARTS: Final[tuple[tuple[Any, str, str], ...]] = (
    (Spark, "collect", RUNS),
    (Plans, "over", "the plan is put together"),
    (Spark, "relation", "records go into the JVM"),
    (execute_transform, "read_input", "the input is read"),
    (execute_transform, "write_records", "the slice is written"),
    (execute_transform, "write_state", "the checkpoint is written"),
    (os, "fsync", "files are made durable"),
)
REST: Final = "coordinator, gRPC, hashes"
Given = ParamSpec("Given")
Result = TypeVar("Result")


@dataclass(slots=True)
class Clock:
    """Seconds of each part, without nested parts."""

    spent: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    inside: threading.local = field(default_factory=threading.local)

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """Count the time of a block of code."""
        outer = getattr(self.inside, "seconds", 0.0)
        self.inside.seconds = 0.0
        begun = time.perf_counter()
        try:
            yield
        finally:
            seconds = time.perf_counter() - begun
            self.spent[part] += seconds - self.inside.seconds
            self.inside.seconds = outer + seconds


def run() -> list[Row]:
    """Return a row per part of both kinds of transactions."""
    with tempfile.TemporaryDirectory(prefix="profile-") as folder, engine() as (_, client):
        coordinator = Coordinator(Path(folder), client)
        pairs = {kind: add(coordinator, kind, query) for kind, query in QUERIES.items()}
        return [row for kind, pair in pairs.items() for row in _profiled(kind, pair)]


def _profiled(kind: str, pair: Pair) -> list[Row]:
    for _ in range(WARM):
        pair.push()
        pair.transform()
    clock, seconds = Clock(), 0.0
    for _ in range(TRANSACTIONS):
        pair.push()
        with _watched(clock):
            seconds += pair.transform()[0]
    clock.spent[REST] = seconds - sum(clock.spent[part] for _, _, part in PARTS)
    whole = ("the whole", 1000 * seconds / TRANSACTIONS)
    parts = sorted(clock.spent.items(), key=lambda part: -part[1])
    return [held_against(f"{kind}: {part}", 1000 * s / TRANSACTIONS, "ms", peer=whole) for part, s in parts]


@contextmanager
def _watched(clock: Clock) -> Iterator[None]:
    with ExitStack() as stack:
        for home, name, part in PARTS:
            stack.enter_context(mock.patch.object(home, name, _timed(clock, part, getattr(home, name))))
        yield


def _timed(clock: Clock, part: str, work: Callable[Given, Result]) -> Callable[Given, Result]:
    def timed(*given: Given.args, **named: Given.kwargs) -> Result:
        with clock.timed(part):
            result = work(*given, **named)
        if part == RUNS:
            _, frame = given
            for phase in ("optimization", "planning"):
                clock.spent[f"Spark's {phase}, inside"] += _phase(frame, phase)
        return result

    return timed


def _phase(frame: Java, name: str) -> float:
    """Return the seconds that Spark reports for a phase of a query."""
    return float(frame.queryExecution().tracker().phases().apply(name).durationMs()) / 1000
