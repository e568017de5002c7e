import datetime as dt
import json
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from odf_testing import plain_digest
from odf_testing.profiles import examples

from odf_common.errors import InvalidInput
from odf_common.hashing import arrow_digest, logical
from odf_common.hashing.logical import LogicalHasher, UnhashableType, logical_hash
from odf_common.hashing.multihash import Multihash

VECTORS = Path(__file__).parents[4] / "tests" / "vectors" / "logical-hash"
EXPECTED = json.loads((VECTORS / "expected.json").read_bytes())


def column_digest(array: pa.Array) -> str:
    """The digest of one column alone: its hasher, without the schema."""
    (leaf,) = LogicalHasher(pa.schema([pa.field("x", array.type)]))._leaves
    leaf.update(pa.chunked_array([array]))
    return leaf.digest().hex()


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_files_of_the_reference_have_its_hashes(name: str) -> None:
    table = pq.read_table(VECTORS / name)
    assert str(logical_hash(table)) == EXPECTED[name]["multihash"]
    assert str(logical_hash(table.to_reader(max_chunksize=7))) == EXPECTED[name]["multihash"]


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (pa.array([1, 2, 3], pa.int32()), "95d11399ecaed3721501c76f154c3430744d178831b53896cb8f54fed36fb321"),
        (
            pa.array([1, 2, 3], pa.uint32()),
            "e831c2bdebc5fde2cdf84c8d0d71d4fdbb78b2e5f015aa112af03129474b4926",
        ),
        (
            pa.array([1, 2, None, 3], pa.int32()),
            "20b4574d7526ce57fcdf90a4544eebfb94d9b65bc14d4dd8d2ac24d2b6adaf1f",
        ),
        (pa.array([], pa.int64()), "35f34f98d31c3bbcb25464a0df005b646d00a4425e8c9be1bf481e06a89092fc"),
        (
            pa.array([True, False, True, False, True, True]),
            "09a41b44a6f9d7171ae5199b17383e835f6e4f156d907847bd6a430699f7dd36",
        ),
        (
            pa.array([None, False, True, False, None, True]),
            "6d539a8460608b9677a8d9f9ebcee0553d525c625ddb88352a32be71cbec5308",
        ),
        (pa.array(["foo", "bar", "baz"]), "c09fe3b0cabaef56d03b408feb328d0f0e523d130f1af88799669c88317bab85"),
        (
            pa.array(["foo", "bar", "", "baz"]),
            "f98ac02853a15ca241070307b152c53b2224116878bdc73405591de6f8ccab78",
        ),
        (
            pa.array(["foo", "bar", None, "baz"]),
            "f884cd124a1acea39dce2477090f60db86d837ffb7e987992337d5ee71f3d6d0",
        ),
        (
            pa.array([b"one", b"two", b"", b"three"]),
            "16d5271300f8c442e0ad73aebd592942a12d9a3ac1db0f936d22ac16dfe60b7a",
        ),
        (pa.array([b"one", b"two"]), "8c4eef937e340507c5681472f8909b286c61c9a74b4bf51e5e824cd4258c371a"),
        (
            pa.array([b"one", b"two"], pa.binary(3)),
            "8c4eef937e340507c5681472f8909b286c61c9a74b4bf51e5e824cd4258c371a",
        ),
        (
            pa.array([[0, 1, 2], None, [3, None, 4, 5], [6, 7]], pa.list_(pa.int32())),
            "ba72d7de1b2334d11a456cc787a9f3aa358dd1a136f90278105e0641813a2671",
        ),
        (
            pa.array([0, 1577880000000], pa.timestamp("ms", "UTC")),
            "4029831c5cd5f6d80ebbf72bad1215f7df4af150bff07db788286b763f695248",
        ),
        (
            pa.array([0], pa.timestamp("ms")),
            "3bd835ff34a512da5d934665fddad486b7c2be0c1d8dd9fe66b4f9a1097c1f59",
        ),
        (
            pa.array([0, 18262], pa.date32()),
            "3f8d17d3bc37b5022f88d436e17b342bb4286d8cd2e4aeaf6075f61914fc0e36",
        ),
        (
            pa.array([Decimal("123.45"), Decimal("-0.01")], pa.decimal128(10, 2)),
            "10cab912e82d324360736cacd40627ee8a95638d4047a8f9e7b8b61a769716c3",
        ),
        (pa.array([1.5, -0.0]), "30ff104aee76df52c10f7c37ceadd8e993e935c3299896929b02eddb11082b58"),
    ],
)
def test_columns_have_the_known_digests(array: pa.Array, expected: str) -> None:
    assert column_digest(array) == expected


