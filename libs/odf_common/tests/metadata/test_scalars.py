from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odf_common.errors import InvalidInput
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata import events as ev
from odf_common.metadata.events import DatasetSnapshot
from odf_common.metadata.normalize import normalize
from odf_common.metadata.scalars import Timestamp


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00+01:00", "9999-12-31T23:59:59-00:01"])
def test_a_time_that_leaves_the_calendar_in_utc_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="outside the years 1 to 9999"):
        Timestamp.parse(text)


@pytest.mark.parametrize(
    ("text", "in_utc"),
    [
        ("2020-01-01T12:34:56+12:30", "2020-01-01T00:04:56Z"),
        ("2020-01-01T12:34:56-23:59", "2020-01-02T12:33:56Z"),
        ("2020-01-01t12:34:56.5z", "2020-01-01T12:34:56.500Z"),
        ("2020-01-01 12:34:56+00:00", "2020-01-01T12:34:56Z"),
    ],
)
def test_a_time_with_an_offset_is_converted_to_utc(text: str, in_utc: str) -> None:
    assert str(Timestamp.parse(text)) == in_utc


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("2020-01-01T12:00:00", "expected an RFC 3339 time"),
        ("yesterday", "expected an RFC 3339 time"),
        ("2020-02-30T12:00:00Z", "is not a time: day is out of range"),
        ("2020-01-01T12:00:00+24:00", "is not a time: its offset is not below 24"),
        ("2020-01-01T12:00:00-00:60", "is not a time: its offset is not below 24"),
    ],
)
def test_what_is_no_time_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        Timestamp.parse(text)


def test_a_time_of_the_calendar_is_given_in_whole_microseconds() -> None:
    time = datetime(2020, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC)
    assert Timestamp.from_datetime(time) == Timestamp.parse("2020-01-02T03:04:05.678901Z")
    assert Timestamp.parse("2020-01-02T03:04:05.678901999Z").datetime() == time
    with pytest.raises(InvalidInput, match="expected a time with an offset, got 2020-01-02"):
        Timestamp.from_datetime(time.replace(tzinfo=None))


@given(st.integers())
def test_every_time_can_be_formatted(ns: int) -> None:
    assert str(Timestamp(ns)).endswith("Z")


@given(st.datetimes(timezones=st.just(UTC)))
def test_a_time_of_the_calendar_is_formatted_as_it_is_parsed(time: datetime) -> None:
    stamp = Timestamp.from_datetime(time)
    assert Timestamp.parse(str(stamp)) == stamp
    assert str(stamp)[:19] == time.isoformat()[:19]


