"""Commits to a dataset: their queue, position, slice and event times, and which sources can be resumed."""

import datetime as dt
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from odf_testing.builders import a_dataset, a_hash
from odf_testing.guarded import GuardedDict

from odf_common.dataset.batch_keys import key_in_run
from odf_common.errors import InvalidInput, NotFound, Refused
from odf_common.metadata.events import MergeStrategyLedger
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.store import ObjectKind
from odf_ingest.commit.file_commit import FileCommit
from odf_ingest.commit.position import MAX_RECEIPTS, SourcePosition, TopicPosition, next_in_run
from odf_ingest.commit.slice_writer import Drafter
from odf_ingest.control.source_control import SourceControl
from odf_ingest.errors import SourceNotRead, SourceNotStopped, SourceStopped
from odf_ingest.history.indexes import IndexBehind
from odf_ingest.merge.interface import MergeResult
from odf_ingest.prepare.batch import FileBatch
from odf_ingest.prepare.event_time import event_times, fill_event_time, max_event_time, with_event_time
from odf_ingest.prepare.preparer import PreparedRecords
from odf_ingest.push.lifecycle.source_record import Phase
from odf_ingest.push.source_topics import Key
from odf_ingest.source_settings import SourceSettings

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


def test_the_head_of_the_last_commit_is_our_own_and_no_other(bench: Any, tmp_path: Path) -> None:
    assert not bench.queues.is_own(bench.dataset, bench.state.head.raw)
    for time in ("10:00", "11:00"):
        push(bench, tmp_path, time)
        assert bench.queues.is_own(bench.dataset, bench.state.head.raw)
    assert not bench.queues.is_own(bench.dataset, a_hash("other").raw)


