"""How a change of a dataset reacts to the outcome of its proposal."""

import pytest
from odf_testing.builders import a_dataset, a_hash

from odf_common.errors import HeadMoved, Refused
from odf_coordinator.commit.committer import (
    MAX_ATTEMPTS,
    Overtaken,
    Refusal,
    require_committed,
    retry_on_conflict,
)

DATASET = a_dataset()
ONE, TWO = a_hash("one"), a_hash("two")


class Change:
    """Succeeds after it has lost the race a few times."""

    def __init__(self, overtaken: int) -> None:
        self.tries = 0
        self._overtaken = overtaken

    def __call__(self) -> str:
        self.tries += 1
        if self.tries <= self._overtaken:
            raise HeadMoved(dataset=str(DATASET), expected=None, actual=None)
        return "done"


@pytest.mark.parametrize("overtaken", [0, 1, 5, MAX_ATTEMPTS - 1])
def test_a_change_that_was_overtaken_is_retried(overtaken: int) -> None:
    change = Change(overtaken)

    assert retry_on_conflict(change) == "done"
    assert change.tries == overtaken + 1


def test_a_change_that_is_always_overtaken_is_abandoned() -> None:
    change = Change(1000)

    with pytest.raises(HeadMoved):
        retry_on_conflict(change)
    assert change.tries == MAX_ATTEMPTS


def test_an_overtaken_proposal_names_both_heads() -> None:
    with pytest.raises(HeadMoved) as moved:
        require_committed(DATASET, Overtaken(expected=ONE, head=TWO))

    assert (moved.value.expected, moved.value.actual) == (str(ONE), str(TWO))


def test_a_refusal_is_raised_with_its_code_and_text() -> None:
    with pytest.raises(Refused) as refused:
        require_committed(DATASET, Refusal(code="ObjectMissing", text="it is gone"))

    assert (refused.value.reason, refused.value.text) == ("ObjectMissing", "it is gone")
