"""Files that programs append to, which are polled while they are written."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from odf_common.errors import InvalidInput
from odf_common.metadata.events import (
    MergeStrategyLedger,
    MergeStrategySnapshot,
    ReadStepCsv,
    ReadStepJson,
    ReadStepNdJson,
)
from odf_common.metadata.fetching import FetchStepFilesGlob, FetchStepUrl
from odf_ingest.poll.fetch import files_glob
from odf_ingest.poll.poll_errors import FileReplaced, LastLineContinued, SourceUnreachable
from odf_ingest.poll.poller import PollSummary

DDL = ("id BIGINT NOT NULL", "v BIGINT")
LEDGER = MergeStrategyLedger(primary_key=("id",))
SNAPSHOT = MergeStrategySnapshot(primary_key=("id",))
NOTHING = PollSummary()
# The read step, what precedes the rows, and a row.
FORMATS: dict[str, tuple[Any, bytes, Callable[[int], bytes]]] = {
    "lines": (ReadStepNdJson(ddl_schema=DDL), b"", lambda id_: b'{"id":%d,"v":2000}\n' % id_),
    "csv": (ReadStepCsv(ddl_schema=DDL), b"", lambda id_: b"%d,2000\n" % id_),
    "header": (
        ReadStepCsv(header=True, ddl_schema=("id BIGINT NOT NULL", "`v\n` BIGINT")),
        b'id,"v\n"\n',
        lambda id_: b"%d,2000\n" % id_,
    ),
}
OLD = 1_700_000_000


class Log:
    """A file that a program writes; each change has a later time."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.at = OLD

    def put(self, content: bytes, *, is_recent: bool = False) -> None:
        self.file.write_bytes(content)
        self.at += 1
        if not is_recent:
            os.utime(self.file, (self.at, self.at))

    def add(self, content: bytes, *, is_recent: bool = False) -> None:
        self.put(self.file.read_bytes() + content, is_recent=is_recent)

    def add_while_waited_for(self, content: bytes) -> Callable[[str], None]:
        """Return a report function that continues the file once the poll waits for its last line."""

        def report(stage: str) -> None:
            if "waiting for the end of its last line" in stage:
                self.add(content, is_recent=True)

        return report


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "a.log")


def glob(log: Log) -> FetchStepFilesGlob:
    return FetchStepFilesGlob(path=f"{log.file.parent}/*.log")


@pytest.mark.parametrize("name", FORMATS)
def test_new_lines_of_a_file_are_appended_once_and_errors_name_their_places(
    make_polled: Any, poll: Any, log: Log, name: str
) -> None:
    read, header, row = FORMATS[name]
    bench = make_polled(glob(log), read=read)
    log.put(header)
    poll(bench)
    for number in range(1, 4):
        log.add(row(2 * number) + row(2 * number + 1))
        assert poll(bench) == PollSummary(blocks=1, records=2)
        assert poll(bench) == NOTHING
    assert bench.values("id") == [(id_,) for id_ in range(2, 8)]
    os.utime(log.file, (OLD, OLD))
    assert poll(bench) == NOTHING
    log.add(b"x\n")
    line = header.count(b"\n") + 7
    with pytest.raises(InvalidInput, match=rf"^a\.log, line {line}: "):
        poll(bench)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("merge", [None, LEDGER, SNAPSHOT])
def test_a_last_line_is_read_once_it_has_ended(
    make_polled: Any, poll: Any, log: Log, name: str, merge: Any
) -> None:
    read, header, row = FORMATS[name]
    bench = make_polled(glob(log), merge, read=read)
    half = row(2).index(b"2000") + 2
    log.put(header + row(1) + row(2)[:half], is_recent=True)
    poll(bench, report=log.add_while_waited_for(row(2)[half:]))
    assert bench.values("id") == ([] if merge is SNAPSHOT else [(1,)]), "a snapshot is read as a whole"
    poll(bench)
    column = "v\n" if name == "header" else "v"
    assert bench.values("id", column) == [(1, 2000), (2, 2000)]
    assert poll(bench) == NOTHING


@pytest.mark.parametrize("name", FORMATS)
def test_a_line_that_never_ends_is_read_once_its_file_has_not_changed_for_a_while(
    make_polled: Any, poll: Any, log: Log, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files_glob, "SETTLED_SECONDS", 0.1)
    read, header, row = FORMATS[name]
    bench = make_polled(glob(log), read=read)
    log.put(header + row(1) + row(2).rstrip(), is_recent=True)
    assert poll(bench).records == 2
    log.add(b"\n" + row(3))
    assert poll(bench).records == 1
    assert bench.values("id") == [(1,), (2,), (3,)]


