import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from odf_testing.builders import a_dataset, a_derivative
from odf_testing.ingest_batches import EVENT_TIME, commit_file

from odf_common.chain.build_blocks import ClockBehind
from odf_common.errors import InvalidInput, NotFound, Refused, StorageUnavailable
from odf_common.hashing.multihash import Multihash
from odf_common.metadata.events import (
    AddData,
    DisablePushSource,
    MergeStrategyLedger,
    MergeStrategySnapshot,
    MergeStrategyUpsertStream,
    ReadStepCsv,
    ReadStepJson,
    ReadStepNdJson,
    ReadStepParquet,
    SetDataSchema,
    SetVocab,
)
from odf_common.metadata.scalars import CLOCK_TOLERANCE_MS, Timestamp
from odf_common.ports.engine import QueryNotWanted
from odf_ingest.commit.committer import Outcome
from odf_ingest.commit.file_commit import FileCommit, chosen_source, digest_of
from odf_ingest.errors import KeyReused, NothingCommitted, SnapshotRetractsTooMuch
from odf_ingest.prepare.batch import FileBatch
from odf_ingest.source_settings import BadRecords, EmptySnapshot, SourceSettings, save_settings

LEDGER = MergeStrategyLedger(primary_key=("id",))


def push(bench: Any, folder: Path, text: str | None, key: str = "key", **more: Any) -> Outcome:
    return commit_file(bench, folder / "batch", text, key, **more)


def line(number: int, value: str = "a", at: str = "2020-01-01T00:00:00Z") -> str:
    return f'{{"id":{number},"v":"{value}","event_time":"{at}"}}\n'


def test_the_first_batch_sets_the_schema_and_a_watermark(bench: Any, tmp_path: Path) -> None:
    outcome = push(bench, tmp_path, line(1) + line(2, at="2020-03-01T00:00:00+01:00"))
    schema, data = bench.events()[-2:]
    assert outcome.count == 2
    assert isinstance(schema, SetDataSchema)
    assert isinstance(data, AddData)
    assert data.new_watermark == Timestamp.parse("2020-02-29T23:00:00Z")
    assert bench.values("offset", "op", "id") == [(0, 0, 1), (1, 0, 2)]


def test_rows_and_block_bear_the_same_system_time_and_it_rises(bench: Any, tmp_path: Path) -> None:
    push(bench, tmp_path, line(1), "a")
    first = bench.state.system_time
    bench.clock.ms -= CLOCK_TOLERANCE_MS - 1
    push(bench, tmp_path, line(2), "b")
    assert bench.state.system_time.ms == first.ms + 1
    assert bench.rows()[-1]["system_time"] == bench.state.system_time.datetime()


def test_nothing_is_committed_while_the_clock_is_behind_by_more_than_clocks_may_differ(
    bench: Any, tmp_path: Path
) -> None:
    push(bench, tmp_path, line(1), "a")
    before, bench.clock.ms = bench.state, bench.clock.ms - CLOCK_TOLERANCE_MS
    with pytest.raises(ClockBehind, match=r"is from 2027-.*, but the clock of this machine says") as caught:
        push(bench, tmp_path, line(2), "b")
    assert "`odf reset DATASET BLOCK`" in caught.value.advice()
    assert bench.state == before
    bench.clock.ms += 1
    push(bench, tmp_path, line(2), "b")
    assert bench.values("id") == [(1,), (2,)]


def test_a_later_batch_continues_with_offsets_and_keeps_the_watermark(bench: Any, tmp_path: Path) -> None:
    push(bench, tmp_path, line(1), "a")
    push(bench, tmp_path, line(2, at="2019-01-01T00:00:00Z"), "b")
    assert bench.values("offset", "id") == [(0, 1), (1, 2)]
    assert bench.state.watermark == Timestamp.parse("2020-01-01T00:00:00Z")


