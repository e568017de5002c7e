from dataclasses import replace
from typing import Any

import pytest
from odf_testing.coordinator import Coordinator

from odf_common.errors import AlreadyExists, InvalidInput, InvalidQuery, NotFound, Unavailable
from odf_common.metadata.events import SetTransform
from odf_common.ports.engine import ValidatedQuery
from odf_coordinator.definitions.query_validation import require_inputs


def test_a_manifest_becomes_a_dataset_with_a_topic_and_a_key(node: Coordinator, root: str) -> None:
    (added,) = node.add(root)

    known = node.find("CITIES")
    assert added.outcome == "added"
    assert known.entry.push_topics == {"default": "odf.push.cities.default"}
    assert set(node.topics.names) == {"odf.push.cities.default"}
    assert node.keys.has(known.id)
    assert known.state.sequence_number == 1


def test_the_same_manifest_again_is_unchanged(node: Coordinator, root: str) -> None:
    (first,) = node.add(root)

    (second,) = node.add(root)

    assert (second.outcome, second.head, second.dataset_id) == ("unchanged", first.head, first.dataset_id)


def test_a_name_that_is_taken_by_another_definition_is_refused(node: Coordinator, root: str) -> None:
    node.add(root)

    with pytest.raises(AlreadyExists, match="differs in AddPushSource"):
        node.add(root.replace("city STRING", "town STRING"))


def test_replacing_appends_what_has_changed(node: Coordinator, root: str) -> None:
    node.add(root)

    (added,) = node.add(root.replace("city STRING", "town STRING"), replace=True)

    known = node.find("cities")
    assert added.outcome == "replaced"
    assert known.state.push_sources["default"].read.ddl_schema == ("event_time TIMESTAMP", "town STRING")
    assert known.state.sequence_number == 2


def test_replacing_cannot_take_a_source_away(node: Coordinator, root: str) -> None:
    node.add(root)

    with pytest.raises(InvalidInput, match="sources cannot be removed: default"):
        node.add(root.replace("sourceName: default", "sourceName: other"), replace=True)


def test_a_dataset_of_another_kind_is_no_replacement_even_if_nothing_else_differs(
    node: Coordinator, root: str, derivative: str
) -> None:
    node.add(root, derivative)
    before = node.find("cities.copy").state
    empty = derivative.split("  kind: Derivative", maxsplit=1)[0] + "  kind: Root\n  metadata: []\n"

    with pytest.raises(AlreadyExists, match=r"cities\.copy already exists and differs in kind"):
        node.add(empty)
    with pytest.raises(
        InvalidInput, match=r"^m0\.yaml:\S+ cities\.copy: .*is Derivative and cannot become Root"
    ):
        node.add(empty, replace=True)

    assert node.find("cities.copy").state == before


def test_manifests_may_come_in_any_order(node: Coordinator, root: str, derivative: str) -> None:
    added = node.add(derivative, root)

    assert [one.alias for one in added] == ["cities", "cities.copy"]


def test_inputs_are_resolved_to_ids_and_keep_the_name_as_it_was_written(
    node: Coordinator, root: str, derivative: str
) -> None:
    node.add(root + "---" + derivative)

    transform = node.find("cities.copy").state.transform
    assert isinstance(transform, SetTransform)
    (only,) = transform.inputs
    assert (only.dataset_ref, only.alias) == (str(node.find("cities").id), "Cities")


def test_an_input_that_does_not_exist_is_named_with_what_to_do_first(
    node: Coordinator, derivative: str
) -> None:
    with pytest.raises(
        NotFound, match=r"^m0\.yaml:9:17: input Cities of cities\.copy does not exist"
    ) as caught:
        node.add(derivative)
    assert caught.value.advice() == "add Cities first, or add its manifest in the same command"
    assert list(node.catalog.entries()) == []


def test_datasets_that_read_each_other_are_refused(node: Coordinator, derivative: str) -> None:
    other = derivative.replace("name: cities.copy", "name: cities").replace(
        "datasetRef: Cities", "datasetRef: cities.copy"
    )

    with pytest.raises(InvalidInput, match="read each other"):
        node.add(derivative, other)


def test_bad_sql_is_refused_with_the_engines_words_and_nothing_is_added(
    node: Coordinator, root: str, derivative: str
) -> None:
    with pytest.raises(
        InvalidQuery,
        match=r"m1.yaml:10:7: cities\.copy: content\.metadata\[0\]\.transform: syntax error at line 1, column 1",
    ):
        node.add(root, derivative.replace("query: SELECT", "query: SELEKT"))
    assert list(node.catalog.entries()) == []


def test_a_dataset_whose_topic_cannot_be_created_leaves_nothing(node: Coordinator, root: str) -> None:
    node.topics.is_lost = True

    with pytest.raises(Unavailable):
        node.add(root)

    assert list(node.catalog.entries()) == []
    assert list(node.blobs.datasets()) == []
    assert list(node.home.glob("keys/*")) == []


def test_topics_of_different_datasets_differ(node: Coordinator, root: str) -> None:
    node.add(root.replace("name: cities", "name: a.b").replace("sourceName: default", "sourceName: c"))
    node.add(root.replace("name: cities", "name: a").replace("sourceName: default", "sourceName: b.c"))

    assert len(node.topics.names) == 2


def test_a_query_over_a_table_other_than_its_inputs_is_refused() -> None:
    require_inputs(("CITIES",), ("cities",))

    with pytest.raises(InvalidQuery, match="table towns is not an input; inputs are: cities"):
        require_inputs(("towns",), ("cities",))


def test_a_manifest_whose_query_reads_another_dataset_than_its_inputs_is_refused(
    node: Coordinator, root: str, derivative: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.add(root, root.replace("name: cities", "name: towns"))
    usual = node.engine.validate

    def validate(*asked: Any, **more: Any) -> ValidatedQuery:
        return replace(usual(*asked, **more), tables=("cities", "towns"))

    monkeypatch.setattr(node.engine, "validate", validate)
    with pytest.raises(InvalidQuery, match="table towns is not an input; inputs are: Cities"):
        node.add(derivative)
    with pytest.raises(NotFound):
        node.find("cities.copy")
