from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from odf_testing.builders import a_hash
from odf_testing.coordinator import Coordinator

from odf_cli.rows import arrow_table
from odf_common.chain.state import ChainState
from odf_common.chain.walk import iterate
from odf_common.errors import Damaged, HeadMoved, InvalidInput, InvalidQuery, NotFound, Refused
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.events import (
    AddData,
    AddPushSource,
    DatasetKind,
    DisablePushSource,
    ExecuteTransform,
    KnownEvent,
    MergeStrategyAppend,
    ReadStepNdJson,
    Seed,
    SetInfo,
    SetPollingSource,
    SetTransform,
    SetVocab,
    TransformInput,
    TransformSql,
)
from odf_common.metadata.fetching import FetchStepUrl
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.store import CatalogEntry, ObjectKind
from odf_common.service.environment import FreeLocks
from odf_coordinator.api.grpc_servicer import unreadable_summary
from odf_coordinator.catalog.datasets import Unreadable
from odf_coordinator.commit.dataset_locks import DatasetBusy, DatasetLocks
from odf_coordinator.lifecycle import Claims
from odf_coordinator.operations.read import ipc_chunks


def test_a_dataset_that_is_read_is_not_deleted(pair: Coordinator) -> None:
    with pytest.raises(Refused, match=r"cities is read by cities\.copy"):
        pair.names.delete("cities")


