"""Integrity of all departures compared with `hashlib` over the same bytes on the same cores.

The bytes are those that verification has to hash: the stored files, and the records as encoded for the logical hash.
Reading Parquet and walking the chain come on top: the verifier must reach half the rate of hashing alone. The command
is compared with the same hashing after the start of a Python that imports click, gRPC and pyarrow, and may take twice
as long. Each round measures all of them, beginning with another one.
"""

import hashlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Final

import pyarrow as pa
from departures import APPEND, write_file
from node_under_test import BenchedNode
from rows import Row, Target, held_against

from odf_cli import clients
from odf_common.data.slices import read_slice
from odf_common.hashing.arrow_digest import encoded_blocks, plain, validity
from odf_common.proto.odf.node.v1.verifier_pb2 import VerifyRequest

NAME: Final = "integrity"
ROUNDS: Final = 8
HALF: Final = Target(judged="ratio", sense="≥", bound=0.5)
TWICE: Final = Target(judged="ratio", sense="≤", bound=2)


def run(node: BenchedNode) -> list[Row]:
    """Return the rate in the verifier, and the time of the whole command."""
    _fill(node)
    inputs = _inputs(node.folder(NAME))
    size = sum(map(len, inputs)) / 1e6
    node.settle()
    works: dict[str, Callable[[], float]] = {
        "call": lambda: _call(node),
        "hashing": lambda: _hash(inputs),
        "command": lambda: _command(node),
        "start": _start,
    }
    rounds = [_turn(number, works) for number in range(ROUNDS)]
    seconds = {name: median(round_[name] for round_ in rounds) for name in works}
    limit = seconds["hashing"]
    return [
        held_against(
            "integrity, in the verifier",
            size / seconds["call"],
            "MB/s",
            peer=("hashlib sha3-256", size / limit),
            target=HALF,
        ),
        held_against(
            "odf verify --integrity, whole command",
            seconds["command"],
            "s",
            peer=("start of Python and its libraries + hashlib sha3-256", seconds["start"] + limit),
            target=TWICE,
        ),
    ]


def _turn(number: int, works: Mapping[str, Callable[[], float]]) -> dict[str, float]:
    """Measure each once, beginning with another one each turn."""
    names = list(works)
    first = number % len(names)
    return {name: works[name]() for name in (*names[first:], *names[:first])}


def _fill(node: BenchedNode) -> None:
    node.add(NAME, APPEND)
    with tempfile.TemporaryDirectory(prefix="odf-bench-") as folder:
        file = Path(folder) / "flights.ndjson"
        write_file(file)
        node.embedded.run(f"ingest {NAME} {file}")


def _inputs(folder: Path) -> list[bytes]:
    """Return everything that has to be hashed, in pieces that can be hashed in parallel."""
    files = [file for kind in ("blocks", "data") for file in (folder / kind).iterdir()]
    pieces = [file.read_bytes() for file in files]
    for file in (folder / "data").iterdir():
        columns = read_slice(file).columns
        pieces += [b"".join(_streamed(array) for array in column.chunks) for column in columns]
    return sorted(pieces, key=len, reverse=True)


def _streamed(array: pa.Array) -> bytes:
    return b"".join(block.data for block in encoded_blocks(plain(array), validity(array)))


def _call(node: BenchedNode) -> float:
    begun = time.perf_counter()
    with clients.verifier(node.node) as verifier:
        items = list(
            verifier.Verify(
                VerifyRequest(refs=[NAME], integrity_only=True), timeout=clients.COMMAND_TIMEOUT_SECONDS
            )
        )
    seconds = time.perf_counter() - begun
    verdicts = [item.verdict.verdict for item in items if item.HasField("verdict")]
    assert verdicts == ["valid"], verdicts
    return seconds


def _hash(pieces: list[bytes]) -> float:
    begun = time.perf_counter()
    with ThreadPoolExecutor(pa.cpu_count()) as pool:
        list(pool.map(lambda raw: hashlib.sha3_256(raw).digest(), pieces))
    return time.perf_counter() - begun


def _command(node: BenchedNode) -> float:
    begun = time.perf_counter()
    node.embedded.run(f"verify {NAME} --integrity")
    return time.perf_counter() - begun


def _start() -> float:
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import click, grpc, pyarrow.parquet"], check=True)
    return time.perf_counter() - begun
