"""Derivatives go on with the installed version of the engine: their state is converted, or all is derived again."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pyarrow as pa
import pytest
from odf_testing.coordinator import DATA, Coordinator

from odf_common.adapters.local.key_files import NotOwned
from odf_common.codec.envelopes import envelope
from odf_common.errors import InvalidInput, InvalidQuery
from odf_common.identity.dataset_refs import HEAD
from odf_common.metadata.engine_messages import TransformResponseSuccess
from odf_common.metadata.events import SetInfo, SetTransform, SqlQueryStep
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.engine import EngineNotAvailable, MigrateRequest
from odf_common.proto.odf.node.v1 import coordinator_pb2 as wire
from odf_coordinator.api.grpc_servicer import Servicer
from odf_coordinator.commit.head_publisher import committed_message
from odf_coordinator.operations.query_problems import EngineUpgrade, QueryProblems
from odf_coordinator.views.table import DatasetTable

COPIES = ("cities.copy", "copy.copy")


@pytest.fixture
def older(node: Coordinator, root: str, derivative: str, second: str) -> Coordinator:
    """A derivative and its reader, which version one of the engine has computed; version two is installed."""
    node.engine.version = "one"
    node.add(root, derivative, second)
    node.push("cities", "Oslo")
    node.work()
    node.engine.version = "two"
    return node


def upgrade(
    node: Coordinator, *refs: str, is_restarted: bool = False, is_dry: bool = False
) -> list[EngineUpgrade]:
    return [*node.upgrader.upgrade(refs, is_all=not refs, is_restarted=is_restarted, is_dry=is_dry)]


def outcomes(done: list[EngineUpgrade]) -> dict[str, str]:
    return {one.alias: one.outcome for one in done}


def version(node: Coordinator, ref: str) -> str | None:
    event = node.find(ref).state.transform
    assert event is not None
    return event.transform.version


def cities(node: Coordinator, ref: str) -> list[str]:
    return list(node.record_reader.tail(ref, 9)["city"].to_pylist())


def listed(node: Coordinator, wanted: str) -> wire.DatasetSummary:
    """Return the summary of `cities.copy` once it has a problem with this text; the engine is asked in the background."""
    servicer, deadline = Servicer(node.parts), time.monotonic() + 30
    while time.monotonic() < deadline:
        reply = servicer.List(wire.ListRequest(), cast("grpc.ServicerContext", None))
        for dataset in reply.datasets:
            if dataset.alias == "cities.copy" and wanted in dataset.problem:
                return dataset
        time.sleep(0.01)
    raise AssertionError(f"no problem with {wanted!r}")


def test_results_that_changed_pause_a_derivative_and_the_remedy_names_it(older: Coordinator) -> None:
    older.engine.earlier, older.engine.changes = "one", ("times are cut",)
    older.push("cities", "Rome", minute=1)
    older.work()

    stall = older.scheduler.stall_of(older.find("cities.copy").id)

    assert stall is not None
    assert stall.reason == "spark one computed it, and results differ today: times are cut"
    assert "`odf engine upgrade cities.copy`" in stall.remedy
    older.now += 3600
    assert older.work() == 0
    upgrade(older, "cities.copy")
    older.work()
    assert older.scheduler.stall_of(older.find("cities.copy").id) is None
    assert cities(older, "cities.copy") == ["Oslo", "Rome"]


def test_a_derivative_with_nothing_to_read_is_named_too(older: Coordinator) -> None:
    older.engine.earlier, older.engine.changes = "one", ("times are cut",)
    assert "`odf engine upgrade cities.copy`" in listed(older, "times are cut").remedy

    older.engine.earlier = None
    assert "here is two" in listed(older, "asked for one").problem

    upgrade(older, "cities.copy")
    (found,) = [
        one
        for one in Servicer(older.parts).List(wire.ListRequest(), cast("grpc.ServicerContext", None)).datasets
        if one.alias == "cities.copy"
    ]
    assert found.problem == ""


def test_one_that_cannot_differ_continues_under_its_version(older: Coordinator) -> None:
    older.engine.earlier = "one"
    older.push("cities", "Rome", minute=1)
    older.work()

    assert [cities(older, ref) for ref in COPIES] == [["Oslo", "Rome"]] * 2
    assert [version(older, ref) for ref in COPIES] == ["one", "one"]


def test_a_dry_run_changes_nothing(older: Coordinator) -> None:
    older.engine.changes = ("times are cut",)
    heads = [older.find(ref).state.head for ref in COPIES]

    done = upgrade(older, is_dry=True)

    assert outcomes(done) == dict.fromkeys(COPIES, "possible")
    assert {(one.before, one.after, one.changes) for one in done} == {("one", "two", ("times are cut",))}
    assert [older.find(ref).state.head for ref in COPIES] == heads


def test_an_upgraded_derivative_continues_from_its_state(older: Coordinator) -> None:
    assert outcomes(upgrade(older)) == dict.fromkeys(COPIES, "upgraded")
    assert len(older.engine.migrations) == 2
    older.push("cities", "Rome", minute=1)
    older.work()

    assert [version(older, ref) for ref in COPIES] == ["two", "two"]
    assert [cities(older, ref) for ref in COPIES] == [["Oslo", "Rome"]] * 2
    assert outcomes(upgrade(older)) == dict.fromkeys(COPIES, "up-to-date")


def test_one_derived_again_takes_its_readers_along(older: Coordinator) -> None:
    older.engine.changes = ("times are cut",)
    before = [older.find(ref).state.head for ref in COPIES]
    assert outcomes(upgrade(older, "cities.copy", is_restarted=True)) == {"cities.copy": "derived-again"}
    assert [older.find(ref).state.next_offset for ref in COPIES] == [0, 0]

    older.work()
    assert cities(older, "cities.copy") == ["Oslo"]
    assert version(older, "copy.copy") == "one"
    assert outcomes(upgrade(older, "copy.copy")) == {"copy.copy": "upgraded"}
    older.now += 60
    older.work()
    assert cities(older, "copy.copy") == ["Oslo"]
    assert [older.find(ref).state.head for ref in COPIES] != before


def test_a_reader_of_what_is_derived_again_follows_by_itself(older: Coordinator) -> None:
    older.engine.earlier = "one"
    requests = len(older.engine.requests)
    upgrade(older, "cities.copy", is_restarted=True)

    older.work()

    assert [cities(older, ref) for ref in COPIES] == [["Oslo"], ["Oslo"]]
    assert [version(older, ref) for ref in COPIES] == ["two", "one"]
    assert len(older.engine.requests) == requests + 2


def test_another_commit_in_the_meantime_repeats_the_upgrade(
    older: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    migrate, others = older.engine.migrate, [SetInfo(description="another commit")]

    def interrupted(request: MigrateRequest) -> TransformResponseSuccess:
        if others:
            older.editor.commit_event("cities.copy", others.pop())
        return migrate(request)

    monkeypatch.setattr(older.engine, "migrate", interrupted)

    assert outcomes(upgrade(older, "cities.copy")) == {"cities.copy": "upgraded"}
    assert older.find("cities.copy").state.definitions.by_kind()[SetInfo] is not None


def test_of_all_only_those_are_derived_again_whose_results_can_differ(older: Coordinator) -> None:
    assert outcomes(upgrade(older, is_restarted=True)) == dict.fromkeys(COPIES, "upgraded")
    assert [older.find(ref).state.next_offset for ref in COPIES] == [1, 1]
    assert outcomes(upgrade(older, "copy.copy", is_restarted=True)) == {"copy.copy": "derived-again"}


def test_one_that_is_refused_stops_no_other(older: Coordinator) -> None:
    older.engine.failures = [
        InvalidQuery(text="rows would differ: `odf engine upgrade DATASET --from-start`")
    ]

    first, other = upgrade(older)

    assert (first.outcome, other.outcome) == ("refused", "upgraded")
    assert first.error == "rows would differ: `odf engine upgrade cities.copy --from-start`"
    assert version(older, "cities.copy") == "one"


def test_a_query_that_is_refused_today_says_how_to_replace_it(
    older: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise InvalidQuery(text="reads XML")

    monkeypatch.setattr(older.engine, "validate", refuse)
    remedy = listed(older, "reads XML").remedy
    assert "`odf commit cities.copy FILE`" in remedy
    assert "`odf reset cities.copy 0 --force --yes`" in remedy, "another derivative has read it"

    (done,) = upgrade(older, "cities.copy")

    assert done.outcome == "refused"
    assert "reads XML; set a query that is accepted with `odf commit cities.copy FILE`" in done.error
    assert done.error.endswith("is replaced after `odf reset cities.copy 0 --force`")


def test_a_query_that_cannot_be_migrated_names_the_dataset_in_the_command_to_derive_it_again(
    older: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> None:
        raise InvalidQuery(text="rows would differ: `odf engine upgrade DATASET --from-start`")

    monkeypatch.setattr(older.engine, "migrate", refuse)
    current = older.find("cities.copy").state.transform
    assert current is not None
    current = replace(current, transform=replace(current.transform, version=None))
    query = SqlQueryStep(query="SELECT event_time, city FROM cities WHERE true")
    other = replace(current, transform=replace(current.transform, queries=(query,)))
    with pytest.raises(InvalidQuery, match=r"`odf engine upgrade cities\.copy --from-start`"):
        older.editor.commit_event("cities.copy", other)


def await_problem(problems: QueryProblems, node: Coordinator) -> str:
    """Return the problem of `cities.copy` once it has one; the engine is asked in the background."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if found := problems.problem(node.find("cities.copy")):
            return found.reason
        time.sleep(0.01)
    raise AssertionError("no problem")


