"""Expected memory of untrusted tables."""

import contextlib
import datetime as dt
import errno
import os
import random
import resource
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from odf_common.data import slices
from odf_common.data.columns import with_system_columns
from odf_common.data.schema_evolution import schema_of_event, schema_to_event
from odf_common.data.slices import (
    ROW_GROUP_ROWS,
    CorruptSlice,
    expanded_bytes,
    hash_slice,
    read_foreign_slice,
    read_slice,
    row_width,
    slice_schema,
    write_slice,
)
from odf_common.errors import InvalidInput, NotFound
from odf_common.hashing.logical import UnhashableType, logical_hash
from odf_common.hashing.multihash import physical_hash_of
from odf_common.metadata.events import DatasetVocabulary
from odf_common.metadata.scalars import Timestamp

MS_UTC = pa.timestamp("ms", "UTC")
NOON = dt.datetime(2020, 1, 1, 12, tzinfo=dt.UTC)


def a_slice(rows: int = 3, *, signed: bool = False, **columns: pa.Array) -> pa.Table:
    records = pa.table({"event_time": pa.array([NOON] * rows, MS_UTC), **columns})
    return with_system_columns(
        records,
        ops=None,
        first_offset=10,
        system_time=Timestamp.parse("2021-01-01T00:00:00Z"),
        vocab=DatasetVocabulary(),
        signed=signed,
    )


ODD_COLUMNS = {
    "dictionary": pa.array(["a", None, "a"]).dictionary_encode(),
    "large text": pa.array(["a", None, "b"], pa.large_string()),
    "text view": pa.array(["a", None, "b"], pa.string_view()),
    "binary view": pa.array([b"a", None, b"b"], pa.binary_view()),
    "fixed": pa.array([b"ab", None, b"cd"], pa.binary(2)),
    "naive": pa.array([1, None, 3], pa.timestamp("us")),
    "seconds": pa.array([1, None, 3], pa.timestamp("s", "Europe/Kyiv")),
    "date64": pa.array([dt.date(2020, 1, 1), None, dt.date(1960, 1, 1)], pa.date64()),
    "time": pa.array([1, None, 3], pa.time32("s")),
    "exact time": pa.array([1, None, 3], pa.time64("ns")),
    "small decimal": pa.array([Decimal("1.5"), None, Decimal("-2.5")], pa.decimal32(5, 1)),
    "wide decimal": pa.array([Decimal("1.5"), None, Decimal("-2.5")], pa.decimal256(60, 1)),
    "narrow wide decimal": pa.array([Decimal("1.5"), None, Decimal("-2.5")], pa.decimal256(20, 1)),
    "half": pa.array([1.5, None, 2.5], pa.float16()),
    "int8": pa.array([-1, None, 1], pa.int8()),
    "uint16": pa.array([1, None, 65535], pa.uint16()),
    "uint32": pa.array([1, None, 2**32 - 1], pa.uint32()),
    "uint64": pa.array([1, None, 2**64 - 1], pa.uint64()),
    "bool": pa.array([True, None, False]),
    "list": pa.array([["a"], None, [None, "b"]], pa.large_list(pa.large_string())),
    "pairs": pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int16(), 2)),
    "dates": pa.array([[dt.date(2020, 1, 1)], None, []], pa.list_(pa.date64())),
    "uuid": pa.ExtensionArray.from_storage(
        pa.uuid(), pa.array([bytes(16), None, bytes(range(16))], pa.binary(16))
    ),
    "struct": pa.array([{"x": 1, "y": "a"}, {"x": None, "y": None}, None]),
    "struct of timestamps": pa.array([{"at": 1}, None, {"at": 2}], pa.struct([("at", pa.timestamp("ns"))])),
    "deep": pa.array([{"a": {"b": [1, None]}}, {"a": None}, None]),
    "": pa.array([1, 2, 3]),
}


@pytest.mark.parametrize("name", ODD_COLUMNS)
def test_the_hash_of_what_is_written_is_that_of_what_is_read(tmp_path: Path, name: str) -> None:
    written = write_slice(a_slice(**{name: ODD_COLUMNS[name]}), tmp_path / "slice")
    table = read_slice(tmp_path / "slice")
    assert logical_hash(table) == written.logical_hash == hash_slice(tmp_path / "slice")
    raw = (tmp_path / "slice").read_bytes()
    assert written.physical_hash == physical_hash_of(raw)
    assert written.size == len(raw)
    announced = schema_of_event(schema_to_event(a_slice(**{name: ODD_COLUMNS[name]}).schema))
    assert announced.equals(table.schema)


