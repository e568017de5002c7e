"""Impossible declarations are refused with their place: file, line, position, source and column."""

import time
from dataclasses import replace
from typing import cast

import grpc
import pyarrow as pa
import pytest
from odf_testing.coordinator import Coordinator
from odf_testing.story import POLLING

from odf_common.errors import InvalidInput, InvalidQuery
from odf_common.metadata.data_schema import (
    DataField,
    DataSchema,
    DataTypeDuration,
    DataTypeInt32,
    DataTypeUInt64,
)
from odf_common.metadata.events import (
    AddPushSource,
    MergeStrategyAppend,
    MergeStrategyLedger,
    MergeStrategySnapshot,
    ReadStepNdJson,
    SetDataSchema,
    SetVocab,
    TransformSql,
)
from odf_common.proto.odf.node.v1 import coordinator_pb2 as wire
from odf_coordinator.api.grpc_servicer import Servicer
from odf_coordinator.definitions.declared_columns import declared_schema

COLUMNS = "ddlSchema: [event_time TIMESTAMP, city STRING]"


def source(*columns: str, name: str = "default", key: tuple[str, ...] | None = None) -> AddPushSource:
    merge = MergeStrategyAppend() if key is None else MergeStrategyLedger(primary_key=key)
    return AddPushSource(source_name=name, read=ReadStepNdJson(ddl_schema=columns), merge=merge)


@pytest.fixture
def filled(node: Coordinator, root: str) -> Coordinator:
    """Have `cities` with data: event_time, and city, which is optional."""
    node.add(root)
    node.push("cities", "Oslo")
    return node


@pytest.mark.parametrize(
    ("columns", "complaint"),
    [
        ('schema: ["x ARRAY<STRUCT<a: INT>>"]', r"column x: type list<.*> has no logical hash"),
        (
            "schema: {fields: [{name: m, type: {kind: Map, keyType: String, valueType: Int32}}]}",
            "column m: .*hash",
        ),
        (
            "schema: {fields: [{name: m, type: Duration}]}",
            "column m: type duration.* no logical hash",
        ),
        ('schema: {fields: [{name: m, type: "Null"}]}', "column m: type null has no logical hash"),
        (
            "schema: {fields: [{name: m, type: {kind: List, itemType: {kind: Decimal, precision: 5, scale: -2}}}]}",
            "column m: a decimal cannot have the negative scale -2",
        ),
        ('schema: ["x STRUCT<a: INT, A: INT>"]', "column x: its struct has two fields named A"),
        ("schema: [offset BIGINT]", "column offset: the name belongs to system column offset"),
        ("schema: [a INT, OP INT]", "column OP: the name belongs to system column op"),
        ("schema: [system_time TIMESTAMP]", "column system_time: the name belongs to"),
        ("schema: [a INT, a INT]", "column a: is declared twice"),
        ("schema: [a INT, A INT]", "column A: SQL cannot distinguish it from a"),
        ("schema: {fields: [{name: a, type: Int32}, {name: a, type: Int32}]}", "column a: is declared twice"),
        ("schema: [event_time STRING]", "column event_time: the event time must be a TIMESTAMP or DATE"),
        (
            "schema: [event_time TIMESTAMP(6)]",
            r"column event_time: the event time has milliseconds; .*TIMESTAMP\(3\)",
        ),
        (
            "schema: {fields: [{name: event_time, type: {kind: Timestamp, unit: Nanosecond}}]}",
            "column event_time: the event time has milliseconds",
        ),
        ("schema: [a INT, b FOOBAR]", "column b: unknown type FOOBAR"),
        ("schema: [n BIGNT]", r"column n: unknown type BIGNT in 'n BIGNT'; did you mean BIGINT\?"),
        ("schema: [at TIMSTAMP(3)]", r"column at: unknown type TIMSTAMP .* did you mean TIMESTAMP\?"),
        (
            "schema: [km DECIMAL(6,2)]",
            r"column km: .* got the end in 'km DECIMAL\(6'; in a YAML list .* quote it",
        ),
    ],
)
def test_impossible_columns_are_refused(node: Coordinator, root: str, columns: str, complaint: str) -> None:
    with pytest.raises(
        InvalidInput,
        match=rf"^m0\.yaml:10:\d+: cities: content\.metadata\[0\]\.read\.\S+: source default: {complaint}",
    ):
        node.add(root.replace(COLUMNS, columns))
    assert list(node.catalog.entries()) == []