def test_a_proposal_without_a_reply_is_repeated_and_no_other_slice_is_written(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_a_deleted_dataset_has_neither_queue_nor_state(bench: Any, tmp_path: Path) -> None:
    push(bench, tmp_path, "12:00")
    queue = bench.queues.queue(bench.dataset)
    assert len(bench.states) == 1
    bench.queues.forget(bench.dataset)
    assert len(bench.states) == 0
    with pytest.raises(NotFound, match="dataset did:odf"):
        bench.queues.state(a_dataset("elsewhere"))
    assert bench.queues.queue(bench.dataset) is not queue


def test_queues_are_looked_up_created_and_dropped_under_their_lock(bench: Any) -> None:
    bench.queues._queues = GuardedDict(bench.queues._mutex)
    queue = bench.queues.queue(bench.dataset)
    assert bench.queues.queue(bench.dataset) is queue
    assert bench.queues.index_progress(bench.dataset, MergeStrategyLedger(primary_key=("id",))) is None
    bench.queues.forget(bench.dataset)


def test_an_index_that_falls_behind_again_is_updated_again(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, behind = bench.queues.commit_indexed, [IndexBehind(), IndexBehind()]

    def commit_indexed(*arguments: Any) -> Any:
        if behind:
            raise behind.pop()
        return commit(*arguments)

    monkeypatch.setattr(bench.queues, "commit_indexed", commit_indexed)
    push(bench, tmp_path, "12:00")
    assert bench.values("id") == [(1,)]


def test_the_value_is_canonical_json() -> None:
    position = SourcePosition(topics={"t": TopicPosition(topic_id="uuid", next={1: 5, 0: 123})})
    assert position.text() == '{"topics":{"t":{"id":"uuid","next":{"0":123,"1":5}}},"v":1}'


def test_a_written_position_is_read_back() -> None:
    topic = TopicPosition(topic_id="uuid", next={0: 1, 1: 2}, greatest={0: 7})
    position = SourcePosition(topics={"t": topic}).with_receipt("a").with_receipt("b")
    assert SourcePosition.parse(position.text()) == position


def test_only_the_last_receipts_are_kept() -> None:
    position = SourcePosition()
    for number in range(MAX_RECEIPTS + 3):
        position = position.with_receipt(str(number))
    assert position.receipts[0] == "3"
    assert len(position.receipts) == MAX_RECEIPTS


def test_digests_are_kept_as_long_as_their_receipts() -> None:
    position = SourcePosition().with_receipt("none").with_receipt(key_in_run("run", 0), "0a")
    assert position.contents == {key_in_run("run", 0): "0a"}
    assert SourcePosition.parse(position.text()) == position
    position = position.with_receipt(key_in_run("run", 1), "0b")
    assert position.contents == {key_in_run("run", 1): "0b"}
    for number in range(MAX_RECEIPTS):
        position = position.with_receipt(str(number))
    assert position.contents == {}


def test_of_a_run_of_batches_the_last_one_stands_for_all() -> None:
    position = SourcePosition().with_receipt("other")
    for number in range(3 * MAX_RECEIPTS):
        key = key_in_run("run", number)
        assert next_in_run(position, "run") == number
        assert not position.has_receipt(key)
        position = position.with_receipt(key)
    assert all(position.has_receipt(key_in_run("run", number)) for number in range(3 * MAX_RECEIPTS))
    assert not position.has_receipt(key_in_run("run", 3 * MAX_RECEIPTS))
    assert not position.has_receipt(key_in_run("rerun", 0))
    assert next_in_run(position, "rerun") == 0
    assert not position.has_receipt("run")
    assert position.has_receipt("other")
    assert SourcePosition.parse(position.text()) == position


def test_keys_of_others_are_taken_as_they_are() -> None:
    position = SourcePosition().with_receipt("2026/12")
    assert not position.has_receipt("2026/11")
    for odd in ("\x1f", "a\x1f", "a\x1f-1", "a\x1f1x", "a\x1f²"):
        assert not position.has_receipt(odd)
        assert position.with_receipt(odd).has_receipt(odd)


@pytest.mark.parametrize(
    "value",
    ["", "[]", "{}", '{"v":2,"topics":{}}', '{"v":1,"topics":{"t":{"next":{}}}}', '{"v":1,"topics":[]}'],
)
def test_a_value_that_this_version_did_not_write_is_refused(value: str) -> None:
    with pytest.raises(InvalidInput, match=r"source state: (cannot be read|unknown version 2)"):
        SourcePosition.parse(value)


def test_the_count_of_rejected_messages_is_written_once_there_are_any() -> None:
    assert "rejected" not in SourcePosition().text()
    position = SourcePosition().with_rejected(2).with_rejected(3)
    assert position.text() == '{"rejected":5,"topics":{},"v":1}'
    assert SourcePosition.parse(position.text()) == position


def test_rejected_rows_count_as_messages_too() -> None:
    position = SourcePosition().with_rejected(2).with_rejected_rows(3).with_rejected_rows(1)
    assert position.text() == '{"rejected":6,"rows":{"rejected":4},"topics":{},"v":1}'
    assert SourcePosition.parse(position.text()) == position


def test_a_draft_whose_watermark_is_refused_leaves_no_slice(bench: Any) -> None:
    drafter = Drafter(bench.blobs, bench.clock, block_version=3, is_signed=False)
    times = pa.array([1_600_000_000_000], pa.timestamp("ms", "UTC"))
    merged = MergeResult(records=pa.table({"event_time": times, "id": pa.array([1], pa.int64())}))
    with pytest.raises(InvalidInput, match="outside the years 1 to 9999"):
        drafter.draft(bench.state, merged, source="default", position=SourcePosition(), watermark=-(10**18))
    assert list(bench.blobs.names(bench.dataset, ObjectKind.DATA)) == []
    draft = drafter.draft(
        bench.state, merged, source="default", position=SourcePosition(), watermark=1_600_000_000_000
    )
    assert draft.slice is not None
    assert list(bench.blobs.names(bench.dataset, ObjectKind.DATA)) == [draft.slice[0]]


@pytest.mark.parametrize("column", ["offset", "system_time"])
def test_records_have_no_system_columns(bench: Any, column: str) -> None:
    state = bench.state
    drafter = Drafter(bench.blobs, bench.clock, block_version=3, is_signed=False)
    records = pa.table({"id": pa.array([1], pa.int64()), column: pa.array([1], pa.int64())})
    prepared = PreparedRecords(
        source=state.push_sources["default"], records=records, default_event_time=Timestamp(0), greatest={}
    )
    with pytest.raises(InvalidInput, match=f"column {column}: the name belongs to a system column"):
        drafter.merge_records(
            state, prepared, bench.queues.queue(bench.dataset).history.at(state), SourceSettings()
        )


NOON_TIME = dt.datetime(2020, 1, 1, 12, tzinfo=dt.UTC)
MS = pa.timestamp("ms", "UTC")


def times(column: pa.Array, timestamps: list[int] | None = None) -> pa.ChunkedArray:
    return with_event_time(pa.table({"event_time": column}), "event_time", timestamps).column("event_time")


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_timestamps_of_any_precision_are_truncated_to_milliseconds(unit: str) -> None:
    exact = NOON_TIME.replace(microsecond=0 if unit == "s" else 1999 if unit in ("us", "ns") else 1000)
    found = times(pa.array([exact, None], pa.timestamp(unit, "UTC")))
    assert found.type == MS
    assert found.to_pylist() == [NOON_TIME.replace(microsecond=0 if unit == "s" else 1000), None]


def test_missing_times_are_filled_in() -> None:
    ms = int(NOON_TIME.timestamp() * 1000)
    assert times(pa.array([NOON_TIME, None], MS), [1, ms + 1]).to_pylist() == [
        NOON_TIME,
        NOON_TIME.replace(microsecond=1000),
    ]
    assert times(pa.nulls(1), [ms]).to_pylist() == [NOON_TIME]


def test_missing_days_are_those_of_the_timestamps() -> None:
    ms = int(NOON_TIME.timestamp() * 1000)
    found = times(pa.array([dt.date(2021, 5, 6), None], pa.date32()), [1, ms])
    assert found.to_pylist() == [dt.date(2021, 5, 6), NOON_TIME.date()]


def test_records_without_the_column_get_the_timestamps_or_nulls() -> None:
    records = pa.table({"id": [1, 2]})
    assert with_event_time(records, "at", [0, 1000]).to_pylist() == [
        {"id": 1, "at": dt.datetime(1970, 1, 1, tzinfo=dt.UTC)},
        {"id": 2, "at": dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC)},
    ]
    empty = with_event_time(records, "at", None).column("at")
    assert (empty.type, empty.null_count) == (MS, 2)


@pytest.mark.parametrize("type_", [pa.date32(), pa.date64()])
def test_a_day_begins_at_midnight_in_utc(type_: pa.DataType) -> None:
    days = pa.array([dt.date(1969, 12, 31), dt.date(2020, 1, 1), None], type_)
    records = pa.table({"at": days})
    assert event_times(records, "at").to_pylist() == [-86_400_000, 1_577_836_800_000, None]
    assert max_event_time(records, "at") == 1_577_836_800_000
    assert max_event_time(records, "at", 1_577_836_799_999) == -86_400_000


def test_finer_times_are_truncated_where_they_are_compared() -> None:
    records = pa.table({"at": pa.array([NOON_TIME.replace(microsecond=1999)], pa.timestamp("us", "UTC"))})
    assert event_times(records, "at").to_pylist() == [int(NOON_TIME.timestamp() * 1000) + 1]


def test_a_column_of_another_type_is_refused() -> None:
    with pytest.raises(InvalidInput, match="must be a TIMESTAMP or DATE"):
        times(pa.array(["2020-01-01"]))


@pytest.mark.parametrize(("type_", "expected"), [(MS, NOON_TIME), (pa.date32(), NOON_TIME.date())])
def test_times_that_are_missing_after_a_query_are_the_timestamp_of_the_batch(
    type_: pa.DataType, expected: dt.datetime | dt.date
) -> None:
    time = Timestamp.from_datetime(NOON_TIME)
    later = NOON_TIME + dt.timedelta(days=1)
    records = pa.table({"event_time": pa.array([None, later], MS).cast(type_), "id": [1, 2]})
    filled = fill_event_time(records, "event_time", time)
    assert filled.column("event_time").to_pylist() == [
        expected,
        later if type_ == MS else later.date(),
    ]
    assert filled.column("id").to_pylist() == [1, 2]


KEY = Key(a_dataset(), "default", "")
STOPPED = SourceStopped(dataset="cities", source="default", reason="TopicGone", text="it is gone", topic="")


def outcome(phase: Phase | None, start: str, stop: SourceStopped | None) -> type[Refused] | None:
    """Return the error of resuming a source in a phase (None: not read) whose topic has, or lacks, a reason to stop it."""
    record = None if phase is None else SimpleNamespace(phase=phase)
    owned = cast("Any", SimpleNamespace(record=lambda _: record))
    unused = cast("Any", None)
    control = SourceControl(
        queues=unused, topics=unused, owned=owned, blobs=unused, request=unused, schedule=unused
    )
    try:
        control._require_resumable(KEY, start, lambda: stop)
    except Refused as error:
        return type(error)
    return None


@pytest.mark.parametrize("start", ["", "latest"])
@pytest.mark.parametrize("stop", [None, STOPPED])
def test_a_stopped_or_retried_source_is_resumed(start: str, stop: SourceStopped | None) -> None:
    for phase in (Phase.STOPPED, Phase.RETRYING):
        assert outcome(phase, start, stop) is None


def test_a_source_that_is_not_read_needs_a_start() -> None:
    assert outcome(None, "", None) is SourceNotRead
    assert outcome(None, "latest", None) is None


@pytest.mark.parametrize("phase", [one for one in Phase if one not in {Phase.STOPPED, Phase.RETRYING}])
def test_a_running_source_is_resumed_only_from_a_start_and_with_a_topic_that_stops_it(phase: Phase) -> None:
    assert outcome(phase, "", None) is SourceNotStopped
    assert outcome(phase, "latest", None) is SourceNotStopped
    assert outcome(phase, "", STOPPED) is SourceStopped
    assert outcome(phase, "latest", STOPPED) is None
