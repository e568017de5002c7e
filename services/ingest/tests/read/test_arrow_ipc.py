"""Arrow IPC and Parquet: files and messages that are tables."""

import contextlib
import io
import re
from collections.abc import Callable
from decimal import Decimal
from types import ModuleType

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as kind
import pytest

from odf_common.adapters.memory import DecodeBudget, MemoryInUse
from odf_common.errors import InvalidInput
from odf_common.metadata.events import ReadStepParquet
from odf_ingest.read import arrow_ipc, infer_batch, parquet, read_batch, whole_table
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


@pytest.mark.parametrize("step", [ReadArrowIpc(), ReadStepParquet()])
def test_declared_columns_are_chosen_by_name_and_cast(step: ReadArrowIpc | ReadStepParquet) -> None:
    wanted = pa.schema([("b", pa.string()), ("a", pa.int32())])
    table = pa.table({"a": [1], "b": ["x"], "c": [0]})
    content = stream_of(table) if isinstance(step, ReadArrowIpc) else parquet_of(table)
    found = read_batch(step, content, wanted)
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


def parquet_of(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()


def test_a_message_is_a_whole_file() -> None:
    table = pa.table({"a": [1, 2], "b": ["x", "y"]})
    assert read_batch(ReadStepParquet(), parquet_of(table), None).to_pylist() == table.to_pylist()


WRAPPED = "382713418665837350663750626565"  # its digits and nine more are too many for 128 bits


@pytest.mark.parametrize(
    "type_",
    [
        pa.decimal128(38),
        pa.decimal256(60),
        pa.string(),
        pa.large_string(),
        pa.dictionary(pa.int32(), pa.string()),
    ],
    ids=str,
)
def test_a_decimal_with_more_digits_before_the_point_than_declared_is_refused(type_: pa.DataType) -> None:
    values = pa.array([Decimal(7), None, Decimal(WRAPPED), Decimal("9" * 29)], pa.decimal128(38))
    values = values.cast(pa.string()).cast(type_) if kind.is_dictionary(type_) else values.cast(type_)
    wanted = pa.schema([("a", pa.decimal128(38, 9))])
    with pytest.raises(InvalidInput, match=rf"^row 3: column a: .*{WRAPPED}.* is not a value of DECIMAL"):
        read_batch(ReadStepParquet(), parquet_of(pa.table({"a": values})), wanted)
    table = pa.table({"a": values.filter(pa.array([True, True, False, True]))})
    found = read_batch(ReadStepParquet(), parquet_of(table), wanted)
    assert found.column("a").to_pylist() == [Decimal(7), None, Decimal("9" * 29)]


@pytest.mark.parametrize(
    ("type_of", "narrow"),
    [
        (lambda inner: inner, "DECIMAL(38, 2)"),
        (lambda inner: pa.struct([("n", pa.decimal128(5, 1)), ("d", pa.list_(inner))]), None),
    ],
    ids=["plain", "nested"],
)
def test_a_column_with_more_digits_than_a_query_can_read_has_to_be_declared(
    type_of: Callable[[pa.DataType], pa.DataType], narrow: str | None
) -> None:
    table = pa.table({"id": [1], "a": pa.nulls(1, type_of(pa.decimal256(50, 2)))})
    narrow = narrow or "STRUCT<n: DECIMAL(5, 1), d: ARRAY<DECIMAL(38, 2)>>"
    declared = re.escape(f"; declare a schema with a {narrow}")
    with pytest.raises(InvalidInput, match=r"^column a: no query can read more than 38 digits.*" + declared):
        read_batch(ReadStepParquet(), parquet_of(table), None)
    with pytest.raises(InvalidInput, match=declared):
        infer_batch(ReadStepParquet(), parquet_of(table), pa.schema([("id", pa.int64())]))
    wanted = pa.schema([("id", pa.int64()), ("a", type_of(pa.decimal128(38, 2)))])
    assert read_batch(ReadStepParquet(), parquet_of(table), wanted).schema.equals(wanted)
    assert infer_batch(ReadStepParquet(), parquet_of(table), table.schema) is not None, "what a chain has"
    assert len(read_batch(ReadStepParquet(), parquet_of(table), table.schema)) == 1


@pytest.mark.parametrize(
    ("type_of", "value_of"),
    [
        (lambda inner: pa.struct([("d", inner)]), lambda number: {"d": number}),
        (pa.list_, lambda number: [number]),
    ],
    ids=["struct", "list"],
)
def test_nested_decimals_are_refused_too(
    type_of: Callable[[pa.DataType], pa.DataType], value_of: Callable[[Decimal], object]
) -> None:
    def read(number: Decimal) -> list[object]:
        values = pa.array([None, value_of(number)], type_of(pa.decimal128(38)))
        wanted = pa.schema([("a", type_of(pa.decimal128(38, 9)))])
        found: list[object] = read_batch(ReadStepParquet(), parquet_of(pa.table({"a": values})), wanted)[
            "a"
        ].to_pylist()
        return found

    assert read(Decimal(7)) == [None, value_of(Decimal(7))]
    with pytest.raises(InvalidInput, match=r"^row 2: column a(\[\]|\.d): "):
        read(Decimal(WRAPPED))


@pytest.mark.parametrize("raw", [b"", b"PAR1", b"junk" * 100])
def test_bytes_that_are_not_parquet_are_refused(raw: bytes) -> None:
    with pytest.raises(InvalidInput, match="is not a Parquet file"):
        read_batch(ReadStepParquet(), raw, None)


@pytest.mark.parametrize(
    "columns", [[("z", pa.int64())], [("a", pa.int64()), pa.field("z", pa.int64(), nullable=False)]]
)
def test_a_missing_column_is_named(columns: list[pa.Field]) -> None:
    with pytest.raises(InvalidInput, match="column z"):
        read_batch(ReadStepParquet(), parquet_of(pa.table({"a": [1]})), pa.schema(columns))


def test_a_missing_column_that_is_optional_is_null() -> None:
    wanted = pa.schema([("z", pa.int64()), ("a", pa.int64())])
    table = read_batch(ReadStepParquet(), parquet_of(pa.table({"a": [1]})), wanted)
    assert table.to_pylist() == [{"z": None, "a": 1}]


def test_two_columns_of_one_name_are_refused_unless_neither_is_read() -> None:
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2]), pa.array([3])], names=["a", "b", "a"])
    for schema in (None, pa.schema([("a", pa.int64())])):
        with pytest.raises(InvalidInput, match="column a: occurs more than once"):
            read_batch(ReadStepParquet(), parquet_of(table), schema)
    with pytest.raises(InvalidInput, match="column a: occurs more than once"):
        infer_batch(ReadStepParquet(), parquet_of(table), pa.schema([("b", pa.int64())]))
    assert read_batch(ReadStepParquet(), parquet_of(table), pa.schema([("b", pa.int64())])).to_pylist() == [
        {"b": 2}
    ]


