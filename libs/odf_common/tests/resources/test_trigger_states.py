from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as some

from odf_common.metadata.scalars import Timestamp
from odf_common.resources.scalar_formats import Duration
from odf_common.resources.trigger_states import (
    NO_EVENTS,
    EventPolicy,
    EventState,
    RecordRange,
    RecordsPolicy,
    RecordsState,
    advance_events,
    advance_records,
)

TEN = Duration.parse("10m")
COOLDOWN = EventPolicy(cooldown=TEN)
START = Timestamp.parse("2026-11-21T12:00:00Z")


def minute(number: float) -> Timestamp:
    return Timestamp(START.ns + int(number * 60) * 1_000_000_000)


def run(
    policy: EventPolicy, happenings: list[tuple[float, str | None]]
) -> tuple[list[tuple[float, tuple[str, ...]]], EventState]:
    state, fired = NO_EVENTS, []
    for time, event in happenings:
        step = advance_events(policy, state, minute(time), event)
        state = step.state
        fired += [(time, batch) for batch in step.firings]
        assert (step.wake_at is None) is not bool(state.gathered)
        assert step.wake_at is None or step.wake_at > minute(time)
    return fired, state


def test_without_cooldown_each_event_fires() -> None:
    fired, state = run(EventPolicy(), [(0, "a"), (0, "b"), (1, "c"), (2, None)])
    assert fired == [(0, ("a",)), (0, ("b",)), (1, ("c",))]
    assert state == NO_EVENTS


def test_cooldown_of_ten_minutes_with_events_at_0_2_and_5_fires_at_0_and_10() -> None:
    fired, state = run(COOLDOWN, [(0, "a"), (2, "b"), (5, "c"), (9, None), (10, None)])
    assert fired == [(0, ("a",)), (10, ("b", "c"))]
    assert state == EventState(cooldown_end=minute(20))
    assert advance_events(COOLDOWN, state, minute(12), "d").wake_at == minute(20)


def test_first_event_after_a_quiet_interval_fires_at_once() -> None:
    assert run(COOLDOWN, [(0, "a"), (10, None), (11, "b"), (12, "c"), (21, None)])[0] == [
        (0, ("a",)),
        (11, ("b",)),
        (21, ("c",)),
    ]


def test_full_batch_fires_before_the_cooldown_ends_and_starts_it_again() -> None:
    fired, state = run(
        EventPolicy(cooldown=TEN, max_batch=2), [(0, "a"), (1, "b"), (3, "c"), (4, "d"), (13, None)]
    )
    assert fired == [(0, ("a",)), (3, ("b", "c")), (13, ("d",))]
    assert state.cooldown_end == minute(23)


def test_event_after_the_end_of_the_cooldown_fires_what_was_gathered_first() -> None:
    fired, state = run(COOLDOWN, [(0, "a"), (2, "b"), (35, "c")])
    assert fired == [(0, ("a",)), (35, ("b",))]
    assert state == EventState(cooldown_end=minute(45), gathered=("c",))


def test_gathered_events_survive_a_restart() -> None:
    state = EventState(cooldown_end=minute(10), gathered=("a", "b"))
    step = advance_events(COOLDOWN, state, minute(90))
    assert step.firings == (("a", "b"),)
    assert step.state == EventState(cooldown_end=minute(100))


@given(
    some.lists(some.tuples(some.integers(0, 15), some.booleans())),
    some.sampled_from(
        [EventPolicy(), COOLDOWN, EventPolicy(cooldown=TEN, max_batch=2), EventPolicy(max_batch=1)]
    ),
)
def test_no_event_is_lost_or_fires_twice(pauses: list[tuple[int, bool]], policy: EventPolicy) -> None:
    time, happenings = 0, []
    for number, (pause, is_event) in enumerate(pauses):
        time += pause
        happenings.append((float(time), str(number) if is_event else None))
    fired, state = run(policy, happenings)
    events = [event for _, event in happenings if event is not None]
    assert [event for _, batch in fired for event in batch] + list(state.gathered) == events
    if policy.cooldown and not policy.max_batch:
        assert all(later - earlier >= 10 for (earlier, _), (later, _) in pairwise(fired))


AWAIT = RecordsPolicy(min_records=100, max_await=Duration.parse("1h"))
EMPTY = RecordsState(position=0, end=0)


def test_source_trigger_fires_for_one_record_by_default() -> None:
    step = advance_records(RecordsPolicy(), EMPTY, minute(0), 1)
    assert step.firings == (RecordRange(0, 1),)
    assert step.state == RecordsState(position=1, end=1)
    assert step.wake_at is None


def test_source_trigger_waits_for_the_least_number_of_records() -> None:
    waiting = advance_records(AWAIT, EMPTY, minute(0), 99)
    assert (waiting.firings, waiting.wake_at) == ((), minute(60))
    full = advance_records(AWAIT, waiting.state, minute(5), 150)
    assert full.firings == (RecordRange(0, 150),)
    assert full.state == RecordsState(position=150, end=150)


def test_source_trigger_fires_after_the_longest_wait_with_the_records_that_exist() -> None:
    waiting = advance_records(AWAIT, EMPTY, minute(0), 4)
    more = advance_records(AWAIT, waiting.state, minute(30), 7)
    assert more.wake_at == minute(60)
    assert advance_records(AWAIT, more.state, minute(59)).firings == ()
    assert advance_records(AWAIT, more.state, minute(60)).firings == (RecordRange(0, 7),)


def test_source_trigger_never_fires_without_a_record() -> None:
    step = advance_records(AWAIT, EMPTY, minute(600))
    assert (step.state, step.firings, step.wake_at) == (EMPTY, (), None)


def test_source_trigger_without_longest_wait_waits_for_the_number_alone_with_a_warning() -> None:
    policy = RecordsPolicy(min_records=10)
    step = advance_records(policy, EMPTY, minute(0), 9)
    assert (step.firings, step.wake_at) == ((), None)
    assert "wait without limit" in str(policy.warning)
    assert RecordsPolicy().warning is None
    assert AWAIT.warning is None


def test_source_trigger_counts_after_the_consumed_position_and_survives_a_restart() -> None:
    state = RecordsState(position=1000, end=1050, waiting_since=minute(0))
    assert advance_records(AWAIT, state, minute(10), 1099).firings == ()
    assert advance_records(AWAIT, state, minute(10), 1100).firings == (RecordRange(1000, 1100),)
    assert advance_records(AWAIT, state, minute(90)).firings == (RecordRange(1000, 1050),)


@given(
    some.lists(some.tuples(some.integers(0, 40), some.integers(0, 80))),
    some.sampled_from([RecordsPolicy(), AWAIT, RecordsPolicy(min_records=50)]),
)
def test_ranges_of_a_source_trigger_follow_each_other(
    pauses: list[tuple[int, int]], policy: RecordsPolicy
) -> None:
    state, time, end, expected = EMPTY, 0, 0, 0
    for pause, records in pauses:
        time, end = time + pause, end + records
        step = advance_records(policy, state, minute(time), end)
        state = step.state
        for fired in step.firings:
            assert fired.start == expected < fired.end == end
            expected = fired.end
        assert state.position == expected
        assert end - expected < policy.min_records
