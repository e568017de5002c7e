from odf_common.errors import InvalidInput
from odf_common.identity.keys import generate
from odf_coordinator.planner import Line, Result

ONE, TWO = generate().dataset_id, generate().dataset_id


def test_first_marked_is_first_taken_and_each_once_at_a_time() -> None:
    line = Line()
    line.mark(TWO)
    line.mark(ONE)
    line.mark(TWO)

    assert line.take(0.0) == (TWO, False)
    line.mark(TWO)
    assert line.take(0.0) == (ONE, False)
    assert line.take(0.0) is None


def test_a_mark_during_a_look_is_a_further_look() -> None:
    line = Line()
    before = line.mark(ONE)
    line.take(0.0)
    during = line.mark(ONE)

    line.finish(ONE, Result(records=1))

    assert line.result(ONE, before) == Result(records=1)
    assert line.result(ONE, during) is None
    assert line.take(0.0) == (ONE, False)


def test_a_postponed_look_keeps_its_tickets_open_and_waits() -> None:
    line = Line()
    ticket = line.mark(ONE)
    line.take(0.0)

    line.postpone(ONE, 5.0)

    assert line.result(ONE, ticket) is None
    assert line.next_due() == 5.0
    assert line.take(4.9) is None
    assert line.take(5.0) == (ONE, False)


def test_a_failure_is_told_and_another_look_follows() -> None:
    line = Line()
    ticket = line.mark(ONE)
    line.take(0.0)
    failed = Result(error=InvalidInput(text="no"))

    line.finish(ONE, failed, again_at=3.0)

    assert line.result(ONE, ticket) == failed
    assert line.pauses(ONE) == 1
    assert line.take(2.0) is None
    assert line.take(3.0) == (ONE, False)


def test_a_forced_mark_does_not_wait() -> None:
    line = Line()
    line.mark(ONE)
    line.take(0.0)
    line.postpone(ONE, 100.0)

    line.mark(ONE, is_forced=True)

    assert line.take(0.0) == (ONE, True)


def test_what_was_removed_needs_no_look() -> None:
    line = Line()
    ticket = line.mark(ONE)
    line.forget((ONE,))

    assert line.take(0.0) is None
    assert line.result(ONE, ticket) == Result()