@pytest.mark.parametrize("type_", [pa.string_view(), pa.binary_view()])
def test_strings_and_binary_values_of_any_layout_can_be_ordered(type_: pa.DataType) -> None:
    table = pa.table({"a": pa.array([b"x", None, b"y" * 100]).cast(type_)})
    found = read_batch(ReadStepParquet(), parquet_of(table), None)
    assert found.take([2, 1, 0]).to_pylist() == table.to_pylist()[::-1]


def test_a_small_file_that_claims_many_values_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.BytesIO()
    pq.write_table(pa.table({"n": pa.array([7] * 1_000_000), "b": pa.array([True] * 1_000_000)}), file)
    assert len(file.getvalue()) < 20_000
    assert read_batch(ReadStepParquet(), file.getvalue(), None).num_rows == 1_000_000
    monkeypatch.setattr(whole_table, "MAX_DECODED_BYTES", 8_124_999)
    with pytest.raises(InvalidInput, match="it decodes to 8 MiB; up to 8 are read here: split it"):
        read_batch(ReadStepParquet(), file.getvalue(), None)
    monkeypatch.setattr(whole_table, "MAX_DECODED_BYTES", 8_125_000)
    assert read_batch(ReadStepParquet(), file.getvalue(), None).num_rows == 1_000_000


def test_a_small_file_that_has_a_long_string_for_every_row_is_refused_unread() -> None:
    rows, text = 100_000, "x" * 1_000_000
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array([text]))
    file = io.BytesIO()
    pq.write_table(pa.table({"v": texts}), file, store_schema=False)
    assert len(file.getvalue()) < 200_000
    with pytest.raises(InvalidInput, match="it decodes to 95,367 MiB"):
        read_batch(ReadStepParquet(), file.getvalue(), None)


def test_columns_that_a_file_of_many_rows_lacks_are_not_filled_before_they_are_counted() -> None:
    rows, file = 5_000_000, io.BytesIO()
    pq.write_table(pa.table({"b": pa.array([True] * rows)}), file)
    wanted = pa.schema([("b", pa.bool_()), *((f"c{number}", pa.int64()) for number in range(1000))])
    with pytest.raises(InvalidInput, match="it decodes to 38,148 MiB"):
        read_batch(ReadStepParquet(), file.getvalue(), wanted)


def test_a_column_in_another_case_is_named_instead_of_read_as_nulls() -> None:
    file = parquet_of(pa.table({"id": [1], "Value": [2], "other": [3]}))
    wanted = pa.schema([("id", pa.int64()), ("value", pa.int64())])
    with pytest.raises(InvalidInput, match=r"^column value: is missing; it has Value: case matters$"):
        read_batch(ReadStepParquet(), file, wanted)
    absent = pa.schema([("id", pa.int64()), ("price", pa.int64())])
    assert read_batch(ReadStepParquet(), file, absent).to_pylist() == [{"id": 1, "price": None}]
