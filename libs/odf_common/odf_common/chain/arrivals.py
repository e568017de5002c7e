"""Rules for blocks that come from elsewhere: pushed, pulled, or accepted from a reference by the owner.

`OWNED` has a row per kind of metadata event, for datasets whose key this node has. The node runs the sources and the
transform of these datasets with its own rights, and commits to them. Whoever sends the blocks, only the owner changes
what the node runs and how far it has read. A copy accepts everything that the rules of the chain (`chain/rules`) allow.
No chain accepts a system time in the future, because no later block could then have an earlier time.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Self

from odf_common.chain.state import ChainState, Definitions
from odf_common.errors import Refused
from odf_common.metadata.events import (
    AddData,
    AddPushSource,
    DisablePollingSource,
    DisablePushSource,
    ExecuteTransform,
    KnownEvent,
    MetadataBlock,
    MetadataEvent,
    Seed,
    SetAttachments,
    SetDataSchema,
    SetInfo,
    SetLicense,
    SetPollingSource,
    SetTransform,
    SetVocab,
    SourceState,
    UnknownEvent,
    vocabulary_of,
)
from odf_common.metadata.scalars import Timestamp

MAX_SHOWN_CHARACTERS: Final = 200  # of a source state, in a list of changes
ACCEPT: Final = (
    "to accept it, on the node with the dataset's key: `odf pull URL --as DATASET@theirs`, `odf log DATASET@theirs`, "
    "`odf ref fast-forward DATASET@theirs`"
)
RESTORE: Final = (
    "its key is here, but the dataset is not; to restore it, move the key's file out of `keys` in the node's home, "
    "pull the dataset, and move the key back"
)


class ForeignDefinition(Refused):
    """The chain would change a transform, a source or their columns in a dataset whose key this node has."""


class ForeignProgress(Refused):
    """The chain would change how far this node has read a source or an input of a dataset whose key it has."""


class TimeInFuture(Refused):
    """The system time of a block is further in the future than the tolerance for clocks of different machines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnWork:
    """The definitions that this node runs for a dataset whose key it has, and the states of the sources."""

    definitions: Definitions = field(default_factory=Definitions)
    source_states: Mapping[str, SourceState] = field(default_factory=dict)
    accept: str = ACCEPT
    """Advice on how the owner can accept the refused change."""

    @classmethod
    def at_head(cls, state: ChainState | None) -> Self:
        """Return the definitions and source states at the head of a dataset.

        Without a state, the dataset no longer exists although its key does.
        """
        if state is None:
            return cls(accept=RESTORE)
        return cls(definitions=state.definitions, source_states=state.source_states)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """The conditions under which arriving blocks are accepted."""

    latest: Timestamp
    """The latest system time and the latest new watermark that a block may have."""
    own: OwnWork | None = None
    """Set if this node has the dataset's key; None for a copy, or if the owner accepts a reference."""


# What is wrong with an event on top of a state: the error without the advice, or None.
Row = Callable[[Timestamp, OwnWork, ChainState, MetadataEvent], Refused | None]


def anything(latest: Timestamp, own: OwnWork, past: ChainState, event: MetadataEvent) -> Refused | None:
    """Accept any event that the rules of the chain allow."""
    return None


def as_here(what: str) -> Row:
    """Return a check that accepts only the definition in force on this node, or the one before the block."""

    def check(latest: Timestamp, own: OwnWork, past: ChainState, event: MetadataEvent) -> Refused | None:
        assert isinstance(event, KnownEvent)
        known = past.definitions.replaced_by(event), own.definitions.replaced_by(event)
        return None if event in known else ForeignDefinition(text=what)

    return check


def never(error: type[Refused], what: str) -> Row:
    """Return a check that accepts no event."""

    def check(latest: Timestamp, own: OwnWork, past: ChainState, event: MetadataEvent) -> Refused | None:
        return error(text=what)

    return check


def without_progress(
    latest: Timestamp, own: OwnWork, past: ChainState, event: MetadataEvent
) -> Refused | None:
    """Accept records, but no progress of a source and no watermark in the future.

    The state of a source may be the one on this node, or the one before the block.
    """
    assert isinstance(event, AddData)
    position, watermark = event.new_source_state, event.new_watermark
    if position is not None:
        name = position.source_name
        if position not in (past.source_states.get(name), own.source_states.get(name)):
            return ForeignProgress(text=f"the state of source {name}")
    is_raised = watermark is not None and watermark != past.watermark
    if watermark is not None and is_raised and watermark > latest:
        return ForeignProgress(text=f"the watermark to {watermark}, which is in the future")
    return None