def test_the_engine_is_asked_again_about_a_query_once_its_input_has_other_columns(
    older: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    older.engine.earlier = "one"

    def refuse(_: object, inputs: Mapping[str, pa.Schema], *rest: object, **options: object) -> Any:
        for schema in inputs.values():
            raise InvalidQuery(text=f"reads {', '.join(schema.names)}")
        return SimpleNamespace(version="two")

    monkeypatch.setattr(older.engine, "validate", refuse)
    problems = QueryProblems(older.datasets, older.engine)
    assert await_problem(problems, older).endswith("event_time, city")
    wide = DATA.append(pa.field("country", pa.string()))
    records = {"event_time": [60_000], "city": ["Rome"], "country": ["Italy"]}
    older.push_table("cities", pa.table(records, schema=wide), minute=1)

    assert await_problem(problems, older).endswith("event_time, city, country")


def test_the_engine_is_not_asked_about_a_query_whose_input_cannot_be_read(older: Coordinator) -> None:
    copy, cities = older.find("cities.copy"), older.find("cities")
    older.refs.remove(cities.id, HEAD, expected=None)
    assert QueryProblems(older.datasets, older.engine).problem(copy) is None, "that is a problem of the input"


def test_the_engine_is_asked_again_about_a_query_after_an_unexpected_exception(
    older: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [ZeroDivisionError("a bug"), ZeroDivisionError("a bug")]

    def refuse(*_: object, **__: object) -> None:
        raise answers.pop() if answers else InvalidQuery(text="reads XML")

    monkeypatch.setattr(older.engine, "validate", refuse)
    assert await_problem(QueryProblems(older.datasets, older.engine), older) == "reads XML"


def test_only_derivatives_of_this_node_are_upgraded(older: Coordinator) -> None:
    with pytest.raises(InvalidInput, match="cities is a root"):
        upgrade(older, "cities")
    older.keys.remove(older.find("copy.copy").id)
    with pytest.raises(NotOwned):
        upgrade(older, "copy.copy")
    assert outcomes(upgrade(older, "%")) == {"cities.copy": "upgraded"}


@pytest.fixture
def first(node: Coordinator, root: str, derivative: str) -> Coordinator:
    """A derivative that was created while the engine was version one."""
    node.engine.version = "one"
    node.add(root, derivative)
    node.work()
    return node


def transform(node: Coordinator) -> SetTransform:
    found = node.find("cities.copy").state.transform
    assert found is not None
    return found


def unversioned(event: SetTransform) -> SetTransform:
    return replace(event, transform=replace(event.transform, version=None))


def test_a_new_dataset_asks_for_the_installed_engine(first: Coordinator) -> None:
    first.push("cities", "Oslo")
    first.work()
    assert transform(first).transform.version == "one"
    assert first.engine.requests[-1].transform.version == "one"


def test_the_same_manifest_is_unchanged_whatever_engine_is_installed(
    first: Coordinator, derivative: str
) -> None:
    head = first.find("cities.copy").state.head
    for version in ("one", "two"):
        first.engine.version = version
        assert [one.outcome for one in first.add(derivative)] == ["unchanged"]
        assert [one.outcome for one in first.add(derivative, replace=True)] == ["unchanged"]
    assert first.find("cities.copy").state.head == head


def test_another_engine_stops_a_derivative_until_its_transform_is_committed_again(first: Coordinator) -> None:
    first.engine.version = "two"
    first.push("cities", "Oslo")
    first.work()
    known = first.find("cities.copy")
    assert known.state.next_offset == 0
    assert first.stall_text(known.id) == "asked for one, here is two"

    first.editor.commit_event("cities.copy", unversioned(transform(first)))
    first.now += 60
    first.work()
    assert transform(first).transform.version == "two"
    assert first.find("cities.copy").state.next_offset == 1
    assert first.stall_text(known.id) == ""


def test_the_same_transform_for_the_same_engine_changes_nothing(first: Coordinator) -> None:
    head = first.find("cities.copy").state.head
    assert first.editor.commit_event("cities.copy", unversioned(transform(first))).state.head == head


def test_a_transform_for_another_engine_is_not_admitted(first: Coordinator) -> None:
    event = replace(transform(first), transform=replace(transform(first).transform, version="two"))
    with pytest.raises(EngineNotAvailable):
        first.editor.commit_event("cities.copy", event)


def test_chains_without_a_version_continue_with_any_engine(
    node: Coordinator, root: str, derivative: str
) -> None:
    node.add(root, derivative)
    node.engine.version = "two"
    node.push("cities", "Oslo")
    node.work()
    assert transform(node).transform.version is None
    assert node.find("cities.copy").state.next_offset == 1


Odf = Callable[..., int]
SENTINELS = [
    "0001-01-01T00:00:00Z",
    "1677-01-01T00:00:00Z",
    "2263-01-01T00:00:00Z",
    "9999-12-31T23:59:59.999Z",
]


@pytest.mark.parametrize("text", SENTINELS)
def test_a_watermark_at_a_sentinel_is_set_announced_and_shown(
    node: Coordinator, odf: Odf, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    assert odf("pull", "cities", "--set-watermark", text) == 0
    cities = node.find("cities")
    assert cities.state.watermark == Timestamp.parse(text)
    capsys.readouterr()
    assert odf("list", "--output", "json") == 0
    (listed,) = [one for one in json.loads(capsys.readouterr().out) if one["alias"] == "cities"]
    assert listed["watermark"] == text
    board = DatasetTable()
    board.see(envelope(cities.id, committed_message(cities.state, alias="cities")), 0.0)
    (row,) = board.rows(0.0)
    assert row["watermark"] == text


def test_a_derivative_of_a_dataset_at_a_sentinel_is_transformed(node: Coordinator, odf: Odf) -> None:
    node.push("cities", "Oslo")
    node.editor.set_watermark("cities", Timestamp.parse(SENTINELS[-1]))
    node.work()
    assert node.find("cities.copy").state.watermark == Timestamp.parse(SENTINELS[-1])
