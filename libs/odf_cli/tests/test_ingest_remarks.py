import io
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyarrow as pa
import pytest

from odf_cli import clients
from odf_cli import main as cli
from odf_cli.commands import ingest
from odf_cli.commands.ingest import MIB
from odf_cli.manifest_draft import draft, key_of_changes
from odf_cli.suggestions import future_remark, late_remark
from odf_common.codec.manifests import snapshots_from_text
from odf_common.data.ddl import ddl_to_schema
from odf_common.errors import InvalidInput, OdfError
from odf_common.metadata.events import AddPushSource, MergeStrategyUpsertStream, ReadStepCsv, SetVocab
from odf_common.proto.odf.node.v1.ingest_pb2 import FutureRecords, LateRecords, PushReply


class Bars:
    """Records the bars that are shown: description, total and progress in MiB."""

    def __init__(self) -> None:
        self.shown: dict[int, list[object]] = {}

    def add_task(self, description: str, total: int | None) -> int:
        self.shown[len(self.shown)] = [description, total, None]
        return len(self.shown) - 1

    def remove_task(self, task: int) -> None:
        self.shown[task].append("removed")

    def update(self, task: int, completed: int) -> None:
        self.shown[task][2] = completed


def test_standard_input_has_a_bar_without_a_total_once_it_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    bars = Bars()

    @contextmanager
    def progress() -> Iterator[Bars]:
        yield bars

    monkeypatch.setattr(ingest, "progress", progress)
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    with ingest._show_progress("-") as show:
        show("copying", 15 * MIB)
        assert bars.shown == {}
        show("copying", 17 * MIB)
        show("committing", 0)
    assert bars.shown == {
        0: ["standard input: copying", None, 17, "removed"],
        1: ["standard input: committing", None, 0],
    }


def test_a_small_standard_input_has_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    with ingest._show_progress("-") as show:
        show("copying", 1)
        show("committing", 0)


@pytest.mark.parametrize(
    ("file", "count", "line"),
    [
        ("a.csv", 1, "a.csv: 1 row is not a record of orders; the first: line 2: x"),
        ("-", 2, "standard input: 2 rows are not records of orders; the first: line 2: x"),
    ],
)
def test_rejected_rows_are_named_with_their_file(
    capsys: pytest.CaptureFixture[str], file: str, count: int, line: str
) -> None:
    reply = PushReply(rejected=count, rejected_reason="line 2: x")
    ingest._remark_on(ingest._Result(file=file, outcome="committed", reply=reply), "orders", "")
    assert capsys.readouterr().err.splitlines() == [line]


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Callable[[OdfError | None], None]:
    """Have a node commit each file, or refuse it with an error."""

    def pushed(error: OdfError | None) -> None:
        outcome = "refused" if error else "committed"
        monkeypatch.setattr(
            ingest, "_outcome", lambda *facts: ingest._Result(file=facts[2], outcome=outcome, error=error)
        )

    monkeypatch.setattr(clients, "this_node", lambda: None)
    return pushed


class Terminal(io.StringIO):
    """Standard input that is typed."""

    def isatty(self) -> bool:
        """Return True."""
        return True


@pytest.mark.parametrize(
    ("stdin", "files", "remark"),
    [
        (Terminal(), [], "reading records from the terminal; end with Ctrl-D\n"),
        (Terminal(), ["-"], "reading records from the terminal; end with Ctrl-D\n"),
        (Terminal(), [__file__], ""),
        (io.StringIO(), [], ""),
    ],
)
def test_records_that_are_typed_are_waited_for_aloud(
    answer: Callable[[OdfError | None], None],
    stdin: io.StringIO,
    files: list[str],
    remark: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "stdin", stdin)
    answer(None)
    assert cli.main(["ingest", "orders", *files]) == 0
    assert capsys.readouterr().err == remark


@pytest.mark.parametrize("size", [4, ingest.MIB, ingest.MIB + 1, 0])
def test_typed_records_are_ended_once(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    class Typed(io.RawIOBase):
        """What is typed: records, and the end of the input for each end that is asked for."""

        left = [b"r" * size] if size else []
        ends = 0

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
            if not self.left or not self.left[0]:
                Typed.ends += 1
                return 0
            part, self.left[0] = self.left[0][: len(buffer)], self.left[0][len(buffer) :]
            buffer[: len(part)] = part
            return len(part)

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(Typed())))
    assert b"".join(ingest._chunks("-")) == b"r" * size
    assert Typed.ends == 1


def test_the_reason_of_a_failed_file_is_printed_once(
    answer: Callable[[OdfError | None], None], capsys: pytest.CaptureFixture[str]
) -> None:
    answer(InvalidInput(text="none of its rows fits"))
    assert cli.main(["ingest", "orders", __file__]) == 1
    shown = capsys.readouterr()
    assert (shown.out + shown.err).count("none of its rows fits") == 1


LATE = LateRecords(records=2, most="1m", proposed_delay="2m")


