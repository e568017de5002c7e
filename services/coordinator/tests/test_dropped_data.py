"""Data of derivatives that is dropped, and rebuilt by replaying their chains."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from odf_testing.coordinator import Coordinator, PassingEngine

from odf_common.chain.transform_steps import empty_step
from odf_common.chain.walk import iterate
from odf_common.data.slices import read_slice, write_slice
from odf_common.dataset.dataset_notes import dropped_blocks, forget_drop, note_drop
from odf_common.errors import NotFound, Refused
from odf_common.hashing.multihash import Multihash, physical_hash_of
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.engine_messages import TransformRequest, TransformResponseSuccess
from odf_common.metadata.events import Checkpoint, ExecuteTransform, OffsetInterval
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.engine import OnProgress
from odf_common.ports.store import ObjectKind
from odf_coordinator.commit.committer import Refusal, require_committed
from odf_coordinator.operations.drop_and_rebuild import RebuildDiffers
from odf_coordinator.operations.pull import PullProgress
from odf_coordinator.storage import CopyLost, DataDropped, ObjectRef, is_dropped, objects_of, was_dropped

Objects = dict[tuple[ObjectKind, Multihash], bytes]
KINDS = (ObjectKind.DATA, ObjectKind.CHECKPOINT)


@dataclass
class Story:
    """A root of three slices, a derivative of it, and a derivative of that, each three steps long."""

    node: Coordinator

    def objects(self, ref: str) -> Objects:
        known, blobs = self.node.find(ref), self.node.blobs
        return {
            (kind, name): blobs.read(known.id, kind, name)
            for kind in KINDS
            for name in blobs.names(known.id, kind)
        }

    def named(self, ref: str) -> list[ObjectRef]:
        """Return the objects of a chain, newest first."""
        known = self.node.find(ref)
        links = iterate(self.node.datasets.reader(known.id), known.state.head)
        return [one for _, decoded, _ in links for one in objects_of(decoded.block.event)]

    def pull(self, *refs: str, recursive: bool = False) -> dict[str, PullProgress]:
        with self.node.scheduler_running():
            steps = self.node.puller.pull(refs, is_all=False, is_recursive=recursive, is_wanted=lambda: True)
            return {one.alias: one for one in steps}


@pytest.fixture
def story(node: Coordinator, root: str, derivative: str, second: str) -> Story:
    node.add(root, derivative, second)
    for minute, city in enumerate(("Oslo", "Rome", "Lima")):
        node.push("cities", city, minute=minute)
        node.work()
    return Story(node=node)


def test_slices_and_checkpoints_are_dropped_and_the_chain_is_kept(story: Story) -> None:
    story.node.editor.set_watermark("cities", Timestamp.from_ms(3 * 60_000))
    story.node.work()  # a checkpoint without records
    for city, minute in (("Bonn", 3), ("Ulm", 3), ("Riga", 4)):
        story.node.push("cities", city, minute=minute)
        story.node.work()  # the first two with the same checkpoint as that one
    before, state = story.objects("cities.copy"), story.node.find("cities.copy").state

    dropped = story.node.dropper.drop("cities.copy")

    assert (dropped.slices, dropped.checkpoints) == (6, 5)
    assert dropped.size == sum(len(content) for content in before.values())
    assert story.objects("cities.copy") == {}
    assert story.node.find("cities.copy").state == state


def test_a_drop_is_recorded_before_any_deletion_so_that_a_kill_between_is_no_damage(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs, known = story.node.blobs, story.node.find("cities.copy")

    def killed(dataset: DatasetId, kind: ObjectKind, names: Iterable[Multihash]) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(blobs, "remove", killed)
    with pytest.raises(KeyboardInterrupt):
        story.node.dropper.drop("cities.copy")

    line = dropped_blocks(blobs, known.id)
    assert line is not None
    assert line.contains(known.state.head)


def test_a_pull_rebuilds_them_bit_for_bit(story: Story) -> None:
    before, state = story.objects("cities.copy"), story.node.find("cities.copy").state
    asked = list(story.node.engine.requests)
    story.node.dropper.drop("cities.copy")

    pulled = story.pull("cities.copy")

    assert (pulled["cities.copy"].state, pulled["cities.copy"].new_blocks) == ("rebuilt", 0)
    assert story.objects("cities.copy") == before
    assert story.node.find("cities.copy").state == state
    again = story.node.engine.requests[len(asked) :]
    assert [one.system_time for one in again] == [
        one.system_time for one in asked if one.dataset_id == state.dataset_id
    ]


def test_a_pull_derives_records_that_arrived_meanwhile_too(story: Story) -> None:
    story.node.dropper.drop("cities.copy")
    story.node.push("cities", "Bonn", minute=4)

    pulled = story.pull("cities.copy")

    assert pulled["cities.copy"].state == "updated"
    table = story.node.record_reader.tail("cities.copy", 9)
    assert table["city"].to_pylist() == ["Oslo", "Rome", "Lima", "Bonn"]


def test_an_interrupted_rebuild_resumes(story: Story) -> None:
    before = story.objects("cities.copy")
    story.node.dropper.drop("cities.copy")
    rebuilding = story.node.puller.rebuilder
    steps = rebuilding.rebuild(story.node.find("cities.copy"))
    next(steps)
    steps.close()  # type: ignore[attr-defined]
    assert 0 < len(story.objects("cities.copy")) < len(before)
    assert rebuilding.is_needed(story.node.find("cities.copy"))

    assert list(rebuilding.rebuild(story.node.find("cities.copy"))) == [1, 2]

    assert story.objects("cities.copy") == before
    assert not rebuilding.is_needed(story.node.find("cities.copy"))


def test_a_rebuild_ends_once_its_caller_has_gone(story: Story) -> None:
    story.node.dropper.drop("cities.copy")

    list(story.node.puller.pull(["cities.copy"], is_all=False, is_recursive=False, is_wanted=lambda: False))

    assert len(story.objects("cities.copy")) == 2, "of the first of three steps"


def test_dropped_data_is_distinguished_from_lost_data(story: Story) -> None:
    node, known = story.node, story.node.find("cities.copy")
    kept = story.objects("cities.copy")
    assert not was_dropped(node.datasets, known)
    node.dropper.drop("cities.copy")
    assert was_dropped(node.datasets, known)
    story.pull("cities.copy")
    assert not was_dropped(node.datasets, known)
    note_drop(node.blobs, known.id, known.state.head)  # the process was killed before it removed anything
    assert not was_dropped(node.datasets, known)
    forget_drop(node.blobs, known.id)

    for kind, name in kept:
        node.blobs.remove(known.id, kind, [name])

    assert is_dropped(node.datasets, known)
    assert not was_dropped(node.datasets, known)
    first = [decoded.block for _, decoded, _ in iterate(node.datasets.reader(known.id), known.state.head)][-2]
    assert first.prev_block_hash is not None
    note_drop(node.blobs, known.id, first.prev_block_hash)  # which has no data: all that is lost is above it
    assert not was_dropped(node.datasets, known)
    assert story.pull("cities.copy")["cities.copy"].state == "rebuilt"
    assert story.objects("cities.copy") == kept


def test_lost_records_are_detected_even_if_a_checkpoint_follows_them(story: Story) -> None:
    node, known = story.node, story.node.find("cities.copy")
    content = b"a later checkpoint"
    name = physical_hash_of(content)
    node.blobs.put(known.id, ObjectKind.CHECKPOINT, name, content)
    assert known.state.checkpoint is not None
    event = ExecuteTransform(
        query_inputs=empty_step(known.state),
        prev_checkpoint=known.state.checkpoint.physical_hash,
        prev_offset=known.state.last_offset,
        new_checkpoint=Checkpoint(physical_hash=name, size=len(content)),
        new_watermark=known.state.watermark,
    )
    require_committed(known.id, node.propose(known, [event]))
    newest = next(one for one in story.named("cities.copy") if one.kind is ObjectKind.DATA)
    assert not is_dropped(node.datasets, node.find("cities.copy"))

    node.blobs.remove(known.id, ObjectKind.DATA, [newest.name])

    assert is_dropped(node.datasets, node.find("cities.copy"))


def test_the_newest_objects_are_dropped_first(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    known, blobs = story.node.find("cities.copy"), story.node.blobs
    newest = {one.name for one in story.named("cities.copy")[:2]}
    remove, times = blobs.remove, []

    def once(*arguments: object) -> None:
        times.append(arguments)
        if len(times) > 2:
            raise OSError("the machine went off")
        remove(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(blobs, "remove", once)
    with pytest.raises(OSError, match="went off"):
        story.node.dropper.drop("cities.copy")

    assert newest.isdisjoint(name for _, name in story.objects("cities.copy"))
    assert story.objects("cities.copy")
    assert is_dropped(story.node.datasets, known)


def test_reading_dropped_data_says_how_to_rebuild_it(story: Story) -> None:
    story.node.dropper.drop("cities.copy")

    with pytest.raises(DataDropped, match=r"data of cities\.copy is missing: .*`odf pull cities\.copy`"):
        story.node.record_reader.tail("cities.copy", 1)
    with pytest.raises(DataDropped, match=r"`odf pull cities\.copy`"):
        story.node.record_reader.query("SELECT * FROM `cities.copy`")


def test_a_derivative_of_dropped_data_waits_for_it_and_continues(story: Story) -> None:
    story.node.push("cities", "Bonn", minute=4)
    story.node.scheduler.work()
    story.node.dropper.drop("cities.copy")
    story.node.work()
    copy = story.node.find("copy.copy")
    assert "`odf pull cities.copy`" in story.node.stall_text(copy.id)

    story.pull("cities.copy", "copy.copy")

    assert story.node.find("copy.copy").state.last_offset == 3
    assert story.node.stall_text(copy.id) == ""


def test_inputs_that_were_dropped_too_are_rebuilt_first(story: Story) -> None:
    before = [story.objects(ref) for ref in ("cities.copy", "copy.copy")]
    for ref in ("copy.copy", "cities.copy"):
        story.node.dropper.drop(ref)

    alone = story.pull("copy.copy")
    assert "the data of cities.copy is missing" in alone["copy.copy"].error

    pulled = story.pull("copy.copy", recursive=True)

    assert [pulled[ref].state for ref in ("cities.copy", "copy.copy")] == ["rebuilt", "rebuilt"]
    assert [story.objects(ref) for ref in ("cities.copy", "copy.copy")] == before


def test_roots_and_copies_are_refused_before_the_engine_is_asked(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(story.node.engine, "validate", lambda *_: pytest.fail("it is asked"))
    with pytest.raises(Refused, match="cities is a root"):
        story.node.dropper.drop("cities")
    story.node.keys.remove(story.node.find("cities.copy").id)
    with pytest.raises(Refused, match=r"cities\.copy is a copy"):
        story.node.dropper.drop("cities.copy")
    assert story.objects("cities")
    assert story.objects("cities.copy")


def test_a_copy_that_lost_its_data_is_to_be_pulled_again(story: Story) -> None:
    for ref in ("cities", "cities.copy"):
        known = story.node.find(ref)
        story.node.keys.remove(known.id)
        for kind in KINDS:
            story.node.blobs.remove(known.id, kind, list(story.node.blobs.names(known.id, kind)))

        says = rf"{ref} is a copy; `odf pull URL --as {ref} --recheck` fetches it again"
        with pytest.raises(CopyLost, match=says):
            story.node.record_reader.tail(ref, 1)

        assert f"{ref} is a copy; only the node" in story.pull(ref)[ref].error


def test_data_that_could_not_be_recomputed_from_its_input_is_kept(story: Story) -> None:
    known = story.node.find("cities")
    links = list(iterate(story.node.datasets.reader(known.id), known.state.head))
    story.node.editor.reset("cities", links[1][0], is_forced=True)

    with pytest.raises(Refused, match=r"no longer has block .* could not be recomputed"):
        story.node.dropper.drop("cities.copy")

    assert story.objects("cities.copy")
    assert dropped_blocks(story.node.blobs, story.node.find("cities.copy").id) is None


def _twice(table: pa.Table) -> pa.Table:
    field = table.schema.field(0)
    more = table.set_column(0, field, pa.array([1], field.type))
    return pa.concat_tables([table, more])


def _rewrite(path: str, change: Callable[[pa.Table], pa.Table]) -> None:
    table = change(read_slice(Path(path)))
    Path(path).unlink()
    write_slice(table, Path(path))


class Differing(PassingEngine):
    """Writes another checkpoint, the same records in other bytes, other or more records, or none."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what

    def execute_transform(
        self, request: TransformRequest, on_progress: OnProgress | None = None
    ) -> TransformResponseSuccess:
        answer = super().execute_transform(request, on_progress)
        if self.what == "checkpoint":
            file = Path(request.new_checkpoint_path)
            file.write_text(json.dumps({**json.loads(file.read_text()), "more": 2**62}))
        elif self.what == "bytes of the slice":
            file = Path(request.new_data_path)
            content = file.read_bytes()
            pq.write_table(pq.read_table(file), file, compression="none", store_schema=False)
            assert file.read_bytes() != content
        elif self.what == "no records":
            Path(request.new_data_path).unlink()
            return replace(answer, new_offset_interval=None)
        elif self.what == "other records":
            _rewrite(request.new_data_path, lambda table: table.set_column(4, "city", [["Ulm"]]))
        elif self.what == "offsets":
            _rewrite(request.new_data_path, _twice)
            return replace(answer, new_offset_interval=OffsetInterval(start=0, end=1))
        else:
            return replace(answer, new_watermark=Timestamp.parse("2031-01-01T00:00:00Z"))
        return answer