@pytest.mark.parametrize(
    "content",
    [
        b"1,2000\n2,20000\n",  # its last line became longer
        b"1,2000\n",
        b"",
        b"1,2001\n2,2000\n3,2000\n",
    ],
)
def test_a_file_that_changed_otherwise_is_named_and_stops_no_other(
    make_polled: Any, poll: Any, log: Log, content: bytes
) -> None:
    bench = make_polled(glob(log), read=FORMATS["csv"][0])
    log.put(b"1,2000\n2,2000")
    poll(bench)
    log.put(content)
    Log(log.file.with_name("b.log")).put(b"3,2000\n")
    for _ in range(2):
        with pytest.raises(FileReplaced, match=r"a\.log has changed since it was read") as caught:
            poll(bench)
        assert "into a new one" in caught.value.advice()
    assert bench.values("id") == [(1,), (2,), (3,)]


def test_a_ledger_names_a_last_line_that_has_become_longer(make_polled: Any, poll: Any, log: Log) -> None:
    bench = make_polled(glob(log), LEDGER, read=FORMATS["csv"][0])
    log.put(b"1,2000\n2,20")
    poll(bench)
    log.add(b"00\n3,2000\n")
    for _ in range(2):
        with pytest.raises(LastLineContinued, match=r"^a\.log: .* has become longer"):
            poll(bench)
    log.put(b"1,2000\n2,20\n3,2000\n")
    assert poll(bench) == PollSummary(blocks=1, records=1), "the line has ended as it was read"


def test_a_file_that_is_no_lines_is_named_as_well(make_polled: Any, poll: Any, log: Log) -> None:
    bench = make_polled(glob(log), read=ReadStepJson(ddl_schema=DDL))
    log.put(b'[{"id":1}]')
    poll(bench)
    log.add(b'[{"id":2}]')
    with pytest.raises(FileReplaced):
        poll(bench)


@pytest.mark.parametrize("name", FORMATS)
def test_a_renamed_file_is_not_appended_again_and_its_new_lines_are(
    make_polled: Any, poll: Any, log: Log, name: str
) -> None:
    read, header, row = FORMATS[name]
    bench = make_polled(glob(log), read=read)
    log.put(header + row(1))
    poll(bench)
    for number in (2, 3):
        log.file = log.file.rename(log.file.with_name(f"{number}.log"))
        reports: list[str] = []
        assert poll(bench, report=reports.append) == PollSummary(blocks=1)
        before = "a.log" if number == 2 else "2.log"
        assert f"{number}.log: was {before}, and is not read again" in reports
    log.add(row(2))
    poll(bench)
    log.add(row(3))
    log.file = log.file.rename(log.file.with_name("b.log"))
    assert poll(bench) == PollSummary(blocks=1, records=1)
    assert poll(bench) == NOTHING
    assert bench.values("id") == [(1,), (2,), (3,)]


def test_rotated_files_are_not_appended_again(make_polled: Any, poll: Any, log: Log) -> None:
    bench = make_polled(glob(log), read=FORMATS["lines"][0])
    row = FORMATS["lines"][2]
    names = [log.file.with_name(f"{number}.log") for number in (3, 2, 1)]
    names[1].write_bytes(row(2))
    names[2].write_bytes(row(1) * 3)
    poll(bench)
    names[1].rename(names[0])
    names[2].rename(names[1])
    assert poll(bench) == PollSummary(blocks=2)
    assert poll(bench) == NOTHING
    assert bench.values("id") == [(1,), (1,), (1,), (2,)]


def test_a_file_with_the_content_of_another_one_is_read(make_polled: Any, poll: Any, log: Log) -> None:
    bench = make_polled(glob(log), read=ReadStepJson(ddl_schema=DDL))
    log.put(b'[{"id":1}]')
    poll(bench)
    same = log.file.with_name("b.log")
    same.write_bytes(log.file.read_bytes())
    assert poll(bench).records == 1
    log.file.unlink()
    log.file.with_name("c.log").write_bytes(same.read_bytes())
    assert poll(bench).records == 1, "the content of a.log is still there, as b.log"


def test_a_file_of_a_url_is_waited_for(make_polled: Any, poll: Any, log: Log) -> None:
    bench = make_polled(FetchStepUrl(url=f"file://{log.file}"), LEDGER, read=FORMATS["csv"][0])
    log.put(b"1,2000\n2,20", is_recent=True)
    with pytest.raises(SourceUnreachable, match="its last line is not complete"):
        poll(bench, report=log.add_while_waited_for(b"00\n"))
    assert poll(bench).records == 2
