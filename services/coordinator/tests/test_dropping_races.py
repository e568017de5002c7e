"""Data that is dropped during another operation on its derivative."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from odf_testing.coordinator import Coordinator, PassingEngine

from odf_common.chain.walk import iterate
from odf_common.dataset.dataset_notes import dropped_blocks
from odf_common.errors import Refused
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.engine_messages import TransformRequest, TransformResponseSuccess
from odf_common.ports.engine import OnProgress
from odf_common.ports.store import ObjectKind
from odf_coordinator.storage import DataDropped, is_dropped


@pytest.fixture
def filled(node: Coordinator, root: str, derivative: str) -> Coordinator:
    """A derivative of two steps."""
    node.add(root, derivative)
    for minute, city in enumerate(("Oslo", "Rome")):
        node.push("cities", city, minute=minute)
        node.work()
    return node


def test_data_dropped_while_its_newest_is_rebuilt_stays_dropped(filled: Coordinator) -> None:
    class DroppingAtTheEnd(PassingEngine):
        def execute_transform(
            self, request: TransformRequest, on_progress: OnProgress | None = None
        ) -> TransformResponseSuccess:
            answer = super().execute_transform(request, on_progress)
            if request.next_offset == 1:
                filled.dropper.drop("cities.copy")
            return answer

    filled.dropper.drop("cities.copy")
    known = filled.find("cities.copy")
    rebuilding = replace(filled.puller.rebuilder, engine=DroppingAtTheEnd())

    with pytest.raises(DataDropped, match=r"the data of cities\.copy is missing"):
        list(rebuilding.rebuild(known))

    assert is_dropped(filled.datasets, known)
    assert not list(filled.blobs.names(known.id, ObjectKind.DATA))
    assert list(filled.puller.rebuilder.rebuild(known)) == [1, 2]


def test_rebuilt_data_is_stored_and_recorded_under_the_lock(
    filled: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled.dropper.drop("cities.copy")
    known = filled.find("cities.copy")
    held: list[DatasetId] = []
    lock = filled.committer.lock

    @contextmanager
    def noted(dataset: DatasetId) -> Iterator[None]:
        with lock(dataset):
            held.append(dataset)
            yield
            held.remove(dataset)

    def under_lock(write: Callable[..., None]) -> Callable[..., None]:
        def written(*arguments: object) -> None:
            assert held == [known.id]
            write(*arguments)

        return written

    monkeypatch.setattr(filled.committer, "lock", noted)
    monkeypatch.setattr(filled.blobs, "put_file", under_lock(filled.blobs.put_file))
    monkeypatch.setattr(filled.blobs, "set_note", under_lock(filled.blobs.set_note))

    assert list(filled.puller.rebuilder.rebuild(known)) == [1, 2]
    assert dropped_blocks(filled.blobs, known.id) is None


def test_an_input_that_is_reset_before_the_lock_is_acquired_is_noticed(
    filled: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = filled.find("cities.copy")
    lock = filled.committer.lock

    @contextmanager
    def late(dataset: DatasetId) -> Iterator[None]:
        if dataset == known.id:
            root = filled.find("cities")
            links = list(iterate(filled.datasets.reader(root.id), root.state.head))
            filled.editor.reset("cities", links[1][0], is_forced=True)
        with lock(dataset):
            yield

    monkeypatch.setattr(filled.committer, "lock", late)

    with pytest.raises(Refused, match="no longer has block"):
        filled.dropper.drop("cities.copy")

    assert list(filled.blobs.names(known.id, ObjectKind.DATA))
