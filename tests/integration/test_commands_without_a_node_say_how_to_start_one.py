from pathlib import Path

import pytest
from odf_testing.embedded import EmbeddedNode
from odf_testing.story import as_text, root

LINES = [
    "list",
    "log flights",
    "tail flights",
    "inspect schema flights",
    "inspect lineage flights",
    "rename flights departures",
    "delete flights --yes",
    "reset flights f16203fd51a2c --yes",
    "ingest flights -",
    "pull flights",
    "pull --all",
    "pull http://127.0.0.1:9/flights",
    "verify flights",
    "verify --all",
    "sql -c 'SELECT 1'",
    "add -",
    "status",
]


@pytest.mark.parametrize("line", LINES)
def test_without_a_node_the_command_says_how_to_start_one(tmp_path: Path, line: str) -> None:
    no_node = EmbeddedNode(tmp_path / "no_node")
    said = no_node.fails(line, code=1, stdin=as_text(root("flights", ("id BIGINT",))))
    assert "no node is running" in said
    assert "odf up --detach" in said
    assert "Traceback" not in said


def test_misuse_is_distinguished_from_failure(tmp_path: Path) -> None:
    no_node = EmbeddedNode(tmp_path / "no_node")
    for line in ("pull", "verify", "tail", "list --output xml", "no-such-command", "ingest"):
        assert "Traceback" not in no_node.fails(line, code=2)


def test_down_without_a_node_succeeds(tmp_path: Path) -> None:
    EmbeddedNode(tmp_path / "no_node").run("down")
