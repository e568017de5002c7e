import io
import re
from collections.abc import Callable
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as kind
import pytest

from odf_common.errors import InvalidInput
from odf_common.metadata.steps import ReadStepParquet
from odf_ingest.read import infer_batch, read_batch, whole_table


def file_of(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()


def test_a_message_is_a_whole_file() -> None:
    table = pa.table({"a": [1, 2], "b": ["x", "y"]})
    assert read_batch(ReadStepParquet(), file_of(table), None).to_pylist() == table.to_pylist()


def test_declared_columns_are_chosen_by_name_and_cast() -> None:
    wanted = pa.schema([("b", pa.string()), ("a", pa.int32())])
    table = read_batch(ReadStepParquet(), file_of(pa.table({"a": [1], "b": ["x"], "c": [0]})), wanted)
    assert table.schema.equals(wanted)


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
        read_batch(ReadStepParquet(), file_of(pa.table({"a": values})), wanted)
    table = pa.table({"a": values.filter(pa.array([True, True, False, True]))})
    found = read_batch(ReadStepParquet(), file_of(table), wanted)
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
        read_batch(ReadStepParquet(), file_of(table), None)
    with pytest.raises(InvalidInput, match=declared):
        infer_batch(ReadStepParquet(), file_of(table), pa.schema([("id", pa.int64())]))
    wanted = pa.schema([("id", pa.int64()), ("a", type_of(pa.decimal128(38, 2)))])
    assert read_batch(ReadStepParquet(), file_of(table), wanted).schema.equals(wanted)
    assert infer_batch(ReadStepParquet(), file_of(table), table.schema) is not None, "what a chain has"
    assert len(read_batch(ReadStepParquet(), file_of(table), table.schema)) == 1


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
        found: list[object] = read_batch(ReadStepParquet(), file_of(pa.table({"a": values})), wanted)[
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
        read_batch(ReadStepParquet(), file_of(pa.table({"a": [1]})), pa.schema(columns))


def test_a_missing_column_that_is_optional_is_null() -> None:
    wanted = pa.schema([("z", pa.int64()), ("a", pa.int64())])
    table = read_batch(ReadStepParquet(), file_of(pa.table({"a": [1]})), wanted)
    assert table.to_pylist() == [{"z": None, "a": 1}]


def test_two_columns_of_one_name_are_refused_unless_neither_is_read() -> None:
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2]), pa.array([3])], names=["a", "b", "a"])
    for schema in (None, pa.schema([("a", pa.int64())])):
        with pytest.raises(InvalidInput, match="column a: occurs more than once"):
            read_batch(ReadStepParquet(), file_of(table), schema)
    with pytest.raises(InvalidInput, match="column a: occurs more than once"):
        infer_batch(ReadStepParquet(), file_of(table), pa.schema([("b", pa.int64())]))
    assert read_batch(ReadStepParquet(), file_of(table), pa.schema([("b", pa.int64())])).to_pylist() == [
        {"b": 2}
    ]


@pytest.mark.parametrize("type_", [pa.string_view(), pa.binary_view()])
def test_strings_and_binary_values_of_any_layout_can_be_ordered(type_: pa.DataType) -> None:
    table = pa.table({"a": pa.array([b"x", None, b"y" * 100]).cast(type_)})
    found = read_batch(ReadStepParquet(), file_of(table), None)
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
    file = file_of(pa.table({"id": [1], "Value": [2], "other": [3]}))
    wanted = pa.schema([("id", pa.int64()), ("value", pa.int64())])
    with pytest.raises(InvalidInput, match=r"^column value: is missing; it has Value: case matters$"):
        read_batch(ReadStepParquet(), file, wanted)
    absent = pa.schema([("id", pa.int64()), ("price", pa.int64())])
    assert read_batch(ReadStepParquet(), file, absent).to_pylist() == [{"id": 1, "price": None}]
