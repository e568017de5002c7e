"""Chains with a block that would not be accepted today: `odf status` names it, and a reset goes back to before it."""

from collections.abc import Callable
from typing import cast

import grpc
import pytest
from odf_testing.builders import a_block, a_push_source, a_source_state
from odf_testing.chain_imports import forget, imported, stored
from odf_testing.coordinator import Coordinator
from structlog.testing import capture_logs

from odf_common.chain.build_blocks import ClockBehind, add_data_event
from odf_common.chain.state import ChainState
from odf_common.codec.flatbuffers import block_hash, encode_block
from odf_common.metadata.events import KnownEvent, SetInfo, SetVocab
from odf_common.metadata.scalars import CLOCK_TOLERANCE_MS, Timestamp
from odf_common.ports.store import DatasetUnknown, ObjectKind
from odf_common.proto.odf.node.v1 import coordinator_pb2 as wire
from odf_coordinator.api.grpc_servicer import Servicer
from odf_coordinator.catalog import chain_problems
from odf_coordinator.catalog.datasets import DatasetHandle
from odf_coordinator.commit.committer import Refusal

CONTEXT = cast("grpc.ServicerContext", None)
DAY_NS = 86_400 * 10**9
Odf = Callable[..., int]


@pytest.fixture
def cities(node: Coordinator, root: str, derivative: str) -> DatasetHandle:
    node.add(root, derivative)
    known = node.push("cities", "Oslo")
    node.work()
    return known


def add(node: Coordinator, past: ChainState, event: KnownEvent, *, later_by: int = 0) -> None:
    """Move a head to a block that was accepted by an earlier release."""
    raw = encode_block(a_block(past, event, system_time=Timestamp(past.system_time.ns + later_by)))
    node.blobs.put(past.dataset_id, ObjectKind.BLOCK, block_hash(raw), raw)
    node.refs.compare_and_set(past.dataset_id, expected=past.head, new=block_hash(raw))


def listed(node: Coordinator, alias: str) -> wire.DatasetSummary:
    everything = Servicer(node.parts).List(wire.ListRequest(), CONTEXT).datasets
    return next(one for one in everything if one.alias == alias)


@pytest.mark.parametrize("name", ["cities", "cities.copy"])
def test_a_head_from_the_future_is_named_with_the_block_to_go_back_to(
    node: Coordinator, cities: DatasetHandle, name: str
) -> None:
    good = node.find(name).state
    assert not listed(node, name).problem
    add(node, good, SetInfo(description="first"), later_by=DAY_NS)
    add(node, node.find(name).state, SetInfo(description="second"), later_by=1)

    summary = listed(node, name)
    assert summary.problem.startswith("nothing can be committed: its last block is from the future, 20")
    assert summary.remedy.startswith("if the clock of this machine is wrong, set it")
    force = " --force" if name == "cities" else ""  # cities.copy may have read it
    assert f"`odf reset {name} {good.head}{force}`" in summary.remedy
    with pytest.raises(ClockBehind, match="the last block is from"):
        node.editor.commit_event(name, SetInfo(description="x"))

    node.editor.reset(name, good.head)
    assert not listed(node, name).problem
    node.editor.commit_event(name, SetInfo(description="x"))


def test_a_derivative_whose_head_is_from_the_future_waits_and_says_so(
    node: Coordinator, cities: DatasetHandle
) -> None:
    copy = node.find("cities.copy")
    add(node, copy.state, SetInfo(description="x"), later_by=DAY_NS)
    with capture_logs():
        node.push("cities", "Rome", minute=1)
        node.work()
        stall = node.scheduler.stall_of(copy.id)
        assert stall is not None
        assert "the clock of this machine says" in stall.reason
        assert "`odf reset DATASET BLOCK`" in stall.remedy
        node.editor.reset("cities.copy", copy.state.head)
        node.now += 10
        node.work()
    assert node.scheduler.stall_of(copy.id) is None
    assert node.find("cities.copy").state.last_offset == 1


def test_a_dataset_that_is_from_the_future_as_a_whole_can_only_be_deleted(
    node: Coordinator, cities: DatasetHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node.committer, "latest_time", lambda: Timestamp(0))
    assert "`odf delete cities`: all of its blocks" in listed(node, "cities").remedy
    node.names.delete("cities.copy")
    node.names.delete("cities")
    with pytest.raises(DatasetUnknown):
        node.find("cities")


def test_columns_that_were_renamed_after_data_are_named_with_the_block_to_go_back_to(
    node: Coordinator, cities: DatasetHandle
) -> None:
    add(node, cities.state, SetVocab(event_time_column="city"))
    add(node, node.find("cities").state, SetInfo(description="x"))

    summary = listed(node, "cities")
    assert (
        summary.problem == "its system columns were renamed after records were written, which no longer fit"
    )
    assert summary.remedy.startswith(f"`odf reset cities {cities.state.head} --force` drops the blocks")

    node.editor.reset("cities", cities.state.head)
    assert not listed(node, "cities").problem
    node.push("cities", "Rome", minute=1)