def a_nested_table(validity: list[bool] | None = None) -> pa.Table:
    fields = [pa.field("c", pa.string(), nullable=False), pa.field("d", pa.int32(), nullable=False)]
    columns = [pa.array(["a", "b", "c"]), pa.array([3, 2, 1], pa.int32())]
    mask = None if validity is None else pa.array([not valid for valid in validity])
    return pa.table(
        {
            "a": pa.array([1, 2, 3], pa.int32()),
            "b": pa.StructArray.from_arrays(columns, fields=fields, mask=mask),
        }
    )


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        (
            pa.table({"a": pa.array(range(1, 6), pa.int32()), "b": list("abcde")}),
            "98c0eccc62805320769d68714e1a5fb9cd4deeb7bdb7f4d77f36259883f3ef28",
        ),
        (a_nested_table(), "fad2f505cc7d67eb2a3c24e137831723ce886e31e34b80bddac5f8757616aa0b"),
        (
            a_nested_table([True, True, True]),
            "fad2f505cc7d67eb2a3c24e137831723ce886e31e34b80bddac5f8757616aa0b",
        ),
        (
            a_nested_table([True, False, True]),
            "e398355e9b8c179f3f1bf0569fccc1e9a9a922c6691a61ae251295a5686178a4",
        ),
        (
            pa.table(
                {
                    "offset": pa.array([0, 1, 2], pa.int64()),
                    "op": pa.array([0, 0, 0], pa.int32()),
                    "system_time": pa.array([1262347200000] * 3, pa.timestamp("ms", "UTC")),
                    "event_time": pa.array([946728000000] * 3, pa.timestamp("ms", "UTC")),
                    "city": ["A", "B", "C"],
                    "population": pa.array([1000, 2000, 3000], pa.int64()),
                }
            ),
            "0bbcabb9bb3ac17295c539135e2bd152faccc98600d64fe14c90464cc42df6cc",
        ),
    ],
)
def test_records_have_the_known_digests(table: pa.Table, expected: str) -> None:
    assert str(logical_hash(table)) == f"f9680c00120{expected}"


SCALARS = {
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-128, 127),
    pa.uint16(): st.integers(0, 2**16 - 1),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.float32(): st.floats(width=32, allow_nan=False),
    pa.float64(): st.floats(allow_nan=False),
    pa.string(): st.text(max_size=300),
    pa.large_string(): st.text(max_size=5),
    pa.string_view(): st.text(max_size=20),
    pa.binary(): st.binary(max_size=9),
    pa.large_binary(): st.binary(max_size=9),
    pa.binary_view(): st.binary(max_size=20),
    pa.binary(3): st.binary(min_size=3, max_size=3),
    pa.dictionary(pa.int8(), pa.string()): st.sampled_from(["a", "bb", ""]),
    pa.decimal32(7, 2): st.decimals(-9999, 9999, places=2),
    pa.decimal64(15, 3): st.decimals(-9999, 9999, places=3),
    pa.decimal128(20, 4): st.decimals(-9999, 9999, places=4),
    pa.decimal256(50, 5): st.decimals(-9999, 9999, places=5),
    pa.date32(): st.dates(dt.date(1900, 1, 1), dt.date(2100, 1, 1)),
    pa.timestamp("ms", "Europe/Kyiv"): st.integers(-(2**40), 2**40),
    pa.timestamp("us"): st.integers(-(2**40), 2**40),
}


def values_of(type_: pa.DataType) -> st.SearchStrategy:
    if pa.types.is_struct(type_):
        return st.fixed_dictionaries({f.name: st.none() | values_of(f.type) for f in type_.fields})
    if pa.types.is_fixed_size_list(type_):
        size = type_.list_size
        return st.lists(st.none() | values_of(type_.value_type), min_size=size, max_size=size)
    if pa.types.is_nested(type_):
        return st.lists(st.none() | values_of(type_.value_type), max_size=4)
    return SCALARS[type_]