@pytest.mark.parametrize(
    "columns",
    [
        '["x ARRAY<INT>", "y STRUCT<a: INT, b: STRUCT<a: INT>>", u UUID, t TIME, d DATE]',
        '["x DECIMAL(50, 2)", "y DECIMAL(20, 0)", "event_time DATE"]',
        "{fields: [{name: b, type: {kind: Option, inner: {kind: Binary, fixedLength: 4}}}]}",
    ],
)
def test_possible_columns_are_accepted(node: Coordinator, root: str, columns: str) -> None:
    assert node.add(root.replace(COLUMNS, f"schema: {columns}"))[0].outcome == "added"


def named_event_time(root: str, name: str, columns: str) -> str:
    """Return the manifest with another schema and a vocabulary."""
    return (
        root.replace(COLUMNS, f"schema: {columns}") + f"    - {{kind: SetVocab, eventTimeColumn: {name}}}\n"
    )


@pytest.mark.parametrize(
    ("columns", "complaint"),
    [
        ("[tz TIMESTAMP, city STRING]", r"SetVocab names ts as the event time, .* did you mean tz\?"),
        ("[city STRING]", r"SetVocab names ts as the event time, .*; columns: city\."),
    ],
)
def test_an_event_time_column_that_is_named_has_to_be_declared(
    node: Coordinator, root: str, columns: str, complaint: str
) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        node.add(named_event_time(root, "ts", columns))
    assert list(node.catalog.entries()) == []


def test_an_event_time_column_may_come_from_sql_or_data_or_be_the_default(
    node: Coordinator, root: str
) -> None:
    query = "      preprocess: {kind: Sql, engine: spark, query: SELECT now() AS ts}\n"
    made = root.replace(COLUMNS, "schema: [city STRING]") + query
    for text in (
        made + "    - {kind: SetVocab, eventTimeColumn: ts}\n",
        root.replace(COLUMNS, "schema: null") + "    - {kind: SetVocab, eventTimeColumn: ts}\n",
        named_event_time(root, "event_time", "[city STRING]"),
        named_event_time(root, "ts", "[ts TIMESTAMP, city STRING]"),
    ):
        assert node.add(text.replace("name: cities", f"name: cities{len(list(node.catalog.entries()))}"))


@pytest.mark.parametrize(
    ("kind", "option", "complaint"),
    [
        ("Csv", 'separator: "||"', "is not one ASCII character"),
        ("Csv", "quote: “", "is not one ASCII character"),
        ("Csv", 'escape: "\\n"', "is not one ASCII character"),
        ("Csv", "encoding: utf-80", "'utf-80' is not a known encoding"),
        ("Csv", "dateFormat: QQ", "the letter 'Q' is not supported"),
        ("Json", "subPath: a..b", r"'a\.\.b' is not of the form a\.b\.c"),
        ("Json", 'timestampFormat: "%Q"', "%Q is not supported"),
        ("NdJson", "encoding: base64", "'base64' is not a known encoding"),
    ],
)
def test_options_that_could_never_take_effect_are_refused(
    node: Coordinator, root: str, kind: str, option: str, complaint: str
) -> None:
    text = root.replace("kind: NdJson", f"kind: {kind}").replace(COLUMNS, f"{COLUMNS}, {option}")
    with pytest.raises(
        InvalidInput, match=rf"read\.{option.split(':', maxsplit=1)[0]}: source default: .*{complaint}"
    ):
        node.add(text)
    assert list(node.catalog.entries()) == []


@pytest.mark.parametrize("read", ["GeoJson", "NdGeoJson", "EsriShapefile"])
def test_a_geometry_is_a_string(node: Coordinator, root: str, read: str) -> None:
    text = root.replace("kind: NdJson", f"kind: {read}")
    with pytest.raises(InvalidInput, match="column geometry: geometries are GeoJSON text; declare STRING"):
        node.add(text.replace("city STRING", "city STRING, geometry BINARY"))
    assert node.add(text.replace("city STRING", "city STRING, geometry STRING"))[0].outcome == "added"


