"""Local files that match a pattern, among them some that are refused, skipped by command, or empty."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from odf_testing.builders import a_chain, a_polling_source, a_schema, a_seed

from odf_common.errors import InvalidInput
from odf_common.hashing.multihash import Multihash
from odf_common.metadata.events import (
    AddData,
    MergeStrategyLedger,
    MergeStrategySnapshot,
    ReadStepCsv,
    ReadStepNdJson,
)
from odf_common.metadata.fetching import (
    CompressionFormat,
    EventTimeSourceFromPath,
    FetchStepFilesGlob,
    FetchStepUrl,
    PrepStepDecompress,
    SourceCachingForever,
    SourceOrdering,
)
from odf_common.metadata.scalars import Timestamp
from odf_ingest.commit.committer import BatchCommitter, CommitQueues, Pools, Proposals
from odf_ingest.commit.slice_writer import Drafter
from odf_ingest.poll.poll_errors import (
    FileForbidden,
    FileRefused,
    FileReplaced,
    FileUnreadable,
    LastLineContinued,
    NothingAtSource,
    SourceUnreachable,
)
from odf_ingest.poll.polled_position import ReadFile, ReadFiles
from odf_ingest.poll.poller import PollSummary

NOTHING = PollSummary()
LEDGER = MergeStrategyLedger(primary_key=("id",))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return tmp_path / "in"


def write(folder: Path, name: str, *numbers: int, at: int = 1_700_000_000) -> None:
    file = folder / name
    file.parent.mkdir(exist_ok=True)
    file.write_text("".join(f'{{"id":{number},"v":"{name}"}}\n' for number in numbers))
    os.utime(file, (at, at))


def glob(folder: Path, pattern: str = "*.json", **more: Any) -> FetchStepFilesGlob:
    return FetchStepFilesGlob(path=f"{folder}/{pattern}", **more)


def names(bench: Any) -> list[str]:
    """Return the files that the chain names, in order."""
    found = [one.new_source_state for one in bench.events() if isinstance(one, AddData)]
    return [ReadFile.parse(one.value).name for one in found if one is not None]


def test_each_file_is_a_block_in_order_of_names_and_nothing_new_is_no_block(
    make_polled: Any, poll: Any, folder: Path
) -> None:
    for number in (2, 1, 3):
        write(folder, f"{number}.json", number)
    bench = make_polled(glob(folder))
    assert poll(bench) == PollSummary(blocks=3, records=3)
    assert names(bench) == ["1.json", "2.json", "3.json"]
    assert bench.values("offset", "id") == [(0, 1), (1, 2), (2, 3)]
    head = bench.state.head
    assert poll(bench) == NOTHING
    assert bench.state.head == head


def test_new_files_that_sort_earlier_are_not_skipped(make_polled: Any, poll: Any, folder: Path) -> None:
    bench = make_polled(glob(folder))
    write(folder, "data-9.json", 9)
    poll(bench)
    write(folder, "data-10.json", 10, at=1_600_000_000)
    assert poll(bench).records == 1
    write(folder, "data-1.json", 1, at=1_500_000_000)
    assert poll(bench).records == 1
    assert poll(bench) == NOTHING
    assert names(bench) == ["data-9.json", "data-10.json", "data-1.json"]
    assert bench.state.watermark == Timestamp.from_ms(1_700_000_000_000)


@pytest.mark.parametrize(
    ("order", "event_time", "expected"),
    [
        (SourceOrdering.ByEventTime, None, [2, 3, 1]),
        (SourceOrdering.ByName, None, [1, 2, 3]),
        (None, None, [1, 2, 3]),
        (None, EventTimeSourceFromPath(pattern=r"-(\d{8})", timestamp_format="yyyyMMdd"), [3, 1, 2]),
        (
            SourceOrdering.ByName,
            EventTimeSourceFromPath(pattern=r"-(\d{8})", timestamp_format="%Y%m%d"),
            [1, 2, 3],
        ),
    ],
)
def test_order(  # noqa: PLR0917
    make_polled: Any, poll: Any, folder: Path, order: Any, event_time: Any, expected: list[int]
) -> None:
    write(folder, "a-20240102.json", 1, at=1_700_000_003)
    write(folder, "b-20240103.json", 2, at=1_700_000_001)
    write(folder, "c-20240101.json", 3, at=1_700_000_002)
    bench = make_polled(glob(folder, order=order, event_time=event_time))
    poll(bench)
    assert [number for (number,) in bench.values("id")] == expected


def test_recursive_patterns_name_files_below_their_fixed_folder(
    make_polled: Any, poll: Any, folder: Path
) -> None:
    write(folder, "2024/a.json", 1)
    write(folder, "2025/a.json", 2)
    write(folder, "a.json", 3)
    bench = make_polled(glob(folder, "**/*.json"))
    poll(bench)
    assert names(bench) == ["2024/a.json", "2025/a.json", "a.json"]


def test_a_changed_file_is_read_again_if_the_merge_knows_its_records(
    make_polled: Any, poll: Any, folder: Path
) -> None:
    write(folder, "a.json", 1)
    bench = make_polled(glob(folder), LEDGER)
    poll(bench)
    write(folder, "a.json", 1, 2, at=1_700_000_001)
    assert poll(bench) == PollSummary(blocks=1, records=1)
    write(folder, "a.json", 1, 2, at=1_700_000_002)
    assert poll(bench) == NOTHING  # the same bytes
    assert bench.values("id") == [(1,), (2,)]


@pytest.mark.parametrize("merge", [LEDGER, None])
def test_a_changed_file_is_not_read_again_with_cache_forever(
    make_polled: Any, poll: Any, folder: Path, merge: Any
) -> None:
    write(folder, "a.json", 1)
    bench = make_polled(glob(folder, cache=SourceCachingForever()), merge)
    poll(bench)
    write(folder, "a.json", 1, 2, at=1_700_000_001)
    assert poll(bench) == NOTHING


def test_a_bad_file_stops_the_poll_before_it_and_once_repaired_it_continues_there(
    make_polled: Any, poll: Any, folder: Path
) -> None:
    write(folder, "1.json", 1)
    (folder / "2.json").write_text('{"id":"x"}\n')
    write(folder, "3.json", 3)
    bench = make_polled(glob(folder))
    with pytest.raises(InvalidInput, match=r"^2\.json, .*line 1"):
        poll(bench)
    assert names(bench) == ["1.json"]
    write(folder, "2.json", 2)
    assert poll(bench) == PollSummary(blocks=2, records=2)
    assert names(bench) == ["1.json", "2.json", "3.json"]


def test_a_file_that_cannot_be_read_is_named_with_why_and_files_before_it_are_kept(
    make_polled: Any, poll: Any, folder: Path
) -> None:
    bench = make_polled(FetchStepFilesGlob(path=f"{folder}/*.ndjson"), LEDGER)
    write(folder, "a.ndjson", 1)
    (folder / "b.ndjson").symlink_to("/proc/self/mem")  # no user can read its first byte, not even root
    write(folder, "c.ndjson", 3)
    with pytest.raises(FileUnreadable) as caught:
        poll(bench)
    assert str(caught.value) == "b.ndjson cannot be read: Input/output error"
    assert bench.values("id") == [(1,)]
    (folder / "b.ndjson").unlink()
    poll(bench)
    assert bench.values("id") == [(1,), (3,)]


def test_a_poll_that_is_killed_anywhere_and_repeated_reads_each_file_once(
    make_polled: Any, poll: Any, folder: Path
) -> None:
    """A kill before or after each of the coordinator's commits, or a reply that is lost."""
    for number in range(6):
        write(folder, f"{number}.json", number)
    bench = make_polled(glob(folder))

    def kill() -> None:
        raise KeyboardInterrupt

    for attempt in range(6):
        bench.coordinator.before = [lambda: None] * (attempt % 2) + [kill]
        bench.coordinator.loses_replies = int(attempt == 1)  # each costs five seconds
        with pytest.raises(KeyboardInterrupt):
            poll(bench)
    bench.coordinator.before = []
    poll(bench)
    assert names(bench) == [f"{number}.json" for number in range(6)]
    assert bench.values("id") == [(number,) for number in range(6)]