LEAVES = st.sampled_from(list(SCALARS))
LISTS = st.recursive(
    LEAVES,
    lambda inner: inner.map(pa.list_) | inner.map(pa.large_list) | inner.map(lambda t: pa.list_(t, 2)),
    max_leaves=3,
)


@st.composite
def columns(draw: st.DrawFn) -> pa.Array:
    type_ = draw(LISTS)
    values = values_of(type_)
    values = draw(st.sampled_from([values, st.none() | values, st.none()]))
    return pa.array(draw(st.lists(values, min_size=12, max_size=12)), type_)


@given(st.lists(columns(), min_size=1, max_size=3), st.integers(0, 11), st.integers(1, 8))
@settings(max_examples=examples(80))
def test_the_hash_of_any_records_equals_that_of_the_plain_rules(
    arrays: list[pa.Array], start: int, size: int
) -> None:
    table = pa.table({f"c{i}": array for i, array in enumerate(arrays)}).slice(start)
    expected = Multihash.arrow0(plain_digest.digest(table))
    assert logical_hash(table) == expected
    assert logical_hash(table.to_reader(max_chunksize=size)) == expected


@given(st.data())
@settings(max_examples=examples(50))
def test_blocks_of_a_column_do_not_matter(data: st.DataObject) -> None:
    array = data.draw(columns())
    expected = column_digest(array)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrow_digest, "BLOCK_ROWS", 3)
        arrow_digest._block_steps.cache_clear()
        assert column_digest(array) == expected
    arrow_digest._block_steps.cache_clear()


def test_the_hash_of_many_threads_and_blocks_equals_that_of_the_plain_rules() -> None:
    rows = 40_000
    random = np.random.default_rng(7)
    numbers = random.integers(-(2**60), 2**60, rows)
    table = pa.table(
        {
            "dense": numbers,
            "sparse": pa.array(numbers, mask=random.random(rows) < 0.3),
            "text": [f"value {number}" for number in numbers],
            "sparse text": [f"value {number}" if number % 3 else None for number in numbers],
            "long text": ["x" * (number % 700) for number in numbers],
        }
    )
    assert logical_hash(table) == Multihash.arrow0(plain_digest.digest(table))


def a_struct(outer: list[bool], inner: list[int | None], *, nullable: bool = True) -> pa.Table:
    fields = [pa.field("x", pa.int64(), nullable=nullable)]
    mask = pa.array([not valid for valid in outer])
    return pa.table(
        {"s": pa.StructArray.from_arrays([pa.array(inner, pa.int64())], fields=fields, mask=mask)}
    )


def test_a_null_under_a_null_struct_is_null() -> None:
    assert logical_hash(a_struct([True, False], [1, 2])) == logical_hash(a_struct([True, False], [1, None]))


def test_a_null_under_a_valid_struct_counts_as_zero_once_a_struct_is_null() -> None:
    assert logical_hash(a_struct([True, True, False], [1, None, 3])) == logical_hash(
        a_struct([True, True, False], [1, 0, 3])
    )


def test_a_null_under_structs_without_nulls_is_null() -> None:
    table = a_struct([True, True], [1, None])
    assert logical_hash(table) == Multihash.arrow0(plain_digest.digest(table))
    assert logical_hash(table) != logical_hash(a_struct([True, True], [1, 0]))


@given(
    st.lists(st.tuples(st.booleans(), st.none() | st.integers(0, 3)), min_size=1, max_size=12),
    st.integers(1, 12),
)
def test_batches_do_not_matter_to_nullable_structs(rows: list[tuple[bool, int | None]], size: int) -> None:
    table = a_struct([valid for valid, _ in rows], [number for _, number in rows])
    assert logical_hash(table.to_reader(max_chunksize=size)) == logical_hash(table)


@pytest.mark.parametrize("outer", [[True, True], [True, False]])
@pytest.mark.parametrize(
    "type_",
    [
        pa.string(),
        pa.binary(2),
        pa.bool_(),
        pa.list_(pa.int8()),
        pa.decimal128(5, 1),
        pa.int16(),
        pa.date32(),
    ],
)
def test_leaves_of_every_width_may_be_null_inside_structs(type_: pa.DataType, outer: list[bool]) -> None:
    leaf = pa.array([None, None], type_)
    array = pa.StructArray.from_arrays([leaf], ["x"], mask=pa.array([not valid for valid in outer]))
    table = pa.table({"s": array})
    assert logical_hash(table) == logical_hash(table.to_reader(max_chunksize=1))
    assert (logical_hash(table) == Multihash.arrow0(plain_digest.digest(table))) == all(outer)


