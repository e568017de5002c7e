"""Validates queries with the engine before anything is committed, also against retractions of their inputs."""

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

MAX_BLOCKS: Final = 10_000  # number of blocks that are searched for sources that were replaced or disabled
_DERIVED: Final = "has rows that are corrected or retracted later"


Describe = Callable[[SetTransform, DatasetVocabulary], ValidatedQuery]
"""Returns the engine's description of a transform over its inputs with their current schemas."""


class Retractions:
    """The reasons why records of datasets may be retracted, for datasets in the catalog and drafts."""

    def __init__(
        self, *, datasets: Datasets, describe: Describe, replacing: Mapping[DatasetId, SetTransform]
    ) -> None:
        """Begin empty; datasets are read on demand.

        `replacing` has the new queries of derivatives whose queries are about to be replaced.
        """
        self._datasets = datasets
        self._replacing = replacing
        self._describe = describe
        self._reasons: dict[DatasetId, str] = {}

    def why(self, ref: str) -> str:
        """Return the reason why a dataset's records may be retracted, such as "merges by UpsertStream".

        It is empty if they are not retracted, or if that is unknown.
        """
        dataset = DatasetId.parse(ref)
        if dataset not in self._reasons:
            handle = self._datasets.find(ref)
            # Set first, because new queries may have a cycle, in which this method would not end. It is refused later.
            self._reasons[dataset] = ""
            self._reasons[dataset] = (
                self._why_derivative(handle) if handle.is_derivative else self._why_root(handle)
            )
        return self._reasons[dataset]

    def add_derivative(self, dataset: DatasetId, *, can_retract: bool) -> None:
        """Record for a draft of a derivative whether its records may be retracted, according to the engine."""
        self._reasons[dataset] = _DERIVED if can_retract else ""

    def add_sources(self, dataset: DatasetId, events: Iterable[KnownEvent]) -> None:
        """Record for a draft of a root whether its sources may retract records."""
        if why := why_retracted(
            event for event in events if isinstance(event, AddPushSource | SetPollingSource)
        ):
            self._reasons[dataset] = why
        elif self._datasets.by_id(dataset) is None:
            self._reasons.setdefault(dataset, "")

    def require_dependants(self, source: Source, root: DatasetHandle) -> None:
        """Raise `InvalidQuery` if the new source may retract records of the root, and a derivative cannot read that."""
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
        """Return the engine's description of a derivative's query; None if it has none, or if the engine refuses it."""
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
    """The schema and vocabulary of a dataset that queries read."""

    schema: pa.Schema | None
    vocabulary: DatasetVocabulary


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidTransform:
    """A valid transform that names the engine's version, and its output schema, None if that is unknown."""

    event: SetTransform
    schema: pa.Schema | None
    can_retract: bool = False
    """Whether its records may be corrected or retracted later."""
    changes: Strings = ()
    """The kinds of differences that results can have from those of the previous version."""
    refusal: str = ""
    """The reason why the dataset cannot be derived from the beginning; empty if it can."""


class Validation:
    """Checks transforms in the order of their dependencies: the output of one may be an input of the next."""

    def __init__(self, *, datasets: Datasets, engine: Engine, drafts: Iterable[Draft] = ()) -> None:
        """Look up inputs in the catalog and among drafts that were checked before.

        `drafts` has all drafts that will be checked.
        """
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
        """Validate the queries of a draft, and return the draft with the engine's version in its transform.

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
        """Raise `InvalidQuery` unless the preprocess query of a source, if it has one, is valid.

        A query that a source of the chain already has is checked for syntax only.
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
        """Raise `InvalidQuery` if a derivative cannot process the retractions of a new source."""
        if handle is not None and isinstance(event, AddPushSource | SetPollingSource):
            self._retractions.require_dependants(event, handle)

    def output(
        self, event: SetTransform, vocabulary: DatasetVocabulary, past: ChainState | None
    ) -> ValidTransform:
        """Validate a transform and return it with its output schema, and with the engine's version if it names none.

        A transform that is already in the chain is not changed, whatever engine is installed. Raises `InvalidQuery`,
        and `InvalidInput` if its columns are not compatible with `past`, the current state.
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
        """Return the engine's description of a transform; the engine's version is checked only if it `is_new`."""
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
        """Return a dataset's current transform with the installed engine's version, and the changes in its results.

        Raises `InvalidQuery` if the installed engine refuses the query, or, unless restarted, cannot migrate its state.
        """
        unpinned = replace(event, transform=replace(event.transform, version=None))
        past = Past(transform=event.transform, is_restarted=is_restarted)
        with _at("transform"):
            validated = self._describe(unpinned, state.vocabulary, past, is_new=True)
        upgraded = replace(event, transform=replace(event.transform, version=validated.version))
        refusal = validated.retraction_refusal if is_restarted else ""
        return ValidTransform(event=upgraded, schema=None, changes=validated.changes, refusal=refusal)

    def require_same_results(self, event: SetTransform, vocabulary: DatasetVocabulary) -> None:
        """Raise `ResultsChanged` if results of the installed engine may differ from those of the transform's version.

        Raises `EngineNotAvailable` for another engine, and `InvalidQuery` if the installed one refuses the query.
        """
        transform = event.transform
        name = (transform.engine.lower(), transform.version)
        if name not in self._installed:
            self._installed[name] = self._engine.validate(transform, {}, {}, vocabulary).version
        if transform.version not in (None, self._installed[name]):  # an earlier one
            self._engine.validate(transform, *_columns(self._shapes(event)), vocabulary)

    def _shapes(self, event: SetTransform) -> Mapping[str, Shape]:
        """Return the shapes of the inputs by their names in the query."""
        return {
            input_.alias or input_.dataset_ref: self._shape(input_.dataset_ref) for input_ in event.inputs
        }

    def _with_way_back(self, error: InvalidInput, past: ChainState | None) -> InvalidInput:
        """Return the error of a query that cannot replace that of `past`, with the command after which it can."""
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
    """Return the schemas and vocabularies of inputs; both are empty unless all schemas are known."""
    schemas = known_schemas({name: shape.schema for name, shape in shapes.items()})
    return schemas, {name: shape.vocabulary for name, shape in shapes.items()} if schemas else {}


def _past(state: ChainState | None, event: SetTransform) -> Past | None:
    """Return the query whose state a new query has to migrate; None if it has no state, or if the inputs differ."""
    current = None if state is None or state.checkpoint is None else state.transform
    if current is None or current.inputs != event.inputs:
        return None
    return Past(transform=current.transform)


@contextmanager
def _at(path: str) -> Iterator[None]:
    """Add the path of a field to errors about its query."""
    try:
        yield
    except InvalidQuery as error:
        raise InvalidQuery(text=str(error), where=path) from error


def require_inputs(tables: Iterable[str], inputs: Collection[str]) -> None:
    """Raise `InvalidQuery` unless every table of a query is one of the inputs; case is ignored."""
    names = {name.lower() for name in inputs}
    for table in tables:
        if table.lower() not in names:
            raise InvalidQuery(text=f"table {table} is not an input; inputs are: {', '.join(sorted(inputs))}")