@pytest.mark.parametrize(
    ("merge", "complaint"),
    [
        (
            "Ledger, primaryKey: [town]",
            r"primaryKey\[0\]: source default: primary key town is not a declared column",
        ),
        ("Ledger, primaryKey: [City]", "primary key City is not a declared column; did you mean city"),
        ("Ledger, primaryKey: []", "primaryKey is empty"),
        ("UpsertStream, primaryKey: [offset]", "primary key offset is not a declared column"),
        (
            "Snapshot, primaryKey: [city], compareColumns: [people]",
            "column to compare people is not a declared",
        ),
        ("ChangelogStream, primaryKey: [city]", "reads operations from column op; declare it"),
    ],
)
def test_merging_needs_columns_that_are_declared(
    node: Coordinator, root: str, merge: str, complaint: str
) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        node.add(root.replace("kind: Append", f"kind: {merge}"))


@pytest.mark.parametrize("type_", ["ARRAY<INT>", "STRUCT<a: INT, b: STRING>"])
@pytest.mark.parametrize("merge", ["Ledger", "UpsertStream", "Snapshot", "ChangelogStream"])
def test_a_key_has_values_that_can_be_sorted(node: Coordinator, root: str, merge: str, type_: str) -> None:
    operations = ", op INT" if merge in {"UpsertStream", "ChangelogStream"} else ""
    text = root.replace("city STRING", f'city STRING{operations}, "tags {type_}"')
    key = f"kind: {merge}, primaryKey: [city, tags]"
    with pytest.raises(
        InvalidInput, match=r"merge\.primaryKey\[1\]: source default: primary key tags is a (list|struct)"
    ):
        node.add(text.replace("kind: Append", key))
    assert node.add(text.replace("kind: Append", key.replace(", tags", "")))[0].outcome == "added"


def test_a_changelog_declares_its_operations(node: Coordinator, root: str) -> None:
    text = root.replace("city STRING", "city STRING, op INT").replace(
        "kind: Append", "kind: ChangelogStream, primaryKey: [city, event_time]"
    )
    assert node.add(text)[0].outcome == "added"


def test_sql_may_compute_the_columns_that_are_not_declared(node: Coordinator, root: str) -> None:
    text = root.replace("kind: Append", "kind: Ledger, primaryKey: [id]").replace(
        "city STRING", "offset STRING"
    )
    text += "      preprocess: {kind: Sql, engine: spark, query: SELECT 1 AS id}\n"

    assert node.add(text)[0].outcome == "added"
    with pytest.raises(InvalidInput, match="primaryKey is empty"):
        node.add(text.replace("[id]", "[]").replace("name: cities", "name: towns"))


def test_a_derivative_without_transform_is_refused(node: Coordinator) -> None:
    text = "{kind: DatasetSnapshot, version: 1, content: {name: a, kind: Derivative, metadata: []}}"
    with pytest.raises(InvalidInput, match=r"^m0\.yaml:1:\d+: a: content\.metadata: a derivative needs"):
        node.add(text)


@pytest.mark.parametrize(
    ("columns", "complaint"),
    [
        (("event_time TIMESTAMP", "city BIGINT"), "column city: was STRING and cannot become BIGINT"),
        (("event_time TIMESTAMP",), "column city: cannot be removed"),
        (
            ("event_time TIMESTAMP", "city STRING NOT NULL"),
            "column city: was optional and cannot become required",
        ),
        (("event_time TIMESTAMP", "city STRING", "n INT NOT NULL"), "column n: is new and required"),
        (("event_time DATE", "city STRING"), "column event_time: was TIMESTAMP.* and cannot become DATE"),
        (("event_time TIMESTAMP", "City STRING"), "column City: the dataset spells it city"),
    ],
)
def test_a_source_continues_with_the_columns_that_the_dataset_has(
    filled: Coordinator, root: str, columns: tuple[str, ...], complaint: str
) -> None:
    before = filled.find("cities").state

    with pytest.raises(InvalidInput, match=rf"^m0\.yaml:10:\d+: cities: \S+: source default: {complaint}"):
        filled.add(root.replace(COLUMNS, f"schema: [{', '.join(columns)}]"), replace=True)
    with pytest.raises(InvalidInput, match=rf"^read\S*: source default: {complaint}"):
        filled.editor.commit_event("cities", source(*columns))

    assert filled.find("cities").state == before


