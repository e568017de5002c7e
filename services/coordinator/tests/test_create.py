"""What happens to datasets, their inputs and their names while a dataset is created, amended or replaced."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from odf_testing.coordinator import Coordinator

from odf_common.adapters.local import durable
from odf_common.adapters.local.durable import LockHeld
from odf_common.adapters.local.key_files import NotOwned
from odf_common.chain.state import ChainState
from odf_common.errors import AlreadyExists, HeadMoved, InvalidInput, InvalidQuery, NotFound, Unavailable
from odf_common.identity.keys import PrivateKey
from odf_common.metadata.events import (
    AddPushSource,
    KnownEvent,
    MergeStrategyAppend,
    ReadStepNdJson,
    SetTransform,
)
from odf_common.ports.engine import ValidatedQuery
from odf_common.ports.store import CatalogEntry, DatasetUnknown
from odf_common.resources.registry import ReservedName
from odf_coordinator.catalog.datasets import DatasetHandle, KeyStore
from odf_coordinator.commit.dataset_locks import DatasetBusy
from odf_coordinator.definitions.create import DatasetCreator
from odf_coordinator.definitions.query_validation import require_inputs
from odf_coordinator.transforms.engine_output import QueryMigrator


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


@pytest.mark.parametrize("name", ["config/v1alpha1", "Source/V2"])
def test_no_new_dataset_gets_a_name_whose_path_is_one_of_resources(
    node: Coordinator, root: str, name: str
) -> None:
    with pytest.raises(ReservedName, match=f"/{name} is a path of resources"):
        node.add(root.replace("cities", name))
    node.add(root)
    with pytest.raises(ReservedName):
        node.names.rename("cities", name)
    node.names.rename("cities", "config/cities")


def test_a_dataset_that_has_such_a_name_already_is_found_by_its_id(node: Coordinator, root: str) -> None:
    node.add(root)
    known = node.find("cities")
    node.catalog.rename("cities", replace(known.entry, alias="config/v1alpha1"))
    assert node.find(str(known.id)).state == known.state
    node.names.rename(str(known.id), "towns")


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


MORE = "    - {kind: AddPushSource, sourceName: more, read: {kind: NdJson}, merge: {kind: Append}}\n"


def test_a_new_dataset_is_announced_once_it_has_its_name(node: Coordinator, root: str) -> None:
    names: list[str] = []

    def listen(state: ChainState) -> None:
        entry = node.catalog.by_id(state.dataset_id)
        names.append("" if entry is None else entry.alias)

    node.committer.listen(listen)
    node.add(root)
    assert names[-1] == "cities"


def test_a_dataset_whose_input_is_deleted_meanwhile_is_not_created(
    node: Coordinator, root: str, derivative: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.add(root)
    save = KeyStore.save

    def overtaken(keys: KeyStore, key: PrivateKey) -> None:
        node.catalog.remove("cities")
        save(keys, key)

    monkeypatch.setattr(KeyStore, "save", overtaken)
    with pytest.raises(DatasetUnknown):
        node.add(derivative)
    assert list(node.catalog.entries()) == []


def test_a_query_whose_input_is_deleted_meanwhile_is_not_committed(
    node: Coordinator, root: str, derivative: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.add(root, root.replace("name: cities", "name: towns"), derivative)
    before = node.find("cities.copy").state.head
    migrate = QueryMigrator.with_migration

    def overtaken(*arguments: Any) -> Sequence[KnownEvent]:
        node.catalog.remove("towns")
        return migrate(*arguments)

    monkeypatch.setattr(QueryMigrator, "with_migration", overtaken)
    with pytest.raises(DatasetUnknown):
        node.add(derivative.replace("datasetRef: Cities", "datasetRef: towns, alias: Cities"), replace=True)
    assert node.find("cities.copy").state.head == before


def test_a_dataset_that_is_renamed_while_it_gets_a_topic_keeps_its_new_name(
    node: Coordinator, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.add(root)
    create = node.topics.create_push_topic

    def renaming(name: str, partitions: int = 1) -> None:
        monkeypatch.undo()
        node.names.rename("cities", "towns")
        create(name, partitions)

    monkeypatch.setattr(node.topics, "create_push_topic", renaming)
    node.add(root + MORE, replace=True)
    (entry,) = node.catalog.entries()
    assert (entry.alias, sorted(entry.push_topics)) == ("towns", ["default", "more"])


def test_no_other_process_changes_names_while_a_dataset_gets_its_name_or_a_topic(
    tmp_path: Path, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, written = Coordinator(home=tmp_path, is_durable=True), list[str]()

    def contended(change: Callable[[CatalogEntry], None]) -> Callable[[CatalogEntry], None]:
        def changed(entry: CatalogEntry) -> None:
            with pytest.raises(LockHeld), durable.lock_file(tmp_path / "locks" / "names", wait_seconds=0):
                pass
            change(entry)
            written.extend(entry.push_topics)

        return changed

    monkeypatch.setattr(node.catalog, "add", contended(node.catalog.add))
    monkeypatch.setattr(node.catalog, "replace", contended(node.catalog.replace))
    node.add(root)
    node.add(root + MORE, replace=True)
    assert written == ["default", "default", "more"]


SECOND = AddPushSource(source_name="second", read=ReadStepNdJson(), merge=MergeStrategyAppend())


def test_a_copy_gets_no_topic_for_a_source_that_it_cannot_have(node: Coordinator, root: str) -> None:
    node.add(root)
    known, topics = node.find("cities"), set(node.topics.names)
    node.keys.remove(known.id)
    with pytest.raises(NotOwned):
        node.creator.amend(known, (SECOND,))
    assert set(node.topics.names) == topics


def test_a_source_that_has_its_topic_is_changed_while_the_dataset_is_claimed(
    node: Coordinator, root: str
) -> None:
    node.add(root)
    known, changed = node.find("cities"), replace(SECOND, source_name="default")
    creator = replace(node.creator, claims=replace(node.claims, wait_seconds=0.0))
    claim = node.catalog.claim(known.id)
    assert claim is not None
    amended = creator.amend(known, (changed,))
    with pytest.raises(DatasetBusy):
        creator.amend(amended, (SECOND,))
    claim.release()
    assert node.find("cities").state.push_sources == {"default": changed}


def test_topics_that_are_missing_are_created_before_the_dataset_is_announced_once(
    node: Coordinator, root: str
) -> None:
    node.add(root)
    topics = dict(node.find("cities").entry.push_topics)
    node.catalog.replace(replace(node.find("cities").entry, push_topics={}))
    announced: list[object] = []
    node.committer.listen(lambda _: announced.append(node.find("cities").entry.push_topics))

    for _ in range(2):
        node.creator.create_missing_topics(node.find("cities"))

    assert announced == [topics]


def test_a_replacement_that_is_overtaken_is_retried(
    node: Coordinator, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.add(root)
    amend = DatasetCreator.amend

    def overtaken(
        creator: DatasetCreator, known: DatasetHandle, events: Sequence[KnownEvent]
    ) -> DatasetHandle:
        monkeypatch.undo()
        node.push("cities", "Oslo")
        with pytest.raises(HeadMoved):
            amend(creator, known, events)
        raise HeadMoved(dataset=str(known.id), expected=None, actual=None)

    monkeypatch.setattr(DatasetCreator, "amend", overtaken)
    (added,) = node.add(root.replace("city STRING", "town STRING"), replace=True)
    assert added.outcome == "replaced"
    assert node.find("cities").state.last_offset == 0


def test_a_copy_among_the_manifests_keeps_all_from_being_created(node: Coordinator, root: str) -> None:
    node.add(root)
    node.keys.remove(node.find("cities").id)
    changed = root.replace("city STRING", "town STRING")
    with pytest.raises(NotOwned):
        node.add(root.replace("name: cities", "name: towns"), changed, replace=True)
    assert [entry.alias for entry in node.catalog.entries()] == ["cities"]
