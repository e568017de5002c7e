"""The columns that a dataset declares, and checks that their records can be stored, hashed and merged.

Errors name source and column; `where` is a path in the event, such as `read.ddlSchema[0]`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Final

import pyarrow as pa
import pyarrow.types as kind

from odf_common.chain.state import ChainState
from odf_common.data.columns import TIMESTAMP, normalize_timestamps, stored_schema, with_system_columns
from odf_common.data.ddl import ddl_to_schema
from odf_common.data.read_options import GEOMETRY, require_options
from odf_common.data.schema_evolution import schema_of_event
from odf_common.errors import InvalidInput, nearest
from odf_common.hashing.logical import UnhashableType, check_hashable
from odf_common.metadata.events import (
    AddPushSource,
    DatasetVocabulary,
    KnownEvent,
    MergeStrategy,
    MergeStrategyAppend,
    MergeStrategyChangelogStream,
    MergeStrategySnapshot,
    MergeStrategyUpsertStream,
    ReadStep,
    ReadStepCsv,
    ReadStepEsriShapefile,
    ReadStepGeoJson,
    ReadStepNdGeoJson,
    SetDataSchema,
    SetPollingSource,
    SetVocab,
    vocabulary_of,
)
from odf_common.metadata.fetching import FetchStepContainer, FetchStepFilesGlob, FetchStepMqtt, FetchStepUrl
from odf_common.metadata.scalars import Strings, Timestamp

Source = AddPushSource | SetPollingSource


def schema_of(state: ChainState) -> pa.Schema | None:
    """Return the schema of a dataset's records with system columns; None while it is unknown."""
    if state.schema is not None:
        return schema_of_event(state.schema)
    return _of_sources(sources_of(state), state.vocabulary)


def sources_of(state: ChainState) -> tuple[Source, ...]:
    """Return the current sources of a chain."""
    polled = () if state.polling_source is None else (state.polling_source,)
    return (*state.push_sources.values(), *polled)


def schema_of_events(events: Sequence[KnownEvent]) -> pa.Schema | None:
    """Return the schema that a dataset with these events will have; None while it is unknown."""
    for event in events:
        if isinstance(event, SetDataSchema):
            return schema_of_event(event)
    sources = [event for event in events if isinstance(event, AddPushSource | SetPollingSource)]
    return _of_sources(sources, vocabulary_of_events(events))


def vocabulary_of_events(events: Sequence[KnownEvent]) -> DatasetVocabulary:
    """Return the names of system columns that the events set."""
    return vocabulary_of(next((event for event in events if isinstance(event, SetVocab)), None))


def with_system(schema: pa.Schema, vocabulary: DatasetVocabulary, *, signed: bool = False) -> pa.Schema:
    """Return the schema with the system columns first, if it does not have them yet."""
    if vocabulary.offset_column in schema.names:
        return schema
    if vocabulary.event_time_column not in schema.names:
        # Ingest fills it with the arrival time.
        schema = schema.append(pa.field(vocabulary.event_time_column, TIMESTAMP))
    table = with_system_columns(
        normalize_timestamps(schema.empty_table()),
        ops=None,
        first_offset=0,
        system_time=Timestamp(0),
        vocab=vocabulary,
        signed=signed,
    )
    return table.schema


def known_schemas(schemas: Mapping[str, pa.Schema | None]) -> Mapping[str, pa.Schema]:
    """Return the schemas if all are known, otherwise an empty mapping: then a query is checked for syntax only."""
    available = {name: schema for name, schema in schemas.items() if schema is not None}
    return available if len(available) == len(schemas) else {}


def _of_sources(sources: Sequence[Source], vocabulary: DatasetVocabulary) -> pa.Schema | None:
    """Return the common schema of the sources; None if one has a preprocess query or no declared schema."""
    schemas: list[pa.Schema] = []
    for source in sources:
        declared = None if source.preprocess is not None else declared_schema(source.read)
        if declared is None:
            return None
        schemas.append(without_operations(declared, source, vocabulary))
    if not schemas or any(not schema.equals(schemas[0]) for schema in schemas):
        return None
    return with_system(schemas[0], vocabulary)