def test_a_commit_of_another_poll_in_between_doubles_nothing(
    make_polled: Any, poll: Any, folder: Path
) -> None:
    for number in range(3):
        write(folder, f"{number}.json", number)
    bench = make_polled(glob(folder))
    committer = BatchCommitter(
        bench.states,
        Drafter(bench.blobs, bench.clock, block_version=3, is_signed=False),
        Proposals(bench.coordinator.replies),
    )
    other = replace(
        bench, queues=CommitQueues(bench.blobs, bench.states, committer, Pools.with_one_pool(bench.pool))
    )
    bench.coordinator.before = [lambda: poll(other)]
    poll(bench)
    assert bench.values("id") == [(0,), (1,), (2,)]


def test_after_a_reset_files_are_read_again(
    make_polled: Any, make_poller: Any, poll: Any, folder: Path
) -> None:
    write(folder, "1.json", 1)
    bench = make_polled(glob(folder))
    poller = make_poller(bench)
    before = bench.state.head
    poll(bench, poller=poller)
    bench.refs.compare_and_set(bench.dataset, expected=bench.state.head, new=before)
    bench.states.forget(bench.dataset)
    assert poll(bench, poller=poller).records == 1


def test_a_chain_of_the_reference_implementation_continues_with_files_that_it_has_not_read(
    bench_of: Callable[[str], Any], poll: Any, folder: Path
) -> None:
    bench = bench_of("polled.weather")
    old = bench.state.polling_source
    assert isinstance(old.read, ReadStepCsv)
    for day in ("2025-12-31", "2026-01-01", "2026-03-01"):
        (folder / f"data_{day}.csv").write_text("station,temp,hum\nA,1,0.5\n")
    bench.propose(replace(old, fetch=replace(old.fetch, path=f"{folder}/*.csv")))
    assert poll(bench) == PollSummary(blocks=2, records=2)
    assert names_of_new(bench) == ["data_2025-12-31.csv", "data_2026-03-01.csv"]
    assert poll(bench) == NOTHING


