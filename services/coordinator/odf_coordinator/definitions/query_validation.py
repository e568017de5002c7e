"""Validates transforms with the engine before anything is committed, and how they answer retractions."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

import pyarrow as pa

from odf_common.chain.state import ChainState
from odf_common.chain.walk import iterate
from odf_common.errors import InvalidInput, InvalidQuery, NotFound
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.events import (
    AddPushSource,
    DatasetVocabulary,
    KnownEvent,
    MergeStrategy,
    MergeStrategyChangelogStream,
    MergeStrategySnapshot,
    MergeStrategyUpsertStream,
    SetPollingSource,
    SetTransform,
)
from odf_common.metadata.scalars import Strings
from odf_common.ports.engine import Engine, EngineNotAvailable, Past, ValidatedQuery
from odf_coordinator.catalog.chain_problems import derive_again
from odf_coordinator.catalog.datasets import DatasetHandle, Datasets
from odf_coordinator.definitions.declared_columns import (
    Source,
    declared_schema,
    known_schemas,
    schema_of,
    schema_of_events,
    sources_of,
    vocabulary_of_events,
    with_system,
)
from odf_coordinator.definitions.diff import event_at, require_additive
from odf_coordinator.definitions.drafts import Draft

MAX_BLOCKS: Final = 10_000  # read to find sources that were replaced or disabled
_DERIVED: Final = "has rows that are corrected or retracted later"


Describe = Callable[[SetTransform, DatasetVocabulary], ValidatedQuery]
"""Returns the engine's description of a chain's transform, over inputs as they are known now."""


class Retractions:
    """Reasons why records of datasets may be retracted, in the catalog and in drafts that are checked before."""

    def __init__(
        self, *, datasets: Datasets, describe: Describe, replacing: Mapping[DatasetId, SetTransform]
    ) -> None:
        """Know nothing yet: datasets are read when they are asked about.

        `replacing` has queries that are about to replace those of derivatives in the catalog.
        """
        self._datasets = datasets
        self._replacing = replacing
        self._describe = describe
        self._reasons: dict[DatasetId, str] = {}

    def why(self, ref: str) -> str:
        """Return the reason why a dataset's records may be retracted, such as "merges by UpsertStream".

        Empty if not known.
        """
        dataset = DatasetId.parse(ref)
        if dataset not in self._reasons:
            handle = self._datasets.find(ref)
            # Not asked again meanwhile: queries that are added may be a cycle, which is refused later.
            self._reasons[dataset] = ""
            self._reasons[dataset] = (
                self._why_derivative(handle) if handle.is_derivative else self._why_root(handle)
            )
        return self._reasons[dataset]

    def add_derivative(self, dataset: DatasetId, *, can_retract: bool) -> None:
        """Note what the engine says about a draft."""
        self._reasons[dataset] = _DERIVED if can_retract else ""

    def add_sources(self, dataset: DatasetId, events: Iterable[KnownEvent]) -> None:
        """Note the sources of a draft."""
        if why := why_retracted(
            event for event in events if isinstance(event, AddPushSource | SetPollingSource)
        ):
            self._reasons[dataset] = why
        elif self._datasets.by_id(dataset) is None:
            self._reasons.setdefault(dataset, "")

    def require_dependants(self, source: Source, root: DatasetHandle) -> None:
        """Raise `InvalidQuery` if the root may retract from now on, and a derivative cannot read that."""
        why = why_retracted((source,))
        if not why or self.why(str(root.id)):
            return
        self._reasons[root.id] = why
        waiting, seen = [*self._datasets.dependants(root.id)], set()
        while waiting:
            handle = waiting.pop()
            if handle.id in seen or not self._datasets.has_key(handle.id):
                continue
            seen.add(handle.id)
            validated = self._describe_derivative(handle)
            if validated is None:
                continue
            if validated.retraction_refusal:
                text = (
                    f"{handle.alias} reads {root.alias}, and its first retraction would stop it: "
                    f"{validated.retraction_refusal}; or add a root of its own for the source"
                )
                raise InvalidQuery(text=text, where="merge")
            if validated.can_retract:
                self._reasons[handle.id] = _DERIVED
                waiting += self._datasets.dependants(handle.id)

    def _why_derivative(self, handle: DatasetHandle) -> str:
        validated = self._describe_derivative(handle)
        return _DERIVED if validated is not None and validated.can_retract else ""

    def _describe_derivative(self, handle: DatasetHandle) -> ValidatedQuery | None:
        """Return the engine's description of a derivative's query; None without one, or if the engine refuses it."""
        query = self._replacing.get(handle.id, handle.state.transform)
        if query is None:  # the dataset was reset to a block before its first query
            return None
        try:
            return self._describe(query, handle.state.vocabulary)
        except (InvalidQuery, EngineNotAvailable, NotFound):
            return None

    def _why_root(self, handle: DatasetHandle) -> str:
        if why := why_retracted(sources_of(handle.state)):
            return why
        links = islice(iterate(self._datasets.reader(handle.id), handle.state.head), MAX_BLOCKS)
        earlier = (decoded.block.event for _, decoded, _ in links)
        return why_retracted(
            event for event in earlier if isinstance(event, AddPushSource | SetPollingSource)
        )


def why_retracted(sources: Iterable[Source]) -> str:
    """Return the reason why records of these sources may be retracted; empty if they only append."""
    return next(
        (f"merges by {name}" for source in sources if (name := _retracting_strategy(source.merge))), ""
    )


def _retracting_strategy(merge: MergeStrategy) -> str:
    match merge:
        case MergeStrategyChangelogStream():
            return "ChangelogStream"
        case MergeStrategySnapshot():
            return "Snapshot"
        case MergeStrategyUpsertStream():
            return "UpsertStream"
        case _:
            return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Schema and vocabulary of a dataset, as queries see them."""

    schema: pa.Schema | None
    vocabulary: DatasetVocabulary


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidTransform:
    """A valid transform with the engine's version, and its output schema, None while that is unknown."""

    event: SetTransform
    schema: pa.Schema | None
    can_retract: bool = False
    """Its records may be retracted later."""
    changes: Strings = ()
    """The kinds in which results can differ from those of the version before."""
    refusal: str = ""
    """The reason why it cannot be derived from the beginning; empty if it can."""


