"""Every recorded exchange is played by one of the tests in this folder."""

import ast
import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from odf_testing.recorded_transfers import VECTORS, Line, all_recorded, lines_of, play_client
from odf_testing.sync_node import SyncNode

from odf_common.hashing.multihash import Multihash

HEAD = Multihash.parse("f1620b95d40b1f2297553525ab60376952ffa3828f8c12fdd4d1d6478f73779ebb4b3")
ROOT = Path(__file__).parents[3]
PLAYERS = (
    *Path(__file__).parent.glob("test_*.py"),
    ROOT / "tests" / "integration" / "test_pushes_over_http.py",
)
NOT_SERVED = ("query", "dataset-tail-metadata")  # reads of records, which are no part of a transfer


@pytest.mark.parametrize("case", [file.stem for file in sorted(VECTORS.glob("transfer/*.jsonl"))])
def test_a_recording_is_played(case: str) -> None:
    assert case in {text for file in PLAYERS for text in _constants(file)}, f"no test plays {case}.jsonl"


def _constants(file: Path) -> Iterator[object]:
    """Yield the constants in the code of a file."""
    return (node.value for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Constant))


@pytest.mark.parametrize("case", NOT_SERVED)
def test_reads_that_this_node_does_not_serve_are_no_route(tmp_path: Path, case: str) -> None:
    node = SyncNode(tmp_path)
    node.hold("alice/cities.population", HEAD, all_recorded())

    with node.served() as base:
        asyncio.run(play_client(base, [_without_route(line) for line in lines_of(case)]))


def _without_route(line: Line) -> Line:
    return {**line, "status": 404, "headers": {}} if line["from"] == "server" else line
