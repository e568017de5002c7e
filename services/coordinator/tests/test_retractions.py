"""Which queries may read inputs that retract, before anything is committed (docs/adr/0086)."""

from dataclasses import replace

import pytest
from odf_testing.coordinator import Coordinator

from odf_common.chain.walk import iterate
from odf_common.errors import InvalidQuery
from odf_common.metadata.events import (
    AddPushSource,
    MergeStrategyAppend,
    MergeStrategySnapshot,
    MergeStrategyUpsertStream,
)

APPEND = "{kind: Append}"
UPSERT = "{kind: UpsertStream, primaryKey: [city]}"
RETRACTING = [UPSERT, "{kind: Snapshot, primaryKey: [city]}", "{kind: ChangelogStream, primaryKey: [city]}"]
FINAL = "windows are final, but "


@pytest.fixture
def windows(derivative: str) -> str:
    """Return a derivative whose rows wait for the watermark."""
    counted = "SELECT window(event_time, '1 day').start AS event_time, city FROM cities"
    return derivative.replace("SELECT event_time, city FROM cities", counted).replace("cities.copy", "counts")


@pytest.fixture
def windows_of_copy(windows: str) -> str:
    return windows.replace("datasetRef: Cities", "datasetRef: cities.copy, alias: cities")


def merging(root: str, merge: str) -> str:
    """Return the root with another merge strategy; a changelog has `op`."""
    columns = "city STRING, op INT]" if "ChangelogStream" in merge else "city STRING]"
    return root.replace(APPEND, merge).replace("city STRING]", columns)


def source(node: Coordinator) -> AddPushSource:
    return node.find("cities").state.push_sources["default"]


@pytest.mark.parametrize("merge", RETRACTING)
def test_windows_over_a_root_that_retracts_are_refused(
    node: Coordinator, root: str, derivative: str, windows: str, merge: str
) -> None:
    retracting = merging(root, merge)
    kind = merge[len("{kind: ") :].partition(",")[0]
    with pytest.raises(InvalidQuery, match=f"{FINAL}Cities merges by {kind}") as caught:
        node.add(retracting, windows)
    assert str(caught.value.where).endswith("content.metadata[0].transform")
    node.add(retracting, derivative)
    with pytest.raises(InvalidQuery, match=f"{FINAL}Cities merges by {kind}"):
        node.add(windows)


@pytest.mark.parametrize("merge", [APPEND, "{kind: Ledger, primaryKey: [city]}"])
def test_windows_over_a_root_that_only_appends_are_added(
    node: Coordinator, root: str, windows: str, merge: str
) -> None:
    assert [result.outcome for result in node.add(root.replace(APPEND, merge), windows)] == ["added", "added"]


@pytest.mark.parametrize("is_together", [True, False])
def test_a_derivative_of_single_records_passes_retractions_on(
    node: Coordinator,
    root: str,
    derivative: str,
    windows_of_copy: str,
    is_together: bool,
) -> None:
    datasets = [merging(root, UPSERT), derivative]
    if not is_together:
        node.add(*datasets)
        datasets = []
    with pytest.raises(InvalidQuery, match=f"{FINAL}cities has rows that are corrected or retracted later"):
        node.add(*datasets, windows_of_copy)


def test_a_source_that_was_replaced_has_retracted(node: Coordinator, root: str, windows: str) -> None:
    node.add(merging(root, UPSERT))
    node.editor.commit_event("cities", replace(source(node), merge=MergeStrategyAppend()))
    with pytest.raises(InvalidQuery, match="Cities merges by UpsertStream"):
        node.add(windows)


def test_a_derivative_that_is_in_a_chain_is_not_refused(node: Coordinator, root: str, windows: str) -> None:
    node.add(root, windows)
    retracting = replace(source(node), merge=MergeStrategyUpsertStream(primary_key=("city",)))
    node.creator.amend(node.find("cities"), (retracting,))
    assert [result.outcome for result in node.add(windows)] == ["unchanged"]


def test_a_source_that_retracts_is_refused_for_a_root_that_windows_read(
    node: Coordinator, root: str, derivative: str, windows: str, windows_of_copy: str
) -> None:
    node.add(root, derivative)
    node.add(windows_of_copy)
    retracting = replace(source(node), merge=MergeStrategySnapshot(primary_key=("city",)))
    says = "counts reads cities, and its first retraction would stop it: windows are final.*a root of its own"
    with pytest.raises(InvalidQuery, match=says) as caught:
        node.editor.commit_event("cities", retracting)
    assert caught.value.where == "merge"
    with pytest.raises(InvalidQuery, match=says):
        node.add(merging(root, UPSERT), replace=True)
    second = replace(source(node), source_name="second")
    node.editor.commit_event("cities", second)  # it only appends
    node.names.delete("counts")
    node.editor.commit_event("cities", retracting)


def test_a_source_that_retracts_is_checked_against_the_queries_that_are_added_with_it(
    node: Coordinator, root: str, derivative: str, windows: str
) -> None:
    node.add(root, derivative, windows)
    reader = windows.replace("datasetRef: Cities", "datasetRef: cities.copy, alias: cities")
    node.add(reader.replace("counts", "of.copy"))
    passing = derivative.replace("cities.copy", "counts")
    final = windows.replace("counts", "cities.copy")
    with pytest.raises(InvalidQuery, match=r"of\.copy reads cities"):
        node.add(merging(root, UPSERT), passing, replace=True)
    node.names.delete("of.copy")
    with pytest.raises(InvalidQuery, match=FINAL):
        node.add(merging(root, UPSERT), passing, final, replace=True)
    added = node.add(merging(root, UPSERT), passing, replace=True)
    assert [result.outcome for result in added] == ["replaced", "replaced"]


def test_a_query_of_an_earlier_engine_is_not_derived_again_over_what_retracts(
    node: Coordinator, root: str, windows: str
) -> None:
    node.engine.version = "one"
    node.add(root, windows)
    retracting = replace(source(node), merge=MergeStrategyUpsertStream(primary_key=("city",)))
    node.creator.amend(node.find("cities"), (retracting,))
    node.engine.version = "two"

    (refused,) = node.upgrader.upgrade(["counts"], is_all=False, is_restarted=True, is_dry=False)
    assert FINAL in refused.error
    (upgraded,) = node.upgrader.upgrade(["counts"], is_all=False, is_restarted=False, is_dry=False)
    assert upgraded.outcome == "upgraded"


def test_a_derivative_without_a_query_is_not_known_to_retract(
    node: Coordinator, root: str, derivative: str, windows_of_copy: str
) -> None:
    node.add(merging(root, UPSERT), derivative)
    copy = node.find("cities.copy")
    *_, (seed, _, _) = iterate(node.datasets.reader(copy.id), copy.state.head)
    node.editor.reset("cities.copy", seed)
    assert node.find("cities.copy").state.transform is None
    assert [result.outcome for result in node.add(windows_of_copy)] == ["added"]
