"""Blocks made by hand are pushed over WebSocket to a dataset that a topic feeds; others have got there before a check."""

import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from odf_testing.builders import a_source_state
from odf_testing.story import Row, Story, root
from odf_testing.sync_node import SyncNode

from odf_common.adapters.system_clock import SYSTEM_CLOCK
from odf_common.chain.state import ChainState
from odf_common.errors import OdfError
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.events import AddData, MetadataEvent, SetInfo, SetVocab
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.store import ObjectKind

COLUMNS = ("id BIGINT", "event_time TIMESTAMP(3)")
FAR = Timestamp.parse("9999-12-31T23:59:59.999Z")
NUMBERS = count()
EventOn = Callable[[ChainState], MetadataEvent]


def record(number: int) -> Row:
    return {"id": number, "event_time": f"2026-01-01T00:{number:02}:00Z"}


def kept(state: ChainState) -> AddData:
    return AddData(
        prev_offset=state.last_offset, new_watermark=state.watermark, new_source_state=state.last_source_state
    )


def at_offset_eight(state: ChainState) -> MetadataEvent:
    position = state.last_source_state
    assert position is not None
    assert '"next":{"0":2}' in position.value
    value = position.value.replace('"next":{"0":2}', '"next":{"0":8}')
    return replace(kept(state), new_source_state=replace(position, value=value))


def of_garbage(state: ChainState) -> MetadataEvent:
    return replace(kept(state), new_source_state=a_source_state("999999"))


def with_a_late_watermark(state: ChainState) -> MetadataEvent:
    return replace(kept(state), new_watermark=FAR)


@pytest.fixture
def fed(story: Story) -> str:
    """A root that has read two messages of its topic."""
    name = f"fed.{next(NUMBERS)}"
    story.add(root(name, COLUMNS))
    story.publish(name, [record(1), record(2)])
    story.await_records({name: 2})
    return name


def test_what_is_pushed_skips_no_message_and_breaks_no_dataset(
    story: Story, fed: str, tmp_path: Path
) -> None:
    url, stranger = f"{story.node.node.http}/{fed}", SyncNode(tmp_path / "stranger", clock=SYSTEM_CLOCK)
    stranger.pull(url, fed)
    dataset = DatasetId.parse(story.summary(fed)["id"])
    state = stranger.coordinator.find(fed).state
    attempts: list[tuple[EventOn, Timestamp | None]] = [
        (at_offset_eight, None),
        (of_garbage, None),
        (with_a_late_watermark, None),
        (lambda _: SetVocab(offset_column="id"), None),
        (lambda _: SetInfo(description="x"), FAR),
        (lambda _: SetInfo(description="x"), Timestamp(time.time_ns() + 3600 * 10**9)),
    ]
    for event_on, system_time in attempts:
        stranger.add_block(fed, event_on(state), system_time=system_time)
        with pytest.raises(OdfError, match=r"only the owner may change|is from the future"):
            stranger.push(fed, f"odf+{url}")
        stranger.refs.compare_and_set(dataset, expected=stranger.head(fed), new=state.head)
    assert story.chain(fed).head == state.head

    stranger.add_block(fed, SetInfo(description="welcome"))
    assert stranger.push(fed, f"odf+{url}")[-1].state == "updated"
    story.publish(fed, [record(number) for number in range(3, 9)])
    story.await_records({fed: 8})
    assert story.chain(fed).column("id") == list(range(1, 9))
    assert story.summary(fed)["problem"] is None
    assert [one["verdict"] for one in story.verify(fed)] == ["valid"]


def got_before(story: Story, name: str, stranger: SyncNode) -> None:
    """Have a node keep a stranger's block, as if an earlier release had accepted it."""
    folder, head = story.folder(name), stranger.head(name)
    assert head is not None
    entry = stranger.catalog.by_alias(name)
    assert entry is not None
    raw = stranger.blobs.read(entry.dataset_id, ObjectKind.BLOCK, head)
    (folder / "blocks" / str(head)).write_bytes(raw)
    new = folder / "refs" / "new"
    new.write_text(str(head))
    shutil.move(new, folder / "refs" / "head")


@pytest.mark.parametrize(
    ("event_on", "system_time", "problem"),
    [
        (
            lambda _: SetInfo(description="x"),
            FAR,
            "nothing can be committed: its last block is from the future",
        ),
        (of_garbage, None, "push source default is stopped: source state: cannot be read: '999999'"),
        (lambda _: SetVocab(event_time_column="id"), None, "its system columns were renamed after records"),
    ],
    ids=["future", "source-state", "columns"],
)
def test_a_node_that_has_such_a_block_names_it_and_continues_after_a_reset(  # noqa: PLR0917 - the cases
    story: Story,
    fed: str,
    tmp_path: Path,
    event_on: EventOn,
    system_time: Timestamp | None,
    problem: str,
) -> None:
    stranger = SyncNode(tmp_path / "stranger", clock=SYSTEM_CLOCK)
    stranger.pull(f"{story.node.node.http}/{fed}", fed)
    state = stranger.coordinator.find(fed).state
    stranger.add_block(fed, event_on(state), system_time=system_time)
    got_before(story, fed, stranger)
    rows: list[Row] = []

    def is_named() -> bool:
        rows[:] = story.node.run(f"status {fed} --output json")
        return str(rows[0]["problem"]).startswith(problem)

    story.node.run(f"log {fed}")
    story.publish(fed, [record(3)])
    story.node.eventually(is_named)
    assert f"`odf reset {fed} " in rows[0]["remedy"]
    if problem.startswith("push source"):
        assert f"`odf log {fed}` shows it" in rows[0]["remedy"]
    else:
        assert f"`odf reset {fed} {state.head}`" in rows[0]["remedy"]

    story.node.run(f"reset {fed} {state.head} --yes")
    story.await_records({fed: 3})
    assert story.chain(fed).column("id") == [1, 2, 3]
    story.node.eventually(lambda: story.node.run(f"status {fed} --output json")[0]["problem"] is None)
