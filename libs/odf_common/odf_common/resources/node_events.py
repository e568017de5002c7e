"""Events of a node that triggers of flows wait for: CloudEvents 1.0, and filters over them.

Besides the attributes of CloudEvents an event has `dataset` and `ref`, if it is about a dataset. Keys of a filter are
fields of the event; dots lead into objects, as in `dataset.name`.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Self

from odf_common.errors import InvalidInput, nearest
from odf_common.metadata.scalars import Timestamp
from odf_common.resources.filters import All, AnyOf, Filter, FilterKey, Not, ValueIn, holds, parse_filter

SPEC_VERSION: Final = "1.0"
_PATH: Final = re.compile(r"[A-Za-z][A-Za-z0-9]*(?:\.[A-Za-z][A-Za-z0-9]*)*")
_NAMES: Final = ("dataset.name", "dataset.account")
_ATTRIBUTES: Final = ("specversion", "id", "source", "type", "subject", "time", "dataset", "ref", "data")


class EventType(StrEnum):
    """Type of an event."""

    DATASET_CREATED = "dataset.created"
    DATASET_DELETED = "dataset.deleted"
    REF_UPDATED = "dataset.ref.updated"
    DATA_ADDED = "dataset.data.added"
    DATA_RECEIVED = "source.data.received"
    PHASE_CHANGED = "resource.phase.changed"
    RUN_FINISHED = "flow.run.finished"
    VERIFICATION_FINISHED = "verification.finished"

    @classmethod
    def parse(cls, text: object) -> Self:
        """Read a type; raises `InvalidInput`."""
        try:
            return cls(str(text))
        except ValueError as error:
            similar = nearest(str(text), cls)
            hint = f"did you mean {similar}?" if similar else f"expected one of {', '.join(cls)}"
            raise InvalidInput(text=f"unknown type of event {text!r}; {hint}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class EventDataset:
    """The dataset of an event."""

    id: str
    """The id of its resource."""
    name: str
    account: str
    """The name of the owner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefUpdate:
    """A move of a reference of a chain."""

    name: str
    old_hash: str | None
    new_hash: str
    interval: tuple[int, int] | None = None
    """First and last offset of new records; None: there are none."""
    is_breaking: bool = False
    """Whether blocks were replaced, so that consumers cannot continue."""

    def plain(self) -> dict[str, object]:
        """Return the object in an event."""
        return {
            "name": self.name,
            "oldHash": self.old_hash,
            "newHash": self.new_hash,
            "interval": None
            if self.interval is None
            else dict(zip(("start", "end"), self.interval, strict=True)),
            "breaking": self.is_breaking,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEvent:
    """An event of this node."""

    id: str
    """Unique among the events of the source, so that repeats are recognised."""
    source: str
    """The URI of the node, or of a part of it."""
    type: EventType
    time: Timestamp
    subject: str | None = None
    dataset: EventDataset | None = None
    ref: RefUpdate | None = None
    data: Mapping[str, object] | None = None
    """More facts, which depend on the type."""

    def plain(self) -> dict[str, object]:
        """Return the event as JSON, without absent attributes."""
        dataset = self.dataset
        attributes = {
            "specversion": SPEC_VERSION,
            "id": self.id,
            "source": self.source,
            "type": str(self.type),
            "subject": self.subject,
            "time": str(self.time),
            "dataset": dataset and {"id": dataset.id, "name": dataset.name, "account": dataset.account},
            "ref": self.ref and self.ref.plain(),
            "data": self.data,
        }
        return {name: value for name, value in attributes.items() if value is not None}


def check_event(event: Mapping[str, object]) -> None:
    """Raise `InvalidInput` unless an object is an event as `NodeEvent.plain` returns it."""
    unknown = next((name for name in event if name not in _ATTRIBUTES), None)
    if unknown is not None:
        raise InvalidInput(where=unknown, text=f"unknown attribute; expected {', '.join(_ATTRIBUTES)}")
    if event.get("specversion") != SPEC_VERSION:
        raise InvalidInput(where="specversion", text=f"expected {SPEC_VERSION!r}")
    for name in ("id", "source"):
        _require_text(event, name)
    EventType.parse(event.get("type"))
    Timestamp.parse(_require_text(event, "time"))
    if "dataset" in event:
        for name in ("id", "name", "account"):
            _require_text(_require_object(event, "dataset"), name)
    if "ref" in event:
        for name in ("name", "newHash"):
            _require_text(_require_object(event, "ref"), name)


def concerns(event: Mapping[str, object], dataset_id: str) -> bool:
    """Return whether an event is for the instance of a flow with this target: it is about it, or about no dataset."""
    dataset = event.get("dataset")
    return not isinstance(dataset, Mapping) or dataset.get("id") == dataset_id


def parse_event_filter(filter: object) -> Filter:
    """Read an EventFilter; raises `InvalidInput` for keys that no event has a form for, and for unknown types."""
    found = parse_filter(filter, _parse_key)
    _check_types(found)
    return found


def filter_of_types(types: Iterable[str]) -> Filter:
    """Return the filter that a list of types stands for; raises `InvalidInput` for unknown ones."""
    return ValueIn("type", tuple(str(EventType.parse(text)) for text in types))


def event_matches(filter: Filter, event: Mapping[str, object]) -> bool:
    """Return whether a filter holds for an event."""
    return holds(filter, lambda path: _values(event, path))


def _values(event: Mapping[str, object], path: str) -> tuple[object, ...]:
    value: object = event
    for name in path.split("."):
        if not isinstance(value, Mapping) or name not in value:
            return ()
        value = value[name]
    return (value.lower() if path in _NAMES and isinstance(value, str) else value,)


def _parse_key(text: str) -> FilterKey:
    if not _PATH.fullmatch(text):
        raise InvalidInput(text=f"{text!r} is not a field of an event; expected names joined by dots")
    return FilterKey(text, is_name=text in _NAMES)


def _check_types(filter: Filter) -> None:
    match filter:
        case ValueIn("type", values):
            for value in values:
                EventType.parse(value)
        case All(filters) | AnyOf(filters):
            for part in filters:
                _check_types(part)
        case Not(negated):
            _check_types(negated)
        case _:
            pass


def _require_object(event: Mapping[str, object], name: str) -> Mapping[str, object]:
    value = event.get(name)
    if not isinstance(value, Mapping):
        raise InvalidInput(where=name, text=f"expected an object, got {value!r}")
    return value


def _require_text(event: Mapping[str, object], name: str) -> str:
    value = event.get(name)
    if not isinstance(value, str) or not value:
        raise InvalidInput(where=name, text=f"expected a string that is not empty, got {value!r}")
    return value