def test_a_push_that_finds_the_disk_full_says_that_nothing_was_committed(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = StorageUnavailable(file="datasets/fed01/data/x", why="the disk is full", remedy="free space")

    def fail(*_: object) -> None:
        raise full

    with monkeypatch.context() as patch:
        patch.setattr(bench.blobs, "put_file", fail)
        with pytest.raises(
            NothingCommitted, match=r"the disk is full: .* cannot be used now; nothing was committed$"
        ) as caught:
            push(bench, tmp_path, line(1))
    assert caught.value.advice().startswith("free space")
    bench.coordinator.before.append(fail)
    with pytest.raises(StorageUnavailable):  # it may have been proposed
        push(bench, tmp_path, line(1))
    assert push(bench, tmp_path, line(1)).count == 1


def test_the_same_key_is_committed_once(bench: Any, tmp_path: Path) -> None:
    push(bench, tmp_path, line(1))
    assert not push(bench, tmp_path, line(1)).is_new
    assert len(bench.rows()) == 1


def test_a_key_is_refused_for_other_content_than_it_was_used_for(bench: Any, tmp_path: Path) -> None:
    push(bench, tmp_path, line(1), "a")
    push(bench, tmp_path, line(2), "b")
    with pytest.raises(KeyReused, match="nothing of this file was committed"):
        push(bench, tmp_path, line(3), "a")
    assert not push(bench, tmp_path, line(1), "a").is_new
    assert bench.values("id") == [(1,), (2,)]


def test_a_batch_of_known_records_without_a_key_writes_no_block(make_bench: Any, tmp_path: Path) -> None:
    bench = make_bench(LEDGER)
    push(bench, tmp_path, line(1), "a")
    before = bench.state.head
    assert not push(bench, tmp_path, line(1, "other"), "b", is_key_generated=True).is_new
    assert bench.state.head == before


@pytest.mark.parametrize(
    "merge", [MergeStrategyUpsertStream(primary_key=("id",)), MergeStrategySnapshot(primary_key=("id",))]
)
def test_a_late_repeat_of_a_push_that_changed_nothing_overwrites_no_newer_one(
    make_bench: Any, tmp_path: Path, merge: Any
) -> None:
    bench = make_bench(merge)
    push(bench, tmp_path, line(1, "old"), "first")
    assert push(bench, tmp_path, line(1, "old"), "again").count == 0
    push(bench, tmp_path, line(1, "new"), "newer")
    assert not push(bench, tmp_path, line(1, "old"), "again").is_new
    assert bench.values("v")[-1] == ("new",)


@pytest.mark.parametrize("calls", range(6))
def test_a_push_that_is_cancelled_before_its_proposal_commits_nothing(
    make_bench: Any, tmp_path: Path, calls: int
) -> None:
    bench = make_bench(LEDGER)
    before = bench.state.head
    asked = iter([True] * calls + [False] * 10)
    if calls < 4:
        with pytest.raises(Refused, match="cancelled; nothing was committed"):
            push(bench, tmp_path, line(1), is_wanted=lambda: next(asked))
        assert bench.state.head == before
    else:
        assert push(bench, tmp_path, line(1), is_wanted=lambda: next(asked)).is_new


def test_a_push_that_was_committed_though_its_answer_was_lost_is_not_cancelled(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.coordinator.loses_replies = 1
    monkeypatch.setattr("odf_ingest.commit.committer.Proposals.propose.__defaults__", (0.05,))
    asked = iter([True] * 4 + [False] * 10)
    assert not push(bench, tmp_path, line(1), is_wanted=lambda: next(asked)).is_new
    assert len(bench.rows()) == 1


def test_a_faulty_file_of_a_source_that_stops_names_the_line_and_commits_nothing(
    bench: Any, tmp_path: Path
) -> None:
    bench.set(bad_records=BadRecords.STOP)
    before = bench.state.head
    with pytest.raises(InvalidInput, match=r"^line 2: "):
        push(bench, tmp_path, line(1) + "junk\n" + line(3))
    with pytest.raises(
        InvalidInput, match=r"^line 2: column id: null is not allowed; a value of BIGINT is required"
    ):
        push(bench, tmp_path, line(1) + line(2).replace('"id":2,', ""))
    assert bench.state.head == before


UPSERT = MergeStrategyUpsertStream(primary_key=("id",))
SNAPSHOT = MergeStrategySnapshot(primary_key=("id",))
NO_EVENT_TIME = "line 2: column event_time: null is not allowed; a value of TIMESTAMP"


@pytest.mark.parametrize("read", [None, ReadStepNdJson()], ids=["declared", "inferred"])
@pytest.mark.parametrize("merge", [None, LEDGER, UPSERT])
def test_a_row_without_its_event_time_is_rejected(
    make_bench: Any, tmp_path: Path, merge: Any, read: Any
) -> None:
    bench = make_bench(merge, read)
    outcome = push(bench, tmp_path, line(1) + '{"id":2,"v":"a"}\n' + line(3))
    assert bench.values("id") == [(1,), (3,)]
    (row,) = outcome.rejected
    assert row.reason.startswith(NO_EVENT_TIME)
    assert bench.state.watermark == Timestamp.parse("2020-01-01T00:00:00Z")


def test_a_file_that_cannot_reject_a_row_without_event_time_is_refused(
    make_bench: Any, tmp_path: Path
) -> None:
    bench = make_bench(SNAPSHOT)
    with pytest.raises(InvalidInput, match=NO_EVENT_TIME):
        push(bench, tmp_path, line(1) + '{"id":2,"v":"a"}\n')
    with pytest.raises(InvalidInput, match=NO_EVENT_TIME.replace("2", "1")):
        push(make_bench(), tmp_path, '{"id":2,"v":"a"}\n' * 2)


def test_rows_without_event_time_get_that_which_the_client_gives(bench: Any, tmp_path: Path) -> None:
    push(bench, tmp_path, '{"id":1}\n' + line(2), fills_event_times=True)
    assert (1, EVENT_TIME.datetime()) in bench.values("id", "event_time")


def test_a_key_that_repeats_in_a_snapshot_is_named_with_its_lines(make_bench: Any, tmp_path: Path) -> None:
    bench = make_bench(SNAPSHOT)
    push(bench, tmp_path, line(1) + line(2))
    head = bench.state.head
    with pytest.raises(InvalidInput, match="the key id = 1 in 2 records: lines 2 and 4"):
        push(bench, tmp_path, line(2) + line(1) + "\n" + line(1), "again")
    assert bench.state.head == head
    push(bench, tmp_path, line(2) + line(1), "corrected")
    assert bench.values("op", "id") == [(0, 1), (0, 2)]


@pytest.mark.parametrize("content", ["", "\n \n"])
def test_a_file_without_a_byte_is_an_empty_snapshot_only_where_the_source_says_so(
    make_bench: Any, tmp_path: Path, content: str
) -> None:
    bench = make_bench(SNAPSHOT)
    push(bench, tmp_path, line(1) + line(2))
    with pytest.raises(SnapshotRetractsTooMuch):
        push(bench, tmp_path, content, "a")
    bench.set(max_retracted_share=1.0)
    with pytest.raises(InvalidInput, match="the batch has no bytes"):
        push(bench, tmp_path, content, "b")
    allowed = SourceSettings(empty_snapshot=EmptySnapshot.RETRACT)
    save_settings(bench.blobs, bench.dataset, "default", allowed)
    assert push(bench, tmp_path, content, "c").count == 2
    assert push(bench, tmp_path, content, "d").count == 0


def test_an_array_or_a_header_alone_is_an_empty_snapshot(make_bench: Any, tmp_path: Path) -> None:
    ddl = ("id BIGINT", "v STRING")
    for read, rows, nothing in (
        (ReadStepJson(ddl_schema=ddl), '[{"id":1}]', "[]"),
        (ReadStepCsv(header=True, ddl_schema=ddl), "id,v\n1,a\n", "id,v\n"),
    ):
        bench = make_bench(SNAPSHOT, read)
        bench.set(max_retracted_share=1.0)
        push(bench, tmp_path, rows)
        assert push(bench, tmp_path, nothing, "empty").count == 1


def test_a_missing_event_time_column_is_added(make_bench: Any, tmp_path: Path) -> None:
    bench = make_bench(
        None, ReadStepNdJson(ddl_schema=("id BIGINT",)), SetVocab(event_time_column="happened")
    )
    push(bench, tmp_path, '{"id":1}\n')
    assert bench.values("happened") == [(EVENT_TIME.datetime(),)]


@pytest.mark.parametrize("column", ["offset", "op", "system_time"])
def test_columns_named_like_system_columns_are_refused(make_bench: Any, tmp_path: Path, column: str) -> None:
    bench = make_bench(None, ReadStepNdJson(ddl_schema=(f"{column} BIGINT",)))
    with pytest.raises(InvalidInput, match=column):
        push(bench, tmp_path, f'{{"{column}":1}}\n')


def test_an_overtaken_commit_builds_the_batch_again(make_bench: Any, tmp_path: Path) -> None:
    bench = make_bench(LEDGER)
    push(bench, tmp_path, line(1), "first")

    def overtake() -> None:
        bench.propose(SetVocab(event_time_column="event_time"))

    bench.coordinator.before = [overtake]
    push(bench, tmp_path, line(1) + line(2), "second")
    assert bench.values("offset", "id") == [(0, 1), (1, 2)]


def test_a_file_is_read_again_if_its_dataset_was_redefined_meanwhile(bench: Any, tmp_path: Path) -> None:
    bench.coordinator.before = [lambda: bench.propose(SetVocab(event_time_column="happened"))]
    push(bench, tmp_path, line(1))
    assert bench.values("id", "happened") == [(1, EVENT_TIME.datetime())]


def test_a_file_whose_query_no_caller_waits_for_is_cancelled(bench: Any, tmp_path: Path) -> None:
    def file(*_: object) -> None:
        raise QueryNotWanted

    (tmp_path / "batch").write_text(line(1))
    batch = FileBatch(file=tmp_path / "batch", event_time=EVENT_TIME, key="key")
    work = FileCommit("default", batch, SimpleNamespace(file=file), bench.rejecting)  # type: ignore[arg-type]
    with pytest.raises(Refused, match="cancelled; nothing was committed"):
        work.prepare(bench.state)


def test_a_source_has_to_be_named_when_there_are_none_of_that_name(bench: Any) -> None:
    assert chosen_source(bench.state, "").source_name == "default"
    with pytest.raises(NotFound):
        chosen_source(bench.state, "other")
    bench.propose(replace(bench.state.push_sources["default"], source_name="other"))
    assert chosen_source(bench.state, "other").source_name == "other"
    with pytest.raises(InvalidInput, match="several push sources: default, other; name one"):
        chosen_source(bench.state, "")
    bench.propose(DisablePushSource(source_name="default"), DisablePushSource(source_name="other"))
    with pytest.raises(InvalidInput, match="the dataset has no push source"):
        chosen_source(bench.state, "")


def test_a_derivative_takes_no_pushed_data() -> None:
    with pytest.raises(InvalidInput, match="a derivative takes no pushed data"):
        chosen_source(a_derivative(a_dataset("a")).state, "")


def test_the_digest_of_a_file_stays_that_of_files_in_chains(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x\n")
    assert digest_of(tmp_path / "file") == "273c4078610b7e7f"


@pytest.mark.parametrize(
    ("at", "watermark"),
    [("0001-01-01T00:00:00Z", "0001-01-01T00:00:00Z"), ("9999-12-31T23:59:59.999Z", None)],
)
def test_an_event_time_at_a_sentinel_is_committed(
    bench: Any, tmp_path: Path, at: str, watermark: str | None
) -> None:
    push(bench, tmp_path, line(1, at=at))
    assert bench.state.watermark == (None if watermark is None else Timestamp.parse(watermark))
    push(bench, tmp_path, line(2, at=at), "again")
    assert bench.values("id") == [(1,), (2,)]


@pytest.mark.parametrize("year", [0, 10_000])
def test_an_event_time_that_no_chain_can_represent_is_refused_and_nothing_is_committed(
    make_bench: Any, tmp_path: Path, year: int
) -> None:
    milliseconds = round((year - 1970) * 365.2425 * 86_400_000)
    bench = make_bench(None, ReadStepParquet())
    head = bench.state.head
    at = pa.array([milliseconds], pa.timestamp("ms", "UTC"))
    pq.write_table(pa.table({"event_time": at, "id": [1]}), tmp_path / "batch")
    with pytest.raises(InvalidInput, match="years"):
        push(bench, tmp_path, None)
    assert bench.state.head == head


def test_files_of_one_dataset_are_committed_one_after_the_other(bench: Any, tmp_path: Path) -> None:
    before = bench.state.head
    heads: dict[str, Multihash] = {}

    def pushed(name: str) -> Outcome:
        def is_wanted() -> bool:
            if name not in heads:
                heads[name] = bench.state.head
                time.sleep(0.05)  # the other one has started, and waits
            return True

        folder = tmp_path / name
        folder.mkdir()
        return push(bench, folder, line(1, value=name), key=name, is_wanted=is_wanted)

    with ThreadPoolExecutor(2) as pool:
        outcomes = list(pool.map(pushed, ["a", "b"]))

    assert [outcome.count for outcome in outcomes] == [1, 1]
    first, second = heads.values()
    assert first == before
    assert second != before, "it began before the first one was committed"
