from itertools import accumulate

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from odf_ingest.read.message_buffer import MessageBuffer

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
