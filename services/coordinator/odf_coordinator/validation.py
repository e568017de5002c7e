"""Asking the engine whether transforms can run, before anything is committed."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from odf_common.errors import InvalidInput, InvalidQuery
from odf_common.identity.did import DatasetId
from odf_common.metadata.events import AddPushSource, KnownEvent, SetPollingSource, SetTransform
from odf_common.metadata.vocabulary import DatasetVocabulary
from odf_common.ports.engine import Engine
from odf_coordinator.datasets import Datasets
from odf_coordinator.drafts import Draft
from odf_coordinator.schemas import (
    known_schemas,
    schema_of,
    schema_of_events,
    vocabulary_of_events,
    with_system,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a query sees of a dataset."""

    schema: pa.Schema | None
    vocabulary: DatasetVocabulary


class Validation:
    """Checks transforms in dependency order: the output of one is the input of the next."""

    def __init__(self, *, datasets: Datasets, engine: Engine) -> None:
        """Know what is in the catalog."""
        self._datasets = datasets
        self._engine = engine
        self._drafted: dict[DatasetId, Shape] = {}

    def check(self, draft: Draft) -> None:
        """Return if the draft's queries can run; raises `InvalidQuery` with the engine's words and position."""
        try:
            schema = self.schema(draft.events)
        except InvalidQuery as error:
            raise InvalidQuery(text=str(error), where=f"{draft.where}: {draft.name}") from error
        except InvalidInput as error:
            raise InvalidInput(text=str(error), where=f"{draft.where}: {draft.name}") from error
        shape = Shape(schema=schema, vocabulary=vocabulary_of_events(draft.events))
        self._drafted[draft.dataset_id] = shape

    def schema(self, events: Sequence[KnownEvent]) -> pa.Schema | None:
        """Return the schema of a dataset that says this of itself, None while nobody can know it."""
        vocabulary = vocabulary_of_events(events)
        transform = next((event for event in events if isinstance(event, SetTransform)), None)
        if transform is not None:
            return self.output(transform, vocabulary)
        for event in events:
            if isinstance(event, AddPushSource | SetPollingSource) and event.preprocess is not None:
                self._engine.validate(event.preprocess, {}, {}, vocabulary)
        return schema_of_events(events)

    def output(self, event: SetTransform, vocabulary: DatasetVocabulary) -> pa.Schema | None:
        """Return the output schema of a transform, None when that of an input is unknown."""
        shapes = {one.alias or one.dataset_ref: self._shape(one.dataset_ref) for one in event.inputs}
        schemas = known_schemas({name: shape.schema for name, shape in shapes.items()})
        vocabularies = {name: shape.vocabulary for name, shape in shapes.items()} if schemas else {}
        validated = self._engine.validate(event.transform, schemas, vocabularies, vocabulary)
        require_inputs(validated.tables, shapes)
        return None if validated.schema is None else with_system(validated.schema, vocabulary)

    def _shape(self, ref: str) -> Shape:
        dataset = DatasetId.parse(ref)
        if dataset in self._drafted:
            return self._drafted[dataset]
        known = self._datasets.find(ref)
        return Shape(schema=schema_of(known.state), vocabulary=known.state.vocabulary)


def require_inputs(tables: Iterable[str], inputs: Collection[str]) -> None:
    """Return if every table is an input, case aside; raises `InvalidQuery` naming the first that is none."""
    known = {name.lower() for name in inputs}
    for table in tables:
        if table.lower() not in known:
            raise InvalidQuery(text=f"table {table} is not an input; inputs are: {', '.join(sorted(inputs))}")
