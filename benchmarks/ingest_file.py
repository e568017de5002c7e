"""All departures as one NdJson file through `odf ingest`, as a process, compared with parsing and hashing alone."""

import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Final

from departures import APPEND, parse, write_file
from node_under_test import BenchedNode
from rows import Row, Target, held_against

from odf_common.hashing.logical import logical_hash

ROUNDS: Final = 5
QUICK: Final = Target(judged="value", sense="≤", bound=1.0)


def run(node: BenchedNode) -> list[Row]:
    """Return one row: the median of several rounds, compared with that of the limit."""
    with tempfile.TemporaryDirectory(prefix="odf-bench-") as folder:
        file = Path(folder) / "flights.ndjson"
        write_file(file)
        raw = file.read_bytes()
        pairs = [(_ingest(node, f"file.{number}", file), _limit(raw)) for number in range(ROUNDS)]
    ours, limit = (median(seconds) for seconds in zip(*pairs, strict=True))
    peer = ("pyarrow.json + logical hash", limit)
    return [held_against("odf ingest, 118 MB of NdJson", ours, "s", peer=peer, target=QUICK)]


def _ingest(node: BenchedNode, name: str, file: Path) -> float:
    node.add(name, APPEND)
    node.settle()
    begun = time.perf_counter()
    node.embedded.run(f"ingest {name} {file}")
    return time.perf_counter() - begun


def _limit(raw: bytes) -> float:
    begun = time.perf_counter()
    logical_hash(parse(raw))
    return time.perf_counter() - begun
