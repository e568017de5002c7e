"""Every recorded exchange is played against our client and our server by a test here, or listed with a reason."""

import ast
from pathlib import Path

import pytest
from odf_testing.recorded_cases import RECORDINGS, NotPlayed, Side
from odf_testing.recorded_transfers import VECTORS


def test_each_recording_is_in_the_table() -> None:
    assert set(RECORDINGS) == {file.stem for file in VECTORS.glob("transfer/*.jsonl")}


@pytest.mark.parametrize("side", Side)
def test_the_tests_of_the_table_are_those_that_play_recordings(side: Side) -> None:
    named = [sides.of(side) for sides in RECORDINGS.values()]
    playing = [
        node.name
        for file in Path(__file__).parent.glob("test_*.py")
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.FunctionDef) and f"plays(Side.{side.name})" in _decorators(node)
    ]
    assert sorted(playing) == sorted({test for test in named if not isinstance(test, NotPlayed)})


def _decorators(test: ast.FunctionDef) -> list[str]:
    return [ast.unparse(one) for one in test.decorator_list]
