"""Inputs without records get the schemas that their sources declare, once another input of a derivative has begun."""

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pytest
import yaml
from odf_testing.builders import a_push_source, a_query
from odf_testing.coordinator import Coordinator
from odf_testing.story import POLLING, derivative, root

from odf_common.chain.walk import iterate
from odf_common.data.schema_evolution import schema_to_event
from odf_common.errors import InvalidInput, Unavailable
from odf_common.metadata.events import (
    AddData,
    AddPushSource,
    DisablePushSource,
    KnownEvent,
    MergeStrategy,
    MergeStrategyAppend,
    MergeStrategyChangelogStream,
    MergeStrategyLedger,
    MergeStrategySnapshot,
    MergeStrategyUpsertStream,
    ReadStepNdJson,
    SetInfo,
    SetVocab,
)
from odf_common.metadata.scalars import Timestamp
from odf_coordinator.definitions.declared_columns import known_schemas, schema_of_events
from odf_coordinator.definitions.diff import _require_kept
from odf_coordinator.operations.pull import PullProgress

from .test_declarations import source

COLUMNS = ("event_time TIMESTAMP", "city STRING")
BOTH = derivative("both", {"left": "cities", "right": "towns"}, "SELECT * FROM left")
COPY = derivative("towns.copy", {"towns": "towns"}, "SELECT * FROM towns")
OVER_COPY = derivative("both", {"left": "cities", "right": "towns.copy"}, "SELECT * FROM left")


def add(node: Coordinator, *manifests: object) -> None:
    node.add(*(yaml.safe_dump(one) for one in manifests))
    node.work()


def blocks(node: Coordinator, ref: str) -> int:
    return node.find(ref).state.sequence_number + 1


@pytest.mark.parametrize("readers", [(BOTH,), (COPY, OVER_COPY)])
def test_a_derivative_starts_although_an_input_has_no_record(
    node: Coordinator, readers: tuple[object, ...]
) -> None:
    add(node, root("cities", COLUMNS), root("towns", COLUMNS), *readers)
    assert (blocks(node, "towns"), node.engine.requests) == (2, []), "no input has begun"

    node.push("cities", "Oslo")
    node.work()

    assert node.find("both").state.next_offset == 1
    assert (blocks(node, "towns"), node.find("towns").state.next_offset) == (3, 0)
    node.push("towns", "Ely", minute=1)
    node.work()
    assert node.find("both").state.next_offset == 2
    known = node.find("towns")
    events = [
        decoded.block.event for _, decoded, _ in iterate(node.datasets.reader(known.id), known.state.head)
    ]
    assert isinstance(events[0], AddData)
    assert len(events) == 4, "its first slice has that schema"


def test_a_watermark_on_a_dataset_without_records_starts_its_derivative(node: Coordinator) -> None:
    add(node, root("towns", COLUMNS), COPY)
    watermark = Timestamp.parse("2026-03-10T00:00:00Z")

    list(node.puller.set_watermarks(["towns"], watermark))
    node.work()

    assert node.find("towns.copy").state.watermark == watermark
    assert node.find("towns.copy").state.schema == node.find("towns").state.schema


@pytest.mark.parametrize(
    ("town", "why"),
    [
        (root("towns", ()), "declares no schema"),
        (root("towns", COLUMNS, sources=()), "has no source"),
    ],
)
def test_without_a_declared_schema_nothing_is_committed(node: Coordinator, town: object, why: str) -> None:
    other = root("empty", COLUMNS)
    three = derivative("three", {"left": "cities", "right": "towns", "more": "empty"}, "SELECT * FROM left")
    add(node, root("cities", COLUMNS), town, other, three)
    before = blocks(node, "towns")

    node.push("cities", "Oslo")
    node.work()

    assert (blocks(node, "towns"), blocks(node, "empty"), node.engine.requests) == (before, 2, [])
    assert why in node.first_schemas.why_unknown(node.find("towns"))


def test_a_schema_of_a_root_whose_key_is_elsewhere_is_its_owners(node: Coordinator) -> None:
    add(node, root("cities", COLUMNS), root("towns", COLUMNS), BOTH)
    node.keys.remove(node.find("towns").id)

    node.push("cities", "Oslo")
    node.work()

    assert (blocks(node, "towns"), node.engine.requests) == (2, [])
    assert "owner" in node.first_schemas.why_unknown(node.find("towns"))