@pytest.mark.parametrize("signed", [False, True])
def test_system_columns_survive_as_they_are(tmp_path: Path, signed: bool) -> None:
    table = a_slice(signed=signed, city=pa.array(["a", "b", "c"]))
    write_slice(table, tmp_path / "slice")
    assert read_slice(tmp_path / "slice").equals(table)
    assert slice_schema(tmp_path / "slice").equals(table.schema)


def test_a_file_is_as_the_specification_recommends(tmp_path: Path) -> None:
    rows = ROW_GROUP_ROWS + 10
    write_slice(a_slice(rows, city=pa.array(["a"] * rows)), tmp_path / "slice")
    metadata = pq.read_metadata(tmp_path / "slice")
    assert metadata.num_row_groups == 2
    assert metadata.metadata is None
    offset, op, system_time, _, city = (metadata.row_group(1).column(i) for i in range(5))
    assert "DELTA_BINARY_PACKED" in offset.encodings
    assert (offset.statistics.min, offset.statistics.max) == (10 + ROW_GROUP_ROWS, 10 + rows - 1)
    assert all("RLE_DICTIONARY" in column.encodings for column in (op, system_time, city))
    assert {column.compression for column in (offset, op, city)} == {"SNAPPY"}
    assert metadata.schema.column(0).physical_type == "INT64"
    assert metadata.schema.column(1).physical_type == "INT32"
    assert metadata.schema.column(2).logical_type.type == "TIMESTAMP"


def test_the_same_records_make_the_same_file(tmp_path: Path) -> None:
    table = a_slice(**{name: ODD_COLUMNS[name] for name in ("list", "struct", "dictionary")})
    assert write_slice(table, tmp_path / "a") == write_slice(table, tmp_path / "b")


def test_chunks_of_a_column_do_not_matter(tmp_path: Path) -> None:
    table = a_slice(text=ODD_COLUMNS["large text"], struct=ODD_COLUMNS["struct"])
    chunked = pa.concat_tables([table.slice(0, 1), table.slice(1)])
    assert (
        write_slice(chunked, tmp_path / "b").logical_hash == write_slice(table, tmp_path / "a").logical_hash
    )


def test_a_selection_of_columns_is_read(tmp_path: Path) -> None:
    write_slice(a_slice(city=pa.array(["a", "b", "c"])), tmp_path / "slice")
    assert read_slice(tmp_path / "slice", ["offset", "city"]).to_pydict() == {
        "offset": [10, 11, 12],
        "city": ["a", "b", "c"],
    }


def test_a_column_that_cannot_be_stored_is_refused_before_a_file_exists(tmp_path: Path) -> None:
    with pytest.raises(UnhashableType, match="column=nothing"):
        write_slice(a_slice(nothing=pa.nulls(3)), tmp_path / "slice")
    assert not (tmp_path / "slice").exists()


def test_a_slice_without_records_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="at least one record"):
        write_slice(a_slice(0), tmp_path / "slice")
    assert not (tmp_path / "slice").exists()


def test_a_missing_file_is_not_found(tmp_path: Path) -> None:
    for read in (read_slice, slice_schema, hash_slice):
        with pytest.raises(NotFound):
            read(tmp_path / "slice")


def test_a_damaged_file_is_read_or_refused(tmp_path: Path) -> None:
    chance = random.Random(5)
    rows = 200
    file = tmp_path / "slice"
    numbers, texts = pa.array(range(rows)), pa.array([f"text {i % 7}" for i in range(rows)])
    lists = pa.array([[i, None] for i in range(rows)])
    write_slice(a_slice(rows, number=numbers, text=texts, list=lists), file)
    raw = file.read_bytes()
    refused = 0
    for _ in range(400):
        damaged = bytearray(raw)
        for _ in range(chance.randint(1, 4)):
            damaged[chance.randrange(len(raw))] = chance.randrange(256)
        file.write_bytes(damaged if chance.random() < 0.9 else damaged[: chance.randrange(len(raw))])
        try:
            read_slice(file)
        except CorruptSlice:
            refused += 1
    assert refused > 100


