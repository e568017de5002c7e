import contextlib
import io
from collections.abc import Callable
from decimal import Decimal
from types import ModuleType

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from odf_common.adapters.memory import DecodeBudget, MemoryInUse
from odf_common.errors import InvalidInput
from odf_common.metadata.steps import ReadStepParquet
from odf_ingest.read import arrow_ipc, infer_batch, parquet, read_batch
from odf_ingest.read.arrow_ipc import ReadArrowIpc

Encode = Callable[..., bytes]


def stream_of(table: pa.Table, compression: str | None = None) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(
        sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)
    ) as writer:
        writer.write_table(table)
    return sink.getvalue()


def file_of(table: pa.Table, compression: str | None = None) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_file(
        sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)
    ) as writer:
        writer.write_table(table)
    return sink.getvalue()


@pytest.mark.parametrize("encode", [stream_of, file_of])
def test_both_the_stream_and_the_file_format_are_read(encode: object) -> None:
    table = pa.table({"a": [1, None], "b": ["x", "y"]})
    raw = encode(table)  # type: ignore[operator]
    assert read_batch(ReadArrowIpc(), raw, None).to_pylist() == table.to_pylist()


@pytest.mark.parametrize("encode", [stream_of, file_of])
@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_compressed_and_encoded_columns_are_read(encode: Encode, compression: str | None) -> None:
    texts = pa.array(["x", None, "x", "y"])
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([3, 4], pa.int32()), pa.array(["p", "q"]))
    table = pa.table({"a": range(4), "b": texts.dictionary_encode(), "c": runs, "d": pa.nulls(4)})
    read = read_batch(
        ReadArrowIpc(), encode(table, compression), pa.schema([("b", pa.string()), ("c", pa.string())])
    )
    assert read.to_pydict() == {"b": ["x", None, "x", "y"], "c": ["p", "p", "p", "q"]}


ROWS = 2**31 - 1  # more, Arrow does not write
LONG = pa.array(["x" * 1_000_000])
REPEATED = pa.DictionaryArray.from_arrays(pa.array([0] * 100_000, pa.int8()), LONG)


@pytest.mark.parametrize(
    "column",
    [
        pa.RunEndEncodedArray.from_arrays(pa.array([ROWS], pa.int32()), pa.array([7])),
        pa.RunEndEncodedArray.from_arrays(pa.array([100_000], pa.int32()), LONG),
        pa.nulls(ROWS),
        REPEATED,
        pa.StructArray.from_arrays([REPEATED], ["text"]),
        pa.ListArray.from_arrays(pa.array([0, 100_000], pa.int32()), REPEATED),
    ],
    ids=["runs", "runs-of-text", "nulls", "dictionary", "in-a-struct", "in-a-list"],
)
def test_a_few_bytes_that_stand_for_many_are_refused_before_they_take_memory(column: pa.Array) -> None:
    raw = stream_of(pa.table({"a": column}))
    with pytest.raises(InvalidInput, match=r"it decodes to .* MiB; up to .* are read here: split it"):
        read_batch(ReadArrowIpc(), raw, pa.schema([("a", pa.int64())]))
    assert len(raw) < 2_000_000


@pytest.mark.parametrize("encode", [stream_of, file_of])
def test_a_compressed_buffer_that_claims_many_bytes_is_refused_before_they_are_allocated(
    encode: Encode,
) -> None:
    size = 8 * 10_000
    raw = encode(pa.table({"a": [7] * 10_000}), "zstd")
    claimed = size.to_bytes(8, "little")
    assert raw.count(claimed) == 1
    with pytest.raises(InvalidInput, match="it decodes to 1,048,576 MiB"):
        read_batch(ReadArrowIpc(), raw.replace(claimed, (2**40).to_bytes(8, "little")), None)


def test_messages_that_only_the_footer_of_a_file_names_are_not_read() -> None:
    hidden, shown = file_of(pa.table({"a": [1, 2, 3]})), stream_of(pa.table({"a": [1]}))
    raw = hidden[:8] + shown + hidden[8 + len(shown) :]
    assert len(read_batch(ReadArrowIpc(), raw, None)) == 1


@pytest.mark.parametrize("length", [-1, 10**6])
def test_a_file_with_a_wrong_footer_is_refused(length: int) -> None:
    raw = file_of(pa.table({"a": [1]}))
    with pytest.raises(InvalidInput, match="is not Arrow data: its footer is cut off"):
        read_batch(ReadArrowIpc(), raw[:-10] + length.to_bytes(4, "little", signed=True) + raw[-6:], None)


def test_declared_columns_are_chosen_by_name_and_cast() -> None:
    wanted = pa.schema([("b", pa.string()), ("a", pa.int32())])
    found = read_batch(ReadArrowIpc(), stream_of(pa.table({"a": [1], "b": ["x"], "c": [0]})), wanted)
    assert found.schema.equals(wanted)