def names_of_new(bench: Any) -> list[str]:
    found = [one.new_source_state for one in bench.events() if isinstance(one, AddData)]
    return [ReadFile.parse(one.value).name for one in found if one is not None and one.kind == "odf/file"]


def test_a_folder_that_is_missing_and_a_relative_pattern_are_errors(
    make_polled: Any, poll: Any, folder: Path
) -> None:
    with pytest.raises(NothingAtSource, match="absent does not exist"):
        poll(make_polled(glob(folder, "absent/*.json")))
    for path in ("in/*.json", f"{folder}/../in/*.json"):
        with pytest.raises(InvalidInput, match="expected an absolute path"):
            poll(make_polled(FetchStepFilesGlob(path=path)))


def test_keys_pipes_and_folders_are_not_read(make_polled: Any, poll: Any, folder: Path) -> None:
    os.mkfifo(folder / "a.json")
    (folder / "b.json").mkdir()
    (folder / "c.json").symlink_to(folder / "absent")
    assert poll(make_polled(glob(folder))) == NOTHING
    write(folder, "d.json", 1)
    with pytest.raises(FileForbidden):
        poll(make_polled(glob(folder)), secrets=folder)


def test_each_block_is_read_once_for_its_files_and_all_again_after_a_reset() -> None:
    chain, reads = a_chain(a_seed(), a_polling_source(), a_schema()), list[Multihash]()

    def read(block: Multihash) -> bytes:
        reads.append(block)
        return chain.read(block)

    files = ReadFiles(read)
    before = chain.state.head
    assert files.at(before) == {}
    reads.clear()
    for name in ("a", "b"):
        chain.add(AddData(new_source_state=ReadFile(name=name).state()))
        assert list(files.at(chain.state.head)) == ["a", "b"][: len(chain.blocks) - 3]
        assert list(files.at(chain.state.head)) == ["a", "b"][: len(chain.blocks) - 3]
    # The previous block is read too: the search stops there.
    assert reads == [chain.blocks[at].hash for at in (3, 2, 4, 3)]
    assert files.at(before) == {}


SNAPSHOT = MergeStrategySnapshot(primary_key=("id",))
CSV = ReadStepCsv(header=True, ddl_schema=("id BIGINT",))


def put(folder: Path, **contents: str) -> None:
    for name, content in contents.items():
        (folder / f"{name}.csv").write_text(content)


def every_csv(folder: Path) -> FetchStepFilesGlob:
    return FetchStepFilesGlob(path=f"{folder}/*.csv")


def skip(bench: Any, poller: Any) -> PollSummary:
    skipped: PollSummary = poller.poll(bench.dataset, lambda _: None, lambda: True, skips=True)
    return skipped


@pytest.mark.parametrize("merge", [None, LEDGER])
def test_an_empty_file_holds_no_other_back_and_is_read_once_it_has_content(
    make_polled: Any, poll: Any, tmp_path: Path, merge: Any
) -> None:
    bench = make_polled(every_csv(tmp_path), merge, read=CSV)
    put(tmp_path, a="id\n1\n", b="", c="id\n3\n")
    assert poll(bench) == PollSummary(blocks=2, records=2)
    assert poll(bench) == NOTHING
    put(tmp_path, b="id\n2\n")
    assert poll(bench).records == 1
    assert bench.values("id") == [(1,), (3,), (2,)]


def test_an_empty_file_is_no_empty_snapshot(make_polled: Any, poll: Any, tmp_path: Path) -> None:
    bench = make_polled(every_csv(tmp_path), SNAPSHOT, read=CSV)
    put(tmp_path, a="id\n1\n", b="")
    with pytest.raises(InvalidInput, match=r"b\.csv: has no header"):
        poll(bench)
    assert bench.values("op", "id") == [(0, 1)]


