import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as some

from odf_common.resources.phases import (
    TRANSITIONS,
    Cause,
    Phase,
    TransitionRefused,
    end_of_attempt,
    is_settled,
    needs_attempt,
    next_phase,
)

P, R, READY, FAILED = Phase.PENDING, Phase.RECONCILING, Phase.READY, Phase.FAILED
ROWS = {
    "1 created": (None, Cause.CREATED, P),
    "2 controller sees a new generation": (P, Cause.ATTEMPT_STARTED, R),
    "3 attempt succeeded": (R, Cause.ATTEMPT_SUCCEEDED, READY),
    "4 attempt failed": (R, Cause.ATTEMPT_FAILED, FAILED),
    "5 ready and changed": (READY, Cause.CHANGED, P),
    "6 failed and changed": (FAILED, Cause.CHANGED, P),
    "7 ready and deleted": (READY, Cause.DELETED, None),
    "8 failed and deleted": (FAILED, Cause.DELETED, None),
    "9 pending and deleted": (P, Cause.DELETED, None),
    "10 generation grew meanwhile": (R, Cause.ATTEMPT_OUTDATED, P),
    "11 lease expired": (R, Cause.LEASE_EXPIRED, P),
    "12 retried": (FAILED, Cause.RETRIED, R),
    "13 rechecked": (READY, Cause.RECHECKED, R),
    "14 reconciling and deleted": (R, Cause.DELETED, None),
}


@pytest.mark.parametrize(("phase", "cause", "expected"), ROWS.values(), ids=ROWS.keys())
def test_row_of_the_table_of_transitions(phase: Phase | None, cause: Cause, expected: Phase | None) -> None:
    assert next_phase(phase, cause) is expected


def test_table_has_these_rows_and_no_others() -> None:
    assert {(phase, cause, expected) for (phase, cause), expected in TRANSITIONS.items()} == set(
        ROWS.values()
    )


@pytest.mark.parametrize("phase", [P, R])
def test_change_does_not_move_what_is_pending_or_reconciling(phase: Phase) -> None:
    assert next_phase(phase, Cause.CHANGED) is phase


@pytest.mark.parametrize(
    ("phase", "cause"),
    [
        pair
        for pair in itertools.product([None, *Phase], Cause)
        if pair not in TRANSITIONS and pair not in {(P, Cause.CHANGED), (R, Cause.CHANGED)}
    ],
)
def test_every_other_move_is_a_bug(phase: Phase | None, cause: Cause) -> None:
    with pytest.raises(TransitionRefused, match="cannot leave the phase"):
        next_phase(phase, cause)


@pytest.mark.parametrize(
    ("attempted", "stored", "has_succeeded", "cause"),
    [
        (2, 2, True, Cause.ATTEMPT_SUCCEEDED),
        (2, 2, False, Cause.ATTEMPT_FAILED),
        (2, 3, True, Cause.ATTEMPT_OUTDATED),
        (2, 3, False, Cause.ATTEMPT_OUTDATED),
    ],
)
def test_end_of_an_attempt_depends_on_the_stored_generation(
    attempted: int, stored: int, has_succeeded: bool, cause: Cause
) -> None:
    ended = end_of_attempt(attempted_generation=attempted, generation=stored, has_succeeded=has_succeeded)
    assert ended is cause
    assert next_phase(R, ended) is not None


@pytest.mark.parametrize(
    ("phase", "generation", "observed", "expected"),
    [(P, 1, None, True), (P, 2, 1, True), (P, 2, 2, False), (READY, 2, 1, False), (R, 1, None, False)],
)
def test_pending_resource_whose_generation_was_not_observed_needs_an_attempt(
    phase: Phase, generation: int, observed: int | None, expected: bool
) -> None:
    assert needs_attempt(phase, generation=generation, observed_generation=observed) is expected


@pytest.mark.parametrize(
    ("phase", "observed", "expected"),
    [
        (READY, 2, True),
        (FAILED, 2, True),
        (READY, 1, False),
        (FAILED, None, False),
        (P, 2, False),
        (R, 2, False),
    ],
)
def test_settled_means_ready_or_failed_at_the_current_generation(
    phase: Phase, observed: int | None, expected: bool
) -> None:
    assert is_settled(phase, generation=2, observed_generation=observed) is expected


@given(some.lists(some.sampled_from([cause for cause in Cause if cause is not Cause.CREATED])))
def test_any_sequence_of_accepted_moves_stays_within_the_phases(causes: list[Cause]) -> None:
    phase = next_phase(None, Cause.CREATED)
    for cause in causes:
        try:
            phase = next_phase(phase, cause)
        except TransitionRefused:
            continue
        if phase is None:
            assert cause is Cause.DELETED
            break
        assert phase in Phase