def test_a_small_file_that_claims_a_great_many_records_is_refused(tmp_path: Path) -> None:
    rows = 1 << 25
    nulls = pa.chunked_array([pa.nulls(1 << 22, pa.int64())] * (rows >> 22))
    pq.write_table(pa.table({"x": nulls, "y": nulls}), tmp_path / "slice", row_group_size=rows)
    for read in (read_slice, hash_slice):
        with pytest.raises(CorruptSlice, match="claim"):
            read(tmp_path / "slice")


def test_a_small_file_that_inflates_to_very_many_bytes_is_refused(tmp_path: Path) -> None:
    table = pa.table({"x": pa.array([bytes((1 << 28) + 1)])})
    pq.write_table(
        table, tmp_path / "slice", compression="zstd", use_dictionary=False, write_statistics=False
    )
    for read in (read_slice, hash_slice):
        with pytest.raises(CorruptSlice, match="claim to contain 2684354"):
            read(tmp_path / "slice")


def test_a_row_group_of_more_columns_than_the_schema_is_refused() -> None:
    corpus = Path(__file__).parents[4] / "tests" / "fuzz" / "corpus" / "slices"
    for read in (read_slice, hash_slice):
        with pytest.raises(CorruptSlice, match="2} columns in a file of 1"):
            read(corpus / "group-with-more-columns-than-the-schema")


def test_a_damaged_description_of_a_column_is_read_or_refused() -> None:
    corpus = Path(__file__).parents[4] / "tests" / "fuzz" / "corpus" / "slices"
    for read in (read_slice, hash_slice):
        with contextlib.suppress(CorruptSlice):
            read(corpus / "byte-counts-of-a-column-of-numbers")


@pytest.mark.parametrize("nested", [False, True])
def test_a_string_stored_once_for_every_record_is_refused_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, nested: bool
) -> None:
    rows, text = 2000, "x" * (256 * 1024)
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array([text]))
    column = pa.StructArray.from_arrays([texts], ["text"]) if nested else texts
    pq.write_table(
        pa.table({"offset": pa.array(range(rows), pa.uint64()), "v": column}),
        tmp_path / "s",
        store_schema=False,
    )
    monkeypatch.setattr(slices, "read_slice", lambda _: pytest.fail("it was read"))
    with pytest.raises(CorruptSlice, match="bytes of strings"):
        read_foreign_slice(tmp_path / "s", rows)


def test_a_strangers_slice_with_other_records_than_declared_is_refused_before_it_takes_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_slice(a_slice(), tmp_path / "s")
    assert len(read_foreign_slice(tmp_path / "s", 2)) == 3  # refused by the comparison with its block
    monkeypatch.setattr(slices, "_HARMLESS_BYTES", 10)
    assert len(read_foreign_slice(tmp_path / "s", 3)) == 3
    with pytest.raises(CorruptSlice, match="contains 3 records, but 2 are declared"):
        read_foreign_slice(tmp_path / "s", 2)


def test_a_strangers_large_slice_is_refused_whatever_its_blocks_declare(tmp_path: Path) -> None:
    write_slice(a_slice(1000), tmp_path / "s")
    with pytest.raises(CorruptSlice, match="claim to contain 1000 records, more than 0 MiB of values"):
        read_foreign_slice(tmp_path / "s", 1000, 1000)
    assert len(read_slice(tmp_path / "s")) == 1000


def test_a_strangers_damaged_slice_is_refused_whatever_is_damaged(tmp_path: Path) -> None:
    file = tmp_path / "s"
    with pytest.raises(NotFound):
        read_foreign_slice(file, 3)
    write_slice(a_slice(text=pa.array(["a", None, "c"])), file)
    content, group = file.read_bytes(), pq.read_metadata(file).row_group(0)
    columns = [group.column(index) for index in range(group.num_columns)]
    places = [column.dictionary_page_offset or column.data_page_offset for column in columns]
    for place, column in zip(places, columns, strict=True):
        end = place + column.total_compressed_size
        file.write_bytes(content[:place] + b"\xff" * (end - place) + content[end:])
        with pytest.raises(CorruptSlice):
            read_foreign_slice(file, 3)
    file.write_bytes(content[:-1])
    with pytest.raises(CorruptSlice):
        read_foreign_slice(file, 3)


