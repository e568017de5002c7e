"""What a chain says a polling source has read, and what a poll makes of a state that it cannot read."""

import pytest

from odf_common.dataset.rejects import POLLED, Numbers
from odf_common.errors import InvalidInput
from odf_ingest.poll.polled_position import ETAG, PollPosition, state_of, without_count

LAST = state_of(ETAG, "one")


def test_a_state_has_a_count_only_once_something_was_rejected() -> None:
    assert PollPosition(last=LAST).source_state("default") == LAST
    counted = PollPosition(last=LAST, rejected=2, retried=Numbers.of([1])).source_state("default")
    assert counted.kind == POLLED
    assert counted.value == '{"kind":"odf/etag","rejected":2,"retried":[[1,2]],"v":1,"value":"one"}'
    assert without_count(counted) == LAST
    assert without_count(None) is None


@pytest.mark.parametrize(
    "value",
    [
        "{",
        '{"kind":"odf/etag","rejected":2,"v":2,"value":"one"}',
        '{"kind":"odf/etag","rejected":"x","v":1,"value":"one"}',
        '{"kind":"odf/etag","rejected":2,"retried":[[2,1]],"v":1,"value":"one"}',
        '{"kind":"odf/etag","v":1,"value":"one"}',
    ],
)
def test_a_count_that_cannot_be_read_does_not_begin_again(value: str) -> None:
    with pytest.raises(InvalidInput, match="source state"):
        without_count(state_of(POLLED, value))
