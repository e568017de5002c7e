import re

import pyarrow as pa
import pytest

from odf_common.data.columns import compared_type, stored_type
from odf_common.data.ddl import ddl_to_schema
from odf_common.data.schema_evolution import (
    align_to_schema,
    aligned_schema,
    check_evolution,
    with_new_columns,
)
from odf_common.errors import InvalidInput
from odf_common.metadata.events import DatasetVocabulary

VOCAB = DatasetVocabulary()
SIGNED = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("op", pa.int32(), nullable=False),
        pa.field("n", pa.int64(), nullable=False),
    ]
)
UNSIGNED = pa.schema([("offset", pa.uint64()), ("op", pa.uint8()), ("n", pa.int64())])


def test_offset_and_operation_take_the_datasets_integers_and_columns_its_nullability() -> None:
    made = align_to_schema(UNSIGNED.empty_table(), SIGNED, VOCAB)
    assert made.schema.equals(SIGNED)
    assert not check_evolution(SIGNED, made.schema)


def test_other_integers_are_left_for_later_checks() -> None:
    found = UNSIGNED.set(2, pa.field("n", pa.int32()))
    assert aligned_schema(found, SIGNED, VOCAB).field("n").type == pa.int32()


def test_new_columns_are_left_unchanged() -> None:
    found = UNSIGNED.append(pa.field("s", pa.string()))
    assert aligned_schema(found, SIGNED, VOCAB).field("s") == pa.field("s", pa.string())


def test_a_null_where_the_dataset_requires_a_value_is_refused_by_the_columns_name() -> None:
    records = pa.table({"offset": [1, 2], "op": [0, 0], "n": [None, 1]}, UNSIGNED)
    with pytest.raises(InvalidInput, match="column n: is required in this dataset, and 1 records"):
        align_to_schema(records, SIGNED, VOCAB)


def test_an_offset_that_the_datasets_integers_cannot_hold_is_refused() -> None:
    records = pa.table({"offset": [1 << 63], "op": [0], "n": [1]}, UNSIGNED)
    with pytest.raises(InvalidInput, match="column offset"):
        align_to_schema(records, SIGNED, VOCAB)


def test_timestamps_are_truncated_to_the_datasets_unit_at_any_depth() -> None:
    fine, coarse = pa.timestamp("us", "UTC"), pa.timestamp("ms", "UTC")
    value = pa.array([{"at": [1_999, None]}, None], pa.struct([("at", pa.list_(fine))]))
    known = pa.schema([("s", pa.struct([("at", pa.list_(coarse))]))])
    made = align_to_schema(pa.table({"s": value}).slice(0, 2), known, VOCAB)
    assert made.column("s").combine_chunks().field("at").flatten().cast(pa.int64()).to_pylist() == [1, None]
    assert made.column("s").null_count == 1
    assert not check_evolution(known, made.schema)


def test_parts_of_nested_columns_are_taken_from_their_place() -> None:
    optional = pa.list_(pa.field("element", pa.int32()))
    required = pa.list_(pa.field("element", pa.int32(), nullable=False))
    records = pa.table({"l": pa.array([[None], [1, 2], None, [3]], optional)})
    known = pa.schema([("l", required)])
    made = align_to_schema(records.slice(1), known, VOCAB)
    assert made.column("l").to_pylist() == [[1, 2], None, [3]]
    with pytest.raises(InvalidInput, match=r"column l\[\]"):
        align_to_schema(records, known, VOCAB)


@pytest.mark.parametrize("year", ["1600", "3000"])
def test_a_timestamp_that_the_datasets_unit_cannot_hold_is_refused_with_its_value(year: str) -> None:
    at = pa.array(["1970-01-01T00:00:00Z", f"{year}-01-01T00:00:00Z"]).cast(pa.timestamp("us", "UTC"))
    known = pa.schema([("at", pa.list_(pa.timestamp("ns", "UTC")))])
    records = pa.table({"at": pa.array([at.to_pylist()], pa.list_(at.type))})
    with pytest.raises(
        InvalidInput, match=rf"column at\[\]: {year}-01-01T00:00:00Z is outside of 1677 to 2262"
    ):
        align_to_schema(records, known, DatasetVocabulary())


@pytest.mark.parametrize("coarse", ["ms", "s"])
def test_times_are_cut_towards_the_past_at_any_depth(coarse: str) -> None:
    fine, unit = pa.timestamp("us", "UTC"), pa.timestamp(coarse, "UTC")
    value = pa.array(
        [{"at": [-1, -1_000_000, -1_000_001, 999_999, None]}, None], pa.struct([("at", pa.list_(fine))])
    )
    known = pa.schema([("s", pa.struct([("at", pa.list_(unit))]))])
    aligned = align_to_schema(pa.table({"s": value}), known, VOCAB).column("s").combine_chunks()
    ratio = {"ms": 1_000, "s": 1_000_000}[coarse if stored_type(unit) == unit else "ms"]
    cut = [number // ratio for number in (-1, -1_000_000, -1_000_001, 999_999)]
    assert aligned.field("at").flatten().cast(pa.int64()).to_pylist() == [*cut, None]


TYPES = ddl_to_schema([
    "a BOOLEAN", "b TINYINT", "c SMALLINT", "d INT", "e BIGINT", "f FLOAT", "g DOUBLE", "h DECIMAL(10, 2)", "i DECIMAL(12, 2)",
    "j STRING", "k BINARY", "l DATE", "m TIMESTAMP(0)", "n TIMESTAMP(3)", "o TIMESTAMP(6)", "p TIMESTAMP(9)", "q TIME(3)", "r UUID",
    "s BIGINT UNSIGNED", "t ARRAY<INT>", "u ARRAY<TIMESTAMP(6)>", "v ARRAY<TIMESTAMP(3)>", "w STRUCT<x: INT>", "y STRUCT<x: TIMESTAMP(9)>",
]).types  # fmt: skip


@pytest.mark.parametrize("new", TYPES, ids=str)
def test_no_type_of_a_result_becomes_another_one_but_times_of_another_unit(new: pa.DataType) -> None:
    for old in TYPES:
        known, found = pa.schema([("c", old)]), pa.schema([("c", new)])
        aligned = aligned_schema(found, known, VOCAB)
        if _without_unit(old) == _without_unit(new):
            assert not check_evolution(known, aligned)
        else:
            with pytest.raises(InvalidInput, match=r"column c[.\[]?.* cannot "):
                check_evolution(known, aligned)


def _without_unit(type_: pa.DataType) -> str:
    return re.sub(r"timestamp\[\w+", "timestamp[", str(compared_type(type_)))


def test_columns_that_a_dataset_never_had_are_added_as_optional() -> None:
    found = UNSIGNED.append(pa.field("s", pa.string(), nullable=False))
    wanted = with_new_columns(SIGNED, found)
    assert [*wanted] == [*SIGNED, pa.field("s", pa.string())]
    assert check_evolution(SIGNED, aligned_schema(found, wanted, VOCAB))
