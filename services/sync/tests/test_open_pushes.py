"""Which pushes are in progress, and for how long their uploads are still accepted after they have ended."""

from contextlib import ExitStack

import pytest
from odf_testing.builders import a_dataset, a_hash

from odf_common.ports.store import ObjectKind
from odf_sync.http.object_uploads import LINGERING_SECONDS, OpenPushes

ONE, OTHER = a_dataset("one"), a_dataset("other")


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def pushes(clock: Clock) -> OpenPushes:
    return OpenPushes(clock)


def test_a_name_is_reserved_for_the_dataset_that_is_pushed_to_it_and_a_while_longer(
    pushes: OpenPushes, clock: Clock
) -> None:
    assert pushes.dataset("cities") is None
    with pushes.pushing("Cities", ONE):
        clock.now += 10 * LINGERING_SECONDS
        assert pushes.dataset("CITIES") == ONE
        assert pushes.dataset("towns") is None
    clock.now += LINGERING_SECONDS - 1
    assert pushes.dataset("cities") == ONE
    clock.now += 1
    assert pushes.dataset("cities") is None


def test_of_several_pushes_the_newest_is_used_and_ended_ones_only_after_them(
    pushes: OpenPushes, clock: Clock
) -> None:
    with ExitStack() as first:
        first.enter_context(pushes.pushing("cities", ONE))
        with pushes.pushing("cities", OTHER):
            assert pushes.dataset("cities") == OTHER
        assert pushes.dataset("cities") == ONE
    assert pushes.dataset("cities") == ONE
    with pushes.pushing("towns", OTHER):
        clock.now += LINGERING_SECONDS
    assert (pushes.dataset("cities"), pushes.dataset("towns")) == (None, OTHER)


def test_bytes_are_counted_while_a_name_is_pushed_to(pushes: OpenPushes) -> None:
    pushes.note_received("cities", 5)
    with pushes.pushing("Cities", ONE):
        pushes.note_received("cities", 7)
        pushes.note_received("towns", 9)
        assert (pushes.bytes_received("CITIES"), pushes.bytes_received("towns")) == (7, 0)
        with pushes.pushing("cities", ONE):
            pushes.note_received("Cities", 1)
        assert pushes.bytes_received("cities") == 8
    assert pushes.bytes_received("cities") == 0


def test_a_name_is_pushed_to_by_one_dataset(pushes: OpenPushes) -> None:
    assert not pushes.are_of_others("cities", ONE)
    with pushes.pushing("Cities", ONE):
        assert not pushes.are_of_others("cities", ONE)
        assert pushes.are_of_others("CITIES", OTHER)
        assert not pushes.are_of_others("towns", OTHER)
    assert not pushes.are_of_others("cities", OTHER)


def test_the_archives_of_a_name_are_those_of_its_exchanges(pushes: OpenPushes) -> None:
    with pushes.exchanging("Cities"), pushes.exchanging("cities"), pushes.exchanging("towns"):
        assert pushes.archives("cities") == ()
        assert pushes.takes_archive("cities", a_hash("x"))
        assert pushes.takes_archive("cities", a_hash("y"))
        assert pushes.archives("CITIES") == (a_hash("x"), a_hash("y"))
        assert pushes.archives("towns") == pushes.archives("nowhere") == ()


def test_listeners_of_a_dataset_are_notified_of_its_stored_objects(pushes: OpenPushes) -> None:
    heard: list[tuple[str, object]] = []
    name = a_hash("x")

    def note(who: str) -> None:
        pushes.note_object(ONE, ObjectKind.DATA, name)
        heard.append((who, None))

    with pushes.listening(ONE, lambda *one: heard.append(("first", one))):
        with (
            pushes.listening(ONE, lambda *one: heard.append(("second", one))),
            pushes.listening(OTHER, lambda *one: heard.append(("other", one))),
        ):
            note("both")
        note("one")
    note("none")
    object_ = (ObjectKind.DATA, name)
    assert heard == [
        ("first", object_),
        ("second", object_),
        ("both", None),
        ("first", object_),
        ("one", None),
        ("none", None),
    ]


def test_each_exchange_takes_one_archive_and_lingers_only_if_it_had_one(
    pushes: OpenPushes, clock: Clock
) -> None:
    a, b, c = (a_hash(name) for name in "abc")
    assert not pushes.takes_archive("cities", a)
    with pushes.exchanging("cities"):
        assert [pushes.takes_archive("CITIES", one) for one in (a, a, b)] == [True, True, False]
        with pushes.exchanging("Cities"):
            assert [pushes.takes_archive("cities", one) for one in (b, a, c)] == [True, True, False]
    with pushes.exchanging("towns"):
        pass
    assert not pushes.takes_archive("towns", a)
    clock.now += LINGERING_SECONDS - 1
    assert [pushes.takes_archive("cities", one) for one in (a, b, c)] == [True, True, False]
    clock.now += 1
    assert not pushes.takes_archive("cities", a)
    with pushes.exchanging("towns"):
        assert pushes.archives("cities") == ()
    with pushes.exchanging("cities"):
        assert pushes.takes_archive("cities", c)