@pytest.mark.parametrize("merge", [None, LEDGER, SNAPSHOT])
def test_a_refused_file_is_skipped_by_command_and_the_files_after_it_are_read(
    make_polled: Any, poll: Any, make_poller: Any, tmp_path: Path, merge: Any
) -> None:
    bench = make_polled(every_csv(tmp_path), merge, read=CSV)
    poller = make_poller(bench)
    put(tmp_path, a="id\n1\n", b="id\nbad\n", c="id\n1\n3\n")
    with pytest.raises(FileRefused, match=r"^b\.csv, line 2: ") as caught:
        poll(bench, poller=poller)
    assert "`odf source skip cities`" in caught.value.advice().replace(str(bench.dataset), "cities")
    skipped = skip(bench, poller)
    assert skipped.skipped == str(caught.value)
    assert (skipped.blocks, skipped.records) == (1, 0)
    poll(bench, poller=poller)
    assert [id_ for op, id_ in bench.values("op", "id") if op == 0] == (
        [1, 1, 3] if merge is None else [1, 3]
    )
    assert poll(bench) == NOTHING, "after a restart, too"


def test_a_skipped_file_is_read_once_it_has_changed(
    make_polled: Any, poll: Any, make_poller: Any, tmp_path: Path
) -> None:
    bench = make_polled(every_csv(tmp_path), LEDGER, read=CSV)
    put(tmp_path, a="id\nbad\n")
    skip(bench, make_poller(bench))
    assert poll(bench) == NOTHING
    put(tmp_path, a="id\n100\n")
    assert poll(bench).records == 1


def test_files_that_cannot_be_unpacked_are_skipped_as_well(
    make_polled: Any, poll: Any, make_poller: Any, tmp_path: Path
) -> None:
    prepare = (PrepStepDecompress(format=CompressionFormat.Gzip),)
    bench = make_polled(every_csv(tmp_path), read=CSV, prepare=prepare)
    put(tmp_path, a="no gzip")
    with pytest.raises(FileRefused, match=r"^a\.csv"):
        poll(bench)
    assert skip(bench, make_poller(bench)).skipped
    assert poll(bench) == NOTHING


def test_a_replaced_file_is_accepted_as_read_and_its_new_lines_follow(
    make_polled: Any, poll: Any, make_poller: Any, tmp_path: Path
) -> None:
    bench = make_polled(every_csv(tmp_path), read=CSV)
    put(tmp_path, a="id\n1\n")
    poll(bench)
    put(tmp_path, a="id\n100\n200\n")
    with pytest.raises(FileReplaced) as caught:
        poll(bench)
    assert f"`odf source skip {bench.dataset}`" in caught.value.advice()
    assert skip(bench, make_poller(bench)).skipped.startswith("a.csv has changed since it was read")
    put(tmp_path, a="id\n100\n200\n300\n")
    assert poll(bench).records == 1
    assert bench.values("id") == [(1,), (300,)]


def test_a_line_that_has_become_longer_is_kept_as_it_was_and_the_lines_after_it_follow(
    make_polled: Any, poll: Any, make_poller: Any, tmp_path: Path
) -> None:
    bench = make_polled(every_csv(tmp_path), LEDGER, read=CSV)
    put(tmp_path, a="id\n1\n2")
    poll(bench)
    put(tmp_path, a="id\n1\n22\n")
    with pytest.raises(LastLineContinued) as caught:
        poll(bench)
    assert f"`odf source skip {bench.dataset}`" in caught.value.advice()
    assert skip(bench, make_poller(bench)).skipped.startswith("a.csv: the line that was its last one")
    put(tmp_path, a="id\n1\n22\n3\n")
    assert poll(bench).records == 2
    assert bench.values("id") == [(1,), (2,), (22,), (3,)]


def test_nothing_is_skipped_if_nothing_is_refused(make_polled: Any, make_poller: Any, tmp_path: Path) -> None:
    bench = make_polled(every_csv(tmp_path), read=CSV)
    put(tmp_path, a="id\n1\n")
    assert skip(bench, make_poller(bench)) == PollSummary(blocks=1, records=1)


def test_what_cannot_be_reached_is_not_skipped(make_polled: Any, make_poller: Any, tmp_path: Path) -> None:
    bench = make_polled(FetchStepUrl(url="http://127.0.0.1:1/a.csv"), read=ReadStepNdJson())
    with pytest.raises(SourceUnreachable):
        skip(bench, make_poller(bench))
