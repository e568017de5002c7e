"""Compares a manifest's events with a chain: unchanged, a valid change, or an invalid one."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from odf_common.chain.build_blocks import build_blocks
from odf_common.chain.state import ChainState
from odf_common.codec.flatbuffers import VERSIONS
from odf_common.data.schema_evolution import schema_of_event
from odf_common.dataset.plain_credentials import require_no_plain_credentials
from odf_common.errors import ChainRuleViolated, InvalidInput
from odf_common.metadata.events import (
    AddPushSource,
    DatasetKind,
    DatasetVocabulary,
    KnownEvent,
    Seed,
    SetDataSchema,
    SetPollingSource,
    SetTransform,
    SetVocab,
)
from odf_common.metadata.manifest_contents import DatasetSnapshot
from odf_common.metadata.scalars import Timestamp
from odf_common.metadata.steps import MergeStrategySnapshot
from odf_coordinator.definitions.declared_columns import require_fetchable, require_possible
from odf_coordinator.definitions.declared_schemas import vocabulary_of_events
from odf_coordinator.definitions.schema_evolution import require_consistent, require_continuing

ADVICE = "delete the dataset and add it again, or add it under another name"


def keep_engine_version(state: ChainState, events: Sequence[KnownEvent]) -> tuple[KnownEvent, ...]:
    """Return the events, with the chain's engine version in a transform that names none and is otherwise equal.

    So a manifest remains unchanged after an engine upgrade; `odf engine upgrade` upgrades it.
    """
    current = state.transform
    if current is None:
        return tuple(events)
    without = replace(current, transform=replace(current.transform, version=None))
    return tuple(current if event == without else event for event in events)


def changed_events(state: ChainState, events: Sequence[KnownEvent]) -> tuple[KnownEvent, ...]:
    """Return the events that would change the dataset."""
    return tuple(event for event in events if state.definitions.replaced_by(event) != event)


@contextmanager
def event_at(number: int) -> Iterator[None]:
    """Prefix the path of errors about an event with the event's path in its snapshot."""
    try:
        yield
    except InvalidInput as error:
        below = f".{error.where}" if error.where else ""
        raise error.with_facts(where=f"content.metadata[{number}]{below}") from error


def dropped_sources(state: ChainState, events: Sequence[KnownEvent]) -> tuple[str, ...]:
    """Return the sources of a chain that the events do not define."""
    sources = {event.source_name for event in events if isinstance(event, AddPushSource)}
    dropped = [name for name in state.push_sources if name not in sources]
    if state.polling_source is not None and not any(isinstance(event, SetPollingSource) for event in events):
        dropped.append("polling")
    return tuple(dropped)


def require_whole(snapshot: DatasetSnapshot) -> None:
    """Raise `InvalidInput`, with the full path, unless the snapshot's events alone can create a dataset."""
    events = snapshot.metadata
    if snapshot.kind is DatasetKind.Derivative and not any(
        isinstance(event, SetTransform) for event in events
    ):
        text = "a derivative needs a SetTransform; add one, or change its kind to Root"
        raise InvalidInput(text=text, where="content.metadata")
    vocabulary = vocabulary_of_events(events)
    _require_side_by_side(events, vocabulary)
    for number, event in enumerate(events):
        with event_at(number):
            require_possible(event, vocabulary)
    schema = next((event for event in events if isinstance(event, SetDataSchema)), None)
    for number, event in enumerate(events):
        if schema is not None and isinstance(event, AddPushSource | SetPollingSource):
            with event_at(number):
                require_continuing(schema_of_event(schema), event, None, vocabulary)


