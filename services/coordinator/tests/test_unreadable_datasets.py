"""A dataset whose files are unusable does not affect others: their commits, listing and transforms."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from odf_testing.coordinator import Coordinator
from structlog.testing import capture_logs

from odf_common.adapters.reserve import RESERVE_BYTES, Reserve
from odf_common.codec.envelopes import Envelope, envelope
from odf_common.codec.flatbuffers import encode_event
from odf_common.codec.times import time_message
from odf_common.errors import Damaged, OdfError, Refused, StorageUnavailable
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import HEAD, DatasetId
from odf_common.metadata.events import SetInfo
from odf_common.ports.store import ObjectKind
from odf_common.proto.odf.bus.v1 import bus_pb2 as bus
from odf_coordinator.api.bus_handlers import Commands
from odf_coordinator.catalog.datasets import Activity, HeadMissing, Unreadable

FAULTS = [
    Damaged(file="datasets/fed01/refs/head", why="Is a directory"),
    StorageUnavailable(file="datasets/fed01/refs/head", why="Input/output error"),
]


@pytest.fixture
def two(node: Coordinator, root: str, derivative: str) -> Coordinator:
    node.add(root, root.replace("name: cities", "name: rivers"), derivative)
    return node


def damage(node: Coordinator, dataset: DatasetId, fault: OdfError, patch: pytest.MonkeyPatch) -> None:
    """Make the dataset's references unusable."""
    head = node.refs.head

    def faulty(one: DatasetId, ref: str = HEAD) -> Multihash | None:
        if one == dataset:
            raise fault
        return head(one, ref)

    patch.setattr(node.refs, "head", faulty)


def proposal(node: Coordinator, alias: str) -> Envelope:
    known = node.find(alias)
    body = bus.Propose(
        expected_head=known.state.head.raw,
        system_time=time_message(node.clock.now()),
        events=[encode_event(SetInfo(description="x"))],
    )
    return envelope(known.id, body)


