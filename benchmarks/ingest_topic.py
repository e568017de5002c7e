"""Catching up with departures in a topic, one message each, compared with two loops that do less.

The topic is filled before the dataset is created; the clock runs from the call that creates it to the last commit.
Processor time is that of every process of the node except the broker, until all of them are idle again: by then the
verifier has checked each commit. Both peers consume the same topic with confluent-kafka and parse with pyarrow, in a
process of their own whose imports are not counted: one appends to a Delta table and hashes nothing, the other is a
sketch of one thread that hashes and writes files and commits nothing. The targets were set where that sketch took
168,000 records/s at 6.5 µs; on a machine that is slower, or shared, only the ratio to it is meaningful.
"""

import json
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from departures import APPEND, LEDGER, messages
from node_under_test import BenchedNode, Effort
from rows import Row, Target, held_against

ROUNDS: Final = 3
DELTA: Final = Path(__file__).with_name("peer_delta.py")
SKETCH: Final = Path(__file__).with_name("peer_sketch.py")
CHEAP: Final = Target(judged="value", sense="≤", bound=9)
FAST: Final = Target(judged="value", sense="≥", bound=130_000)
CHEAP_AS_SKETCHED: Final = Target(judged="ratio", sense="≤", bound=1.38)  # 9 µs, the sketch 6.5
FAST_AS_SKETCHED: Final = Target(judged="ratio", sense="≥", bound=0.77)  # 130,000, the sketch 168,000


@dataclass(frozen=True, slots=True, kw_only=True)
class Caught:
    """How catching up went: seconds from start to end, and of processor time until all was idle."""

    seconds: float
    used: float
    parts: Effort | None = None


def run(node: BenchedNode) -> list[Row]:
    """Return rows for Append and for Ledger: medians of several rounds, each compared with the peer's."""
    appended, ledger, deltas, sketches = [], [], [], []
    for number in range(ROUNDS):
        appended.append(_caught_up(node, f"topic.append.{number}", APPEND))
        deltas.append(_peer(DELTA, node, f"topic.append.{number}"))
        ledger.append(_caught_up(node, f"topic.ledger.{number}", LEDGER))
        sketches.append(_peer(SKETCH, node, f"topic.append.{number}"))
    return [
        *_rows("Append", appended, deltas, sketches),
        *_rows("Ledger on id", ledger, deltas, sketches),
    ]


def _caught_up(node: BenchedNode, name: str, merge: str) -> Caught:
    topic = node.topic_of(name)
    node.embedded.topics().create_push_topic(topic)
    count = node.embedded.produce(topic, messages())
    node.settle()
    before, begun = node.effort(), time.monotonic()
    node.add(name, merge)
    ended = node.await_records(name, count)
    node.settle()
    parts = node.effort().since(before)
    return Caught(seconds=ended - begun, used=parts.seconds, parts=parts)


def _peer(script: Path, node: BenchedNode, name: str) -> Caught:
    folder = Path(tempfile.mkdtemp(prefix="odf-bench-peer-"))
    words = [node.embedded.kafka, node.topic_of(name), str(len(messages())), str(folder / "table")]
    try:
        done = subprocess.run(
            [sys.executable, str(script), *words], capture_output=True, check=True, text=True
        )
    except subprocess.CalledProcessError as error:
        raise RuntimeError(f"the peer failed: {error.stderr}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    told = json.loads(done.stdout)
    return Caught(seconds=told["seconds"], used=told["cpu"])


def _rows(kind: str, ours: list[Caught], deltas: list[Caught], sketches: list[Caught]) -> list[Row]:
    middle = sorted(ours, key=lambda one: one.used)[len(ours) // 2]
    rate, cost = _rate(ours), _cost(ours)
    delta, sketch = "Kafka → Delta, no hashes", "sketch, one thread, no commits"
    case = f"catch up from a topic, {kind}"
    processor = f"{case}: processor, verifier included"
    return [
        held_against(case, rate, "records/s", peer=(delta, _rate(deltas)), target=FAST),
        held_against(case, rate, "records/s", peer=(sketch, _rate(sketches)), target=FAST_AS_SKETCHED),
        held_against(
            processor,
            cost,
            "µs/record",
            peer=(delta, _cost(deltas)),
            target=CHEAP,
            detail=_by_part(middle, len(messages())),
        ),
        held_against(processor, cost, "µs/record", peer=(sketch, _cost(sketches)), target=CHEAP_AS_SKETCHED),
    ]


def _rate(many: list[Caught]) -> float:
    return len(messages()) / median(one.seconds for one in many)


def _cost(many: list[Caught]) -> float:
    return 1e6 * median(one.used for one in many) / len(messages())


def _by_part(caught: Caught, count: int) -> dict[str, float]:
    parts = {} if caught.parts is None else caught.parts.by_part
    return {name: round(1e6 * used / count, 3) for name, used in sorted(parts.items())}
