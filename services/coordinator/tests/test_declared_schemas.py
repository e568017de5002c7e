"""Which columns a dataset will have, as far as its events say, before it has any record."""

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pytest
from odf_testing.builders import a_push_source, a_query

from odf_common.data.schema_evolution import schema_to_event
from odf_common.errors import InvalidInput
from odf_common.metadata.events import (
    AddPushSource,
    KnownEvent,
    MergeStrategy,
    MergeStrategyAppend,
    MergeStrategyChangelogStream,
    MergeStrategyLedger,
    MergeStrategyUpsertStream,
    ReadStepNdJson,
    SetInfo,
    SetVocab,
)
from odf_coordinator.definitions.declared_columns import known_schemas, schema_of_events

SYSTEM = ["offset", "op", "system_time", "event_time"]
KEY = ("city",)


def a_source(*columns: str, name: str = "default", merge: MergeStrategy | None = None) -> AddPushSource:
    read = ReadStepNdJson(ddl_schema=columns or None)
    return replace(a_push_source(name), read=read, merge=merge or MergeStrategyAppend(), preprocess=None)


def names_of(*events: KnownEvent) -> Sequence[str] | None:
    schema = schema_of_events(events)
    return None if schema is None else schema.names


def test_a_declared_schema_counts_whatever_the_sources_declare() -> None:
    schema = pa.schema([("offset", pa.uint64()), ("city", pa.string())])
    events = (SetInfo(), a_source("other STRING"), schema_to_event(schema), a_source("more STRING", name="b"))
    found = schema_of_events(events)
    assert found is not None
    assert found.names == ["offset", "city"]


def test_without_one_it_is_that_of_the_sources_if_they_agree_after_the_system_columns() -> None:
    one = a_source("event_time TIMESTAMP", "city STRING")
    assert names_of(one) == [*SYSTEM, "city"]
    assert names_of(one, replace(one, source_name="b")) == [*SYSTEM, "city"]
    assert names_of(one, a_source("event_time TIMESTAMP", "town STRING", name="b")) is None
    assert names_of(SetInfo()) is None
    assert names_of(one, a_source(name="b")) is None, "its columns are inferred"
    assert names_of(replace(one, preprocess=a_query())) is None, "SQL makes the columns"


def test_an_event_time_that_is_not_declared_is_that_of_arrival() -> None:
    assert set(names_of(a_source("city STRING")) or ()) == {*SYSTEM, "city"}
    assert "at" in (names_of(SetVocab(event_time_column="at"), a_source("city STRING")) or ())


@pytest.mark.parametrize("merge", [MergeStrategyChangelogStream, MergeStrategyUpsertStream])
def test_a_column_of_operations_is_a_system_column_if_records_have_one(
    merge: type[MergeStrategyChangelogStream | MergeStrategyUpsertStream],
) -> None:
    vocab = SetVocab(operation_type_column="kind")
    source = a_source("kind INT", "city STRING", merge=merge(primary_key=KEY))
    assert list(names_of(vocab, source) or ()).count("kind") == 1
    with pytest.raises(InvalidInput, match="column kind: the name is reserved"):
        names_of(vocab, replace(source, merge=MergeStrategyLedger(primary_key=KEY)))


def test_schemas_are_known_only_together() -> None:
    schema = pa.schema([("a", pa.int64())])
    assert known_schemas({"one": schema, "two": schema}) == {"one": schema, "two": schema}
    assert known_schemas({"one": schema, "two": None}) == {}
    assert known_schemas({}) == {}
