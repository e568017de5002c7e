import pytest

from odf_common.dataset.batch_keys import key_in_run
from odf_common.errors import InvalidInput
from odf_ingest.commit.position import MAX_RECEIPTS, SourcePosition, TopicPosition, next_in_run


def test_the_value_is_canonical_json() -> None:
    position = SourcePosition(topics={"t": TopicPosition(topic_id="uuid", next={1: 5, 0: 123})})
    assert position.text() == '{"topics":{"t":{"id":"uuid","next":{"0":123,"1":5}}},"v":1}'


def test_a_written_position_is_read_back() -> None:
    topic = TopicPosition(topic_id="uuid", next={0: 1, 1: 2}, greatest={0: 7})
    position = SourcePosition(topics={"t": topic}).with_receipt("a").with_receipt("b")
    assert SourcePosition.parse(position.text()) == position


def test_only_the_last_receipts_are_kept() -> None:
    position = SourcePosition()
    for number in range(MAX_RECEIPTS + 3):
        position = position.with_receipt(str(number))
    assert position.receipts[0] == "3"
    assert len(position.receipts) == MAX_RECEIPTS


def test_digests_are_kept_as_long_as_their_receipts() -> None:
    position = SourcePosition().with_receipt("none").with_receipt(key_in_run("run", 0), "0a")
    assert position.contents == {key_in_run("run", 0): "0a"}
    assert SourcePosition.parse(position.text()) == position
    position = position.with_receipt(key_in_run("run", 1), "0b")
    assert position.contents == {key_in_run("run", 1): "0b"}
    for number in range(MAX_RECEIPTS):
        position = position.with_receipt(str(number))
    assert position.contents == {}


def test_of_a_run_of_batches_the_last_one_stands_for_all() -> None:
    position = SourcePosition().with_receipt("other")
    for number in range(3 * MAX_RECEIPTS):
        key = key_in_run("run", number)
        assert next_in_run(position, "run") == number
        assert not position.has_receipt(key)
        position = position.with_receipt(key)
    assert all(position.has_receipt(key_in_run("run", number)) for number in range(3 * MAX_RECEIPTS))
    assert not position.has_receipt(key_in_run("run", 3 * MAX_RECEIPTS))
    assert not position.has_receipt(key_in_run("rerun", 0))
    assert next_in_run(position, "rerun") == 0
    assert not position.has_receipt("run")
    assert position.has_receipt("other")
    assert SourcePosition.parse(position.text()) == position


def test_keys_of_others_are_taken_as_they_are() -> None:
    position = SourcePosition().with_receipt("2026/12")
    assert not position.has_receipt("2026/11")
    for odd in ("\x1f", "a\x1f", "a\x1f-1", "a\x1f1x", "a\x1f²"):
        assert not position.has_receipt(odd)
        assert position.with_receipt(odd).has_receipt(odd)


@pytest.mark.parametrize(
    "value",
    ["", "[]", "{}", '{"v":2,"topics":{}}', '{"v":1,"topics":{"t":{"next":{}}}}', '{"v":1,"topics":[]}'],
)
def test_a_value_that_this_version_did_not_write_is_refused(value: str) -> None:
    with pytest.raises(InvalidInput, match=r"source state: (cannot be read|unknown version 2)"):
        SourcePosition.parse(value)


def test_the_count_of_rejected_messages_is_written_once_there_are_any() -> None:
    assert "rejected" not in SourcePosition().text()
    position = SourcePosition().with_rejected(2).with_rejected(3)
    assert position.text() == '{"rejected":5,"topics":{},"v":1}'
    assert SourcePosition.parse(position.text()) == position


def test_rejected_rows_count_as_messages_too() -> None:
    position = SourcePosition().with_rejected(2).with_rejected_rows(3).with_rejected_rows(1)
    assert position.text() == '{"rejected":6,"rows":{"rejected":4},"topics":{},"v":1}'
    assert SourcePosition.parse(position.text()) == position
