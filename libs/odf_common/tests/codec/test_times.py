import pytest
from hypothesis import given
from hypothesis import strategies as st

from odf_common.codec.envelopes import body_of, decode, encode, envelope
from odf_common.codec.times import time_message, time_message_or_none, time_of
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.scalars import Timestamp
from odf_common.proto.odf.bus.v1.bus_pb2 import Committed

DATASET = DatasetId.of_key(bytes(32))


@given(st.integers(-(2**63) * 10**9, (2**63 - 1) * 10**9))
def test_a_time_is_transmitted_exactly(ns: int) -> None:
    assert time_of(time_message(Timestamp(ns))) == Timestamp(ns)


@pytest.mark.parametrize(
    "text", ["0001-01-01T00:00:00Z", "1969-12-31T23:59:59.999999999Z", "9999-12-31T23:59:59.999Z"]
)
def test_a_sentinel_time_is_transmitted_on_the_bus(text: str) -> None:
    sent = envelope(DATASET, Committed(watermark=time_message(Timestamp.parse(text))))
    received = body_of(decode(*encode(sent)))
    assert isinstance(received, Committed)
    assert str(time_of(received.watermark)) == text


def test_no_time_is_an_absent_field() -> None:
    assert not Committed(watermark=time_message_or_none(None)).HasField("watermark")
    assert Committed(watermark=time_message_or_none(Timestamp(0))).HasField("watermark")
