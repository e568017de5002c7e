"""Compares the events of a manifest with a chain: finds changes, and refuses those that the chain cannot have."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import pyarrow as pa

from odf_common.chain.build_blocks import build_blocks
from odf_common.chain.state import ChainState
from odf_common.codec.flatbuffers import VERSIONS
from odf_common.data.schema_evolution import (
    aligned_schema,
    check_evolution,
    schema_of_event,
    schema_to_event,
    with_new_columns,
)
from odf_common.dataset.plain_credentials import require_no_plain_credentials
from odf_common.errors import ChainRuleViolated, InvalidInput
from odf_common.metadata.events import (
    AddPushSource,
    DatasetKind,
    DatasetSnapshot,
    DatasetVocabulary,
    KnownEvent,
    MergeStrategySnapshot,
    Seed,
    SetDataSchema,
    SetPollingSource,
    SetTransform,
    SetVocab,
)
from odf_common.metadata.scalars import Timestamp
from odf_coordinator.definitions.declared_columns import (
    Source,
    declared_columns,
    declared_schema,
    prefix_source,
    require_fetchable,
    require_possible,
    vocabulary_of_events,
    with_system,
    without_operations,
)


def require_continuing(
    dataset_schema: pa.Schema, source: Source, before: Source | None, vocabulary: DatasetVocabulary
) -> None:
    """Raise `InvalidInput`, naming the column, unless records of the source fit the dataset's schema.

    `before` is the definition that the source replaces. Records of a preprocess query, or of a read step without a
    schema, are not checked here, because their columns are known only when a batch is read.
    """
    declared = declared_records(source, vocabulary)
    if declared is None:
        return
    try:
        _require_case(dataset_schema, declared)
        previous = None if before is None else declared_records(before, vocabulary)
        if previous is not None:
            _require_kept(dataset_schema, previous, declared)
        check_evolution(
            dataset_schema, aligned_schema(_with_nulls(declared, dataset_schema), dataset_schema, vocabulary)
        )
    except InvalidInput as error:
        invalid = InvalidInput(text=str(error), where=_path(source, error.where or ""))
        raise prefix_source(source, invalid) from error


def require_consistent(source: AddPushSource, other: AddPushSource, vocabulary: DatasetVocabulary) -> None:
    """Raise `InvalidInput`, naming the column, if two sources of one dataset declare it differently.

    Otherwise the source whose records are committed first would stop the other one permanently. Names are compared
    without case, as in SQL.
    """
    declared, other_columns = declared_records(source, vocabulary), declared_records(other, vocabulary)
    if declared is None or other_columns is None or source.source_name == other.source_name:
        return
    by_name = {column.name.lower(): column for column in other_columns}
    for column in declared:
        before = by_name.get(column.name.lower())
        text = None
        if before is not None and before.name != column.name:
            text = f"source {other.source_name} spells it {before.name}, and SQL cannot distinguish the two"
        elif before is not None and not (_is_extended(before, column) or _is_extended(column, before)):
            text = f"source {other.source_name} declares it as {before.type}, and this one as {column.type}"
        if text is not None:
            error = InvalidInput(text=f"column {column.name}: {text}", where=_path(source, column.name))
            raise prefix_source(source, error)


def _is_extended(old: pa.Field, new: pa.Field) -> bool:
    """Return whether a column can have both types: they are equal, or the struct of `new` has more fields."""
    try:
        check_evolution(
            pa.schema([old.with_nullable(nullable=True)]), pa.schema([new.with_nullable(nullable=True)])
        )
    except InvalidInput:
        return False
    return True


def require_additive(past: ChainState, output: pa.Schema) -> None:
    """Raise `InvalidInput`, naming the column, unless records of a new query fit a derivative's schema.

    A new query may add columns. `output` includes the system columns (spec: Query Evolution).
    """
    if past.schema is None:
        return
    dataset_schema = schema_of_event(past.schema)
    try:
        check_evolution(
            dataset_schema, aligned_schema(output, with_new_columns(dataset_schema, output), past.vocabulary)
        )
    except InvalidInput as error:
        text = f"{error}; a new query may add columns, but existing ones keep their names and types"
        raise InvalidInput(text=text, where="transform") from error


def declared_records(source: Source, vocabulary: DatasetVocabulary) -> pa.Schema | None:
    """Return the declared schema of a source's records, system columns first; None if it is not declared."""
    declared = None if source.preprocess is not None else declared_schema(source.read)
    return (
        None
        if declared is None
        else with_system(without_operations(declared, source, vocabulary), vocabulary)
    )


