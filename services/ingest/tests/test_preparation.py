"""From messages to records: the query, bad rows, and steps that are not supported."""

import errno
import random
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odf_common.data.ddl import ddl_to_schema
from odf_common.errors import InvalidInput, InvalidQuery
from odf_common.metadata.engine_messages import RawQueryRequest, RawQueryResponseSuccess
from odf_common.metadata.events import ReadStep, ReadStepNdJson, ReadStepParquet, TransformSql
from odf_common.metadata.fetching import PrepStepPipe
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.engine import IsWanted, always
from odf_ingest.errors import UnsupportedStep
from odf_ingest.poll.event_time_source import event_time
from odf_ingest.poll.poll_errors import PrepareUnsupported
from odf_ingest.poll.unpack import pipe, unpack
from odf_ingest.prepare.bad_rows import RejectedRows, TextRows
from odf_ingest.prepare.event_time import max_event_time
from odf_ingest.prepare.preprocess import EngineOutputUnreadable, Preprocessor
from odf_ingest.read import format as formats
from odf_ingest.read import infer_records, read_records, split_file, whole_table
from odf_ingest.read.arrow_ipc import ReadArrowIpc, row_stream
from odf_ingest.read.isolate_bad_records import isolate_bad_records
from odf_ingest.read.message_buffer import MessageBuffer

QUERY = TransformSql(engine="spark", query="SELECT * FROM input")
RECORDS = pa.table({"id": [1, 2], "city": ["Oslo", "Rome"]})


class Engine:
    """Answers a query with the output of `answer`, and records its requests."""

    def __init__(self, answer: Callable[[pa.Table, Path], int]) -> None:
        self._answer = answer
        self.asked: list[tuple[RawQueryRequest, IsWanted]] = []

    def execute_raw_query(self, request: RawQueryRequest, is_wanted: IsWanted) -> RawQueryResponseSuccess:
        self.asked.append((request, is_wanted))
        (before,) = request.input_data_paths
        count = self._answer(pq.read_table(before), Path(request.output_data_path))
        return RawQueryResponseSuccess(num_records=count)


def run(tmp_path: Path, engine: Engine, records: pa.Table = RECORDS) -> pa.Table | None:
    def scratch() -> Path:
        folder = tmp_path / "scratch"
        folder.mkdir()
        return folder

    try:
        return Preprocessor(cast("Any", engine), scratch).run(QUERY, records, always)
    finally:
        assert list(tmp_path.iterdir()) == [], "what was exchanged is removed"


def passing(records: pa.Table, after: Path) -> int:
    pq.write_table(records.replace_schema_metadata({"a": "b"}), after)
    return len(records)


def test_records_are_sent_to_the_engine_and_its_output_is_returned(tmp_path: Path) -> None:
    engine = Engine(passing)
    found = run(tmp_path, engine)
    assert found is not None
    assert found.equals(RECORDS)
    assert found.schema.metadata is None
    ((request, is_wanted),) = engine.asked
    assert (request.transform, is_wanted) == (QUERY, always)


def test_an_output_without_records_is_none_and_may_be_missing(tmp_path: Path) -> None:
    assert run(tmp_path, Engine(lambda *_: 0)) is None


@pytest.mark.parametrize("content", [None, b"", b"no Parquet file"])
def test_an_output_that_cannot_be_read_is_the_engines_fault(tmp_path: Path, content: bytes | None) -> None:
    def answer(_: pa.Table, after: Path) -> int:
        if content is not None:
            after.write_bytes(content)
        return 1

    with pytest.raises(EngineOutputUnreadable):
        run(tmp_path, Engine(answer))


def test_records_that_no_file_can_have_are_refused_and_errors_of_the_engine_are_passed_on(
    tmp_path: Path,
) -> None:
    odd = pa.table({"a": pa.array([{}], pa.struct([]))})
    with pytest.raises(InvalidInput, match="cannot be passed to the engine"):
        run(tmp_path, Engine(passing), odd)

    def refuse(*_: object) -> int:
        raise InvalidQuery(text="syntax error")

    with pytest.raises(InvalidQuery, match="syntax error"):
        run(tmp_path, Engine(refuse))


