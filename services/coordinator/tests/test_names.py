"""Names of datasets: renamed, freed and announced, also while something else happens."""

from dataclasses import replace
from pathlib import Path

import pytest
from odf_testing.coordinator import Coordinator
from structlog.testing import capture_logs

from odf_common.adapters.local import durable
from odf_common.adapters.local.catalog import CorruptName
from odf_common.adapters.local.durable import LockHeld
from odf_common.chain.state import ChainState
from odf_common.errors import Damaged, NotFound
from odf_common.identity.dataset_refs import HEAD
from odf_common.ports.store import CatalogEntry
from odf_coordinator.catalog.datasets import DatasetHandle


def test_a_renamed_dataset_keeps_its_topics_and_its_readers(pair: Coordinator) -> None:
    pair.names.rename("cities", "towns")

    known = pair.find("towns")
    assert known.entry.push_topics == {"default": "odf.push.cities.default"}
    with pytest.raises(NotFound, match="cities does not exist"):
        pair.find("cities")
    pair.push("towns", "Rome", minute=1)
    pair.work()
    assert pair.find("cities.copy").state.last_offset == 1


def test_a_new_name_is_announced(pair: Coordinator) -> None:
    announced: list[ChainState] = []
    pair.committer.listen(announced.append)

    renamed = pair.names.rename("cities", "towns")

    assert isinstance(renamed, DatasetHandle)
    assert announced == [renamed.state]


def test_only_the_case_of_a_name_may_change(pair: Coordinator) -> None:
    pair.names.rename("cities", "Cities")

    assert pair.find("cities").alias == "Cities"


def test_a_rename_is_repeated_only_by_the_name_that_the_dataset_had(pair: Coordinator) -> None:
    pair.names.rename("cities", "towns")
    again = pair.names.rename("cities", "towns")
    assert isinstance(again, DatasetHandle)
    assert again.alias == "towns"
    with pytest.raises(NotFound, match="villages does not exist"):
        pair.names.rename("villages", "towns")


def test_a_dataset_that_is_deleted_right_after_its_rename_is_not_reported_as_damaged(
    pair: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = pair.catalog.rename

    def overtaken(alias: str, entry: CatalogEntry) -> None:
        rename(alias, entry)
        pair.catalog.remove(entry.alias)
        pair.refs.remove(entry.dataset_id, HEAD, expected=None)
        pair.states.forget(entry.dataset_id)

    monkeypatch.setattr(pair.catalog, "rename", overtaken)
    with pytest.raises(NotFound, match=r"towns\.copy does not exist"):
        pair.names.rename("cities.copy", "towns.copy")


def test_no_other_process_changes_names_during_a_rename(
    tmp_path: Path, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Coordinator(home=tmp_path, is_durable=True)
    node.add(root)
    rename, names = node.catalog.rename, tmp_path / "locks" / "names"

    def contended(alias: str, entry: CatalogEntry) -> None:
        with pytest.raises(LockHeld), durable.lock_file(names, wait_seconds=0):
            pass
        rename(alias, entry)

    monkeypatch.setattr(node.catalog, "rename", contended)
    node.names.rename("cities", "towns")
    assert node.find("towns").alias == "towns"


def test_a_name_that_cannot_be_read_is_freed_as_advised(tmp_path: Path, root: str) -> None:
    node = Coordinator(home=tmp_path, is_durable=True)
    durable.write(tmp_path / "names" / "cities", b"")
    with pytest.raises(CorruptName) as caught:
        node.find("cities")
    assert "`odf delete NAME`" in caught.value.advice()
    with pytest.raises(CorruptName):
        node.add(root)
    node.names.delete("cities")
    assert [result.outcome for result in node.add(root)] == ["added"]


def test_no_other_process_changes_names_while_one_is_freed(
    tmp_path: Path, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Coordinator(home=tmp_path, is_durable=True)
    node.add(root)
    entry, names = node.find("cities").entry, tmp_path / "locks" / "names"
    node.catalog.add(replace(entry, alias="towns"))
    durable.write(tmp_path / "names" / "damaged", b"")
    remove, freed = node.catalog.remove, []

    def contended(alias: str) -> None:
        with pytest.raises(LockHeld), durable.lock_file(names, wait_seconds=0):
            pass
        remove(alias)
        freed.append(alias)

    monkeypatch.setattr(node.catalog, "remove", contended)
    with capture_logs():
        for name in ("towns", "damaged"):
            node.names.delete(name)
    assert freed == ["towns", "damaged"]


def test_a_name_that_can_be_read_again_is_not_freed_without_its_dataset(
    tmp_path: Path, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Coordinator(home=tmp_path, is_durable=True)
    node.add(root)

    def damaged(*_: object) -> CatalogEntry:
        raise Damaged(file="names/cities", why="cut")

    with monkeypatch.context() as patch:
        patch.setattr("odf_coordinator.catalog.datasets.Datasets.entry", damaged)
        node.names.delete("cities")
    assert node.find("cities").alias == "cities"