def _with_nulls(declared: pa.Schema, dataset_schema: pa.Schema) -> pa.Schema:
    names = set(declared.names)
    return pa.schema(
        [*declared, *(field for field in dataset_schema if field.nullable and field.name not in names)]
    )


def _require_case(dataset_schema: pa.Schema, declared: pa.Schema) -> None:
    names = {name.lower(): name for name in dataset_schema.names}
    for name in declared.names:
        existing = names.get(name.lower(), name)
        if existing != name:
            raise InvalidInput(text=f"the dataset spells it {existing}", where=f"column {name}")


def _require_kept(dataset_schema: pa.Schema, before: pa.Schema, declared: pa.Schema) -> None:
    """Raise `InvalidInput` if a source no longer declares a column of the dataset, or makes one required."""
    for column in dataset_schema:
        old = before.get_field_index(column.name)
        if old < 0:
            continue
        new = declared.get_field_index(column.name)
        if new < 0:
            raise InvalidInput(text="cannot be removed from the schema", where=f"column {column.name}")
        if column.nullable and before.field(old).nullable and not declared.field(new).nullable:
            raise InvalidInput(text="was optional and cannot become required", where=f"column {column.name}")


def _path(source: Source, where: str) -> str:
    """Return the path in the event of the column that an error concerns, or else of the read step."""
    name = where.removeprefix("column ").partition(".")[0].removesuffix("[]")
    columns = declared_columns(source.read) or ()
    return next((column.path for column in columns if column.field.name == name), "read")


ADVICE = "delete the dataset and add it again, or add it under another name"


def keep_engine_version(state: ChainState, events: Sequence[KnownEvent]) -> tuple[KnownEvent, ...]:
    """Return the events. A transform without an engine version gets that of the chain if it is otherwise equal.

    So a manifest without a version counts as unchanged after the engine of the node was upgraded. `odf engine upgrade`
    changes the version in the chain.
    """
    current = state.transform
    if current is None:
        return tuple(events)
    without = replace(current, transform=replace(current.transform, version=None))
    return tuple(current if event == without else event for event in events)


def changed_events(state: ChainState, events: Sequence[KnownEvent]) -> tuple[KnownEvent, ...]:
    """Return the events that would change the dataset."""
    return tuple(event for event in events if state.definitions.replaced_by(event) != event)


def kept_events(state: ChainState, events: Sequence[KnownEvent]) -> tuple[KnownEvent, ...]:
    """Return the definitions in effect that the events do not replace."""
    kinds = {type(event) for event in events}
    sources = {event.source_name for event in events if isinstance(event, AddPushSource)}
    single = [
        event
        for kind, event in state.definitions.by_kind().items()
        if event is not None and kind not in kinds
    ]
    return (*single, *(source for name, source in state.push_sources.items() if name not in sources))


def with_current_schema(state: ChainState, events: Sequence[KnownEvent]) -> tuple[KnownEvent, ...]:
    """Return the events, with the chain's schema in place of one that it equals or has added columns to."""
    current = state.schema
    return tuple(
        current
        if isinstance(event, SetDataSchema) and current is not None and _continues(event, current)
        else event
        for event in events
    )


def _continues(declared: SetDataSchema, current: SetDataSchema) -> bool:
    """Return whether a chain's schema is the declared one, in any spelling, or the declared one with new columns."""
    old, new = schema_of_event(declared), schema_of_event(current)
    if schema_to_event(old) == schema_to_event(new):
        return True
    try:
        return check_evolution(old, new) and not set(new.names) <= set(old.names)
    except InvalidInput:
        return False


@contextmanager
def event_at(number: int) -> Iterator[None]:
    """Prefix the paths in errors of the `with` block with the path of an event in its snapshot."""
    try:
        yield
    except InvalidInput as error:
        below = f".{error.where}" if error.where else ""
        raise error.with_facts(where=f"content.metadata[{number}]{below}") from error


def dropped_sources(state: ChainState, events: Sequence[KnownEvent]) -> tuple[str, ...]:
    """Return the names of the chain's sources that the events do not define."""
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
    """Raise `InvalidInput` unless all sources among the events can belong to one dataset."""
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

    The error has the rule, and the path of the first event that violates it. A new polling source is also refused if
    this node cannot fetch from its kind, or if it has a credential in plain text.
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