def test_a_declaration_can_be_replaced_after_a_reset_to_before_its_schema(node: Coordinator) -> None:
    add(node, root("cities", COLUMNS), root("towns", ["event_time TIMESTAMP", "city INT"]), BOTH)
    before = node.find("towns").state.head
    node.push("cities", "Oslo")
    node.work()
    corrected = yaml.safe_dump(root("towns", COLUMNS))
    with pytest.raises(InvalidInput, match="column city"):
        node.add(corrected, replace=True)

    node.editor.reset("towns", before, is_forced=True)
    node.work()
    node.add(corrected, replace=True)
    with node.scheduler_running():
        list(node.puller.derive_again(["towns"], is_recursive=False, is_wanted=lambda: True))

    assert node.find("both").state.next_offset == 1
    node.push("towns", "Ely", minute=1)
    node.work()
    assert node.find("both").state.next_offset == 2


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


ID, CITY = pa.field("id", pa.int64(), nullable=False), pa.field("city", pa.string())
KNOWN = pa.schema([ID, CITY])


@pytest.mark.parametrize(
    ("before", "declared", "column"),
    [
        ([ID, CITY], [CITY], "id"),
        ([ID, CITY], [ID], "city"),
        ([ID, CITY], [], "id"),
        ([CITY, ID], [ID], "city"),
        ([CITY], [], "city"),
    ],
)
def test_a_column_that_the_source_had_stays(
    before: list[pa.Field], declared: list[pa.Field], column: str
) -> None:
    with pytest.raises(InvalidInput, match=f"column {column}: cannot be removed"):
        _require_kept(KNOWN, pa.schema(before), pa.schema(declared))


@pytest.mark.parametrize(
    ("before", "declared"),
    [
        ([ID, CITY], [CITY, ID]),
        ([], []),
        ([ID], [ID]),
        ([CITY], [CITY, ID]),
        ([ID], [ID.with_nullable(True)]),
    ],
)
def test_what_the_source_had_or_never_had_is_as_it_was(
    before: list[pa.Field], declared: list[pa.Field]
) -> None:
    _require_kept(KNOWN, pa.schema(before), pa.schema(declared))


def test_only_what_was_optional_everywhere_may_not_become_required() -> None:
    required = CITY.with_nullable(False)
    with pytest.raises(InvalidInput, match="column city: was optional"):
        _require_kept(KNOWN, pa.schema([CITY]), pa.schema([required]))
    _require_kept(KNOWN, pa.schema([required]), pa.schema([required]))
    _require_kept(pa.schema([required]), pa.schema([CITY]), pa.schema([required]))


@pytest.fixture
def polled(node: Coordinator, root: str) -> str:
    """Return the manifest of `cities`, which has a polling source."""
    text = root.split("    - kind", maxsplit=1)[0] + POLLING.removeprefix("\n")
    node.add(text)
    return text


@pytest.mark.parametrize(
    ("fetch", "where", "why"),
    [
        ('{kind: Url, url: "gopher://example.org"}', "fetch.url", "not from 'gopher'"),
        ("{kind: FilesGlob, path: data/*.csv}", "fetch.path", "expected an absolute path"),
        (
            "{kind: Mqtt, host: h, port: 1, topics: [{path: a}]}\n      prepare: [{kind: Pipe, command: [cat]}]",
            "prepare",
            "messages have no prepare steps",
        ),
        ("{kind: EthereumLogs, chainId: 1}", "fetch", "does not fetch from EthereumLogs"),
    ],
)
def test_a_source_from_which_nothing_can_be_fetched_is_refused(  # noqa: PLR0917
    node: Coordinator, root: str, polled: str, fetch: str, where: str, why: str
) -> None:
    assert node.add(polled)[0].outcome == "unchanged"
    text = polled.replace('{kind: Url, url: "http://example.org"}', fetch)
    with pytest.raises(
        InvalidInput, match=rf"^m0\.yaml:\S+ cities: content\.metadata\[0\]\.{where}: .*{why}"
    ):
        node.add(text, replace=True)


@pytest.mark.parametrize(
    "fetch",
    [
        "{kind: Url, url: 'ftp://example.org/a'}",
        "{kind: Mqtt, host: example.org, port: 1883, topics: [{path: a}]}",
        "{kind: Container, image: example/a}",
    ],
)
def test_every_kind_that_is_fetched_is_accepted(node: Coordinator, polled: str, fetch: str) -> None:
    text = polled.replace('{kind: Url, url: "http://example.org"}', fetch)
    assert node.add(text, replace=True)[0].outcome == "replaced"


def test_a_pull_polls_and_a_failure_counts_what_was_committed_before(node: Coordinator, polled: str) -> None:
    del polled

    def pull() -> list[PullProgress]:
        return [*node.puller.pull(["cities"], is_all=False, is_recursive=False, is_wanted=lambda: True)]

    _, step, last = pull()
    assert step.progress is not None
    assert (step.progress.stage, last.state) == ("fetching", "up-to-date")
    assert node.ingest.polled == [node.find("cities").id]
    node.ingest.poll_error = Unavailable(what="http://example.org")
    *_, last = pull()
    assert (last.state, last.new_blocks) == ("failed", 0)
    assert "http://example.org cannot be reached" in last.error


