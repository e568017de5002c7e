"""The quick start of README.md and the guide's first page, run as written: each command prints what they show."""

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from odf_testing.embedded import ODF, EmbeddedNode

ROOT: Final = Path(__file__).parents[2]
README: Final = (ROOT / "README.md").read_text("utf-8")
GUIDE: Final = (ROOT / "docs" / "guide" / "getting-started.md").read_text("utf-8")
# The files that the guide shows, in the order of their blocks, and one that it only names.
FILES: Final = ("readings.csv", "readings.yaml", "hourly.yaml")
BAD: Final = "time,sensor,temperature\n2026-03-01T03:00:00Z,a,warm\n"
BLOCK: Final = re.compile(r"^```(console|python|yaml|)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND: Final = re.compile(r"^\$ (?P<line>.+)\n(?P<output>(?:(?!\$ ).*\n)*)", re.MULTILINE)
ADDRESS: Final = re.compile(r"127\.0\.0\.1:\d+")
# What differs from run to run, in the order in which it is replaced; each keeps its width.
VOLATILE: Final = (
    (re.compile(r"(?<=^home    ).*", re.MULTILINE), "HOME"),
    (ADDRESS, "ADDRESS"),
    (re.compile(r"(?<=did:odf:fed01)[0-9a-f]{64}"), "ID"),
    (re.compile(r"\bf1620[0-9a-f]{64}\b"), "HASH"),
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"), "SYSTEM TIME"),
)


def normalised(output: str) -> str:
    for volatile, name in VOLATILE:
        output = volatile.sub(name, output)
    return output.rstrip()


@pytest.fixture
def clean(node: EmbeddedNode) -> Iterator[EmbeddedNode]:
    """The node, on which the datasets of the quick start end with the test."""
    yield node
    node.run("delete orders orders.daily --yes")


@pytest.fixture
def without_readings(node: EmbeddedNode) -> Iterator[EmbeddedNode]:
    """The node, on which the datasets of the guide end with the test."""
    yield node
    node.run("delete readings readings.hourly --yes")


def run(node: EmbeddedNode, line: str, folder: Path = ROOT, code: int = 0) -> str:
    """Return what a line of the shell prints; at the root of the repository, as the reader of README.md is."""
    environment = {**node._environment, "PATH": f"{ODF.parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", line],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code, f"{line}\n{done.stdout}{done.stderr}"
    return done.stdout if code == 0 else done.stderr


def compare(node: EmbeddedNode, block: str, folder: Path = ROOT) -> int:
    """Run the commands of a block; return the number of compared outputs: those that depend on timing are not shown."""
    compared = 0
    for step in COMMAND.finditer(block):
        code = 1 if step["output"].startswith("error: ") else 0
        printed = run(node, step["line"], folder, code)
        if step["output"]:
            assert normalised(printed) == normalised(step["output"]), step["line"]
            compared += 1
    return compared


def test_each_step_prints_the_documented_output(clean: EmbeddedNode) -> None:
    compared = 0
    for language, block in BLOCK.findall(README):
        if language == "python":
            exec(ADDRESS.sub(clean.kafka, block), {})  # noqa: S102 - the producer of the README
        elif language == "console":
            compared += compare(clean, block.replace("$ . .venv/bin/activate\n", ""))
    assert compared >= 6


def test_each_step_of_getting_started_prints_the_documented_output(
    without_readings: EmbeddedNode, tmp_path: Path
) -> None:
    blocks = BLOCK.findall(GUIDE)
    shown = [block for language, block in blocks if language != "console"]
    for name, content in zip((*FILES, "bad.csv"), (*shown, BAD), strict=True):
        (tmp_path / name).write_text(content)
    steps = [block for language, block in blocks if language == "console"]
    assert sum(compare(without_readings, block, tmp_path) for block in steps) == 10