def without_operations(schema: pa.Schema, source: Source, vocabulary: DatasetVocabulary) -> pa.Schema:
    """Return the schema without the operation column that a changelog declares."""
    index = schema.get_field_index(vocabulary.operation_type_column)
    carries = isinstance(source.merge, MergeStrategyChangelogStream | MergeStrategyUpsertStream)
    return schema.remove(index) if carries and index >= 0 else schema


def declared_schema(read: ReadStep) -> pa.Schema | None:
    """Return the schema that a read step declares; None if it declares none. Raises `InvalidInput`."""
    if read.schema is not None:
        return schema_of_event(SetDataSchema(schema=read.schema))
    return ddl_to_schema(read.ddl_schema) if read.ddl_schema else None


PRIMARY_KEY_PLACE: Final = "merge.primaryKey"
COMPARE_COLUMNS_PLACE: Final = "merge.compareColumns"
FINER_THAN_MS: Final = ("us", "ns")
FETCHED: Final = ("http://", "https://", "ftp://", "file://")
TEMPLATE: Final = "${{"  # begins what is known only when it is fetched


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column, and the path in the event at which it is declared."""

    path: str
    field: pa.Field

    def refusal(self, text: str) -> InvalidInput:
        """Return the error for this column."""
        return InvalidInput(text=f"column {self.field.name}: {text}", where=self.path)


def require_possible(event: KnownEvent, vocabulary: DatasetVocabulary) -> None:
    """Raise `InvalidInput` if no record can fit what a source or vocabulary declares."""
    match event:
        case AddPushSource() | SetPollingSource():
            try:
                _require_source(event, vocabulary)
            except InvalidInput as error:
                raise prefix_source(event, error) from error
        case SetDataSchema():
            _require_schema(event, vocabulary)
        case SetVocab():
            _require_vocabulary(event)
        case _:
            pass


def require_fetchable(event: KnownEvent) -> None:
    """Raise `InvalidInput` for a polling source of a kind from which this node cannot fetch."""
    match event:
        case SetPollingSource(fetch=FetchStepUrl(url=url)):
            if not url.lower().startswith((*FETCHED, TEMPLATE)):
                text = f"this node fetches from {', '.join(FETCHED)}, not from {url.partition(':')[0]!r}"
                raise InvalidInput(text=text, where="fetch.url")
        case SetPollingSource(fetch=FetchStepFilesGlob(path=path)):
            if not path.startswith(("/", TEMPLATE)):
                text = f"expected an absolute path, such as /data/orders-*.csv, got {path!r}"
                raise InvalidInput(text=text, where="fetch.path")
        case SetPollingSource(fetch=FetchStepMqtt(), prepare=prepare):
            if prepare:
                raise InvalidInput(where="prepare", text="messages have no prepare steps; remove them")
        case SetPollingSource(fetch=FetchStepContainer()):
            pass
        case SetPollingSource(fetch=fetch):
            kind = type(fetch).__name__.removeprefix("FetchStep")
            text = f"this node does not fetch from {kind}; fetch the data yourself, and append it with `odf ingest`"
            raise InvalidInput(text=text, where="fetch")
        case _:
            pass


def prefix_source(source: Source, error: InvalidInput) -> InvalidInput:
    """Return the error prefixed with the source's name."""
    name = f"source {source.source_name}" if isinstance(source, AddPushSource) else "the polling source"
    return InvalidInput(text=f"{name}: {error.text}", where=error.where)


def declared_columns(read: ReadStep) -> tuple[Column, ...] | None:
    """Return the columns that a read step declares; None if it declares none. Raises `InvalidInput`."""
    if read.schema is not None:
        read_columns = _columns_of(SetDataSchema(schema=read.schema), "read.schema")
        return tuple(
            Column(path=f"read.schema.fields[{n}]", field=field) for n, field in enumerate(read_columns)
        )
    if not read.ddl_schema:
        return None
    columns: list[Column] = []
    for number, text in enumerate(read.ddl_schema):
        path = f"read.ddlSchema[{number}]"
        try:
            columns += (Column(path=path, field=field) for field in ddl_to_schema([text]))
        except InvalidInput as error:
            raise InvalidInput(text=str(error), where=path) from error
    return tuple(columns)