def test_a_strangers_honest_slice_is_read_as_ours_is(tmp_path: Path) -> None:
    texts = pa.array(["a", None, "c"])
    table = a_slice(text=texts, list=pa.array([["x", "y"], None, []]), none=pa.array([None] * 3, pa.string()))
    write_slice(table, tmp_path / "s")
    assert read_foreign_slice(tmp_path / "s", 3).equals(read_slice(tmp_path / "s"))


@pytest.mark.parametrize(
    "values", [pa.array([b""] * 3, pa.binary(0)), pa.array([Decimal("1E+5")] * 3, pa.decimal128(5, -3))]
)
def test_a_type_that_parquet_lacks_is_not_reported_as_a_disk_error(tmp_path: Path, values: pa.Array) -> None:
    with pytest.raises(InvalidInput, match="cannot be stored as Parquet"):
        write_slice(a_slice(a=values), tmp_path / "slice")


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE, errno.ENOMEM])
def test_a_slice_that_cannot_be_opened_now_is_not_corrupt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(pq, "ParquetFile", fail)
    for read in (read_slice, hash_slice):
        with pytest.raises(OSError, match=os.strerror(number)):
            read(tmp_path / "slice")


@contextlib.contextmanager
def no_memory_for_more_than(size: int) -> Iterator[None]:
    """Let this process map no more than some further bytes."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


@pytest.mark.parametrize("read", [read_slice, hash_slice])
def test_a_slice_that_cannot_be_mapped_now_is_not_corrupt(
    tmp_path: Path, read: Callable[[Path], object]
) -> None:
    file = tmp_path / "slice"
    with file.open("wb") as sparse:
        sparse.truncate(4 << 30)
    with no_memory_for_more_than(1 << 30), pytest.raises(OSError, match="Cannot allocate memory") as failure:
        read(file)
    assert failure.value.errno == errno.ENOMEM


TEXTS = pa.array(["ab", None, "cdef"])


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (pa.array([1, 2]), 0),
        (TEXTS, 0),
        (pa.DictionaryArray.from_arrays(pa.array([0, 2, 2, 1, None], pa.int8()), TEXTS), 2 + 4 + 4),
        (pa.DictionaryArray.from_arrays(pa.array([0, 0], pa.int8()), pa.array([7], pa.int32())), 8),
        (pa.DictionaryArray.from_arrays(pa.array([0], pa.int8()), TEXTS.cast(pa.large_string())), 2),
        (pa.RunEndEncodedArray.from_arrays(pa.array([10, 11], pa.int32()), pa.array([b"abc", b""])), 30),
        (
            pa.RunEndEncodedArray.from_arrays(pa.array([10, 100], pa.int32()), pa.array([1, 2])).slice(0, 20),
            160,
        ),
        (pa.StructArray.from_arrays([TEXTS.dictionary_encode(), TEXTS], ["a", "b"]), 6),
        (pa.ListArray.from_arrays(pa.array([0, 2, 3], pa.int32()), TEXTS.dictionary_encode()), 6),
    ],
)
def test_encoded_values_count_once_for_each_row(values: pa.Array, expected: int) -> None:
    assert expanded_bytes(values) == expected


def test_nested_and_viewed_values_count_not_less_than_they_take() -> None:
    lists = pa.array([["ab", "c"], ["d"]])
    assert expanded_bytes(pa.DictionaryArray.from_arrays(pa.array([0, 1, 1], pa.int8()), lists)) >= 3 + 1 + 1
    views = pa.array(["a" * 100]).cast(pa.string_view())
    assert expanded_bytes(pa.RunEndEncodedArray.from_arrays(pa.array([5], pa.int32()), views)) >= 500


@pytest.mark.parametrize(
    ("type_", "expected"), [(pa.bool_(), 0.125), (pa.int32(), 4), (pa.timestamp("ms"), 8), (pa.string(), 8)]
)
def test_a_row_takes_the_width_of_its_type(type_: pa.DataType, expected: float) -> None:
    assert row_width(type_) == expected
