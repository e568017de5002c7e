"""Expected memory of untrusted tables."""

import pyarrow as pa
import pytest

from odf_common.data.slices import expanded_bytes, row_width

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