def test_a_dataset_that_gets_a_reader_while_it_is_deleted_stays(
    node: Coordinator, root: str, derivative: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.add(root)
    remove = Claims.remove

    def overtaken(*arguments: Any) -> CatalogEntry:
        node.add(derivative)
        return remove(*arguments)

    monkeypatch.setattr(Claims, "remove", overtaken)
    with pytest.raises(Refused, match=r"cities is read by cities\.copy"):
        node.names.delete("cities")
    assert node.find("cities").alias == "cities"


def test_deleting_removes_topics_name_data_and_key(pair: Coordinator) -> None:
    known = pair.find("cities")
    pair.names.delete("cities.copy")

    pair.names.delete("cities")

    assert set(pair.topics.names) == set()
    assert list(pair.catalog.entries()) == []
    assert list(pair.blobs.datasets()) == []
    assert not pair.keys.has(known.id)
    assert [message.WhichOneof("body") for _, message in pair.bus.sent] == ["dataset_removed"] * 2


def test_a_head_can_be_moved_back_to_a_block_of_its_chain(pair: Coordinator) -> None:
    before = pair.find("cities").state
    pair.push("cities", "Rome", minute=1)

    pair.editor.reset("cities", before.head)

    assert pair.find("cities").state == before


def test_a_reset_to_the_head_announces_nothing(pair: Coordinator) -> None:
    known = pair.find("cities")
    announced: list[ChainState] = []
    pair.committer.listen(announced.append)

    assert pair.editor.reset("cities", known.state.head) == known

    assert announced == []


def test_a_dataset_with_another_operation_in_progress_is_not_reset(pair: Coordinator) -> None:
    first = pair.find("cities").state.head
    known = pair.push("cities", "Rome", minute=1)
    pair.committer.locks = DatasetLocks(FreeLocks(), 10_000, local_seconds=0.01)

    with pair.committer.lock(known.id), pytest.raises(DatasetBusy):
        pair.editor.reset("cities", first)

    assert pair.find("cities") == known


def test_a_derivative_is_reset_to_each_block_of_its_chain(pair: Coordinator) -> None:
    query = pair.find("cities.copy").state.transform
    assert query is not None
    other = TransformSql(engine="spark", query="SELECT city, event_time FROM cities")
    events: tuple[KnownEvent, ...] = (replace(query, transform=other), SetInfo(description="towns"))
    for minute, event in enumerate(events, 1):
        pair.editor.commit_event("cities.copy", event)
        pair.push("cities", "Rome", minute=minute)
        pair.work()
    known = pair.find("cities.copy")
    blocks = [name for name, _, _ in iterate(pair.datasets.reader(known.id), known.state.head)]
    assert len(blocks) == 8

    for block in blocks:
        assert pair.editor.reset("cities.copy", block).state.head == block


def test_a_missing_block_that_was_read_does_not_prevent_a_reset(pair: Coordinator) -> None:
    known = pair.find("cities")
    seed = list(iterate(pair.datasets.reader(known.id), known.state.head))[-1][0]
    copy = pair.find("cities.copy")
    (read,) = copy.state.input_progress
    lost = replace(read, last_block=a_hash("lost"))
    pair.states.remember(replace(copy.state, input_progress=(lost,)))

    assert pair.editor.reset("cities", seed).state.head == seed


def test_what_a_derivative_has_read_cannot_be_lost(pair: Coordinator) -> None:
    before = pair.find("cities").state
    pair.push("cities", "Rome", minute=1)
    pair.work()

    with pytest.raises(Refused, match=r"cities\.copy has read past block"):
        pair.editor.reset("cities", before.head)


def test_a_head_is_not_moved_to_a_foreign_block(pair: Coordinator) -> None:
    foreign = pair.find("cities.copy").state.head

    with pytest.raises(InvalidInput, match="is not a block of the chain of cities"):
        pair.editor.reset("cities", foreign)


def test_an_event_is_committed_once(pair: Coordinator) -> None:
    first = pair.editor.commit_event("cities", SetInfo(description="towns"))

    assert first.state.info == SetInfo(description="towns")
    assert pair.editor.commit_event("cities", SetInfo(description="towns")).state == first.state


@pytest.mark.parametrize(
    ("event", "instead"),
    [
        (AddData(), "odf ingest"),
        (ExecuteTransform(query_inputs=()), "odf pull"),
        (Seed(dataset_id=DatasetId.of_key(bytes(32)), dataset_kind=DatasetKind.Root), "odf add"),
    ],
)
def test_events_that_only_the_node_writes_are_refused(
    pair: Coordinator, event: KnownEvent, instead: str
) -> None:
    before = pair.find("cities").state

    with pytest.raises(Refused, match=f"only the node writes {type(event).__name__}: .*{instead}"):
        pair.editor.commit_event("cities", event)

    assert pair.find("cities").state == before


def test_events_are_not_committed_to_a_copy(pair: Coordinator) -> None:
    pair.keys.remove(pair.find("cities").id)

    with pytest.raises(Refused, match="cities is a copy"):
        pair.editor.commit_event("cities", SetInfo(description="towns"))


def test_what_would_change_nothing_is_refused_for_a_copy_too(pair: Coordinator) -> None:
    event, watermark = SetInfo(description="towns"), Timestamp.from_ms(60_000)
    pair.editor.commit_event("cities", event)
    pair.editor.set_watermark("cities", watermark)
    pair.keys.remove(pair.find("cities").id)

    with pytest.raises(Refused, match="cities is a copy"):
        pair.editor.commit_event("cities", event)
    with pytest.raises(Refused, match="cities is a copy"):
        pair.editor.set_watermark("cities", watermark)


def test_a_polling_source_that_this_node_cannot_read_is_refused(pair: Coordinator) -> None:
    source = SetPollingSource(
        fetch=FetchStepUrl(url="gopher://example.org/a"), read=ReadStepNdJson(), merge=MergeStrategyAppend()
    )
    with pytest.raises(InvalidInput, match="not from 'gopher'"):
        pair.editor.commit_event("cities", source)


def test_a_new_push_source_has_its_topic_and_a_disabled_one_takes_no_more(pair: Coordinator) -> None:
    source = AddPushSource(source_name="second", read=ReadStepNdJson(), merge=MergeStrategyAppend())

    made = pair.editor.commit_event("cities", source)
    assert set(pair.topics.names) == {"odf.push.cities.default", made.entry.push_topics["second"]}
    left = pair.editor.commit_event("cities", DisablePushSource(source_name="second"))

    assert set(left.state.push_sources) == {"default"}


def test_the_vocabulary_is_fixed_once_there_is_data(pair: Coordinator) -> None:
    with pytest.raises(InvalidInput, match="vocabulary cannot change"):
        pair.editor.commit_event("cities", SetVocab(offset_column="no"))


def test_a_new_transform_is_validated(pair: Coordinator) -> None:
    transform = TransformSql(engine="spark", query="SELEKT")
    event = SetTransform(inputs=(TransformInput(dataset_ref="cities"),), transform=transform)

    with pytest.raises(InvalidQuery):
        pair.editor.commit_event("cities.copy", event)


@pytest.mark.parametrize(
    ("preprocess", "error", "where"),
    [
        (TransformSql(engine="spark", query="SELEKT"), InvalidQuery, ""),
        (TransformSql(engine="spark"), InvalidInput, "preprocess: "),
    ],
    ids=["syntax", "no query"],
)
def test_the_query_of_a_new_source_is_validated(
    pair: Coordinator, preprocess: TransformSql, error: type[InvalidInput], where: str
) -> None:
    source = AddPushSource(
        source_name="second", read=ReadStepNdJson(), preprocess=preprocess, merge=MergeStrategyAppend()
    )
    with pytest.raises(error, match=f"^{where}") as caught:
        pair.editor.commit_event("cities", source)
    assert "content" not in str(caught.value), "its path begins at the event"
    assert set(pair.find("cities").state.push_sources) == {"default"}


def test_inputs_that_were_read_cannot_be_exchanged(pair: Coordinator, root: str) -> None:
    pair.add(root.replace("name: cities", "name: other"))
    transform = TransformSql(engine="spark", query="SELECT 1")
    event = SetTransform(inputs=(TransformInput(dataset_ref="other"),), transform=transform)

    with pytest.raises(InvalidInput, match="inputs cannot change"):
        pair.editor.commit_event("cities.copy", event)


@pytest.mark.parametrize("ref", ["cities.copy", "third"])
def test_a_dataset_cannot_read_itself(node: Coordinator, root: str, derivative: str, ref: str) -> None:
    third = derivative.replace("name: cities.copy", "name: third").replace("Cities", "cities.copy")
    node.add(root, derivative, third)
    before = node.find("cities.copy").state
    transform = TransformSql(engine="spark", query="SELECT 1")
    event = SetTransform(inputs=(TransformInput(dataset_ref=ref),), transform=transform)

    with pytest.raises(InvalidInput, match=f"cities.copy cannot read {ref}"):
        node.editor.commit_event("cities.copy", event)
    with pytest.raises(InvalidInput, match=r"cities\.copy cannot read third|read each other"):
        node.add(derivative.replace("Cities", ref), replace=True)

    assert node.find("cities.copy").state == before


def test_a_watermark_is_raised_on_roots_only_and_never_lowered(pair: Coordinator) -> None:
    raised = pair.editor.set_watermark("cities", Timestamp.from_ms(60_000))

    assert raised.state.watermark == Timestamp.from_ms(60_000)
    again = pair.editor.set_watermark("cities", Timestamp.from_ms(60_000))
    assert again.state.head == raised.state.head
    with pytest.raises(Refused, match="watermark"):
        pair.editor.set_watermark("cities", Timestamp.from_ms(1))
    with pytest.raises(Refused, match="its watermark follows from its inputs"):
        pair.editor.set_watermark("cities.copy", Timestamp.from_ms(60_000))


def test_a_raised_watermark_reaches_derivatives(pair: Coordinator) -> None:
    pair.editor.set_watermark("cities", Timestamp.from_ms(60_000))
    pair.work()

    assert pair.find("cities.copy").state.watermark == Timestamp.from_ms(60_000)


def test_a_query_over_an_unknown_table_names_the_nearest_dataset(pair: Coordinator) -> None:
    with pytest.raises(NotFound, match="dataset citis does not exist; did you mean cities"):
        pair.record_reader.query("SELECT * FROM citis")


def test_a_query_reads_all_slices(pair: Coordinator) -> None:
    pair.push("cities", "Rome", minute=1)
    assert arrow_table(pair.record_reader.query("SELECT * FROM `cities`")).num_rows == 2
    pair.push("cities", "Bonn", minute=2)
    assert arrow_table(pair.record_reader.query("SELECT * FROM `cities`")).num_rows == 3


def test_what_a_query_found_is_sent_whole_in_pieces() -> None:
    table = pa.table({"id": range(300_000)})
    pieces = list(ipc_chunks(table))
    assert max(map(len, pieces)) <= 1 << 20
    assert pa.ipc.open_stream(b"".join(pieces)).read_all() == table


def test_a_tail_has_the_last_records_across_slices(pair: Coordinator) -> None:
    pair.push("cities", "Rome", "Bonn", minute=1)
    pair.push("cities", "Lima", minute=2)

    assert pair.record_reader.tail("cities", 2)["city"].to_pylist() == ["Bonn", "Lima"]


def test_a_tail_of_nothing_has_the_declared_columns(node: Coordinator, root: str) -> None:
    node.add(root)

    table = node.record_reader.tail("cities", 10)

    assert table.column_names == ["offset", "op", "system_time", "event_time", "city"]
    assert table.num_rows == 0


def test_a_dotted_name_without_backticks_is_explained(pair: Coordinator) -> None:
    with pytest.raises(InvalidQuery, match=r"put a name with dots in backticks: `cities\.copy`"):
        pair.record_reader.query("SELECT * FROM cities.copy")
    assert arrow_table(pair.record_reader.query("SELECT * FROM `cities.copy`")).num_rows == 1


def test_a_dataset_that_cannot_be_read_is_listed_with_its_problem_and_can_be_deleted(
    pair: Coordinator,
) -> None:
    known = pair.find("cities.copy")
    pair.states.forget(known.id)
    read = pair.blobs.read

    def damaged(dataset: DatasetId, kind: ObjectKind, name: Multihash) -> bytes:
        return b"" if dataset == known.id and kind is ObjectKind.BLOCK else read(dataset, kind, name)

    pair.blobs.read = damaged  # type: ignore[method-assign]
    assert [one.alias for one in pair.datasets.all()] == ["cities"]
    _, lost = pair.datasets.scan()
    assert isinstance(lost, Unreadable)
    assert str(known.state.head) in lost.why
    assert unreadable_summary(lost).problem == f"cannot be read: {lost.why}"

    pair.names.delete("cities.copy")

    assert [entry.alias for entry in pair.catalog.entries()] == ["cities"]
    assert not pair.keys.has(known.id)


def test_a_dataset_with_a_damaged_file_is_deleted_as_advised(tmp_path: Path, root: str) -> None:
    node = Coordinator(home=tmp_path, is_durable=True)
    node.add(root)
    known = node.find("cities")
    (block,) = (tmp_path / "datasets" / known.id.folder / "blocks").glob(str(known.state.head))
    block.unlink()
    block.mkdir()
    node.states.forget(known.id)
    with pytest.raises(Damaged) as caught:
        node.find("cities")
    assert "`odf delete DATASET`" in caught.value.advice()
    node.names.delete("cities")
    assert [result.outcome for result in node.add(root)] == ["added"]


def test_a_commit_that_comes_during_a_reset_is_not_lost(
    pair: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.names.delete("cities.copy")
    before = pair.find("cities").state.head
    pair.push("cities", "Rome", minute=1)
    state_at = pair.states.state_at

    def overtaken(dataset: DatasetId, block: Multihash) -> ChainState:
        monkeypatch.undo()
        pair.push("cities", "Bonn", minute=2)
        return state_at(dataset, block)

    monkeypatch.setattr(pair.states, "state_at", overtaken)
    with pytest.raises(HeadMoved):
        pair.editor.reset("cities", before)
    assert pair.find("cities").state.last_offset == 2
