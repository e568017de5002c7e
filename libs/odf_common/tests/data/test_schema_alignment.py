import pyarrow as pa
import pytest

from odf_common.data.schema_alignment import align_to_schema, aligned_schema, with_new_columns
from odf_common.data.schema_evolution import check_evolution
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
def test_a_timestamp_that_the_datasets_unit_cannot_hold_is_refused(year: str) -> None:
    at = pa.array([f"{year}-01-01T00:00:00Z"]).cast(pa.timestamp("us", "UTC"))
    known = pa.schema([("at", pa.timestamp("ns", "UTC"))])
    with pytest.raises(InvalidInput, match="column at"):
        align_to_schema(pa.table({"at": at}), known, DatasetVocabulary())


def test_columns_that_a_dataset_never_had_are_added_as_optional() -> None:
    found = UNSIGNED.append(pa.field("s", pa.string(), nullable=False))
    wanted = with_new_columns(SIGNED, found)
    assert [*wanted] == [*SIGNED, pa.field("s", pa.string())]
    assert check_evolution(SIGNED, aligned_schema(found, wanted, VOCAB))