_PUSH_SOURCES: Final = "the push sources"
_POLLING_SOURCE: Final = "the polling source"
_TRANSFORM: Final = "the transform"
_COLUMNS: Final = "the names of the system columns"
_SCHEMA: Final = "the schema"

OWNED: Final[Mapping[type[MetadataEvent], Row]] = {
    AddData: without_progress,
    ExecuteTransform: never(ForeignProgress, "results of the transform"),
    Seed: anything,
    SetPollingSource: as_here(_POLLING_SOURCE),
    SetTransform: as_here(_TRANSFORM),
    SetVocab: as_here(_COLUMNS),
    SetAttachments: anything,
    SetInfo: anything,
    SetLicense: anything,
    SetDataSchema: as_here(_SCHEMA),
    AddPushSource: as_here(_PUSH_SOURCES),
    DisablePushSource: anything,  # but `require_same_work` at the last block
    DisablePollingSource: anything,  # likewise
    UnknownEvent: never(ForeignDefinition, "what an event of an unknown kind defines"),
}


def require_admissible(arrival: Arrival, past: ChainState | None, block: MetadataBlock) -> None:
    """Raise `TimeInFuture`, `ForeignDefinition` or `ForeignProgress` if a block may not arrive on top of `past`.

    Every block is checked, not only the last one, because a rollback or a verification would run earlier definitions.
    """
    require_past_time(block.system_time, arrival.latest, number=block.sequence_number)
    if arrival.own is None or past is None:
        return
    error = OWNED[type(block.event)](arrival.latest, arrival.own, past, block.event)
    if error is not None:
        raise type(error)(text=_only_the_owner(error.text, arrival.own))


def require_same_work(own: OwnWork, after: Definitions) -> None:
    """Raise `ForeignDefinition` unless the chain ends with the transform, sources and columns that this node runs."""
    changed = [what for what, old, new in _work(own.definitions, after) if old != new]
    if changed:
        raise ForeignDefinition(text=_only_the_owner(", ".join(changed), own))


def require_past_time(time: Timestamp, latest: Timestamp, *, number: int | None = None) -> None:
    """Raise `TimeInFuture` if a system time is later than `latest`."""
    if time > latest:
        block = "a block" if number is None else f"block {number}"
        text = (  # a client of a Smart Transfer sees some 50 characters
            f"{block} is from the future: {time}; the latest time allowed now is {latest}. Set the clock that is "
            "wrong, here or where the block was made; ODF_CLOCK_TOLERANCE_MS is how far clocks may differ"
        )
        raise TimeInFuture(text=text)


def changes(before: ChainState, after: ChainState) -> Iterator[str]:
    """Yield descriptions of the changes that the owner accepts with a chain.

    They are changes of definitions, of positions of sources and inputs, and of the watermark.
    """
    for what, old, new in (*_work(before.definitions, after.definitions), _schemas(before, after)):
        if old != new:
            yield what
    for name, state in after.source_states.items():
        old_state = before.source_states.get(name)
        if state != old_state:
            yield f"the state of source {name}: {_short_text(old_state)} → {_short_text(state)}"
    if after.input_progress != before.input_progress:
        yield "how far the inputs have been read"
    if after.watermark != before.watermark:
        yield f"the watermark: {before.watermark or 'none'} → {after.watermark or 'none'}"


def _work(old: Definitions, new: Definitions) -> Iterator[tuple[str, object, object]]:
    yield _TRANSFORM, old.transform, new.transform
    yield _POLLING_SOURCE, old.polling_source, new.polling_source
    yield _PUSH_SOURCES, old.push_sources, new.push_sources
    yield _COLUMNS, vocabulary_of(old.vocab), vocabulary_of(new.vocab)
    yield "a source of an unknown kind", old.has_opaque_source, new.has_opaque_source


def _schemas(before: ChainState, after: ChainState) -> tuple[str, object, object]:
    return _SCHEMA, before.schema, after.schema


def _short_text(state: SourceState | None) -> str:
    text = "none" if state is None else f"{state.kind} {state.value}"
    return text if len(text) <= MAX_SHOWN_CHARACTERS else f"{text[:MAX_SHOWN_CHARACTERS]}…"


def _only_the_owner(what: str, own: OwnWork) -> str:
    return f"only the owner may change {what}; {own.accept}"  # a client of a Smart Transfer sees some 50 characters
