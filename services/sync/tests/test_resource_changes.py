"""Changes of resources as events of HTTP, and resources as they were written."""

import http.client
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from odf_common.identity.dataset_refs import Name

from .access_matrix import Node

VARIABLES = "/config/v1alpha1/variableset"
EVENTS = {"Accept": "text/event-stream"}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path, is_multi_tenant=True)
    node.directory.add_account(Name("alice"), None)
    with node.running():
        yield node


def create(node: Node, name: str) -> None:
    manifest = {
        "$schema": "VariableSet",
        "headers": {"name": name},
        "spec": {"variables": {"z": "1", "a": "2"}},
    }
    headers = {**node.token("alice"), "Content-Type": "application/json"}
    assert node.answer("POST", VARIABLES, headers, json.dumps(manifest))[0] == 201


def test_changes_after_the_last_event_are_sent_again(node: Node) -> None:
    token = node.token("alice")
    create(node, "first")
    create(node, "second")
    connection = http.client.HTTPConnection(node.base, timeout=10)
    connection.request("GET", VARIABLES, headers={**token, **EVENTS, "Last-Event-ID": "0"})
    answer = connection.getresponse()
    assert (answer.status, answer.getheader("Content-Type")) == (200, "text/event-stream")
    names: list[str] = []
    while len(names) < 2:
        line = answer.readline().decode()
        if line.startswith("data: "):
            names.append(json.loads(line.removeprefix("data: "))["resource"]["headers"]["name"])
    assert names == ["first", "second"]
    connection.close()


@pytest.mark.parametrize(("position", "status"), [("999999", 410), ("x", 400), ("9" * 30, 400)])
def test_a_position_that_is_not_in_the_history_is_refused(node: Node, position: str, status: int) -> None:
    headers = {**node.token("alice"), **EVENTS, "Last-Event-ID": position}
    assert node.ask("GET", VARIABLES, headers) == status


def test_a_spec_is_returned_in_the_order_in_which_it_was_written(node: Node) -> None:
    create(node, "env")
    _, _, body = node.answer("GET", f"{VARIABLES}/env", node.token("alice"))
    document = json.loads(body)
    assert [*document] == ["$schema", "headers", "spec", "status"]
    assert [*document["spec"]["variables"]] == ["z", "a"]
