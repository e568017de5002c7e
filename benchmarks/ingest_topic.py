"""Catching up with departures that wait in a topic, one message each, beside a loop that hashes nothing.

The topic is filled before the dataset is made; the clock runs from the call that makes it to the last commit.
Processor time is that of every process of the node but the broker, until all of them are quiet again: the verifier
has then looked at each commit. The peer consumes the same topic with confluent-kafka, parses with pyarrow and
appends to a Delta table, in a process of its own whose imports are not counted.
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
PEER: Final = Path(__file__).with_name("peer_delta.py")
CHEAP: Final = Target(judged="value", sense="≤", bound=9)
FAST: Final = Target(judged="value", sense="≥", bound=130_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Caught:
    """How catching up went: seconds from start to end, of processor time until then and until all was quiet."""

    seconds: float
    used: float
    used_in_all: float
    parts: Effort | None = None


def run(node: BenchedNode) -> list[Row]:
    """Return rows for Append and for Ledger: medians of some rounds, each beside the peer's."""
    appended, ledger, peers = [], [], []
    for number in range(ROUNDS):
        appended.append(_caught_up(node, f"topic.append.{number}", APPEND))
        peers.append(_peer(node, f"topic.append.{number}"))
        ledger.append(_caught_up(node, f"topic.ledger.{number}", LEDGER))
    return [*_rows("Append", appended, peers), *_rows("Ledger on id", ledger, peers)]


def _caught_up(node: BenchedNode, name: str, merge: str) -> Caught:
    topic = node.topic_of(name)
    node.embedded.topics().create_push_topic(topic)
    count = node.embedded.produce(topic, messages())
    node.settle()
    before, begun = node.effort(), time.monotonic()
    node.add(name, merge)
    ended = node.await_records(name, count)
    used = node.effort().since(before)
    node.settle()
    parts = node.effort().since(before)
    return Caught(seconds=ended - begun, used=used.seconds, used_in_all=parts.seconds, parts=parts)


def _peer(node: BenchedNode, name: str) -> Caught:
    folder = Path(tempfile.mkdtemp(prefix="odf-bench-delta-"))
    words = [node.embedded.kafka, node.topic_of(name), str(len(messages())), str(folder / "table")]
    try:
        done = subprocess.run([sys.executable, str(PEER), *words], capture_output=True, check=True, text=True)
    except subprocess.CalledProcessError as error:
        raise RuntimeError(f"the peer failed: {error.stderr}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    told = json.loads(done.stdout)
    return Caught(seconds=told["seconds"], used=told["cpu"], used_in_all=told["cpu"])


def _rows(kind: str, ours: list[Caught], peers: list[Caught]) -> list[Row]:
    count = len(messages())
    rate, peer_rate = (count / median(one.seconds for one in many) for many in (ours, peers))
    middle = sorted(ours, key=lambda one: one.used_in_all)[len(ours) // 2]
    peer = 1e6 * median(one.used for one in peers) / count
    loop = "Kafka → Delta, no hashes"
    case = f"catch up from a topic, {kind}"
    return [
        held_against(case, rate, "records/s", peer=(loop, peer_rate), target=FAST),
        held_against(
            f"{case}: processor, verifier included",
            1e6 * middle.used_in_all / count,
            "µs/record",
            peer=(loop, peer),
            target=CHEAP,
            detail=_by_part(middle, count),
        ),
        held_against(
            f"{case}: processor until committed",
            1e6 * median(one.used for one in ours) / count,
            "µs/record",
            peer=(loop, peer),
        ),
    ]


def _by_part(caught: Caught, count: int) -> dict[str, float]:
    parts = {} if caught.parts is None else caught.parts.by_part
    return {name: round(1e6 * used / count, 3) for name, used in sorted(parts.items())}