@pytest.mark.parametrize(
    "what", ["watermark", "checkpoint", "no records", "offsets", "other records", "bytes of the slice"]
)
def test_a_different_result_is_not_stored_and_the_error_names_the_block(story: Story, what: str) -> None:
    story.node.dropper.drop("cities.copy")
    known = story.node.find("cities.copy")
    links = iterate(story.node.datasets.reader(known.id), known.state.head)
    first = [(name, decoded.block) for name, decoded, _ in links if list(objects_of(decoded.block.event))][-1]
    rebuilding = replace(story.node.puller.rebuilder, engine=Differing(what))
    named = "offsets" if what == "no records" else what.removeprefix("other ")

    with pytest.raises(RebuildDiffers, match=f"cannot be rebuilt: {named}: declared") as caught:
        list(rebuilding.rebuild(known))

    assert caught.value.block == str(first[0])
    assert caught.value.sequence_number == first[1].sequence_number
    assert story.objects("cities.copy") == {}


def test_data_that_is_dropped_again_while_it_is_rebuilt_stays_dropped(story: Story) -> None:
    node = story.node
    node.dropper.drop("cities.copy")
    known = node.find("cities.copy")

    for done in node.puller.rebuilder.rebuild(known):
        if done == 3:
            node.dropper.drop("cities.copy")

    assert was_dropped(node.datasets, known)


