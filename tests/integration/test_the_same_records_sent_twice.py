from itertools import count

import pytest
from odf_testing.story import APPEND, Manifest, Row, Story, ledger, root

COLUMNS = ("id BIGINT", "name STRING", "at TIMESTAMP(3)")
COUNT = 500
NUMBERS = count()


@pytest.fixture
def orders(story: Story, request: pytest.FixtureRequest) -> str:
    """A separate root; the parameter is its merge strategy."""
    merge: Manifest = request.param
    name = f"orders.{merge['kind'].lower()}.{next(NUMBERS)}"
    story.add(root(name, COLUMNS, merge=merge, event_time="at"))
    return name


def some(first: int, number: int) -> list[Row]:
    """Records with these ids, a second apart."""
    return [
        {"id": id_, "name": f"order {id_}", "at": f"2026-01-01T00:{id_ // 60 % 60:02}:{id_ % 60:02}Z"}
        for id_ in range(first, first + number)
    ]


@pytest.mark.parametrize("orders", [ledger("id")], indirect=True)
def test_on_ledger_the_same_messages_sent_twice_add_nothing(story: Story, orders: str) -> None:
    story.publish(orders, some(0, COUNT))
    story.pull(orders)
    head = story.chain(orders).head
    story.publish(orders, some(0, COUNT))
    story.pull(orders)
    assert story.chain(orders).head != head, "that they were read is noted"
    assert story.chain(orders).column("id") == list(range(COUNT))


@pytest.mark.parametrize("orders", [ledger("id")], indirect=True)
def test_on_ledger_only_the_new_records_of_an_overlapping_batch_are_added(story: Story, orders: str) -> None:
    assert story.ingest(orders, some(0, COUNT))["records"] == COUNT
    assert story.ingest(orders, some(COUNT - 10, 30))["records"] == 20
    again = story.ingest(orders, some(0, COUNT))
    assert again["records"] == 0
    chain = story.chain(orders)
    assert chain.column("id") == list(range(COUNT + 20))
    assert again["head"] == str(chain.head) == story.summary(orders)["head"]


@pytest.mark.parametrize("orders", [ledger("id")], indirect=True)
def test_on_ledger_the_same_record_twice_in_one_batch_is_one_row(story: Story, orders: str) -> None:
    story.publish(orders, [*some(0, 5), *some(3, 5), *some(0, 1)])
    story.pull(orders)
    assert story.chain(orders).column("id") == list(range(8))


@pytest.mark.parametrize("orders", [APPEND], indirect=True)
def test_on_append_each_message_is_one_row(story: Story, orders: str) -> None:
    story.publish(orders, some(0, COUNT))
    story.publish(orders, some(0, COUNT))
    story.pull(orders)
    # However they were cut into batches, each of which is sorted by time.
    assert sorted(story.chain(orders).column("id")) == sorted([*range(COUNT), *range(COUNT)])


@pytest.mark.parametrize("orders", [APPEND], indirect=True)
def test_a_batch_pushed_again_under_its_idempotency_key_adds_nothing_even_on_append(
    story: Story, orders: str
) -> None:
    first = story.ingest(orders, some(0, COUNT), "--idempotency-key january")
    again = story.ingest(orders, some(0, COUNT), "--idempotency-key january")
    assert (first["records"], first["already"]) == (COUNT, False)
    assert again["already"]
    assert story.records(orders) == [COUNT]
    assert story.ingest(orders, some(0, COUNT), "--idempotency-key february")["records"] == COUNT
