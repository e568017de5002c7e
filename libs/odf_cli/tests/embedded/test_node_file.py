import os
from dataclasses import replace
from pathlib import Path

import pytest

from odf_cli.embedded.node_file import Node, NoNode, Part, find_node, forget_node, read_node, write_node
from odf_common.errors import Unavailable
from odf_common.service.settings import Settings


@pytest.fixture
def here(tmp_path: Path) -> Node:
    return Node(
        home=tmp_path,
        pid=os.getpid(),
        kafka="127.0.0.1:1",
        http="http://127.0.0.1:2",
        grpc={"coordinator": "127.0.0.1:3"},
        metrics={"coordinator": "127.0.0.1:4"},
        services=(Part(name="coordinator", pid=5, state="ready"),),
        parts=(Part(name="kafka", pid=None, state="restarting"),),
    )


def test_a_written_node_file_is_read_back(here: Node) -> None:
    write_node(here)
    assert read_node(here.home) == here


def test_a_home_without_a_node_says_how_to_start_one(here: Node) -> None:
    with pytest.raises(NoNode) as caught:
        read_node(here.home)
    assert "odf up --detach" in caught.value.advice()


def test_a_node_whose_supervisor_has_ended_is_not_running(here: Node) -> None:
    write_node(replace(here, pid=2**22 + 1))
    with pytest.raises(NoNode):
        read_node(here.home)


def test_a_file_that_is_not_json_is_not_a_node(here: Node) -> None:
    (here.home / "node.json").write_text("{")
    with pytest.raises(NoNode):
        read_node(here.home)


def test_settings_come_before_the_file(here: Node) -> None:
    write_node(here)
    settings = Settings(home=here.home, coordinator_grpc="far:1", sync_http="far:2")
    found = find_node(settings)
    assert found.address("coordinator") == "far:1"
    assert (found.http, found.kafka) == ("http://far:2", "127.0.0.1:1")


def test_settings_alone_are_enough(tmp_path: Path) -> None:
    found = find_node(Settings(home=tmp_path, coordinator_grpc="far:1"))
    assert found.address("coordinator") == "far:1"
    with pytest.raises(Unavailable):
        found.address("sync")


def test_a_forgotten_node_is_removed(here: Node) -> None:
    write_node(here)
    forget_node(here.home)
    forget_node(here.home)
    assert list(here.home.iterdir()) == []
