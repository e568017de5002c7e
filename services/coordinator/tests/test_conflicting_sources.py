"""Sources and events of one dataset that contradict each other, and those that may differ."""

from dataclasses import replace

import pytest
from odf_testing.coordinator import Coordinator
from odf_testing.manifests import POLLING

from odf_common.errors import InvalidInput
from odf_common.metadata.events import DisablePushSource, MergeStrategySnapshot

from .test_declarations import source

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