def test_output_that_cannot_be_opened_now_is_an_error_of_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(records: pa.Table, after: Path) -> int:
        monkeypatch.setattr(pq, "read_table", fail)
        return passing(records, after)

    def fail(file: Path, **_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files", str(file))

    with pytest.raises(OSError, match="Too many open files"):
        run(tmp_path, Engine(answer))


class Reader:
    """Accepts digits only, all at once or not at all."""

    def __init__(self) -> None:
        self.calls = 0

    def read(self, values: Sequence[bytes]) -> pa.Table:
        self.calls += 1
        if not all(value.isdigit() for value in values):
            raise InvalidInput(text="is no number")
        return pa.table({"n": [int(value) for value in values]})


def faults(values: Sequence[bytes]) -> dict[int, str]:
    return {number: "is plainly bad" for number, value in enumerate(values) if value.startswith(b"!")}


@pytest.mark.parametrize("share", [0.0, 0.001, 0.1, 1.0])
@pytest.mark.parametrize("count", [1, 7, 3000])
def test_good_values_are_kept_in_order_and_bad_ones_are_named(count: int, share: float) -> None:
    source = random.Random(f"{count} {share}")
    values = [
        (b"%d" % number) if source.random() >= share else source.choice([b"!", b"x", None])
        for number in range(count)
    ]
    outcome = isolate_bad_records(values, Reader().read, faults)
    good = [number for number, value in enumerate(values) if value is not None and value.isdigit()]
    assert outcome.kept.tolist() == good
    assert ([] if outcome.table is None else outcome.table.column("n").to_pylist()) == good
    assert sorted(outcome.bad) == sorted(set(range(count)) - set(good))


def test_good_values_are_read_once() -> None:
    reader = Reader()
    isolate_bad_records([b"1"] * 100_000, reader.read, faults)
    assert reader.calls == 1


def test_one_bad_value_among_many_costs_few_more_reads() -> None:
    reader = Reader()
    isolate_bad_records([b"1"] * 50_000 + [b"x"] + [b"1"] * 50_000, reader.read, faults)
    assert reader.calls < 140


SOME = st.lists(st.none() | st.binary(max_size=5) | st.sampled_from([b"\n", b"{}", b"a\nb"]), max_size=9)


@given(SOME)
def test_packed_values_are_the_same_values(values: list[bytes | None]) -> None:
    packed = MessageBuffer.pack(values)
    assert list(packed) == values
    assert MessageBuffer.pack(packed) is packed
    assert packed.sizes.tolist() == list(accumulate(len(value or b"") for value in values))
    assert packed.take(np.arange(len(values))[::-1]) == values[::-1]


@given(SOME, st.integers(-10, 10), st.integers(-10, 10))
def test_a_range_of_them_is_a_range(values: list[bytes | None], start: int, stop: int) -> None:
    assert list(MessageBuffer.pack(values)[start:stop]) == values[start:stop]


@given(st.lists(SOME.filter(len), min_size=1, max_size=4))
def test_joined_parts_are_consecutive(parts: list[list[bytes | None]]) -> None:
    joined = MessageBuffer.from_parts([MessageBuffer.pack(part) for part in parts])
    assert list(joined) == [value for part in parts for value in part]


def test_rows_are_numbered_as_in_the_file_whichever_were_left_out_before() -> None:
    records = split_file(ReadStepNdJson(), b'{"a":0}\n{"a":1}\n{"a":2}\n{"a":3}\n')
    assert records is not None
    rows = TextRows(records)
    table = rows.without(pa.table({"a": [0, 1, 2, 3]}), {1: "first"})
    table = rows.without(table, {1: "second"})
    assert table["a"].to_pylist() == [0, 3]
    assert [(one.offset, one.value, one.reason) for one in rows.bad] == [
        (1, b'{"a":1}', "line 2: first"),
        (2, b'{"a":2}', "line 3: second"),
    ]


def test_columns_of_a_file_with_a_bad_row_are_those_of_all_its_good_ones(tmp_path: Path) -> None:
    file = tmp_path / "data"
    file.write_bytes(b'{"a":0}\n{"b":1}\njunk\n{"c":2}\n')
    rejected = RejectedRows(ReadStepNdJson(), file)
    columns = rejected.infer(pa.schema([("known", pa.string())]))
    assert columns is not None
    assert columns.names == ["known", "a", "b", "c"]
    assert rejected.read(columns, is_declared=False).num_rows == 3
    assert [(row.offset, row.value) for row in rejected.bad] == [(2, b"junk")]
    assert rejected.count == 4


def test_of_a_file_without_bad_rows_nothing_is_counted_or_left_out(tmp_path: Path) -> None:
    file = tmp_path / "data"
    file.write_bytes(b'{"a":0}\n{"a":1}\n')
    rejected, table = RejectedRows(ReadStepNdJson(), file), pa.table({"a": [0, 1]})
    assert rejected.without(table, {}) is table
    assert (rejected.count, rejected.bad) == (0, ())


@pytest.mark.parametrize("write", [pq.write_table, pa.feather.write_feather], ids=["parquet", "arrow"])
def test_rows_of_a_table_are_found_in_structs_and_lists_at_any_place(
    tmp_path: Path, write: Callable[[pa.Table, Path], None]
) -> None:
    rows = [{"id": 1, "s": {"n": "1", "l": ["1", None]}, "m": [{"key": "k", "value": 1}]}] * 100
    rows[40] = {"id": 2, "s": {"n": "x", "l": None}, "m": None}
    rows[63] = {"id": 3, "s": None, "m": [{"key": "k", "value": 70_000}]}
    rows[64] = {"id": 4, "s": {"n": None, "l": ["1", "y"]}, "m": []}
    rows[99] = {"id": None, "s": None, "m": None}
    inner = pa.struct([("n", pa.string()), ("l", pa.list_(pa.string()))])
    pairs = pa.list_(pa.struct([("key", pa.string()), ("value", pa.int64())]))
    file, own = tmp_path / "data", pa.schema([("id", pa.int64()), ("s", inner), ("m", pairs)])
    write(pa.Table.from_pylist(rows, own), file)
    step = ReadStepParquet() if write is pq.write_table else ReadArrowIpc()
    wanted = ddl_to_schema(
        [
            "id BIGINT NOT NULL",
            "s STRUCT<n: INT, l: ARRAY<INT>>",
            "m ARRAY<STRUCT<key: STRING, value: SMALLINT>>",
        ]
    )
    rejected = RejectedRows(step, file)
    table = rejected.read(wanted, is_declared=True)
    assert (table.schema, table["id"].to_pylist()) == (wanted, [1] * 96)
    reasons = [one.reason.partition(";")[0] for one in rejected.bad]
    assert reasons == [
        "row 41: column s.n: 'x' is not a value of INT",
        "row 64: column m[].value: 70000 is not a value of SMALLINT: it is too large",
        "row 65: column s.l[]: 'y' is not a value of INT",
        "row 100: column id: null is not allowed",
    ]
    # Rows are numbered as in the file, whichever were left out before.
    table = rejected.without(table, {40: "first", 95: "last"})
    assert len(table) == 94
    assert [one.offset for one in rejected.bad] == [40, 41, 63, 64, 98, 99]
    kept = [read_records(ReadArrowIpc(), [one.value or b""], own).to_pylist() for one in rejected.bad]
    assert kept == [[rows[row]] for row in (40, 41, 63, 64, 98, 99)]
    assert rejected.count == 100


def test_a_kept_row_has_none_of_the_values_of_other_rows() -> None:
    long = ["x" * 1000] * 1000
    columns = {"view": pa.array(long, pa.string_view()), "encoded": pa.array(long).dictionary_encode()}
    table = pa.table(
        columns | {"plain": long, "map": pa.array([[("k", 1)]] * 1000, pa.map_(pa.string(), pa.int64()))}
    )
    value = row_stream(table, 500)
    assert len(value) < 5000
    wanted = ddl_to_schema(["view STRING", "encoded STRING", "map ARRAY<STRUCT<key: STRING, value: BIGINT>>"])
    read = read_records(ReadArrowIpc(), [value, value], wanted)
    row = {"view": long[0], "encoded": long[0], "map": [{"key": "k", "value": 1}]}
    assert read.to_pylist() == [row, row]
    # As are its columns, if the source declares none.
    assert infer_records(ReadArrowIpc(), [b"no table", value], None).names == [
        "view",
        "encoded",
        "plain",
        "map",
    ]


def test_only_a_stream_of_one_row_is_a_kept_row() -> None:
    two = pa.table({"a": [1, 2]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, two.schema) as writer:
        writer.write_table(two)
    for value, why in ((bytes(sink.getvalue()), "^expected one row, got 2"), (b"x", "^is not Arrow data")):
        with pytest.raises(InvalidInput, match=why):
            read_records(ReadArrowIpc(), [value], two.schema)
    with pytest.raises(InvalidInput, match=r"^column a: 2 is not a value of BOOLEAN"):
        read_records(ReadArrowIpc(), [row_stream(two, 1)], pa.schema([("a", pa.bool_())]))


def test_the_first_bad_row_refuses_a_file_if_each_is_bad(tmp_path: Path) -> None:
    file = tmp_path / "data"
    file.write_bytes(b'junk\n{"a":0}\n{"a":1}\n')
    rejected = RejectedRows(ReadStepNdJson(), file)
    table = rejected.read(pa.schema([("a", pa.int64())]), is_declared=True)
    with pytest.raises(InvalidInput, match=r"^line 1: expected one JSON object"):
        rejected.without(table, {1: "neither", 0: "no"})


def test_an_event_time_at_the_bound_is_accepted() -> None:
    records = pa.table({"at": pa.array([5, 7, 8], pa.timestamp("ms", "UTC"))})
    assert [max_event_time(records, "at", latest) for latest in (None, 7, 6, 4)] == [8, 7, 5, None]


class PrepStepOfAnotherVersion:
    """A step that this version does not know."""


STEP: Any = PrepStepOfAnotherVersion()
NONE: Any = cast("Any", None)
FILE = Path("file")


@pytest.mark.parametrize(
    "call",
    [
        lambda: formats.read_file(STEP, FILE, None),
        lambda: formats.read_records(STEP, [b""], None),
        lambda: formats.read_inferred(STEP, [b""], pa.schema([])),
        lambda: formats.read_batch(STEP, b"", None),
        lambda: formats.infer_records(STEP, [b""], None),
        lambda: whole_table.decode_table(STEP, NONE),
        lambda: whole_table.decode_schema(STEP, NONE),
    ],
)
def test_a_step_that_no_module_reads_is_unsupported(call: Callable[[], object]) -> None:
    with pytest.raises(UnsupportedStep, match="PrepStepOfAnotherVersion"):
        call()


def test_what_a_format_may_lack_defaults_to_nothing() -> None:
    known = pa.schema([("id", pa.int64())])
    assert formats.split_file(STEP, b"") is None
    assert formats.suspects(STEP, [b""], None) == {}
    assert formats.infer_batch(STEP, b"", known) is known


def test_a_command_without_a_name_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"prepare\.command: is empty"):
        pipe(PrepStepPipe(command=()), FILE, FILE, NONE)


def test_an_unknown_way_to_prepare_a_file_or_to_find_its_time_is_refused() -> None:
    with pytest.raises(PrepareUnsupported, match="OfAnotherVersion"):
        unpack(STEP, FILE, FILE, NONE)
    with pytest.raises(TypeError):
        event_time(STEP, "path", None, Timestamp.from_ms(0))


@pytest.mark.parametrize("step", get_args(ReadStep))
def test_every_read_format_has_a_reader(step: Any) -> None:
    assert formats.read_file.dispatch(step) is not formats.read_file.dispatch(object)
    assert formats.read_batch.dispatch(step) is not formats.read_batch.dispatch(object)
