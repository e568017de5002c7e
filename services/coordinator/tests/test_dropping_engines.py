"""Derived data that another engine computed is not dropped, since the installed one could not recompute it."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from odf_testing.coordinator import Coordinator, PassingEngine

from odf_common.chain.transform_steps import empty_step
from odf_common.chain.walk import iterate
from odf_common.dataset.dataset_notes import dropped_blocks
from odf_common.errors import InvalidQuery, Refused
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.engine_messages import TransformRequest, TransformResponseSuccess
from odf_common.metadata.events import DatasetVocabulary, ExecuteTransform, Transform, TransformSql
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.engine import OnProgress, Past, ValidatedQuery
from odf_common.ports.store import ObjectKind
from odf_coordinator.commit.committer import require_committed
from odf_coordinator.operations.drop_and_rebuild import EngineGone
from odf_coordinator.storage import DataDropped, is_dropped, was_dropped


@pytest.fixture
def versioned(tmp_path: Path, root: str, derivative: str) -> Coordinator:
    """A derivative with data that version one of the engine computed."""
    engine = PassingEngine()
    engine.version = "one"
    node = Coordinator(home=tmp_path, engine=engine)
    node.add(root, derivative)
    node.push("cities", "Oslo")
    node.work()
    return node


def slices(node: Coordinator) -> set[Multihash]:
    return set(node.blobs.names(node.find("cities.copy").id, ObjectKind.DATA))


def commit_again(node: Coordinator) -> None:
    """Commit the derivative's transform without its version, so that it asks for the installed engine."""
    event = node.find("cities.copy").state.transform
    assert event is not None
    node.editor.commit_event("cities.copy", replace(event, transform=replace(event.transform, version=None)))


def another_query(node: Coordinator) -> None:
    """Commit another query, and have it compute records."""
    event = node.find("cities.copy").state.transform
    assert event is not None
    other = TransformSql(engine="spark", query="SELECT city, event_time FROM cities")
    node.editor.commit_event("cities.copy", replace(event, transform=other))
    node.push("cities", "Lima", minute=2)
    node.work()