def test_only_the_newest_objects_are_looked_for(story: Story) -> None:
    node = story.node
    known, newest, *older = node.find("cities.copy"), *story.named("cities.copy")
    lost = [one.name for one in older if one.kind is ObjectKind.DATA and one.name != newest.name]
    node.blobs.remove(known.id, ObjectKind.DATA, lost[-1:])
    assert not is_dropped(node.datasets, known)
    node.dropper.drop("cities.copy")
    assert is_dropped(node.datasets, known)


def test_a_transform_that_ran_while_the_data_was_dropped_is_not_committed(story: Story) -> None:
    node = story.node
    before = node.find("cities.copy").state

    class DataDropper(PassingEngine):
        def execute_transform(
            self, request: TransformRequest, on_progress: OnProgress | None = None
        ) -> TransformResponseSuccess:
            answer = super().execute_transform(request, on_progress)
            node.dropper.drop("cities.copy")
            return answer

    object.__setattr__(node.scheduler._transformer, "engine", DataDropper())
    node.push("cities", "Bonn", minute=4)

    node.work()

    assert node.find("cities.copy").state == before
    assert node.stall_text(before.dataset_id)


def test_a_proposal_on_a_missing_checkpoint_is_refused(story: Story) -> None:
    known = story.node.find("cities.copy")
    links = iterate(story.node.datasets.reader(known.id), known.state.head)
    name, decoded, _ = next(links)
    story.node.editor.reset("cities.copy", decoded.block.prev_block_hash or name, is_forced=True)
    again = story.node.find("cities.copy")
    assert again.state.checkpoint is not None
    story.node.blobs.remove(known.id, ObjectKind.CHECKPOINT, [again.state.checkpoint.physical_hash])

    outcome = story.node.propose(again, [decoded.block.event])  # type: ignore[list-item]

    assert isinstance(outcome, Refusal)
    assert outcome.code == "CheckpointMissing"


def test_a_lost_slice_of_a_root_is_reported_as_not_found(story: Story) -> None:
    known = story.node.find("cities")
    story.node.blobs.remove(known.id, ObjectKind.DATA, [one.name for one in story.named("cities")])

    with pytest.raises(NotFound) as caught:
        story.node.record_reader.tail("cities", 1)

    assert not isinstance(caught.value, DataDropped)
    assert not story.node.puller.rebuilder.is_needed(known), "nothing recomputes it"