def test_the_place_of_a_column_that_does_not_fit_is_its_declaration(filled: Coordinator) -> None:
    filled.editor.commit_event("cities", source("city STRING", "at STRUCT<x: DOUBLE>", name="second"))
    for columns, place in (
        (("event_time TIMESTAMP", "city BIGINT"), r"read\.ddlSchema\[1\]"),
        (("city STRING", "at STRUCT<x: INT>"), r"read\.ddlSchema\[1\]"),
        (("event_time TIMESTAMP",), "read"),
    ):
        with pytest.raises(InvalidInput, match=rf"^{place}: "):
            filled.editor.commit_event("cities", source(*columns))


@pytest.mark.parametrize(
    "more",
    [
        source("event_time TIMESTAMP", "city STRING", "people BIGINT"),
        source("city STRING"),
        source("event_time TIMESTAMP", "people BIGINT", name="second"),
        source("city STRING NOT NULL", name="second"),
        source(name="second"),
    ],
)
def test_columns_may_be_added_and_other_sources_may_lack_optional_ones(
    filled: Coordinator, more: AddPushSource
) -> None:
    made = filled.editor.commit_event("cities", more)

    assert made.state.push_sources[more.source_name] == more


def test_a_definition_that_no_batch_could_satisfy_can_be_corrected(filled: Coordinator, root: str) -> None:
    known = filled.find("cities")
    filled.propose(known, [source("event_time TIMESTAMP", "city BIGINT")])

    assert filled.add(root, replace=True)[0].outcome == "replaced"


def test_the_columns_of_sql_are_known_only_at_run_time(filled: Coordinator) -> None:
    sql = TransformSql(engine="spark", query="SELECT 'Oslo' AS city")
    made = AddPushSource(
        source_name="default",
        read=ReadStepNdJson(ddl_schema=("city BIGINT",)),
        preprocess=sql,
        merge=MergeStrategyAppend(),
    )
    assert filled.editor.commit_event("cities", made).state.push_sources["default"].preprocess is not None


def test_single_events_are_checked_like_those_of_manifests(node: Coordinator, root: str) -> None:
    node.add(root)
    offset = DataField(name="offset", type=DataTypeUInt64())
    for event, complaint in (
        (source("offset BIGINT", name="s"), "^read.ddlSchema.0.: source s: column offset"),
        (source("a INT", name="s", key=("b",)), "source s: primary key b"),
        (source("a INT", name=" "), "^sourceName: .* its name is empty"),
        (
            SetVocab(offset_column="city"),
            "source default: column city: the name belongs to system column city",
        ),
        (SetVocab(offset_column="op"), "two system columns are named op"),
        (SetVocab(offset_column=""), "a system column needs a name"),
        (SetDataSchema(raw_arrow_schema=b"garbage"), "^rawArrowSchema: "),
        (SetDataSchema(schema=DataSchema(fields=(offset, offset))), "column offset: is declared twice"),
        (
            SetDataSchema(schema=DataSchema(fields=(DataField(name="a", type=DataTypeDuration()),))),
            "column a: type duration.* has no logical hash",
        ),
        (
            SetDataSchema(schema=DataSchema(fields=(DataField(name="a", type=DataTypeInt32()),))),
            "column offset is missing",
        ),
    ):
        with pytest.raises(InvalidInput, match=complaint):
            node.editor.commit_event("cities", event)


def test_the_names_of_system_columns_are_those_of_the_dataset(node: Coordinator, root: str) -> None:
    vocab = "    - {kind: SetVocab, offsetColumn: nr}\n"
    with pytest.raises(InvalidInput, match="column nr: the name belongs to system column nr"):
        node.add(root.replace("city STRING", "nr STRING") + vocab)
    node.add(root.replace("city STRING", "offset STRING") + vocab)

    with pytest.raises(InvalidInput, match="column nr: the name belongs to"):
        node.editor.commit_event("cities", source("nr INT", name="second"))


def test_comparing_needs_declared_columns_in_single_events_too(node: Coordinator, root: str) -> None:
    node.add(root)
    merge = MergeStrategySnapshot(primary_key=("a",), compare_columns=("b",))
    event = AddPushSource(source_name="s", read=ReadStepNdJson(ddl_schema=("a INT",)), merge=merge)
    with pytest.raises(InvalidInput, match=r"^merge\.compareColumns\[0\]: source s: column to compare b"):
        node.editor.commit_event("cities", event)


