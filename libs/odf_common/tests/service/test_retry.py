import threading

import pytest

from odf_common.errors import StorageUnavailable, Unavailable
from odf_common.ports.clock import Backoff
from odf_common.service.consumer.retry import keep_trying


def test_pauses_grow_up_to_the_longest() -> None:
    backoff = Backoff(first=0.1, most=0.5)
    assert [backoff.pause(failures) for failures in range(6)] == [0.1, 0.1, 0.2, 0.4, 0.5, 0.5]
    assert Backoff(first=0.1, most=10.0, factor=3).pause(3) == 0.1 * 9


def test_pauses_of_endless_retries_do_not_overflow() -> None:
    assert Backoff(first=0.2, most=15.0).pause(10**9) == 15.0


def test_an_action_is_retried_until_it_succeeds_or_the_service_stops() -> None:
    tries = 0

    def third() -> int:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise Unavailable(what="Kafka")
        return tries

    assert keep_trying(third, threading.Event()) == 3
    stop, tries = threading.Event(), -(10**9)
    stop.set()
    assert keep_trying(third, stop) is None
    assert tries == 1 - 10**9


def test_an_error_that_is_final_is_raised_at_once() -> None:
    def failing() -> None:
        raise StorageUnavailable(why="full")

    with pytest.raises(StorageUnavailable):
        keep_trying(failing, threading.Event(), final=StorageUnavailable)
