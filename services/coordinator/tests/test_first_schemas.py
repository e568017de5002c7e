"""Inputs without records get the schemas that their sources declare, once another input of a derivative has begun."""

import pytest
import yaml
from odf_testing.coordinator import Coordinator
from odf_testing.manifests import derivative, root

from odf_common.chain.walk import iterate
from odf_common.errors import InvalidInput
from odf_common.metadata.events import AddData
from odf_common.metadata.scalars import Timestamp

COLUMNS = ("event_time TIMESTAMP", "city STRING")
BOTH = derivative("both", {"left": "cities", "right": "towns"}, "SELECT * FROM left")
COPY = derivative("towns.copy", {"towns": "towns"}, "SELECT * FROM towns")
OVER_COPY = derivative("both", {"left": "cities", "right": "towns.copy"}, "SELECT * FROM left")


def add(node: Coordinator, *manifests: object) -> None:
    node.add(*(yaml.safe_dump(one) for one in manifests))
    node.work()


def blocks(node: Coordinator, ref: str) -> int:
    return node.find(ref).state.sequence_number + 1


@pytest.mark.parametrize("readers", [(BOTH,), (COPY, OVER_COPY)])
def test_a_derivative_starts_although_an_input_has_no_record(
    node: Coordinator, readers: tuple[object, ...]
) -> None:
    add(node, root("cities", COLUMNS), root("towns", COLUMNS), *readers)
    assert (blocks(node, "towns"), node.engine.requests) == (2, []), "no input has begun"

    node.push("cities", "Oslo")
    node.work()

    assert node.find("both").state.next_offset == 1
    assert (blocks(node, "towns"), node.find("towns").state.next_offset) == (3, 0)
    node.push("towns", "Ely", minute=1)
    node.work()
    assert node.find("both").state.next_offset == 2
    known = node.find("towns")
    events = [
        decoded.block.event for _, decoded, _ in iterate(node.datasets.reader(known.id), known.state.head)
    ]
    assert isinstance(events[0], AddData)
    assert len(events) == 4, "its first slice has that schema"


def test_a_watermark_on_a_dataset_without_records_starts_its_derivative(node: Coordinator) -> None:
    add(node, root("towns", COLUMNS), COPY)
    watermark = Timestamp.parse("2026-03-10T00:00:00Z")

    list(node.puller.set_watermarks(["towns"], watermark))
    node.work()

    assert node.find("towns.copy").state.watermark == watermark
    assert node.find("towns.copy").state.schema == node.find("towns").state.schema


@pytest.mark.parametrize(
    ("town", "why"),
    [
        (root("towns", ()), "declares no schema"),
        (root("towns", COLUMNS, sources=()), "has no source"),
    ],
)
def test_without_a_declared_schema_nothing_is_committed(node: Coordinator, town: object, why: str) -> None:
    other = root("empty", COLUMNS)
    three = derivative("three", {"left": "cities", "right": "towns", "more": "empty"}, "SELECT * FROM left")
    add(node, root("cities", COLUMNS), town, other, three)
    before = blocks(node, "towns")

    node.push("cities", "Oslo")
    node.work()

    assert (blocks(node, "towns"), blocks(node, "empty"), node.engine.requests) == (before, 2, [])
    assert why in node.first_schemas.why_unknown(node.find("towns"))


def test_a_schema_of_a_root_whose_key_is_elsewhere_is_its_owners(node: Coordinator) -> None:
    add(node, root("cities", COLUMNS), root("towns", COLUMNS), BOTH)
    node.keys.remove(node.find("towns").id)

    node.push("cities", "Oslo")
    node.work()

    assert (blocks(node, "towns"), node.engine.requests) == (2, [])
    assert "owner" in node.first_schemas.why_unknown(node.find("towns"))


def test_a_declaration_can_be_replaced_after_a_reset_to_before_its_schema(node: Coordinator) -> None:
    add(node, root("cities", COLUMNS), root("towns", ["event_time TIMESTAMP", "city INT"]), BOTH)
    before = node.find("towns").state.head
    node.push("cities", "Oslo")
    node.work()
    corrected = yaml.safe_dump(root("towns", COLUMNS))
    with pytest.raises(InvalidInput, match="column city"):
        node.add(corrected, replace=True)

    node.editor.reset("towns", before, is_forced=True)
    node.work()
    node.add(corrected, replace=True)
    with node.scheduler_running():
        list(node.puller.derive_again(["towns"], is_recursive=False, is_wanted=lambda: True))

    assert node.find("both").state.next_offset == 1
    node.push("towns", "Ely", minute=1)
    node.work()
    assert node.find("both").state.next_offset == 2
