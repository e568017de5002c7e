"""What is counted of rejected messages, and how their places are written."""

import pytest
from odf_testing.builders import a_dataset

from odf_common.adapters.memory import MemoryBlobStore, MemoryRefStore
from odf_common.cli.commands.rejected import _place
from odf_common.dataset.rejects import (
    HANDLED,
    REASONS,
    FirstReject,
    Handled,
    Passed,
    Place,
    load_first_rejects,
    load_handled,
    load_reasons,
    note_reason,
    passed_of,
)
from odf_common.errors import InvalidInput
from odf_common.metadata.events import SourceState
from odf_common.metadata.scalars import Timestamp


def place(offset: int) -> Place:
    return Place(topic_id="id", partition=0, offset=offset)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0/1234", ("", 0, 1234)), ("orders/2/7", ("orders", 2, 7)), ("a/b/2/7", ("a/b", 2, 7))],
)
def test_a_place_is_read_as_it_is_listed(text: str, expected: tuple[str, int, int]) -> None:
    read = _place(text)
    assert (read.source_name, read.partition, read.offset) == expected


@pytest.mark.parametrize("text", ["", "7", "0/", "/1", "0/-1", "0/x", "a/0"])
def test_what_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="expected PARTITION/OFFSET"):
        _place(text)


@pytest.mark.parametrize("kind", ["odf/kafka", "other"])
@pytest.mark.parametrize("value", ["", "null", "[]", "{}", '{"topics": {"t": {}}, "rejected": 3}'])
def test_a_source_state_that_says_nothing_of_this_counts_as_nothing(kind: str, value: str) -> None:
    assert passed_of(SourceState(source_name="a", kind=kind, value=value)) == Passed()


@pytest.mark.parametrize("damage", ["", "{", "[]", "7"])
def test_damaged_notes_count_as_none(damage: str) -> None:
    blobs, dataset = MemoryBlobStore(MemoryRefStore()), a_dataset()
    blobs.set_note(dataset, HANDLED, damage)
    blobs.set_note(dataset, REASONS, damage)
    assert load_handled(blobs, dataset) == Handled()
    note_reason(blobs, dataset, "a", "why", now=Timestamp(1))
    assert load_reasons(blobs, dataset) == {"a": "why"}
    note_reason(blobs, dataset, "a", None, now=Timestamp(2))
    assert blobs.note(dataset, REASONS) is None


def test_the_time_of_the_first_reject_stays_until_none_is_open() -> None:
    blobs, dataset = MemoryBlobStore(MemoryRefStore()), a_dataset()
    blobs.set_note(dataset, REASONS, '{"a": "of an earlier release"}')
    assert load_first_rejects(blobs, dataset) == {"a": FirstReject(reason="of an earlier release")}
    for reason, now, since in (("b", 5, 5), ("c", 6, 5), (None, 7, None), ("d", 8, 8)):
        note_reason(blobs, dataset, "a", reason, now=Timestamp(now))
        found = load_first_rejects(blobs, dataset).get("a")
        assert found == (None if reason is None else FirstReject(reason=reason, since=Timestamp(since or 0)))


def test_decisions_hold_up_to_where_the_source_stands() -> None:
    handled = Handled().with_places("a", [place(1), place(5), place(9)])
    passed = Passed(rejected=4, ends={("id", 0): 6})
    assert handled.as_of("a", passed) == Handled(counts={"a": 2}, places=frozenset({place(1), place(5)}))
    assert handled.as_of("a", Passed(rejected=4, ends={("id", 0): 10})) == handled
    all_of_them = handled.with_all("a", Passed(rejected=7, ends={("id", 0): 20}))
    assert all_of_them == Handled(counts={"a": 7}, through={("id", 0): 20})
    assert all_of_them.as_of("a", passed) == Handled(counts={"a": 4}, through={("id", 0): 6})
