"""State of the commit queues after a commit, and its removal with the dataset."""

from pathlib import Path
from typing import Any

import pytest
from odf_testing.builders import a_dataset, a_hash
from odf_testing.guarded import GuardedDict

from odf_common.errors import NotFound
from odf_common.metadata.scalars import Timestamp
from odf_common.metadata.steps import MergeStrategyLedger
from odf_common.ports.store import ObjectKind
from odf_ingest.commit.file_commit import FileCommit
from odf_ingest.commit.watermark import NONE_LATE, Lateness
from odf_ingest.history.indexes import IndexBehind
from odf_ingest.prepare.batch import FileBatch

NOON = Timestamp.parse("2020-01-01T12:00:00Z")


def work_of(bench: Any, tmp_path: Path, *times: str) -> FileCommit:
    """Return a file with one record for each time."""
    file = tmp_path / times[0]
    file.write_text("".join(f'{{"id":1,"event_time":"2020-01-01T{time}:00Z"}}\n' for time in times))
    return FileCommit(
        "default", FileBatch(file=file, event_time=NOON, key=times[0]), bench.preparer, bench.rejecting
    )


def push(bench: Any, tmp_path: Path, *times: str) -> None:
    work_of(bench, tmp_path, *times).commit(bench.queues, bench.dataset)


def test_the_head_of_the_last_commit_is_our_own_and_no_other(make_bench: Any, tmp_path: Path) -> None:
    bench = make_bench()
    assert not bench.queues.is_own(bench.dataset, bench.state.head.raw)
    for time in ("10:00", "11:00"):
        push(bench, tmp_path, time)
        assert bench.queues.is_own(bench.dataset, bench.state.head.raw)
    assert not bench.queues.is_own(bench.dataset, a_hash("other").raw)


def test_committed_content_is_not_appended_again(make_bench: Any, tmp_path: Path) -> None:
    bench = make_bench()
    first, again = (work_of(bench, tmp_path, "10:00").commit(bench.queues, bench.dataset) for _ in range(2))
    assert [(one.is_new, one.count) for one in (first, again)] == [(True, 1), (False, 0)]
    assert again.state.head == first.state.head


def test_a_proposal_without_a_reply_is_repeated_and_no_other_slice_is_written(
    make_bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make_bench()
    bench.coordinator.loses_proposals = 2
    monkeypatch.setattr("odf_ingest.commit.committer.Proposals.propose.__defaults__", (0.05,))
    send = bench.coordinator.send

    def send_later(*message: Any) -> None:
        bench.clock.ms += 1000  # a block that is drafted again has another time
        send(*message)

    monkeypatch.setattr(bench.coordinator, "send", send_later)
    push(bench, tmp_path, "10:00")
    proposals = [one.propose for _, one in bench.coordinator.sent if one.HasField("propose")]
    assert proposals == proposals[:1] * 3
    assert len(list(bench.blobs.names(bench.dataset, ObjectKind.DATA))) == 1


def test_late_records_are_added_up_until_the_process_ends(make_bench: Any, tmp_path: Path) -> None:
    bench = make_bench()
    push(bench, tmp_path, "12:00")
    assert bench.queues.late.lateness_of(bench.dataset, "default") == NONE_LATE
    push(bench, tmp_path, "11:00", "11:30")
    push(bench, tmp_path, "11:59")
    assert bench.queues.late.lateness_of(bench.dataset, "default") == Lateness(count=3, most=3_600_000)


def test_a_deleted_dataset_has_neither_queue_nor_state(make_bench: Any, tmp_path: Path) -> None:
    bench = make_bench()
    push(bench, tmp_path, "12:00")
    queue = bench.queues.queue(bench.dataset)
    assert len(bench.states) == 1
    bench.queues.forget(bench.dataset)
    assert len(bench.states) == 0
    with pytest.raises(NotFound, match="dataset did:odf"):
        bench.queues.state(a_dataset("elsewhere"))
    assert bench.queues.queue(bench.dataset) is not queue


def test_queues_are_looked_up_created_and_dropped_under_their_lock(make_bench: Any) -> None:
    bench = make_bench()
    bench.queues._queues = GuardedDict(bench.queues._mutex)
    queue = bench.queues.queue(bench.dataset)
    assert bench.queues.queue(bench.dataset) is queue
    assert bench.queues.building(bench.dataset, MergeStrategyLedger(primary_key=("id",))) is None
    bench.queues.forget(bench.dataset)


def test_an_index_that_falls_behind_again_is_updated_again(
    make_bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make_bench()
    commit, behind = bench.queues.commit_indexed, [IndexBehind(), IndexBehind()]

    def commit_indexed(*arguments: Any) -> Any:
        if behind:
            raise behind.pop()
        return commit(*arguments)

    monkeypatch.setattr(bench.queues, "commit_indexed", commit_indexed)
    push(bench, tmp_path, "12:00")
    assert bench.values("id") == [(1,)]