def _require_source(source: Source, vocabulary: DatasetVocabulary) -> None:
    if isinstance(source, AddPushSource) and not source.source_name.strip():
        raise InvalidInput(text="its name is empty; call it default", where="sourceName")
    try:
        require_options(source.read)
    except InvalidInput as error:
        raise InvalidInput(text=error.text, where=f"read.{error.where}") from error
    columns = declared_columns(source.read)
    if columns is not None:
        _require_distinct(columns)
        if isinstance(source.read, ReadStepCsv):
            _require_flat(columns)
        if isinstance(source.read, ReadStepGeoJson | ReadStepNdGeoJson | ReadStepEsriShapefile):
            _require_geometry(columns)
    if columns is None or source.preprocess is not None:
        _require_keys(source.merge, None)
        return
    names = [column.field.name for column in columns]
    if (
        isinstance(source.merge, MergeStrategyChangelogStream)
        and vocabulary.operation_type_column not in names
    ):
        text = (
            f"a ChangelogStream reads operations from column {vocabulary.operation_type_column}; declare it"
        )
        raise InvalidInput(text=text, where="read")
    _require_event_time(names, vocabulary)
    kept = set(without_operations(pa.schema([column.field for column in columns]), source, vocabulary).names)
    columns = tuple(column for column in columns if column.field.name in kept)
    _require_own_names(columns, vocabulary)
    for column in columns:
        _require_hashable(column)
        if column.field.name == vocabulary.event_time_column:
            _require_time(column)
    _require_keys(source.merge, {*kept, vocabulary.event_time_column})
    _require_flat_keys(source.merge, columns)


def _require_flat(columns: Iterable[Column]) -> None:
    """Raise `InvalidInput` for a list or a struct: a Csv cell holds one value."""
    for column in columns:
        if kind.is_nested(column.field.type):
            text = (
                f"Csv has no values of type {column.field.type}; declare STRING, and parse it in preprocess"
            )
            raise column.refusal(text)


def _require_geometry(columns: Iterable[Column]) -> None:
    """Raise `InvalidInput` if the geometry is declared as anything but text."""
    for column in columns:
        if column.field.name == GEOMETRY and not kind.is_string(column.field.type):
            raise column.refusal("geometries are GeoJSON text; declare STRING")


def _require_event_time(names: Sequence[str], vocabulary: DatasetVocabulary) -> None:
    """Raise `InvalidInput` if the vocabulary names an event time column that the source does not declare.

    A column with the default name may be missing: then the event time is the arrival time of the record.
    """
    name = vocabulary.event_time_column
    if name == DatasetVocabulary().event_time_column or name in names:
        return
    near = nearest(name, names)
    hint = f"did you mean {near}?" if near else f"columns: {', '.join(names)}."
    text = (
        f"SetVocab names {name} as the event time, and the schema has no such column; {hint} "
        "Declare it, or leave out eventTimeColumn to use the arrival time of records"
    )
    raise InvalidInput(text=text, where="read")


def _require_schema(event: SetDataSchema, vocabulary: DatasetVocabulary) -> None:
    path = "rawArrowSchema" if event.schema is None else "schema"
    form = "{}" if event.schema is None else "{}.fields[{}]"
    numbered = enumerate(_columns_of(event, path))
    columns = tuple(Column(path=form.format(path, n), field=field) for n, field in numbered)
    _require_distinct(columns)
    for column in columns:
        _require_hashable(column)
    names = [column.field.name for column in columns]
    for name in system_columns(vocabulary):
        if name not in names:
            text = f"column {name} is missing; a data schema includes the system columns"
            raise InvalidInput(text=text, where=path)


def _require_vocabulary(event: SetVocab) -> None:
    names = system_columns(vocabulary_of(event))
    if not all(name.strip() for name in names):
        raise InvalidInput(text="a system column needs a name")
    lower = [name.lower() for name in names]
    for name in names:
        if lower.count(name.lower()) > 1:
            raise InvalidInput(text=f"two system columns are named {name}")


def system_columns(vocabulary: DatasetVocabulary) -> Strings:
    """Return the names of the columns of offset, operation, system time and event time."""
    return tuple(getattr(vocabulary, field.name) for field in fields(vocabulary))


def _columns_of(event: SetDataSchema, path: str) -> Sequence[pa.Field]:
    try:
        return tuple(schema_of_event(event))
    except InvalidInput as error:
        raise InvalidInput(text=str(error), where=path) from error