class Validation:
    """Checks transforms in dependency order: the output of one is the input of the next."""

    def __init__(self, *, datasets: Datasets, engine: Engine, drafts: Iterable[Draft] = ()) -> None:
        """Resolve inputs from the catalog and from drafts checked before; `drafts` has all that will be checked."""
        self._datasets = datasets
        self._engine = engine
        self._drafted: dict[DatasetId, Shape] = {}
        replacing = {
            draft.dataset_id: event
            for draft in drafts
            for event in draft.events
            if isinstance(event, SetTransform)
        }
        self._retractions = Retractions(datasets=datasets, describe=self._describe, replacing=replacing)
        self._installed: dict[tuple[str, str | None], str | None] = {}  # by engine and version asked for

    def check(self, draft: Draft) -> Draft:
        """Validate the draft's queries; return it with the engine's version in its transform.

        Raises `InvalidQuery` with the engine's message and position, and `EngineNotAvailable`.
        """
        vocabulary = vocabulary_of_events(draft.events)
        schema = schema_of_events(draft.events)
        handle = self._datasets.by_id(draft.dataset_id)
        past = None if handle is None else handle.state
        events = [*draft.events]
        for number, event in enumerate(draft.events):
            with draft.locate_errors(), event_at(number):
                if isinstance(event, SetTransform):
                    checked = self.output(event, vocabulary, past)
                    events[number], schema = checked.event, checked.schema
                    self._retractions.add_derivative(draft.dataset_id, can_retract=checked.can_retract)
                self.require_preprocess(event, vocabulary, past)
                self.require_dependants(event, handle)
        self._drafted[draft.dataset_id] = Shape(schema=schema, vocabulary=vocabulary)
        self._retractions.add_sources(draft.dataset_id, draft.events)
        return draft.with_events(tuple(events))

    def require_preprocess(
        self, event: KnownEvent, vocabulary: DatasetVocabulary, past: ChainState | None
    ) -> None:
        """Raise `InvalidQuery` unless a source's preprocessing SQL, if any, is valid.

        SQL that a source of the chain already has is checked for its syntax only.
        """
        if not isinstance(event, AddPushSource | SetPollingSource) or event.preprocess is None:
            return
        sources = () if past is None else sources_of(past)
        with _at("preprocess"):
            if any(source.preprocess == event.preprocess for source in sources):
                self._engine.validate(event.preprocess, {}, {}, vocabulary)
            else:
                self._engine.validate_preprocess(event.preprocess, declared_schema(event.read))

    def require_dependants(self, event: KnownEvent, handle: DatasetHandle | None) -> None:
        """Raise `InvalidQuery` if a derivative could not read what a new source retracts."""
        if handle is not None and isinstance(event, AddPushSource | SetPollingSource):
            self._retractions.require_dependants(event, handle)

    def output(
        self, event: SetTransform, vocabulary: DatasetVocabulary, past: ChainState | None
    ) -> ValidTransform:
        """Return a transform, with the engine's version unless it names one, and its output schema.

        A transform that is already in the chain is not changed, whatever engine is installed. Raises `InvalidInput` if
        its columns are not compatible with `past`, the current state.
        """
        with _at("transform"):
            is_new = past is None or past.transform != event
            try:
                validated = self._describe(event, vocabulary, _past(past, event), is_new=is_new)
            except InvalidQuery as error:
                if not is_new or past is None:
                    raise
                self._describe(event, vocabulary, is_new=True)  # raises what is wrong with the query itself
                raise self._with_way_back(error, past) from error
            require_inputs(validated.tables, [input_.alias or input_.dataset_ref for input_ in event.inputs])
            if is_new and validated.retraction_refusal:
                raise InvalidQuery(text=validated.retraction_refusal)
        if is_new and event.transform.version is None:
            event = replace(event, transform=replace(event.transform, version=validated.version))
        if validated.schema is None:
            return ValidTransform(event=event, schema=None, can_retract=False)
        schema = with_system(validated.schema, vocabulary)
        if past is not None and is_new:
            try:
                require_additive(past, schema)
            except InvalidInput as error:
                raise self._with_way_back(error, past) from error
        return ValidTransform(event=event, schema=schema, can_retract=validated.can_retract)

    def _describe(
        self,
        event: SetTransform,
        vocabulary: DatasetVocabulary,
        past: Past | None = None,
        *,
        is_new: bool = False,
    ) -> ValidatedQuery:
        """Return the engine's description of a transform; one that is not new may be of any version."""
        refs = {input_.alias or input_.dataset_ref: input_.dataset_ref for input_ in event.inputs}
        schemas, vocabularies = _columns(self._shapes(event))
        return self._engine.validate(
            event.transform if is_new else replace(event.transform, version=None),
            schemas,
            vocabularies,
            vocabulary,
            past if is_new and schemas else None,
            is_new=is_new,
            retracting={name: why for name, ref in refs.items() if (why := self._retractions.why(ref))},
        )

    def upgrade_version(
        self, state: ChainState, event: SetTransform, *, is_restarted: bool
    ) -> ValidTransform:
        """Return a dataset's current transform with the engine's version, and what can differ; it keeps its columns.

        Raises `InvalidQuery` if the query is refused today, or if its state cannot be migrated, unless restarted.
        """
        unpinned = replace(event, transform=replace(event.transform, version=None))
        past = Past(transform=event.transform, is_restarted=is_restarted)
        with _at("transform"):
            validated = self._describe(unpinned, state.vocabulary, past, is_new=True)
        upgraded = replace(event, transform=replace(event.transform, version=validated.version))
        refusal = validated.retraction_refusal if is_restarted else ""
        return ValidTransform(event=upgraded, schema=None, changes=validated.changes, refusal=refusal)

    def require_same_results(self, event: SetTransform, vocabulary: DatasetVocabulary) -> None:
        """Raise `ResultsChanged` if the engine may not compute a transform like the version that it names.

        Raises `EngineNotAvailable` for another engine, and `InvalidQuery` if the query is refused today.
        """
        transform = event.transform
        name = (transform.engine.lower(), transform.version)
        if name not in self._installed:
            self._installed[name] = self._engine.validate(transform, {}, {}, vocabulary).version
        if transform.version not in (None, self._installed[name]):  # an earlier one
            self._engine.validate(transform, *_columns(self._shapes(event)), vocabulary)

    def _shapes(self, event: SetTransform) -> Mapping[str, Shape]:
        """Return the inputs' shapes by their names in the query."""
        return {
            input_.alias or input_.dataset_ref: self._shape(input_.dataset_ref) for input_ in event.inputs
        }

    def _with_way_back(self, error: InvalidInput, past: ChainState | None) -> InvalidInput:
        """Return the reason why a query cannot replace that of `past`, with the command after which it can."""
        handle = None if past is None else self._datasets.by_id(past.dataset_id)
        way = "" if handle is None else derive_again(self._datasets, handle)
        if not way:
            return error
        text = f"{error}; or repeat this after {way}, which removes its records: all are derived again"
        return type(error)(text=text)

    def _shape(self, ref: str) -> Shape:
        dataset = DatasetId.parse(ref)
        if dataset in self._drafted:
            return self._drafted[dataset]
        handle = self._datasets.find(ref)
        state = handle.state
        schema = schema_of(state)
        if schema is None and state.transform is not None:
            self._drafted[dataset] = Shape(
                schema=self._derived_columns(state, state.transform), vocabulary=state.vocabulary
            )
            return self._drafted[dataset]
        return Shape(schema=schema, vocabulary=state.vocabulary)

    def _derived_columns(self, state: ChainState, transform: SetTransform) -> pa.Schema | None:
        """Return the columns that a derivative without records will have; None if they are not known."""
        try:
            schema = self._describe(transform, state.vocabulary).schema
        except (InvalidQuery, EngineNotAvailable, NotFound):
            return None
        return None if schema is None else with_system(schema, state.vocabulary)