def test_the_proposed_command_names_the_source_of_a_dataset_with_several() -> None:
    assert "`odf source set a watermarkDelay=2m` holds" in late_remark(LATE, "a", "")
    assert "`odf source set a watermarkDelay=2m --source till` holds" in late_remark(LATE, "a", "till")


def test_sources_of_one_watermark_need_the_delay_together() -> None:
    assert "for the dataset's other sources too" in late_remark(LATE, "a", "till")
    assert "other sources" not in late_remark(LATE, "a", "")


def test_a_record_too_far_in_the_future_is_named() -> None:
    records = FutureRecords(records=3, offset=7, time="2999-01-01T00:00:00Z")
    said = future_remark(records, "a", "till")
    assert ": 3, the first at offset 7 with 2999-01-01T00:00:00Z; if such times are meant, " in said
    assert "`odf source set a maxFuture=none --source till` lets" in said
    assert "`odf source set a maxFuture=none` lets" in future_remark(records, "a", "")


TIME = pa.timestamp("us", "UTC")


def events(text: str) -> dict[type, object]:
    (snapshot,) = snapshots_from_text(text.encode(), "draft.yaml")
    return {type(event): event for event in snapshot.metadata}


def test_the_manifest_declares_the_columns() -> None:
    columns = pa.schema([("id", pa.int64()), ("a, b", pa.list_(pa.string())), ("when", TIME)])
    made = draft("me/orders", "csv", columns, {"header": "true", "separator": "\t", "nullValue": "true"})
    (snapshot,) = snapshots_from_text(made.text.encode(), "draft.yaml")
    found = events(made.text)
    source = found[AddPushSource]
    assert isinstance(source, AddPushSource)
    assert str(snapshot.name) == "me/orders"
    assert isinstance(source.read, ReadStepCsv)
    assert (source.read.header, source.read.separator, source.read.null_value) == (True, "\t", "true")
    assert source.read.ddl_schema is not None
    assert ddl_to_schema(source.read.ddl_schema).names == ["id", "a, b", "when"]
    assert found[SetVocab] == SetVocab(event_time_column="when")
    assert "UpsertStream" in made.text


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (["created", "Timestamp", "day"], "Timestamp"),
        (["created", "updated"], "created"),
        (["created", "event_time"], None),  # the default's name
    ],
)
def test_the_event_time_is_a_column_with_times_of_a_usual_name(names: list[str], chosen: str | None) -> None:
    made = draft("a", "ndjson", pa.schema([(name, TIME) for name in names]), {})
    vocabulary = events(made.text).get(SetVocab)
    assert vocabulary == (None if chosen is None else SetVocab(event_time_column=chosen))


def test_an_event_time_is_declared_in_milliseconds() -> None:
    made = draft("a", "parquet", pa.schema([("at", TIME), ("seen", TIME)]), {})
    assert "- at TIMESTAMP(3)\n" in made.text
    assert "- seen TIMESTAMP(6)\n" in made.text


def test_without_times_records_have_the_time_of_their_push() -> None:
    made = draft("a", "json", pa.schema([("id", pa.int64())]), {})
    assert SetVocab not in events(made.text)
    (remark,) = made.remarks
    assert "no column has times" in remark


def test_system_columns_give_way_to_columns_of_their_names() -> None:
    columns = pa.schema([(name, pa.string()) for name in ("OP", "offset", "odf_offset", "event_time")])
    made = draft("a", "csv", columns, {})
    assert events(made.text)[SetVocab] == SetVocab(
        offset_column="odf_odf_offset", operation_type_column="odf_op", event_time_column="odf_event_time"
    )
    assert "column OP of the data has the name of a system column, which is odf_op" in "".join(made.remarks)
    assert len(made.remarks) == 4


@pytest.mark.parametrize(
    "key", [b'{"id": 1, "no": 2}', b'{"schema": {"x": 1}, "payload": {"id": 1, "no": 2}}']
)
def test_changes_are_merged_by_their_key_and_have_the_time_of_their_source(key: bytes) -> None:
    columns = pa.schema([("id", pa.int64()), ("no", pa.int64()), ("created", TIME), ("event_time", TIME)])
    found = key_of_changes([None, b"\x00", b"7", key], columns)
    made = draft("a", "ndjson", columns, {}, key_of_changes=found)
    source = events(made.text)[AddPushSource]
    assert isinstance(source, AddPushSource)
    assert source.merge == MergeStrategyUpsertStream(primary_key=("id", "no"))
    assert events(made.text)[SetVocab] == SetVocab(event_time_column="odf_event_time")
    assert made.event_time == ""
    (remark,) = made.remarks
    assert "event_time of the data has the name of a system column" in remark


@pytest.mark.parametrize("key", [None, b"1", b"[]", b'{"other": 1}'])
def test_an_unknown_key_of_changes_is_left_to_the_author(key: bytes | None) -> None:
    columns = pa.schema([("id", pa.int64())])
    made = draft("a", "ndjson", columns, {}, key_of_changes=key_of_changes([key], columns))
    assert "merge: {kind: UpsertStream, primaryKey: [PRIMARY_KEY]}" in made.text
    assert "instead of PRIMARY_KEY" in made.remarks[0]