def _require_distinct(columns: Sequence[Column]) -> None:
    seen: dict[str, str] = {}
    for column in columns:
        name = column.field.name
        before = seen.get(name.lower())
        seen[name.lower()] = name
        if before is not None:
            text = "is declared twice" if before == name else f"SQL cannot distinguish it from {before}"
            raise column.refusal(f"{text}; give it another name")


def _require_own_names(columns: Iterable[Column], vocabulary: DatasetVocabulary) -> None:
    event_time = vocabulary.event_time_column
    system = {name.lower(): name for name in system_columns(vocabulary)}
    for column in columns:
        name = system.get(column.field.name.lower())
        if name is not None and column.field.name != event_time:
            text = f"the name belongs to system column {name}; rename it, or rename the system column with SetVocab"
            raise column.refusal(text)


def _require_hashable(column: Column) -> None:
    for scale in _scales(column.field.type):
        if scale < 0:
            raise column.refusal(f"a decimal cannot have the negative scale {scale}; use 0 or more")
    try:
        check_hashable(stored_schema(pa.schema([column.field])))
    except UnhashableType as error:
        raise column.refusal(f"type {column.field.type} has no logical hash; {error.advice()}") from error
    _require_distinct_inside(column, column.field.type)


def _require_distinct_inside(column: Column, type_: pa.DataType) -> None:
    for inner in _inner(type_):
        _require_distinct_inside(column, inner.type)
    if kind.is_struct(type_):
        seen: set[str] = set()
        for inner in type_.fields:
            if inner.name.lower() in seen:
                raise column.refusal(f"its struct has two fields named {inner.name}")
            seen.add(inner.name.lower())


def _scales(type_: pa.DataType) -> tuple[int, ...]:
    if kind.is_decimal(type_):
        return (type_.scale,)
    return tuple(scale for inner in _inner(type_) for scale in _scales(inner.type))


def _inner(type_: pa.DataType) -> tuple[pa.Field, ...]:
    if kind.is_struct(type_):
        return tuple(type_.fields)
    is_list = kind.is_list(type_) or kind.is_large_list(type_) or kind.is_fixed_size_list(type_)
    return (type_.value_field,) if is_list else ()


def _require_time(column: Column) -> None:
    type_ = column.field.type
    if not (kind.is_timestamp(type_) or kind.is_date(type_)):
        raise column.refusal(f"the event time must be a TIMESTAMP or DATE, not {type_}")
    if kind.is_timestamp(type_) and type_.unit in FINER_THAN_MS:
        text = "the event time has milliseconds; declare TIMESTAMP(3), and another column if finer times are needed"
        raise column.refusal(text)


def _require_keys(merge: MergeStrategy, names: set[str] | None) -> None:
    """Raise `InvalidInput` unless the primary key has columns, all of which are in `names` (None: unknown)."""
    if isinstance(merge, MergeStrategyAppend):
        return
    if not merge.primary_key:
        raise InvalidInput(
            text="primaryKey is empty; list the columns that identify a record", where=PRIMARY_KEY_PLACE
        )
    _require_declared(merge.primary_key, names, "primary key", PRIMARY_KEY_PLACE)
    if isinstance(merge, MergeStrategySnapshot) and merge.compare_columns:
        _require_declared(merge.compare_columns, names, "column to compare", COMPARE_COLUMNS_PLACE)


def _require_flat_keys(merge: MergeStrategy, columns: Iterable[Column]) -> None:
    """Raise `InvalidInput` if the primary key has a list or a struct: keys are sorted, but these have no order."""
    keys = () if isinstance(merge, MergeStrategyAppend) else merge.primary_key
    nested = {column.field.name: column.field.type for column in columns if kind.is_nested(column.field.type)}
    for number, name in enumerate(keys):
        if name in nested:
            what = "struct" if kind.is_struct(nested[name]) else "list"
            text = f"primary key {name} is a {what}; a key needs columns of single values"
            raise InvalidInput(text=text, where=f"{PRIMARY_KEY_PLACE}[{number}]")


def _require_declared(columns: Strings, names: set[str] | None, role: str, where: str) -> None:
    for number, name in enumerate(columns):
        if names is not None and name not in names:
            near = nearest(name, sorted(names))
            hint = f"; did you mean {near}?" if near else f"; columns: {', '.join(sorted(names))}"
            raise InvalidInput(
                text=f"{role} {name} is not a declared column{hint}", where=f"{where}[{number}]"
            )