@pytest.mark.parametrize(
    ("values", "wanted", "words"),
    [
        ([1, 2**40, 2**41], pa.int32(), "row 2: column a: 1099511627776 is not a value of INT"),
        (["1", None, "x"], pa.int64(), "row 3: column a: 'x' is not a value of BIGINT"),
        ([5], pa.time32("s"), "row 1: column a: 5 is not a value of TIME(0); declare BIGINT"),
        ([True], pa.date32(), "row 1: column a: true is not a value of DATE; declare BOOLEAN"),
        (
            [[1], [2]],
            pa.list_(pa.list_(pa.int64())),
            "row 1: column a[]: 1 is not a value of ARRAY<BIGINT>; declare BIGINT",
        ),
    ],
)
def test_a_value_that_does_not_fit_is_named_by_row_column_value_and_type(
    values: list[object], wanted: pa.DataType, words: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_batch(ReadArrowIpc(), stream_of(pa.table({"a": values})), pa.schema([("a", wanted)]))
    assert str(caught.value).startswith(words)


def test_a_null_in_a_required_column_is_named_by_its_column() -> None:
    wanted = pa.schema([pa.field("a", pa.int64(), nullable=False)])
    with pytest.raises(
        InvalidInput, match="row 2: column a: null is not allowed; a value of BIGINT is required"
    ):
        read_batch(ReadArrowIpc(), stream_of(pa.table({"a": [1, None]})), wanted)


@pytest.mark.parametrize(
    "values",
    [
        pa.array(["x", "y", "x"]).dictionary_encode(),
        pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], pa.int32()), pa.array(["x", "y"])),
        pa.array(["x", "y", "x"], pa.large_string()),
    ],
)
def test_encoded_columns_are_read_as_plain_ones(values: pa.Array) -> None:
    table = pa.table({"a": values})
    found = read_batch(ReadArrowIpc(), stream_of(table), None)
    assert found.to_pylist() == table.to_pylist()
    assert not pa.types.is_dictionary(found.schema.field("a").type)


@pytest.mark.parametrize(
    "values",
    [
        pa.array([1], pa.duration("ms")),
        pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())),
        pa.array([{"b": 1}], pa.struct([("b", pa.duration("s"))])),
        pa.UnionArray.from_dense(pa.array([0], pa.int8()), pa.array([0], pa.int32()), [pa.array([1])]),
        pa.array([Decimal("1E+5")], pa.decimal128(5, -3)),
        pa.array([[b""]], pa.list_(pa.binary(0))),
    ],
)
def test_a_type_that_no_slice_has_is_refused_by_the_columns_name(values: pa.Array) -> None:
    with pytest.raises(InvalidInput, match=r"column a: .* cannot be stored"):
        read_batch(ReadArrowIpc(), stream_of(pa.table({"a": values})), None)
    with pytest.raises(InvalidInput, match=r"column a: .* cannot be stored"):
        infer_batch(ReadArrowIpc(), stream_of(pa.table({"a": values})), pa.schema([]))


def test_two_columns_of_one_name_are_refused() -> None:
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    with pytest.raises(InvalidInput, match="column a: occurs more than once"):
        read_batch(ReadArrowIpc(), stream_of(table), None)


@pytest.mark.parametrize("raw", [b"", b"ARROW1", b"junk" * 100])
def test_bytes_that_are_not_arrow_are_refused(raw: bytes) -> None:
    with pytest.raises(InvalidInput, match="is not Arrow data"):
        read_batch(ReadArrowIpc(), raw, None)


def test_a_cut_or_damaged_stream_never_crashes_the_reader() -> None:
    whole = stream_of(pa.table({"a": ["x" * 10, "y"], "b": [1, 2]}))
    for length in range(0, len(whole), 7):
        damaged = bytearray(whole)
        damaged[length] ^= 0xFF
        for raw in (whole[:length], bytes(damaged)):
            with contextlib.suppress(InvalidInput):
                read_batch(ReadArrowIpc(), raw, None)


@pytest.mark.parametrize(("module", "step"), [(parquet, ReadStepParquet()), (arrow_ipc, ReadArrowIpc())])
def test_a_table_waits_while_others_take_the_memory(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType, step: ReadStepParquet
) -> None:
    table, sink = pa.table({"a": range(1000)}), io.BytesIO()
    pq.write_table(table, sink)
    raw = sink.getvalue() if module is parquet else stream_of(table, "lz4")
    taken = pa.allocate_buffer(10_000)
    monkeypatch.setattr(module, "DECODING", DecodeBudget(pa.total_allocated_bytes() + 4000, wait=0))
    with pytest.raises(MemoryInUse):
        read_batch(step, raw, None)
    del taken
    assert len(read_batch(step, raw, None)) == 1000