def test_a_broken_chain_rule_is_reported_with_its_place(node: Coordinator, root: str) -> None:
    text = root.split("    - kind", maxsplit=1)[0] + POLLING.removeprefix("\n")
    text = text.replace('{kind: Url, url: "http://example.org"}', "EthereumLogs")
    with pytest.raises(
        InvalidInput,
        match=r"^m0\.yaml:8:7: cities: content\.metadata\[0\]: the source has neither chainId nor nodeUrl \(rule ethereum",
    ):
        node.add(text)
    assert list(node.catalog.entries()) == []
    assert list(node.blobs.datasets()) == []


def test_a_declared_schema_and_its_source_have_to_fit(node: Coordinator, root: str) -> None:
    time = "{kind: Timestamp, unit: Millisecond, timezone: UTC}"
    fields = {"offset": "UInt64", "op": "UInt8", "system_time": time, "event_time": time, "city": "Int32"}
    columns = ", ".join(f"{{name: {name}, type: {type_}}}" for name, type_ in fields.items())
    declared = f"    - {{kind: SetDataSchema, schema: {{fields: [{columns}]}}}}\n"
    with pytest.raises(InvalidInput, match=r"^m0\.yaml:\d+:\d+: cities: content\.metadata\[0\].*column city"):
        node.add(root + declared)
    assert list(node.catalog.entries()) == []
    assert node.add(root + declared.replace("Int32", "String"))[0].outcome == "added"


@pytest.mark.parametrize("type_", ["BIGINT[]", "STRUCT<a: INT>"])
def test_csv_declares_no_lists_and_structs(node: Coordinator, root: str, type_: str) -> None:
    text = root.replace("NdJson", "Csv").replace("city STRING", f'city STRING, "tags {type_}"')
    assert type_ in text
    with pytest.raises(InvalidInput, match="tags: Csv has no values of type"):
        node.add(text)


def test_a_source_declares_its_columns_in_either_form_or_not_at_all() -> None:
    fields = DataSchema(fields=(DataField(name="x", type=DataTypeInt32()),))
    forms = (ReadStepNdJson(ddl_schema=("x INT",)), ReadStepNdJson(schema=fields))
    for schema in map(declared_schema, forms):
        assert schema is not None
        assert (schema.names, schema.types) == (["x"], [pa.int32()])
    assert declared_schema(ReadStepNdJson()) is None


PREPROCESS = "      preprocess: {kind: Sql, engine: spark, query: SELECT city FROM input}\n"


def test_a_new_preprocess_query_is_checked_with_the_declared_columns(node: Coordinator, root: str) -> None:
    node.engine.refusal = "GROUP BY cannot be used in preprocess"
    with pytest.raises(InvalidQuery, match=r"preprocess: GROUP BY cannot be used"):
        node.add(root + PREPROCESS)
    with pytest.raises(InvalidQuery, match=r"preprocess: GROUP BY cannot be used"):
        node.add(root.replace(COLUMNS, "schema: null") + PREPROCESS)

    assert list(node.catalog.entries()) == []
    declared, inferred = node.engine.preprocess_schemas
    assert declared is not None
    assert "city" in declared.names
    assert inferred is None


def test_a_preprocess_query_of_the_chain_stays_and_is_a_problem_of_the_dataset(
    node: Coordinator, root: str
) -> None:
    node.add(root + PREPROCESS)
    node.engine.refusal = "GROUP BY cannot be used in preprocess"
    node.add(root + PREPROCESS)
    servicer = Servicer(node.parts)

    def problem() -> str:
        (cities,) = servicer.List(wire.ListRequest(), cast("grpc.ServicerContext", None)).datasets
        return cities.problem

    deadline = time.monotonic() + 30
    while not problem() and time.monotonic() < deadline:
        time.sleep(0.01)  # the engine is asked in the background
    assert "would be refused today: GROUP BY cannot be used" in problem()
    source = node.find("cities").state.push_sources["default"]
    changed = TransformSql(engine="spark", query="SELECT count(*) FROM input")
    with pytest.raises(InvalidQuery, match="GROUP BY cannot be used"):
        node.editor.commit_event("cities", replace(source, preprocess=changed))

    node.engine.refusal = ""
    better = TransformSql(engine="spark", query="SELECT event_time, upper(city) AS city FROM input")
    node.editor.commit_event("cities", replace(source, preprocess=better))
    asked = len(node.engine.preprocess_schemas)
    assert not problem(), "the engine has not answered yet"
    while len(node.engine.preprocess_schemas) == asked and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(node.engine.preprocess_schemas) > asked
    assert not problem()