@pytest.mark.parametrize("fault", FAULTS, ids=["damaged", "unavailable"])
def test_commits_to_others_continue(
    two: Coordinator, fault: OdfError, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = [proposal(two, alias) for alias in ("cities", "rivers")]
    commands = Commands(committer=two.committer, importer=two.importer)
    damage(two, two.find("cities").id, fault, monkeypatch)
    with capture_logs():
        first, second = (next(iter(commands.handle(one))).envelope for one in messages)
    assert (first.refused.code, first.refused.text) == (fault.code, str(fault))
    assert second.WhichOneof("body") == "committed"


@pytest.mark.parametrize("fault", FAULTS, ids=["damaged", "unavailable"])
def test_others_are_listed_and_the_unreadable_one_has_its_reason(
    two: Coordinator, fault: OdfError, monkeypatch: pytest.MonkeyPatch
) -> None:
    damage(two, two.find("cities").id, fault, monkeypatch)
    listed = {one.entry.alias: one.why if isinstance(one, Unreadable) else "" for one in two.datasets.scan()}
    assert listed == {"cities": str(fault), "cities.copy": "", "rivers": ""}


@pytest.mark.parametrize(
    ("refs", "is_all"),
    [([], True), (["%"], False), (["citi%", "rivers"], False), (["cities", "rivers"], False)],
)
def test_a_pull_of_many_names_it_and_brings_the_others_up_to_date(
    two: Coordinator, refs: list[str], monkeypatch: pytest.MonkeyPatch, *, is_all: bool
) -> None:
    damage(two, two.find("cities").id, FAULTS[0], monkeypatch)
    with capture_logs():
        steps = [*two.puller.pull(refs, is_all=is_all, is_recursive=False, is_wanted=lambda: False)]
    last = {step.alias: step for step in steps}
    assert last["cities"].state == "failed"
    assert last["cities"].error.startswith(f"cannot be read: {FAULTS[0]}; ")
    assert last["rivers"].state == "up-to-date"


def test_a_pull_that_resets_derivatives_names_it_too(
    two: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    damage(two, two.find("cities").id, FAULTS[0], monkeypatch)
    with capture_logs():
        steps = [*two.puller.derive_again(["cities", "rivers"], is_recursive=False, is_wanted=lambda: False)]
    last = {step.alias: step.state for step in steps}
    assert last == {"cities": "failed", "rivers": "up-to-date"}


def test_a_pull_with_inputs_leaves_out_those_that_cannot_be_read(
    two: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    damage(two, two.find("cities").id, FAULTS[0], monkeypatch)
    with capture_logs():
        steps = [*two.puller.pull(["cities.copy"], is_all=False, is_recursive=True, is_wanted=lambda: False)]
    assert {step.alias for step in steps} == {"cities.copy"}


@pytest.mark.parametrize("fault", FAULTS, ids=["damaged", "unavailable"])
def test_its_derivatives_continue_once_it_is_usable_again(
    two: Coordinator, fault: OdfError, monkeypatch: pytest.MonkeyPatch
) -> None:
    two.work()
    two.push("cities", "Oslo")
    cities = two.find("cities").id
    announced = envelope(cities, bus.Committed(alias="cities"))
    with monkeypatch.context() as patch, capture_logs():
        damage(two, cities, fault, patch)
        assert list(two.notifications.handle(announced)) == []
        two.work()
        assert two.find("cities.copy").state.next_offset == 0
    two.now += 60
    two.work()
    assert two.find("cities.copy").state.next_offset == 1
    assert two.stall_text(two.find("cities.copy").id) == ""


def test_a_full_disk_refuses_commits_leaves_nothing_and_needs_no_restart(
    tmp_path: Path, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Coordinator(home=tmp_path / "home", is_durable=True)
    node.add(root)
    message = proposal(node, "cities")
    commands = Commands(committer=node.committer, importer=node.importer)
    before = {file for file in tmp_path.rglob("*") if file.is_file()}

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch, capture_logs():
        patch.setattr(os, "fsync", full)
        refused = [next(iter(commands.handle(message))).envelope.refused for _ in range(2)]
    assert {(one.code, one.text.partition(": ")[0]) for one in refused} == {
        ("StorageUnavailable", "the disk is full (No space left on device)")
    }
    assert {file for file in tmp_path.rglob("*") if file.is_file() and "locks" not in file.parts} <= before
    assert next(iter(commands.handle(message))).envelope.WhichOneof("body") == "committed"


@pytest.fixture
def headless(two: Coordinator) -> Coordinator:
    """Return two datasets and a derivative, whose head is missing as after half a restore."""
    two.refs.remove(two.find("cities.copy").id, HEAD, expected=None)
    return two


def test_a_dataset_without_head_is_listed_as_damaged(headless: Coordinator) -> None:
    with capture_logs():
        listed = {one.entry.alias: one for one in headless.datasets.scan()}
    assert list(listed) == ["cities", "cities.copy", "rivers"]
    lost = listed["cities.copy"]
    assert isinstance(lost, Unreadable)
    assert lost.why.endswith("/refs/head cannot be used: the file is missing")
    assert "odf delete cities.copy --yes" in lost.remedy
    with pytest.raises(HeadMissing):
        headless.find("cities.copy")
    assert not isinstance(listed["rivers"], Unreadable)


def test_a_dataset_without_head_can_be_deleted_and_added_again(
    headless: Coordinator, derivative: str
) -> None:
    with capture_logs():
        with pytest.raises(HeadMissing):
            headless.add(derivative)
        headless.names.delete("cities.copy")
        headless.add(derivative)
    assert headless.find("cities.copy").state.sequence_number == 1


def test_a_dataset_without_head_is_renamed_and_the_answer_says_what_it_lacks(headless: Coordinator) -> None:
    renamed = headless.names.rename("cities.copy", "towns")
    assert isinstance(renamed, Unreadable)
    assert renamed.entry == headless.catalog.by_alias("towns")
    assert renamed.why.endswith("/refs/head cannot be used: the file is missing")


def test_a_dataset_without_head_stops_no_other(headless: Coordinator) -> None:
    headless.push("cities", "Oslo")
    with capture_logs():
        headless.work()
        headless.names.delete("cities.copy")
        headless.names.delete("cities")
    assert [one.alias for one in headless.datasets.all()] == ["rivers"]


def test_a_dataset_that_is_deleted_while_it_is_listed_is_not_damaged(two: Coordinator) -> None:
    entry = two.datasets.entry("rivers")
    two.names.delete("rivers")
    assert two.datasets.read(entry) is None


def _not_a_folder(block: Path) -> None:
    block.parent.rename(block.parent.with_name("moved"))
    block.parent.write_bytes(b"")


def _a_pipe(block: Path) -> None:
    block.unlink()
    os.mkfifo(block)


@pytest.mark.parametrize(
    ("breaks", "is_listed"),
    [
        (_not_a_folder, True),
        (_a_pipe, True),
        (Path.unlink, True),
        (lambda block: block.write_bytes(b"x"), False),
    ],
    ids=["blocks is a file", "pipe", "missing", "other bytes"],
)
def test_no_commit_extends_a_chain_whose_newest_block_cannot_be_read(
    tmp_path: Path, root: str, breaks: Callable[[Path], None], *, is_listed: bool
) -> None:
    node = Coordinator(home=tmp_path / "home", is_durable=True)
    node.add(root, root.replace("name: cities", "name: rivers"))
    known = node.push("cities", "Oslo")  # its state is cached now
    message = proposal(node, "cities")
    breaks(tmp_path / "home" / "datasets" / known.id.folder / "blocks" / str(known.state.head))

    with capture_logs():
        commands = Commands(committer=node.committer, importer=node.importer)
        refused = next(iter(commands.handle(message))).envelope.refused
        listed = {one.entry.alias: one for one in node.datasets.scan()}
    assert refused.code == "Damaged"
    assert node.refs.head(known.id) == known.state.head
    assert isinstance(listed["cities"], Unreadable) == is_listed
    assert not isinstance(listed["rivers"], Unreadable)
    stall = node.datasets.stalls.recent(known.id, Activity.COMMIT, 60)
    assert stall is not None
    assert "restore it from a copy of the dataset" in stall.remedy
    assert "automatically" not in stall.remedy
    if isinstance(one := listed["cities"], Unreadable):
        assert one.remedy == stall.remedy

    with capture_logs():
        node.names.delete("cities")
    assert [one.alias for one in node.datasets.all()] == ["rivers"]


def test_no_rollback_extends_a_block_that_cannot_be_read(two: Coordinator) -> None:
    onto = two.push("cities", "Oslo").state
    last = two.push("cities", "Rome", minute=1).state
    two.blobs.remove(onto.dataset_id, ObjectKind.BLOCK, [onto.head])
    with pytest.raises(Damaged, match="the file is missing"):
        two.committer.commit(
            onto.dataset_id,
            expected_head=last.head,
            events=[SetInfo(description="x")],
            system_time=two.clock.now(),
            onto=onto,
        )
    assert two.refs.head(onto.dataset_id) == last.head


def test_what_a_damaged_derivative_reads_is_not_deleted(two: Coordinator) -> None:
    copy = two.find("cities.copy")
    two.blobs.remove(copy.id, ObjectKind.BLOCK, [copy.state.head])
    with capture_logs(), pytest.raises(Refused, match=r"cities is read by cities\.copy"):
        two.names.delete("cities")


def test_a_full_disk_does_not_keep_a_dataset_from_being_deleted(
    tmp_path: Path, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Coordinator(home=tmp_path / "home", is_durable=True)
    node.add(root, root.replace("name: cities", "name: rivers"))
    reserve = tmp_path / "home" / "reserve"
    node.claims.reserve.refill()
    assert reserve.stat().st_blocks * 512 >= reserve.stat().st_size == RESERVE_BYTES

    write = os.write

    def full(handle: int, content: bytes) -> int:
        if reserve.exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(handle, content)

    monkeypatch.setattr(os, "write", full)
    with capture_logs():
        node.names.delete("cities")
    assert [one.alias for one in node.datasets.all()] == ["rivers"]
    assert list((tmp_path / "home" / "claims").iterdir()) == []

    monkeypatch.setattr(os, "write", write)
    node.claims.reserve.refill()
    assert reserve.exists()


def test_the_last_free_space_is_not_reserved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("odf_common.adapters.reserve.MIN_FREE_BYTES", 1 << 62)
    reserve = Reserve(tmp_path)
    reserve.refill()
    assert not reserve.release()
    assert list(tmp_path.iterdir()) == []