@pytest.mark.parametrize(
    ("after", "text"),
    [
        (timedelta(), "9999-12-31T23:59:59Z"),
        (timedelta(seconds=1), "+10000-01-01T00:00:00Z"),
        (timedelta(days=366, seconds=1), "+10001-01-01T00:00:00Z"),
    ],
)
def test_years_past_9999_are_expanded(after: timedelta, text: str) -> None:
    last = Timestamp.parse("9999-12-31T23:59:59Z")
    assert str(Timestamp(last.ns + after // timedelta(microseconds=1) * 1000)) == text


def test_years_before_the_first_are_expanded() -> None:
    first = Timestamp.parse("0001-01-01T00:00:00Z")
    assert str(Timestamp(first.ns - 1)) == "0000-12-31T23:59:59.999999999Z"
    assert str(Timestamp(first.ns - 367 * 86_400 * 1_000_000_000)) == "-0001-12-31T00:00:00Z"


def test_a_timestamp_is_rounded_down_to_milliseconds() -> None:
    time = Timestamp.parse("1969-12-31T23:59:59.999999999Z")
    assert str(time.whole_ms()) == "1969-12-31T23:59:59.999Z"
    assert Timestamp.parse("2020-01-01T12:00:00.123999Z").ms == 1_577_880_000_123


ID = DatasetId.of_key(bytes(32))


def sql(**fields: Any) -> ev.TransformSql:
    return ev.TransformSql(engine="spark", **fields)


def root(*events: ev.KnownEvent, name: str = "foo") -> DatasetSnapshot:
    return DatasetSnapshot(name=name, kind=ev.DatasetKind.Root, metadata=events)


def derivative(*events: ev.KnownEvent) -> DatasetSnapshot:
    return DatasetSnapshot(name="foo", kind=ev.DatasetKind.Derivative, metadata=events)


def push(preprocess: ev.Transform | None = None) -> ev.AddPushSource:
    return ev.AddPushSource(
        source_name="default", read=ev.ReadStepNdJson(), preprocess=preprocess, merge=ev.MergeStrategyAppend()
    )


def transform(*inputs: ev.TransformInput, by: ev.Transform | None = None) -> ev.SetTransform:
    return ev.SetTransform(inputs=inputs, transform=by or sql(query="SELECT 1"))


def test_single_query_becomes_the_last_of_one() -> None:
    for snapshot in (
        root(push(sql(query="SELECT 1"))),
        derivative(transform(ev.TransformInput(dataset_ref="a"))),
    ):
        (event,) = normalize(snapshot).metadata
        found = event.preprocess if isinstance(event, ev.AddPushSource) else event.transform  # type: ignore[union-attr]
        assert found == sql(queries=(ev.SqlQueryStep(query="SELECT 1"),))


def test_input_without_alias_is_named_as_written() -> None:
    inputs = (
        ev.TransformInput(dataset_ref="Org/Trades"),
        ev.TransformInput(dataset_ref=str(ID)),
        ev.TransformInput(dataset_ref="x", alias="y"),
    )
    (event,) = normalize(derivative(transform(*inputs))).metadata
    assert isinstance(event, ev.SetTransform)
    assert [given.alias for given in event.inputs] == ["Org/Trades", str(ID), "y"]


def test_normal_snapshot_is_unchanged() -> None:
    by = sql(queries=(ev.SqlQueryStep(alias="a", query="SELECT 1"), ev.SqlQueryStep(query="SELECT * FROM a")))
    snapshot = derivative(transform(ev.TransformInput(dataset_ref="a", alias="b"), by=by), ev.SetInfo())
    assert normalize(snapshot) == snapshot


@pytest.mark.parametrize(
    "queries",
    [
        (),
        (ev.SqlQueryStep(alias="a", query="SELECT 1"),),
        (ev.SqlQueryStep(query="SELECT 1"), ev.SqlQueryStep(query="SELECT 2")),
        (ev.SqlQueryStep(query="SELECT 1"), ev.SqlQueryStep(alias="a", query="SELECT 2")),
    ],
)
def test_only_the_last_query_has_no_alias(queries: tuple[ev.SqlQueryStep, ...]) -> None:
    with pytest.raises(InvalidInput, match=r"content\.metadata\[0\]\.preprocess"):
        normalize(root(push(sql(queries=queries))))


@pytest.mark.parametrize(
    ("snapshot", "complaint"),
    [
        (root(name="foo_bar"), "content.name"),
        (
            root(ev.SetInfo(), ev.Seed(dataset_id=ID, dataset_kind=ev.DatasetKind.Root)),
            "content.metadata[1]: a snap",
        ),
        (root(ev.AddData()), "AddData cannot define a dataset"),
        (derivative(ev.ExecuteTransform(query_inputs=())), "ExecuteTransform cannot define"),
        (root(ev.DisablePollingSource()), "DisablePollingSource cannot define"),
        (root(ev.DisablePushSource(source_name="a")), "DisablePushSource cannot define"),
        (derivative(push()), "AddPushSource is only allowed in a root dataset"),
        (
            root(transform(ev.TransformInput(dataset_ref="a"))),
            "SetTransform is only allowed in a derivative dataset",
        ),
        (root(push(sql(query="a", queries=()))), "either 'query' or 'queries'"),
        (root(push(sql())), "needs 'query' or 'queries'"),
        (derivative(transform(ev.TransformInput(dataset_ref="a b"))), "inputs[0].datasetRef"),
        (
            derivative(transform(ev.TransformInput(dataset_ref="a"), ev.TransformInput(dataset_ref="A"))),
            "two inputs are called 'a'",
        ),
    ],
)
def test_an_invalid_definition_of_a_dataset_is_refused(snapshot: DatasetSnapshot, complaint: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        normalize(snapshot)
    assert complaint in str(caught.value)
