"""The engine's version: written into new transforms, asked for by each step, changed by a new SetTransform."""

from dataclasses import replace

import pytest
from odf_testing.coordinator import Coordinator

from odf_common.metadata.events import SetTransform
from odf_common.ports.engine import EngineNotAvailable


@pytest.fixture
def first(node: Coordinator, root: str, derivative: str) -> Coordinator:
    """A derivative that was created while the engine was version one."""
    node.engine.version = "one"
    node.add(root, derivative)
    node.work()
    return node


def transform(node: Coordinator) -> SetTransform:
    found = node.find("cities.copy").state.transform
    assert found is not None
    return found


def unversioned(event: SetTransform) -> SetTransform:
    return replace(event, transform=replace(event.transform, version=None))


def test_a_new_dataset_asks_for_the_installed_engine(first: Coordinator) -> None:
    first.push("cities", "Oslo")
    first.work()
    assert transform(first).transform.version == "one"
    assert first.engine.requests[-1].transform.version == "one"


def test_the_same_manifest_is_unchanged_whatever_engine_is_installed(
    first: Coordinator, derivative: str
) -> None:
    head = first.find("cities.copy").state.head
    for version in ("one", "two"):
        first.engine.version = version
        assert [one.outcome for one in first.add(derivative)] == ["unchanged"]
        assert [one.outcome for one in first.add(derivative, replace=True)] == ["unchanged"]
    assert first.find("cities.copy").state.head == head


def test_another_engine_stops_a_derivative_until_its_transform_is_committed_again(first: Coordinator) -> None:
    first.engine.version = "two"
    first.push("cities", "Oslo")
    first.work()
    known = first.find("cities.copy")
    assert known.state.next_offset == 0
    assert first.stall_text(known.id) == "asked for one, here is two"

    first.editor.commit_event("cities.copy", unversioned(transform(first)))
    first.now += 60
    first.work()
    assert transform(first).transform.version == "two"
    assert first.find("cities.copy").state.next_offset == 1
    assert first.stall_text(known.id) == ""


def test_the_same_transform_for_the_same_engine_changes_nothing(first: Coordinator) -> None:
    head = first.find("cities.copy").state.head
    assert first.editor.commit_event("cities.copy", unversioned(transform(first))).state.head == head


def test_a_transform_for_another_engine_is_not_admitted(first: Coordinator) -> None:
    event = replace(transform(first), transform=replace(transform(first).transform, version="two"))
    with pytest.raises(EngineNotAvailable):
        first.editor.commit_event("cities.copy", event)


def test_chains_without_a_version_continue_with_any_engine(
    node: Coordinator, root: str, derivative: str
) -> None:
    node.add(root, derivative)
    node.engine.version = "two"
    node.push("cities", "Oslo")
    node.work()
    assert transform(node).transform.version is None
    assert node.find("cities.copy").state.next_offset == 1
