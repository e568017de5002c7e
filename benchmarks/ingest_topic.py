"""Catching up with departures in a topic, one message each, compared with two loops and a worker that do less.

The topic is filled before the dataset is created; the clock runs from the call that creates it to the last commit.
Processor time is that of every process of the node except the broker, until all of them are idle again: by then the
verifier has checked each commit. Two peers consume the same topic with confluent-kafka and parse with pyarrow, in a
process of their own that has copied the topic once before the clock runs. One appends to a Delta table, fsyncs what
each commit wrote and hashes nothing. The other is a sketch that hashes and writes files in one thread and commits
nothing: only its processor time is compared, because the node spreads the same work over its processes and cores.
The worker is Faust's, the usual stream processor in Python: it fsyncs Parquet files before it commits offsets, so it
writes each message at least once; it takes every message through Python, and copies an eighth of them for that reason.
Rounds begin with another measurement each; a ratio is the median of the rounds' ratios. The targets were set where the
sketch took 6.5 µs per record; on a machine that is slower, or shared, only the ratios are meaningful.
"""

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Final

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from departures import APPEND, LEDGER, messages
from node_under_test import BenchedNode, Effort
from rows import Row, Target

ROUNDS: Final = 5
READ: Final = AclOperation.READ
ACL_TIMEOUT_SECONDS: Final = 10.0
DELTA: Final = Path(__file__).with_name("peer_delta.py")
SKETCH: Final = Path(__file__).with_name("peer_sketch.py")
FAUST: Final = Path(__file__).with_name("peer_faust.py")
CHEAP: Final = Target(judged="value", sense="≤", bound=9)
FAST: Final = Target(judged="value", sense="≥", bound=130_000)
CHEAP_AS_SKETCHED: Final = Target(judged="ratio", sense="≤", bound=1.38)  # 9 µs, the sketch 6.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Caught:
    """How catching up went: seconds from start to end, and of processor time until all was idle."""

    seconds: float
    used: float
    parts: Effort | None = None
    count: int = field(default_factory=lambda: len(messages()))
    """Messages."""


def run(node: BenchedNode) -> list[Row]:
    """Return rows for Append and for Ledger: medians of several rounds, each compared with the peer's."""
    _let_peers_read(node)
    rounds = [_round(node, number) for number in range(ROUNDS)]
    return [*_rows("Append", "append", rounds), *_rows("Ledger on id", "ledger", rounds)]


def _let_peers_read(node: BenchedNode) -> None:
    """Let clients without credentials read all topics in any group: the peers are configured with an address only."""
    admin = AdminClient(node.embedded.clients)
    rules = [
        AclBinding(
            kind, "*", ResourcePatternType.LITERAL, "User:ANONYMOUS", "*", READ, AclPermissionType.ALLOW
        )
        for kind in (ResourceType.TOPIC, ResourceType.GROUP)
    ]
    for answer in admin.create_acls(rules).values():
        answer.result(ACL_TIMEOUT_SECONDS)


def _round(node: BenchedNode, number: int) -> dict[str, Caught]:
    """Measure each once, beginning with another one each round; the peers read what `Append` reads."""
    append, ledger = f"topic.append.{number}", f"topic.ledger.{number}"
    for name in (append, ledger):
        node.embedded.topics().create_push_topic(node.topic_of(name))
        node.embedded.produce(node.topic_of(name), messages())
    works: dict[str, Callable[[], Caught]] = {
        "append": lambda: _caught_up(node, append, APPEND),
        "delta": lambda: _peer(DELTA, node, append),
        "ledger": lambda: _caught_up(node, ledger, LEDGER),
        "sketch": lambda: _peer(SKETCH, node, append),
        "faust": lambda: _peer(FAUST, node, append, len(messages()) // 8),
    }
    names = list(works)
    first = number % len(names)
    return {name: works[name]() for name in (*names[first:], *names[:first])}


def _caught_up(node: BenchedNode, name: str, merge: str) -> Caught:
    node.settle()
    before, begun = node.effort(), time.monotonic()
    node.add(name, merge)
    ended = node.await_records(name, len(messages()))
    node.settle()
    parts = node.effort().since(before)
    return Caught(seconds=ended - begun, used=parts.seconds, parts=parts)


def _peer(script: Path, node: BenchedNode, name: str, count: int | None = None) -> Caught:
    count = count or len(messages())
    folder = Path(tempfile.mkdtemp(prefix="odf-bench-peer-"))
    words = [node.embedded.kafka, node.topic_of(name), str(count), str(folder / "table")]
    try:
        done = subprocess.run(
            [sys.executable, str(script), *words], capture_output=True, check=True, text=True
        )
    except subprocess.CalledProcessError as error:
        raise RuntimeError(f"the peer failed: {error.stderr}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    printed = json.loads(done.stdout)
    return Caught(seconds=printed["seconds"], used=printed["cpu"], count=count)


def _rows(kind: str, ours: str, rounds: Sequence[Mapping[str, Caught]]) -> list[Row]:
    middle = sorted((round_[ours] for round_ in rounds), key=lambda round_: round_.used)[len(rounds) // 2]
    delta, sketch = "Kafka → Delta, fsynced, no hashes", "sketch, one thread, no commits"
    faust = "Faust → Parquet, fsynced, at least once, no hashes"
    case = f"catch up from a topic, {kind}"
    processor = f"{case}: processor, verifier included"
    by_part = _by_part(middle, len(messages()))

    def row(case: str, unit: str, of: Callable[[Caught], float], **peer: str) -> Row:
        ((key, name),) = peer.items()
        pairs = [(of(round_[ours]), of(round_[key])) for round_ in rounds]
        value, against = (median(column) for column in zip(*pairs, strict=True))
        ratio = median(mine / its for mine, its in pairs)
        return Row(case=case, value=value, unit=unit, peer=name, against=against, ratio=ratio)

    return [
        replace(row(case, "records/s", _rate, delta=delta), target=FAST),
        replace(row(processor, "µs/record", _cost, delta=delta), target=CHEAP, detail=by_part),
        replace(row(processor, "µs/record", _cost, sketch=sketch), target=CHEAP_AS_SKETCHED),
        row(case, "records/s", _rate, faust=faust),
        row(processor, "µs/record", _cost, faust=faust),
    ]


def _rate(caught: Caught) -> float:
    return caught.count / caught.seconds


def _cost(caught: Caught) -> float:
    return 1e6 * caught.used / caught.count


def _by_part(caught: Caught, count: int) -> dict[str, float]:
    parts = {} if caught.parts is None else caught.parts.by_part
    return {name: round(1e6 * used / count, 3) for name, used in sorted(parts.items())}