def test_a_watermark_in_the_future_is_named_once_records_follow_with_the_block_to_go_back_to(
    node: Coordinator, cities: DatasetHandle
) -> None:
    good, far = cities.state, Timestamp(cities.state.system_time.ns + 3 * DAY_NS)
    event = add_data_event(good, new_data=None, watermark=far, source_state=good.last_source_state)
    add(node, good, event)
    add(node, node.find("cities").state, SetInfo(description="x"))
    assert not listed(node, "cities").problem, "the end of the data, or a forecast"

    node.push("cities", "Rome", minute=1)
    summary = listed(node, "cities")
    assert summary.problem.startswith(f"its watermark is in the future, {far} since block ")
    assert f"`odf reset cities {good.head} --force`" in summary.remedy
    assert "`odf pull --reset-derivatives cities`" in summary.remedy
    assert summary.remedy.startswith(
        "if such times are meant, as in forecasts: the next records raise it again, once "
        "`odf source show cities` says maxFuture=none; if that time is wrong: "
    )
    assert not listed(node, "cities.copy").problem

    state = node.find("cities").state
    further = Timestamp(far.ns + 1)
    add(
        node,
        state,
        add_data_event(state, new_data=None, watermark=further, source_state=state.last_source_state),
    )
    assert not listed(node, "cities").problem, "raised again"

    node.editor.reset("cities", good.head, is_forced=True)
    node.push("cities", "Rome", minute=1)
    assert not listed(node, "cities").problem


def test_a_dataset_without_derivatives_goes_back_without_force(node: Coordinator, root: str) -> None:
    node.add(root)
    good = node.push("cities", "Oslo").state
    far = Timestamp(good.system_time.ns + 3 * DAY_NS)
    add(node, good, add_data_event(good, new_data=None, watermark=far, source_state=good.last_source_state))
    node.push("cities", "Rome", minute=1)
    remedy = listed(node, "cities").remedy
    assert f"`odf reset cities {good.head}` drops" in remedy
    assert "derivatives" not in remedy
    node.editor.reset("cities", good.head)
    assert not listed(node, "cities").problem


def test_a_watermark_that_was_raised_long_ago_is_named_without_its_block(
    node: Coordinator, cities: DatasetHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chain_problems, "MAX_BLOCKS", 1)
    far = Timestamp(cities.state.system_time.ns + 3 * DAY_NS)
    add(node, cities.state, add_data_event(cities.state, new_data=None, watermark=far, source_state=None))
    node.push("cities", "Rome", minute=1)
    assert "`odf log cities` shows which BLOCK" in listed(node, "cities").remedy


def test_a_copy_has_no_such_problem(node: Coordinator, cities: DatasetHandle) -> None:
    add(node, cities.state, SetVocab(event_time_column="city"), later_by=DAY_NS)
    assert listed(node, "cities").problem
    node.keys.remove(cities.id)
    assert not listed(node, "cities").problem


def test_no_block_is_committed_or_pulled_that_is_later_than_clocks_may_differ(
    node: Coordinator, cities: DatasetHandle
) -> None:
    latest = node.clock.now().ms + CLOCK_TOLERANCE_MS
    late = Timestamp.from_ms(latest + 60_000)
    outcome = node.propose(cities, [SetInfo(description="x")], system_time=late)
    assert isinstance(outcome, Refusal)
    assert outcome.code == "TimeInFuture"
    assert outcome.text.startswith("a block is from the future: 20")
    assert not isinstance(
        node.propose(cities, [SetInfo(description="x")], system_time=Timestamp.from_ms(latest)), Refusal
    )
    head = node.find("cities").state
    forget(node, cities)
    outcome = imported(node, cities.id, None, head.head, "copy")
    assert not isinstance(outcome, Refusal), "within the tolerance"
    later = Timestamp.from_ms(late.ms + 60_000)
    raw = encode_block(a_block(head, SetInfo(description="y"), system_time=later))
    node.blobs.put(cities.id, ObjectKind.BLOCK, block_hash(raw), raw)
    for ref in ("head", "theirs"):
        outcome = node.importer.import_chain(
            cities.id,
            expected_head=head.head if ref == "head" else None,
            new_head=block_hash(raw),
            alias="",
            ref=ref,
        )
        assert isinstance(outcome, Refusal)
        assert outcome.code == "TimeInFuture"
        assert "ODF_CLOCK_TOLERANCE_MS" in outcome.text


def test_an_owner_who_takes_over_a_chain_is_shown_what_changes(
    node: Coordinator, odf: Odf, capsys: pytest.CaptureFixture[str]
) -> None:
    """The datasets are those of the fixture `odf`."""
    past = node.push("cities", "Oslo").state
    position = a_source_state('{"v":1}')
    event = add_data_event(
        past, new_data=None, watermark=Timestamp.parse("2030-01-01T00:00:00Z"), source_state=position
    )
    theirs = stored(node, past, SetInfo(description="x"), event, a_push_source("second"))
    assert odf("ref", "set", "cities@theirs", str(theirs.head)) == 0
    capsys.readouterr()
    assert odf("ref", "fast-forward", "cities@theirs") == 0
    assert capsys.readouterr().err.splitlines() == [
        "changed in cities: the push sources",
        'changed in cities: the state of source default: none → odf/kafka {"v":1}',
        f"changed in cities: the watermark: {past.watermark} → 2030-01-01T00:00:00Z",
    ]
    assert node.find("cities").state == theirs
    assert odf("ref", "fast-forward", "cities@theirs") == 0
    assert capsys.readouterr().err == "", "nothing changes"