def test_data_of_the_installed_engine_may_be_dropped_and_the_engine_is_asked_once(
    versioned: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    another_query(versioned)
    validate, asked = versioned.engine.validate, []

    def noted(*arguments: Any) -> ValidatedQuery:
        asked.append(arguments)
        return validate(*arguments)

    monkeypatch.setattr(versioned.engine, "validate", noted)

    assert versioned.dropper.drop("cities.copy").slices == 2
    assert len(asked) == 1


def test_data_of_another_engine_is_kept(versioned: Coordinator) -> None:
    before = slices(versioned)
    versioned.engine.version = "two"

    with pytest.raises(
        Refused, match=r"cities\.copy could not be recomputed here: asked for one, here is two"
    ):
        versioned.dropper.drop("cities.copy")

    assert slices(versioned) == before
    commit_again(versioned)
    assert versioned.find("cities.copy").state.transform is not None
    with pytest.raises(Refused, match="asked for one, here is two"):
        versioned.dropper.drop("cities.copy")


def test_a_transform_that_computed_nothing_is_not_asked_for(
    tmp_path: Path, root: str, derivative: str
) -> None:
    engine = PassingEngine()
    engine.version = "one"
    node = Coordinator(home=tmp_path, engine=engine)
    node.add(root, derivative)
    known = node.find("cities.copy")
    read = ExecuteTransform(query_inputs=empty_step(known.state), new_watermark=Timestamp.from_ms(0))
    require_committed(known.id, node.propose(known, [read]))
    engine.version = "two"
    commit_again(node)
    node.push("cities", "Oslo")
    node.work()
    engine.version = "three"
    commit_again(node)
    engine.version = "two"

    assert node.dropper.drop("cities.copy").slices == 1


def test_what_earlier_versions_of_the_same_engine_computed_is_kept(versioned: Coordinator) -> None:
    versioned.engine.version = "two"
    commit_again(versioned)
    versioned.push("cities", "Rome", minute=1)
    versioned.work()
    another_query(versioned)
    before = slices(versioned)
    assert len(before) == 3

    with pytest.raises(Refused, match="asked for one, here is two"):
        versioned.dropper.drop("cities.copy")

    assert slices(versioned) == before


def test_data_whose_results_have_changed_is_kept(versioned: Coordinator) -> None:
    versioned.engine.version, versioned.engine.earlier = "two", "one"
    versioned.engine.changes = ("times are cut",)

    with pytest.raises(
        Refused, match=r"could not be recomputed here: spark one computed it, .* times are cut"
    ):
        versioned.dropper.drop("cities.copy")

    versioned.engine.changes = ()
    assert versioned.dropper.drop("cities.copy").slices == 1


def test_data_of_a_query_that_the_installed_engine_cannot_parse_is_kept(
    versioned: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise InvalidQuery(text="syntax error")

    monkeypatch.setattr(versioned.engine, "validate", refuse)

    with pytest.raises(Refused, match="could not be recomputed here: syntax error"):
        versioned.dropper.drop("cities.copy")

    assert slices(versioned)


def test_an_engine_that_changes_during_a_request_is_queried_again(versioned: Coordinator) -> None:
    class Upgraded(PassingEngine):
        version = "one"

        def validate(
            self,
            transform: Transform,
            inputs: Mapping[str, pa.Schema],
            vocabs: Mapping[str, DatasetVocabulary],
            output_vocab: DatasetVocabulary,
            past: Past | None = None,
            *,
            is_new: bool = False,
            retracting: Mapping[str, str] | None = None,
        ) -> ValidatedQuery:
            answer = super().validate(
                transform, inputs, vocabs, output_vocab, past, is_new=is_new, retracting=retracting
            )
            if self.version == "one":
                self.version = versioned.engine.version = "two"
                commit_again(versioned)
            return answer

    dropping = replace(versioned.dropper, engine=Upgraded())

    with pytest.raises(Refused, match="asked for one, here is two"):
        dropping.drop("cities.copy")

    assert slices(versioned)


def rebuild_error(node: Coordinator) -> EngineGone:
    """Return the outcome of a rebuild while another engine is installed."""
    with pytest.raises(EngineGone) as caught:
        list(node.puller.rebuilder.rebuild(node.find("cities.copy")))
    return caught.value


def test_data_of_a_previous_engine_is_rebuilt_by_that_engine_only(
    versioned: Coordinator,
) -> None:
    before = slices(versioned)
    versioned.dropper.drop("cities.copy")
    versioned.engine.version = "two"

    said = str(rebuild_error(versioned))

    assert "was computed by spark one, which is not installed" in said
    assert slices(versioned) == set()
    versioned.engine.version = "one"
    assert list(versioned.puller.rebuilder.rebuild(versioned.find("cities.copy"))) == [1]
    assert slices(versioned) == before


def test_data_of_a_previous_engine_is_derived_again_as_advised(versioned: Coordinator) -> None:
    versioned.dropper.drop("cities.copy")
    versioned.engine.version = "two"
    assert "`odf engine upgrade cities.copy --from-start`" in str(rebuild_error(versioned))

    upgrade = versioned.upgrader.upgrade(["cities.copy"], is_all=False, is_restarted=True, is_dry=False)
    assert [one.outcome for one in upgrade] == ["derived-again"]
    versioned.work()

    known = versioned.find("cities.copy")
    assert known.state.transform is not None
    assert known.state.transform.transform.version == "two"
    assert versioned.record_reader.tail("cities.copy", 9)["city"].to_pylist() == ["Oslo"]
    assert not was_dropped(versioned.datasets, known)
    # Data lost from now on is distinguished from data dropped before.
    versioned.blobs.remove(known.id, ObjectKind.DATA, slices(versioned))
    assert is_dropped(versioned.datasets, known)
    assert not was_dropped(versioned.datasets, known)


def test_a_new_query_on_dropped_data_says_that_it_was_dropped(versioned: Coordinator) -> None:
    versioned.dropper.drop("cities.copy")
    versioned.engine.version = "two"
    before = versioned.find("cities.copy").state

    with pytest.raises(DataDropped, match=r"`odf pull cities\.copy` recomputes it"):
        commit_again(versioned)

    assert versioned.find("cities.copy").state == before


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
