from itertools import product

import pytest

from odf_ingest.push.lifecycle.source_record import LIVE, TRANSITIONS, Event, IllegalTransition, Phase, after

EVERY = list(product(Phase, Event))


@pytest.mark.parametrize(("phase", "event"), EVERY)
def test_every_event_leads_to_one_phase_or_is_refused(phase: Phase, event: Event) -> None:
    if event in TRANSITIONS[phase]:
        assert after(phase, event) in Phase
    else:
        with pytest.raises(IllegalTransition, match=phase.value):
            after(phase, event)


def test_every_phase_has_a_row_and_every_event_a_column() -> None:
    assert set(TRANSITIONS) == set(Phase)
    assert {event for row in TRANSITIONS.values() for event in row} == set(Event)


def test_every_phase_is_reached_and_can_be_left_but_closed() -> None:
    reached, new = set[Phase](), {Phase.OPENING}
    while new:
        reached |= new
        new = {phase for one in new for phase in TRANSITIONS[one].values()} - reached
    assert reached == set(Phase)
    assert [phase for phase, row in TRANSITIONS.items() if Event.CLOSE not in row] == [Phase.CLOSED]
    assert TRANSITIONS[Phase.CLOSED] == {}


def test_whatever_takes_messages_can_be_reopened_and_stopped() -> None:
    for phase in LIVE:
        assert after(phase, Event.REOPEN) is Phase.OPENING
        assert after(phase, Event.STOP) is Phase.STOPPED


def test_only_a_user_or_the_chain_resumes_a_stopped_source() -> None:
    assert set(TRANSITIONS[Phase.STOPPED]) == {Event.RESUME, Event.CLOSE}