def _require_side_by_side(events: Sequence[KnownEvent], vocabulary: DatasetVocabulary) -> None:
    """Raise `InvalidInput` unless the sources can coexist in one dataset."""
    kinds: set[type] = set()
    names: set[str] = set()
    before: list[AddPushSource] = []
    for number, event in enumerate(events):
        kinds.add(type(event))
        with event_at(number):
            if {AddPushSource, SetPollingSource} <= kinds:
                raise InvalidInput(
                    text="a dataset has push sources or a polling source, not both; remove one"
                )
            if isinstance(event, AddPushSource):
                if event.source_name in names:
                    text = f"source {event.source_name} is defined twice"
                    raise InvalidInput(text=text, where="sourceName")
                names.add(event.source_name)
                _require_compatible(event, before, vocabulary)
                before.append(event)


def _require_compatible(
    source: AddPushSource, others: Iterable[AddPushSource], vocabulary: DatasetVocabulary
) -> None:
    """Raise `InvalidInput` if two sources would retract each other's records, or declare a column differently."""
    for other in others:
        is_pair = isinstance(source.merge, MergeStrategySnapshot) and isinstance(
            other.merge, MergeStrategySnapshot
        )
        if is_pair and other.source_name != source.source_name:
            text = (
                f"source {other.source_name} takes snapshots too, and each would retract the records of the other; "
                "disable one of them, or create two datasets"
            )
            raise InvalidInput(text=text, where="merge")
        require_consistent(source, other, vocabulary)


def require_replaceable(state: ChainState, kind: DatasetKind, events: Sequence[KnownEvent]) -> None:
    """Raise `InvalidInput` unless the events may replace the dataset's current definition."""
    if kind is not state.kind:
        raise InvalidInput(text=f"the dataset is {state.kind.name} and cannot become {kind.name}; {ADVICE}")
    dropped = dropped_sources(state, events)
    if dropped:
        raise InvalidInput(text=f"sources cannot be removed: {', '.join(dropped)}; {ADVICE}")
    for event in changed_events(state, events):
        with event_at(events.index(event)):
            require_settable(state, event)


def require_admitted(past: ChainState | None, seed: Seed, events: Sequence[KnownEvent]) -> None:
    """Raise `InvalidInput` unless the chain rules admit a snapshot's changes after `past` (None: no chain).

    The error has the rule, and the path of the first event that breaks it. A new polling source of a kind from which
    this node cannot fetch, or that has a credential in plain text, is refused too.
    """
    new = (seed, *events) if past is None else changed_events(past, events)
    if not new:
        return
    time, first = (Timestamp(0), 0) if past is None else (past.system_time, past.sequence_number + 1)
    try:
        build_blocks(past, new, system_time=time, version=max(VERSIONS))
    except ChainRuleViolated as error:
        broken = new[(error.sequence_number or first) - first]
        with event_at(events.index(broken)):  # never the seed: it is generated, and comes first
            raise InvalidInput(text=f"{error.text} (rule {error.rule})") from error
    for event in events if past is None else changed_events(past, events):
        with event_at(events.index(event)):
            require_no_plain_credentials(event)
            require_fetchable(event)


def require_settable(state: ChainState, event: KnownEvent) -> None:
    """Raise `InvalidInput` unless the event is compatible with the chain's current state."""
    if isinstance(event, AddPushSource):
        _require_compatible(event, state.push_sources.values(), state.vocabulary)
    match event:
        case SetVocab() if state.last_offset is not None or state.schema is not None:
            raise InvalidInput(text=f"the vocabulary cannot change once there is data; {ADVICE}")
        case AddPushSource() | SetPollingSource() if state.schema is not None:
            before = state.definitions.replaced_by(event)
            assert before is None or isinstance(before, AddPushSource | SetPollingSource)
            require_continuing(schema_of_event(state.schema), event, before, state.vocabulary)
        case SetTransform() if state.input_progress:
            old = state.inputs
            new = tuple(input_.dataset_ref for input_ in event.inputs)
            if new != tuple(str(dataset) for dataset in old):
                raise InvalidInput(text=f"inputs cannot change once they have been read; {ADVICE}")
        case _:
            pass
