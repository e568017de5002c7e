import pytest

from odf_common.codec.envelopes import body_of, decode, encode, envelope, stamped
from odf_common.errors import InvalidInput
from odf_common.identity.did import DatasetId
from odf_common.proto.odf.bus.v1.bus_pb2 import Committed, Envelope, HeadMoved, Propose, Refused

DATASET = DatasetId.of_key(bytes(32))
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
def test_a_message_comes_out_of_a_record_as_it_went_in(
    body: Propose | Committed | HeadMoved | Refused,
) -> None:
    sent = stamped(envelope(DATASET, body), message_id=ID, sent_at=5)
    key, value = encode(sent)
    assert key == str(DATASET).encode()
    assert decode(key, value) == sent
    assert body_of(decode(key, value)) == body


def test_an_answer_shares_its_correlation_with_its_command() -> None:
    command = stamped(envelope(DATASET, Propose()), message_id=ID, sent_at=5)
    answer = envelope(DATASET, HeadMoved(head=b"h"), cause=command)
    assert answer.correlation_id == command.correlation_id == ID
    assert answer.causation_id == ID


def test_stamping_keeps_what_is_there() -> None:
    sent = envelope(DATASET, Propose(), correlation_id="mine")
    first = stamped(sent, message_id=ID, sent_at=5)
    assert first.correlation_id == "mine"
    assert stamped(first, message_id="f" * 32, sent_at=6) == first


def test_a_body_of_a_later_version_is_unknown_and_not_an_error() -> None:
    value = stamped(envelope(DATASET, Propose()), message_id=ID, sent_at=5)
    value.ClearField("propose")
    # Field 99, length-delimited: a body that does not exist yet.
    raw = value.SerializeToString() + b"\x9a\x06\x00"
    assert body_of(decode(str(DATASET).encode(), raw)) is None


@pytest.mark.parametrize(
    "value", [b"\xff\xff", b"\x0a\x05abc", Envelope(dataset_id="did:odf:x").SerializeToString()]
)
def test_bytes_that_are_no_message_about_the_key_are_refused(value: bytes) -> None:
    with pytest.raises(InvalidInput):
        decode(str(DATASET).encode(), value)
