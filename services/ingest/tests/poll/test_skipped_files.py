"""Files that are refused, skipped by command, or empty, among files that are read."""

from pathlib import Path
from typing import Any

import pytest

from odf_common.errors import InvalidInput
from odf_common.metadata.fetching import (
    CompressionFormat,
    FetchStepFilesGlob,
    FetchStepUrl,
    PrepStepDecompress,
)
from odf_common.metadata.steps import (
    MergeStrategyLedger,
    MergeStrategySnapshot,
    ReadStepCsv,
    ReadStepNdJson,
)
from odf_ingest.poll.poll_errors import FileRefused, FileReplaced, LastLineContinued, SourceUnreachable
from odf_ingest.poll.poller import PollSummary

NOTHING = PollSummary()
LEDGER = MergeStrategyLedger(primary_key=("id",))
SNAPSHOT = MergeStrategySnapshot(primary_key=("id",))
CSV = ReadStepCsv(header=True, ddl_schema=("id BIGINT",))


def put(folder: Path, **contents: str) -> None:
    for name, content in contents.items():
        (folder / f"{name}.csv").write_text(content)


def glob(folder: Path) -> FetchStepFilesGlob:
    return FetchStepFilesGlob(path=f"{folder}/*.csv")


def skip(bench: Any, poller: Any) -> PollSummary:
    skipped: PollSummary = poller.poll(bench.dataset, lambda _: None, lambda: True, skips=True)
    return skipped


@pytest.mark.parametrize("merge", [None, LEDGER])
def test_an_empty_file_holds_no_other_back_and_is_read_once_it_has_content(
    make_polled: Any, poll: Any, tmp_path: Path, merge: Any
) -> None:
    bench = make_polled(glob(tmp_path), merge, read=CSV)
    put(tmp_path, a="id\n1\n", b="", c="id\n3\n")
    assert poll(bench) == PollSummary(blocks=2, records=2)
    assert poll(bench) == NOTHING
    put(tmp_path, b="id\n2\n")
    assert poll(bench).records == 1
    assert bench.values("id") == [(1,), (3,), (2,)]


def test_an_empty_file_is_no_empty_snapshot(make_polled: Any, poll: Any, tmp_path: Path) -> None:
    bench = make_polled(glob(tmp_path), SNAPSHOT, read=CSV)
    put(tmp_path, a="id\n1\n", b="")
    with pytest.raises(InvalidInput, match=r"b\.csv: has no header"):
        poll(bench)
    assert bench.values("op", "id") == [(0, 1)]


@pytest.mark.parametrize("merge", [None, LEDGER, SNAPSHOT])
def test_a_refused_file_is_skipped_by_command_and_the_files_after_it_are_read(
    make_polled: Any, poll: Any, make_poller: Any, tmp_path: Path, merge: Any
) -> None:
    bench = make_polled(glob(tmp_path), merge, read=CSV)
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
    bench = make_polled(glob(tmp_path), LEDGER, read=CSV)
    put(tmp_path, a="id\nbad\n")
    skip(bench, make_poller(bench))
    assert poll(bench) == NOTHING
    put(tmp_path, a="id\n100\n")
    assert poll(bench).records == 1


def test_files_that_cannot_be_unpacked_are_skipped_as_well(
    make_polled: Any, poll: Any, make_poller: Any, tmp_path: Path
) -> None:
    prepare = (PrepStepDecompress(format=CompressionFormat.Gzip),)
    bench = make_polled(glob(tmp_path), read=CSV, prepare=prepare)
    put(tmp_path, a="no gzip")
    with pytest.raises(FileRefused, match=r"^a\.csv"):
        poll(bench)
    assert skip(bench, make_poller(bench)).skipped
    assert poll(bench) == NOTHING


def test_a_replaced_file_is_accepted_as_read_and_its_new_lines_follow(
    make_polled: Any, poll: Any, make_poller: Any, tmp_path: Path
) -> None:
    bench = make_polled(glob(tmp_path), read=CSV)
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
    bench = make_polled(glob(tmp_path), LEDGER, read=CSV)
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
    bench = make_polled(glob(tmp_path), read=CSV)
    put(tmp_path, a="id\n1\n")
    assert skip(bench, make_poller(bench)) == PollSummary(blocks=1, records=1)


def test_what_cannot_be_reached_is_not_skipped(make_polled: Any, make_poller: Any, tmp_path: Path) -> None:
    bench = make_polled(FetchStepUrl(url="http://127.0.0.1:1/a.csv"), read=ReadStepNdJson())
    with pytest.raises(SourceUnreachable):
        skip(bench, make_poller(bench))
