"""The quick start of README.md, run as written: each command's output is the one shown in it."""

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
BLOCK: Final = re.compile(r"^```(console|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
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


def run(node: EmbeddedNode, line: str) -> str:
    """Return what a line of the shell prints, at the root of the repository as the reader is."""
    environment = {**node._environment, "PATH": f"{ODF.parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", line],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
    return done.stdout


def test_each_step_prints_the_documented_output(clean: EmbeddedNode) -> None:
    compared = 0
    for language, block in BLOCK.findall(README):
        if language == "python":
            exec(ADDRESS.sub(clean.kafka, block), {})  # noqa: S102 - the producer of the README
            continue
        for step in COMMAND.finditer(block.replace("$ . .venv/bin/activate\n", "")):
            printed = run(clean, step["line"])
            if step["output"]:  # a command whose output depends on timing is shown without
                assert normalised(printed) == normalised(step["output"]), step["line"]
                compared += 1
    assert compared >= 6
