"""How a manifest's events compare with what a chain says: nothing new, a change, or what cannot be."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from odf_common.chain.build_blocks import build_blocks
from odf_common.chain.state import ChainState
from odf_common.codec.flatbuffers import VERSIONS
from odf_common.data.schema_evolution import schema_of_event
from odf_common.errors import ChainRuleViolated, InvalidInput
from odf_common.metadata.events import (
    AddPushSource,
    DatasetKind,
    KnownEvent,
    Seed,
    SetAttachments,
    SetDataSchema,
    SetInfo,
    SetLicense,
    SetPollingSource,
    SetTransform,
    SetVocab,
)
from odf_common.metadata.scalars import Timestamp
from odf_common.metadata.snapshot import DatasetSnapshot
from odf_common.metadata.steps import MergeStrategySnapshot
from odf_coordinator.catalog.registry import inputs_of
from odf_coordinator.definitions.declared_columns import require_pollable, require_possible
from odf_coordinator.definitions.declared_schemas import vocabulary_of_events
from odf_coordinator.definitions.schema_evolution import require_continuing

ADVICE = "delete the dataset and add it again, or add it under another name"


def in_force(state: ChainState, event: KnownEvent) -> KnownEvent | None:
    """Return the event of a chain that `event` would replace, None where there is none."""
    match event:
        case SetVocab():
            return state.vocab
        case SetInfo():
            return state.info
        case SetLicense():
            return state.license
        case SetAttachments():
            return state.attachments
        case SetDataSchema():
            return state.schema
        case SetTransform():
            return state.transform
        case SetPollingSource():
            return state.polling_source
        case AddPushSource():
            return state.push_sources.get(event.source_name)
        case _:
            return None


def standing(state: ChainState, events: Sequence[KnownEvent]) -> tuple[KnownEvent, ...]:
    """Return the events, a transform that names no version as the chain has it, where it is the same otherwise.

    So a manifest says the same after the engine has changed; who wants the new one commits the SetTransform again.
    """
    known = state.transform
    if known is None:
        return tuple(events)
    without = replace(known, transform=replace(known.transform, version=None))
    return tuple(known if event == without else event for event in events)


def changes(state: ChainState, events: Sequence[KnownEvent]) -> tuple[KnownEvent, ...]:
    """Return those events that would change what the chain says."""
    return tuple(event for event in events if in_force(state, event) != event)


@contextmanager
def event_at(number: int) -> Iterator[None]:
    """Put the path of an event of a snapshot before that of each complaint about it."""
    try:
        yield
    except InvalidInput as error:
        below = f".{error.where}" if error.where else ""
        raise replace(error, where=f"content.metadata[{number}]{below}") from error


def dropped_sources(state: ChainState, events: Sequence[KnownEvent]) -> tuple[str, ...]:
    """Return the sources of a chain that the events do not define."""
    kept = {event.source_name for event in events if isinstance(event, AddPushSource)}
    dropped = [name for name in state.push_sources if name not in kept]
    if state.polling_source is not None and not any(isinstance(event, SetPollingSource) for event in events):
        dropped.append("polling")
    return tuple(dropped)


def require_whole(snapshot: DatasetSnapshot) -> None:
    """Return if a dataset can be made of the snapshot's events alone; raises `InvalidInput` with the whole path."""
    events = snapshot.metadata
    if snapshot.kind is DatasetKind.Derivative and not any(
        isinstance(event, SetTransform) for event in events
    ):
        text = "a derivative dataset needs a SetTransform; add one, or make its kind Root"
        raise InvalidInput(text=text, where="content.metadata")
    vocabulary = vocabulary_of_events(events)
    _require_side_by_side(events)
    for number, event in enumerate(events):
        with event_at(number):
            require_possible(event, vocabulary)
    schema = next((event for event in events if isinstance(event, SetDataSchema)), None)
    for number, event in enumerate(events):
        if schema is not None and isinstance(event, AddPushSource | SetPollingSource):
            with event_at(number):
                require_continuing(schema_of_event(schema), event, None, vocabulary)