@pytest.mark.parametrize(
    "type_",
    [
        pa.null(),
        pa.duration("ms"),
        pa.month_day_nano_interval(),
        pa.map_(pa.string(), pa.int32()),
        pa.list_(pa.struct([("x", pa.int32())])),
        pa.list_view(pa.int32()),
        pa.run_end_encoded(pa.int32(), pa.int64()),
        pa.dense_union([pa.field("x", pa.int32())]),
        pa.struct([("y", pa.null())]),
    ],
)
def test_a_type_that_cannot_be_hashed_is_refused_by_column(type_: pa.DataType) -> None:
    with pytest.raises(UnhashableType) as refused:
        LogicalHasher(pa.schema([("good", pa.int32()), ("bad", type_)]))
    assert refused.value.column.startswith("bad")
    assert "bad" in str(refused.value)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (pa.table({"a": [1]}), pa.table({"b": [1]})),
        (pa.table({"a": [1, 2]}), pa.table({"a": [2, 1]})),
        (pa.table({"a": [1], "b": [1]}), pa.table({"b": [1], "a": [1]})),
        (pa.table({"a": ["x", "yz"]}), pa.table({"a": ["xy", "z"]})),
        (pa.table({"a": ["x", None]}), pa.table({"a": [None, "x"]})),
        (pa.table({"a": [[1], [2, 3]]}), pa.table({"a": [[1, 2], [3]]})),
    ],
)
def test_different_records_have_different_hashes(left: pa.Table, right: pa.Table) -> None:
    assert logical_hash(left) != logical_hash(right)


def test_nan_payloads_count() -> None:
    quiet, other = (
        pa.Array.from_buffers(pa.float64(), 1, [None, pa.py_buffer(raw.to_bytes(8, "little"))])
        for raw in (0x7FF8000000000000, 0x7FF8000000000001)
    )
    assert column_digest(quiet) != column_digest(other)


def test_a_column_without_values_may_have_no_buffer() -> None:
    without = pa.Array.from_buffers(pa.int64(), 0, [None, None])
    assert arrow_digest._raw(without, 8).size == 0
    assert column_digest(without) == column_digest(pa.array([], pa.int64()))


def test_a_uuid_hashes_as_its_bytes() -> None:
    storage = pa.array([bytes(range(16)), None], pa.binary(16))
    assert column_digest(pa.ExtensionArray.from_storage(pa.uuid(), storage)) == column_digest(storage)


def test_records_of_another_schema_are_refused() -> None:
    hasher = LogicalHasher(pa.schema([("a", pa.int32())]))
    with pytest.raises(InvalidInput, match="columns"):
        hasher.update(pa.table({"a": pa.array([1], pa.int64())}))


@pytest.mark.parametrize(
    ("of", "zero", "other"),
    [
        (pa.bool_(), False, True),
        (pa.int32(), 0, 7),
        (pa.string(), "", "x"),
        (pa.binary(2), b"\0\0", b"xy"),
    ],
    ids=str,
)
def test_beside_a_null_struct_a_null_field_counts_as_zero(
    of: pa.DataType, zero: object, other: object
) -> None:
    def hash_of(field: object) -> Multihash:
        rows = [None, {"x": field}, {"x": other}]
        return logical_hash(pa.table({"s": pa.array(rows, pa.struct([("x", of)]))}))

    assert hash_of(None) == hash_of(zero)
    assert hash_of(None) != hash_of(other)


@pytest.mark.parametrize("chunk", [1, 100, 1 << 23])
def test_a_stream_is_hashed_in_groups_of_any_size(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    table = pa.table({"n": range(50), "s": [str(number) for number in range(50)]})
    expected = Multihash.arrow0(plain_digest.digest(table))
    monkeypatch.setattr(logical, "_HASH_CHUNK_BYTES", chunk)
    assert logical_hash(table.to_reader(max_chunksize=7)) == expected
