from typing import Any

import pytest

from odf_common.errors import InvalidInput
from odf_common.metadata.scalars import Timestamp
from odf_common.resources.node_events import (
    EventDataset,
    EventType,
    NodeEvent,
    RefUpdate,
    check_event,
    concerns,
    event_matches,
    filter_of_types,
    parse_event_filter,
)

EVENT = NodeEvent(
    id="e1",
    source="https://node.example.com",
    type=EventType.REF_UPDATED,
    time=Timestamp.parse("2026-11-21T12:00:00Z"),
    subject="Org.Rivers",
    dataset=EventDataset(id="d1", name="Org.Rivers", account="Alice"),
    ref=RefUpdate(name="head", old_hash=None, new_hash="f1620aa", interval=(0, 9)),
)
PLAIN: dict[str, Any] = EVENT.plain()


def test_envelope_has_the_attributes_of_cloud_events_and_dataset_and_ref() -> None:
    assert PLAIN == {
        "specversion": "1.0",
        "id": "e1",
        "source": "https://node.example.com",
        "type": "dataset.ref.updated",
        "subject": "Org.Rivers",
        "time": "2026-11-21T12:00:00Z",
        "dataset": {"id": "d1", "name": "Org.Rivers", "account": "Alice"},
        "ref": {
            "name": "head",
            "oldHash": None,
            "newHash": "f1620aa",
            "interval": {"start": 0, "end": 9},
            "breaking": False,
        },
    }
    check_event(PLAIN)


@pytest.mark.parametrize("type", EventType)
def test_event_of_each_type_may_have_no_dataset(type: EventType) -> None:
    event = NodeEvent(id="e2", source="urn:odf:node", type=type, time=EVENT.time, data={"records": 5})
    assert event.plain().keys() == {"specversion", "id", "source", "type", "time", "data"}
    check_event(event.plain())


def test_types_of_events() -> None:
    assert set(EventType) == {
        "dataset.created",
        "dataset.deleted",
        "dataset.ref.updated",
        "dataset.data.added",
        "source.data.received",
        "resource.phase.changed",
        "flow.run.finished",
        "verification.finished",
    }


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"specversion": "0.3"}, "specversion"),
        ({"id": ""}, "id: expected a string"),
        ({"source": 5}, "source: expected a string"),
        ({"type": "dataset.ref.update"}, "did you mean dataset.ref.updated"),
        ({"type": "x"}, "expected one of dataset.created"),
        ({"time": "yesterday"}, "RFC 3339"),
        ({"dataset": {"id": "d1"}}, "name: expected a string"),
        ({"dataset": "d1"}, "dataset: expected an object"),
        ({"ref": {"name": "head"}}, "newHash: expected a string"),
        ({"extra": 1}, "extra: unknown attribute"),
    ],
)
def test_event_of_another_form_is_refused(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem):
        check_event({**PLAIN, **changes})


@pytest.mark.parametrize(
    ("filter", "expected"),
    [
        ({"type": "dataset.ref.updated"}, True),
        ({"type": "dataset.created"}, False),
        ({"type": {"$in": ["dataset.created", "dataset.ref.updated"]}}, True),
        ({"type": {"$like": "dataset.%"}}, True),
        ({"dataset.name": "org.rivers"}, True),
        ({"dataset.name": {"$like": "ORG.%"}}, True),
        ({"dataset.account": "alice"}, True),
        ({"ref.breaking": False}, True),
        ({"ref.breaking": 0}, False),
        ({"ref.interval.end": 9}, True),
        ({"ref.oldHash": None}, True),
        ({"ref.interval.end.x": {"$exists": False}}, True),
        ({"data.records": {"$exists": True}}, False),
        ({"data.records": 5}, False),
        ({"data.records": {"$like": "%"}}, False),
        ({"subject": "org.rivers"}, False),
        ({"$not": {"dataset.name": "org.lakes"}}, True),
        ({"$or": [{"dataset.name": "org.lakes"}, {"subject": "Org.Rivers"}]}, True),
        ({"dataset": {"id": "d1", "name": "Org.Rivers", "account": "Alice"}}, True),
    ],
)
def test_event_filter_walks_into_fields_by_dots(filter: dict[str, Any], expected: bool) -> None:
    assert event_matches(parse_event_filter(filter), PLAIN) is expected


@pytest.mark.parametrize(
    ("filter", "problem"),
    [
        ({"type": "dataset.changed"}, "unknown type of event"),
        ({"$not": {"$or": [{"type": "x"}]}}, "unknown type of event"),
        ({"$and": [{"type": {"$in": ["dataset.created", "x"]}}, {"id": "1"}]}, "unknown type of event"),
        ({"dataset..name": "x"}, "is not a field of an event"),
        ({"dataset[0]": "x"}, "is not a field of an event"),
        ({"$nor": []}, "unknown operator"),
    ],
)
def test_event_filter_of_another_form_is_refused(filter: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem):
        parse_event_filter(filter)


def test_list_of_types_is_shorthand_for_in() -> None:
    assert event_matches(filter_of_types(["dataset.created", "dataset.ref.updated"]), PLAIN)
    assert not event_matches(filter_of_types(["dataset.created"]), PLAIN)
    with pytest.raises(InvalidInput, match="did you mean"):
        filter_of_types(["dataset.ref.updatd"])


def test_event_with_a_dataset_concerns_its_instance_and_others_concern_all() -> None:
    assert concerns(PLAIN, "d1")
    assert not concerns(PLAIN, "d2")
    assert concerns({"type": "verification.finished"}, "d2")