def _require_side_by_side(events: Sequence[KnownEvent]) -> None:
    """Return if the sources may stand side by side."""
    kinds: set[type] = set()
    names: set[str] = set()
    before: list[AddPushSource] = []
    for number, event in enumerate(events):
        kinds.add(type(event))
        with event_at(number):
            if {AddPushSource, SetPollingSource} <= kinds:
                raise InvalidInput(text="a dataset takes pushes or is polled, not both; remove one source")
            if isinstance(event, AddPushSource):
                if event.source_name in names:
                    text = f"source {event.source_name} is defined twice"
                    raise InvalidInput(text=text, where="sourceName")
                names.add(event.source_name)
                _require_only_snapshot(event, before)
                before.append(event)


def _require_only_snapshot(source: AddPushSource, others: Iterable[AddPushSource]) -> None:
    """Raise `InvalidInput` if a source and another one of the dataset would each retract the other's records."""
    for other in others:
        is_pair = isinstance(source.merge, MergeStrategySnapshot) and isinstance(
            other.merge, MergeStrategySnapshot
        )
        if is_pair and other.source_name != source.source_name:
            text = (
                f"source {other.source_name} takes snapshots too, and each would retract the records of the other; "
                "disable one of them, or make two datasets"
            )
            raise InvalidInput(text=text, where="merge")


def require_replaceable(state: ChainState, kind: DatasetKind, events: Sequence[KnownEvent]) -> None:
    """Return if the events may be appended to the chain in place of what it says; raises `InvalidInput`."""
    if kind is not state.kind:
        raise InvalidInput(text=f"the dataset is {state.kind.name} and cannot become {kind.name}; {ADVICE}")
    dropped = dropped_sources(state, events)
    if dropped:
        raise InvalidInput(text=f"sources cannot be taken away: {', '.join(dropped)}; {ADVICE}")
    for event in changes(state, events):
        with event_at(events.index(event)):
            require_settable(state, event)


def require_admitted(past: ChainState | None, seed: Seed, events: Sequence[KnownEvent]) -> None:
    """Raise `InvalidInput` unless the rules admit what events of a snapshot change on top of `past`, None: no chain.

    It has the rule and the path of the first event that breaks one. A polling source is refused too, unless the
    chain has it already.
    """
    new = (seed, *events) if past is None else changes(past, events)
    if not new:
        return
    time, first = (Timestamp(0), 0) if past is None else (past.system_time, past.sequence_number + 1)
    try:
        build_blocks(past, new, system_time=time, version=max(VERSIONS))
    except ChainRuleViolated as error:
        broken = new[(error.sequence_number or first) - first]
        with event_at(events.index(broken)):  # never the seed: it is ours, and comes first
            raise InvalidInput(text=f"{error.text} (rule {error.rule})") from error
    for event in events if past is None else changes(past, events):
        with event_at(events.index(event)):
            require_pollable(event)


def require_settable(state: ChainState, event: KnownEvent) -> None:
    """Return if the event fits what the chain holds by now; raises `InvalidInput`."""
    if isinstance(event, AddPushSource):
        _require_only_snapshot(event, state.push_sources.values())
    match event:
        case SetVocab() if state.last_offset is not None or state.schema is not None:
            raise InvalidInput(text=f"the vocabulary cannot change once there is data; {ADVICE}")
        case AddPushSource() | SetPollingSource() if state.schema is not None:
            before = in_force(state, event)
            assert before is None or isinstance(before, AddPushSource | SetPollingSource)
            require_continuing(schema_of_event(state.schema), event, before, state.vocabulary)
        case SetTransform() if state.input_progress:
            old = inputs_of(state)
            new = tuple(one.dataset_ref for one in event.inputs)
            if new != tuple(str(dataset) for dataset in old):
                raise InvalidInput(text=f"inputs cannot change once they have been read; {ADVICE}")
        case _:
            pass
