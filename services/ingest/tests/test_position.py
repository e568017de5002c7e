import pytest

from odf_common.errors import InvalidInput
from odf_ingest.position import RECEIPTS, SourcePosition, TopicPosition


def test_the_value_is_canonical_json() -> None:
    position = SourcePosition(topics={"t": TopicPosition(topic_id="uuid", next={1: 5, 0: 123})})
    assert position.text() == '{"topics":{"t":{"id":"uuid","next":{"0":123,"1":5}}},"v":1}'


def test_what_is_written_is_read_back() -> None:
    topic = TopicPosition(topic_id="uuid", next={0: 1, 1: 2}, greatest={0: 7})
    position = SourcePosition(topics={"t": topic}).with_receipt("a").with_receipt("b")
    assert SourcePosition.parse(position.text()) == position


def test_only_the_last_receipts_are_kept() -> None:
    position = SourcePosition()
    for number in range(RECEIPTS + 3):
        position = position.with_receipt(str(number))
    assert position.receipts[0] == "3"
    assert len(position.receipts) == RECEIPTS


@pytest.mark.parametrize(
    "value",
    ["", "[]", "{}", '{"v":2,"topics":{}}', '{"v":1,"topics":{"t":{"next":{}}}}', '{"v":1,"topics":[]}'],
)
def test_a_value_that_this_version_did_not_write_is_refused(value: str) -> None:
    with pytest.raises(InvalidInput):
        SourcePosition.parse(value)