def _columns(
    shapes: Mapping[str, Shape],
) -> tuple[Mapping[str, pa.Schema], Mapping[str, DatasetVocabulary]]:
    """Return the schemas and vocabularies of inputs; neither unless all schemas are known."""
    schemas = known_schemas({name: shape.schema for name, shape in shapes.items()})
    return schemas, {name: shape.vocabulary for name, shape in shapes.items()} if schemas else {}


def _past(state: ChainState | None, event: SetTransform) -> Past | None:
    """Return the query whose state a new one has to migrate; None without state, or if the inputs differ."""
    current = None if state is None or state.checkpoint is None else state.transform
    if current is None or current.inputs != event.inputs:
        return None
    return Past(transform=current.transform)


@contextmanager
def _at(path: str) -> Iterator[None]:
    """Add the field of an event to errors about its SQL."""
    try:
        yield
    except InvalidQuery as error:
        raise InvalidQuery(text=str(error), where=path) from error


def require_inputs(tables: Iterable[str], inputs: Collection[str]) -> None:
    """Raise `InvalidQuery` unless every table is an input (case-insensitive)."""
    names = {name.lower() for name in inputs}
    for table in tables:
        if table.lower() not in names:
            raise InvalidQuery(text=f"table {table} is not an input; inputs are: {', '.join(sorted(inputs))}")