@pytest.mark.usefixtures("polled")
def test_a_polled_dataset_is_not_pushed_to_by_another_manifest(node: Coordinator, root: str) -> None:
    with pytest.raises(InvalidInput, match=r"^m0\.yaml:\S+ cities: .*sources cannot be removed: polling"):
        node.add(root, replace=True)


PUSH = """
    - kind: AddPushSource
      sourceName: default
      read: {kind: NdJson}
      merge: {kind: Append}
"""


SCHEMA = """
    - kind: SetDataSchema
      schema: {fields: [{name: offset, type: UInt64}]}
"""


@pytest.mark.parametrize(
    ("more", "place", "complaint"),
    [
        (PUSH, "13:7", r"metadata\[1\]\.sourceName: source default is defined twice"),
        (PUSH.replace("default", "''"), "13:7", r"metadata\[1\]\.sourceName: .*its name is empty"),
        (POLLING, "12:7", r"metadata\[1\]: a dataset has push sources or a polling source, not both"),
        (
            SCHEMA,
            "13:7",
            r"metadata\[1\]\.schema: column op is missing; a data schema includes the system columns",
        ),
        (
            SCHEMA.replace("UInt64", "Duration"),
            "13:25",
            r"metadata\[1\]\.schema\.fields\[0\]: column offset: .* no logical hash",
        ),
    ],
)
def test_conflicting_events_are_refused_with_their_place(
    node: Coordinator, root: str, more: str, place: str, complaint: str
) -> None:
    with pytest.raises(InvalidInput, match=rf"^m0\.yaml:{place}: cities: content\.{complaint}"):
        node.add(root + more.removeprefix("\n"))


SNAPSHOTS = """
    - kind: AddPushSource
      sourceName: {name}
      read: {{kind: NdJson, schema: ["event_time TIMESTAMP", "city STRING"]}}
      merge: {{kind: Snapshot, primaryKey: [city]}}
"""


def test_a_second_snapshot_source_is_refused_by_add_and_by_commit(node: Coordinator, root: str) -> None:
    one, two = (SNAPSHOTS.format(name=name).removeprefix("\n") for name in ("one", "two"))
    with pytest.raises(InvalidInput, match=r"merge: source one takes snapshots too, and each would retract"):
        node.add(root + one + two)
    node.add(root + one)
    snapshot = replace(
        source("event_time TIMESTAMP", "city STRING", name="two"),
        merge=MergeStrategySnapshot(primary_key=("city",)),
    )
    with pytest.raises(InvalidInput, match="source one takes snapshots too"):
        node.editor.commit_event("cities", snapshot)
    node.editor.commit_event("cities", DisablePushSource(source_name="one"))
    node.editor.commit_event("cities", snapshot)
    assert set(node.find("cities").state.push_sources) == {"default", "two"}


@pytest.mark.parametrize(
    ("columns", "complaint"),
    [
        (("city INT",), "column city: source default declares it as string, and this one as int32"),
        (("City STRING",), "column City: source default spells it city, and SQL cannot distinguish the two"),
        (("city ARRAY<STRING>",), "column city: source default declares it as string"),
        (("event_time DATE",), "column event_time: source default declares it as timestamp"),
    ],
)
def test_sources_that_declare_a_column_differently_are_refused(
    node: Coordinator, root: str, columns: tuple[str, ...], complaint: str
) -> None:
    complaint = f"source other: {complaint}"
    listed = ", ".join(f'"{column}"' for column in columns)
    other = (
        SNAPSHOTS.format(name="other")
        .removeprefix("\n")
        .replace('"event_time TIMESTAMP", "city STRING"', listed)
    )
    other = other.replace("kind: Snapshot, primaryKey: [city]", "kind: Append")
    with pytest.raises(
        InvalidInput, match=rf"^m0\.yaml:14:\d+: cities: content.metadata\[1\]\S*: {complaint}"
    ):
        node.add(root + other)
    node.add(root)
    with pytest.raises(InvalidInput, match=complaint):
        node.editor.commit_event("cities", source(*columns, name="other"))
    assert set(node.find("cities").state.push_sources) == {"default"}


def test_sources_may_declare_other_columns_and_more_fields(node: Coordinator, root: str) -> None:
    node.add(root)
    node.editor.commit_event("cities", source("city STRING NOT NULL", "s STRUCT<a: INT>", name="second"))
    node.editor.commit_event("cities", source("s STRUCT<a: INT, b: INT>", name="third"))
    assert set(node.find("cities").state.push_sources) == {"default", "second", "third"}
