import pytest
from hypothesis import given
from hypothesis import strategies as st

from odf_common.codec.envelopes import body_of, decode, encode, envelope, stamp
from odf_common.codec.times import time_message, time_message_or_none, time_of
from odf_common.errors import InvalidInput
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.scalars import Timestamp
from odf_common.proto.odf.bus.v1.bus_pb2 import (
    AccessDecision,
    Committed,
    Envelope,
    HeadMoved,
    Propose,
    Refused,
)

DATASET, OTHER = DatasetId.of_key(bytes(32)), DatasetId.of_key(bytes(31) + b"1")
ID = "0123456789abcdef0123456789abcdef"


@pytest.mark.parametrize(
    "body",
    [
        Propose(system_time={"seconds": 7}, events=[b"a"]),
        Committed(head=b"h"),
        HeadMoved(),
        Refused(code="x"),
    ],
)
def test_a_message_survives_a_round_trip_through_a_record(
    body: Propose | Committed | HeadMoved | Refused,
) -> None:
    sent = stamp(envelope(DATASET, body), message_id=ID, sent_at=5)
    key, value = encode(sent)
    assert key == str(DATASET).encode()
    assert decode(key, value) == sent
    assert body_of(decode(key, value)) == body


def test_an_answer_shares_its_correlation_with_its_command() -> None:
    command = stamp(envelope(DATASET, Propose()), message_id=ID, sent_at=5)
    answer = envelope(DATASET, HeadMoved(head=b"h"), cause=command)
    assert answer.correlation_id == command.correlation_id == ID
    assert answer.causation_id == ID


@pytest.mark.parametrize(
    ("own", "of_cause", "expected"), [("mine", "its", "mine"), ("", "its", "its"), ("", "", ID)]
)
def test_a_consequence_has_the_correlation_that_its_cause_has_or_is(
    own: str, of_cause: str, expected: str
) -> None:
    cause = Envelope(message_id=ID, correlation_id=of_cause)
    assert envelope(DATASET, Propose(), cause=cause, correlation_id=own).correlation_id == expected


def test_a_message_without_id_time_and_correlation_gets_them() -> None:
    first = stamp(envelope(DATASET, Propose()), message_id=ID, sent_at=5)
    assert (first.message_id, first.sent_at, first.correlation_id) == (ID, 5, ID)


def test_stamping_keeps_existing_values() -> None:
    sent = envelope(DATASET, Propose(), correlation_id="mine")
    first = stamp(sent, message_id=ID, sent_at=5)
    assert first.correlation_id == "mine"
    assert stamp(first, message_id="f" * 32, sent_at=6) == first


def test_a_body_of_a_later_version_is_unknown_and_not_an_error() -> None:
    value = stamp(envelope(DATASET, Propose()), message_id=ID, sent_at=5)
    value.ClearField("propose")
    # Field 99, length-delimited: a body that does not exist yet.
    raw = value.SerializeToString() + b"\x9a\x06\x00"
    assert body_of(decode(str(DATASET).encode(), raw)) is None


def test_a_message_about_no_dataset_survives_a_round_trip_too() -> None:
    sent = stamp(envelope("", AccessDecision(action="read")), message_id=ID, sent_at=5)
    key, value = encode(sent)
    assert key == b""
    assert decode(key, value) == sent


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (str(DATASET), b"\xff\xff"),
        ("", b"\xff\xff"),
        (str(DATASET), b"\x0a\x05abc"),
        ("did:odf:x", Envelope(dataset_id="did:odf:x").SerializeToString()),
        (str(DATASET), Envelope(dataset_id=str(OTHER)).SerializeToString()),
        ("", Envelope(dataset_id=str(OTHER)).SerializeToString()),
        (str(DATASET), Envelope().SerializeToString()),
    ],
)
def test_bytes_that_are_no_message_about_the_key_are_refused(key: str, value: bytes) -> None:
    with pytest.raises(InvalidInput, match=r"envelope|multibase"):
        decode(key.encode(), value)


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
