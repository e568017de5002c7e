"""Copies of derivatives whose data was not fetched: the chain is imported, and the data is computed on this node."""

from pathlib import Path

import pytest
from odf_testing.coordinator import Coordinator

from odf_common.dataset.dataset_notes import dropped_blocks, note_drop
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import DatasetId
from odf_common.ports.store import ObjectKind
from odf_coordinator.commit.committer import Committed, Outcome, Refusal
from odf_coordinator.operations.pull import PullProgress
from odf_coordinator.storage import DataDropped, was_dropped

KINDS = (ObjectKind.DATA, ObjectKind.CHECKPOINT)
Objects = dict[tuple[ObjectKind, Multihash], bytes]


@pytest.fixture
def source(node: Coordinator, root: str, derivative: str, second: str) -> Coordinator:
    node.engine.version = "one"
    node.add(root, derivative, second)
    for minute, city in enumerate(("Oslo", "Rome", "Lima")):
        node.push("cities", city, minute=minute)
        node.work()
    return node


@pytest.fixture
def copy(tmp_path: Path) -> Coordinator:
    """Another node, without any dataset yet."""
    other = Coordinator(home=tmp_path / "copy")
    other.engine.version = "one"
    return other


def objects(node: Coordinator, dataset: DatasetId) -> Objects:
    return {
        (kind, name): node.blobs.read(dataset, kind, name)
        for kind in KINDS
        for name in node.blobs.names(dataset, kind)
    }


def import_without(
    source: Coordinator, copy: Coordinator, ref: str, *kinds: ObjectKind, is_marked: bool = True
) -> Outcome:
    """Import a chain of which the objects of these kinds are missing."""
    known = source.find(ref)
    for kind in {ObjectKind.BLOCK, *KINDS} - set(kinds):
        for name in source.blobs.names(known.id, kind):
            copy.blobs.put(known.id, kind, name, source.blobs.read(known.id, kind, name))
    if is_marked:
        note_drop(copy.blobs, known.id, known.state.head)
    return copy.importer.import_chain(known.id, expected_head=None, new_head=known.state.head, alias=ref)


def pull(node: Coordinator, *refs: str, is_recursive: bool = False) -> dict[str, PullProgress]:
    steps = node.puller.pull(refs, is_all=False, is_recursive=is_recursive, is_wanted=lambda: True)
    return {one.alias: one for one in steps}


def test_a_derivative_is_imported_without_data_only_if_that_is_marked(
    source: Coordinator, copy: Coordinator
) -> None:
    refused = import_without(source, copy, "cities.copy", *KINDS, is_marked=False)

    assert isinstance(refused, Refusal)
    assert refused.code == "ObjectMissing"
    imported = import_without(source, copy, "cities.copy", *KINDS)
    assert isinstance(imported, Committed)
    assert imported.state == source.find("cities.copy").state
    assert was_dropped(copy.datasets, copy.find("cities.copy"))


def test_a_root_without_data_is_refused_even_if_it_is_marked(source: Coordinator, copy: Coordinator) -> None:
    refused = import_without(source, copy, "cities", *KINDS)

    assert isinstance(refused, Refusal)
    assert refused.code == "ObjectMissing"
    assert copy.catalog.by_alias("cities") is None


@pytest.mark.parametrize("missing", [KINDS, KINDS[:1], KINDS[1:]], ids=["all", "slices", "checkpoints"])
def test_the_data_of_a_copy_is_computed_bit_for_bit(
    source: Coordinator, copy: Coordinator, missing: tuple[ObjectKind, ...]
) -> None:
    import_without(source, copy, "cities")
    import_without(source, copy, "cities.copy", *missing)
    known = copy.find("cities.copy")

    pulled = pull(copy, "cities.copy")["cities.copy"]

    assert (pulled.state, pulled.error, pulled.head) == ("rebuilt", "", known.state.head)
    assert objects(copy, known.id) == objects(source, known.id)
    assert dropped_blocks(copy.blobs, known.id) is None
    assert "is a copy" in pull(copy, "cities.copy")["cities.copy"].error, "nothing is left to do here"


def test_inputs_that_are_copies_without_data_are_computed_first(
    source: Coordinator, copy: Coordinator
) -> None:
    import_without(source, copy, "cities")
    for ref in ("cities.copy", "copy.copy"):
        import_without(source, copy, ref, *KINDS)
    with pytest.raises(DataDropped, match=r"`odf pull cities\.copy`"):
        copy.record_reader.tail("cities.copy", 1)
    assert "`odf pull cities.copy` recomputes it" in pull(copy, "copy.copy")["copy.copy"].error

    pulled = pull(copy, "copy.copy", "cities.copy")

    assert [pulled[ref].state for ref in ("cities.copy", "copy.copy")] == ["rebuilt", "rebuilt"]
    for ref in ("cities.copy", "copy.copy"):
        assert objects(copy, copy.find(ref).id) == objects(source, copy.find(ref).id)


def test_inputs_that_are_missing_are_named(source: Coordinator, copy: Coordinator) -> None:
    cities = source.find("cities").id
    import_without(source, copy, "cities.copy", *KINDS)

    failed = pull(copy, "cities.copy")["cities.copy"]

    assert failed.state == "failed"
    assert f"this node lacks inputs, or blocks of them: {cities} (Cities)" in failed.error
    assert "`odf pull URL`, then `odf pull cities.copy`" in failed.error
    import_without(source, copy, "cities")
    assert pull(copy, "cities.copy")["cities.copy"].state == "rebuilt"


def test_an_input_that_was_pulled_before_its_last_blocks_is_named(
    source: Coordinator, copy: Coordinator
) -> None:
    import_without(source, copy, "cities")
    known = source.find("cities")
    copy.blobs.remove(known.id, ObjectKind.BLOCK, [known.state.head])
    import_without(source, copy, "cities.copy", *KINDS)

    assert f"blocks of them: {known.id}" in pull(copy, "cities.copy")["cities.copy"].error


def test_a_copy_of_another_engine_waits_for_that_engine(source: Coordinator, copy: Coordinator) -> None:
    import_without(source, copy, "cities")
    import_without(source, copy, "cities.copy", *KINDS)
    copy.engine.version = "two"

    failed = pull(copy, "cities.copy")["cities.copy"]

    assert failed.error.endswith("is not installed: install it and pull again"), (
        "the chain is not ours to reset"
    )
