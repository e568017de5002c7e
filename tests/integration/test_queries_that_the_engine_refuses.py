"""A derivative whose query the engine refuses, or fails to run, as a stranger writes it or an earlier release did."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from odf_testing.chains import read_chain
from odf_testing.story import Row, Story, derivative, root

from odf_common.chain.build_blocks import build_blocks
from odf_common.chain.state import ChainState
from odf_common.identity.keys import PrivateKey, generate
from odf_common.metadata.events import KnownEvent, Seed, SetTransform, SqlQueryStep, TransformSql

COLUMNS = ("id BIGINT", "event_time TIMESTAMP(3)")
QUERY = "SELECT event_time, id FROM measured"
FAILS_ON_1 = "SELECT event_time, id FROM measured WHERE 1 / (id - 1) < 9"
REFUSED = "SELECT event_time, id FROM measured WHERE reflect('java.lang.System', 'lineSeparator') IS NOT NULL"


def record(number: int) -> Row:
    return {"id": number, "event_time": f"2026-01-01T00:{number:02}:00Z"}


@pytest.fixture
def measured(story: Story) -> Story:
    """A root, and a derivative of it that the engine has computed."""
    story.add(root("measured", COLUMNS), derivative("honest", {"measured": "measured"}, QUERY))
    story.ingest("measured", [record(1), record(2)])
    story.pull("honest")
    return story


def rewritten(folder: Path, key: PrivateKey, change: Callable[[KnownEvent], KnownEvent]) -> Path:
    """Make the chain in a folder that of another dataset, with changed events."""
    state: ChainState | None = None
    blocks = read_chain(folder).blocks
    shutil.rmtree(folder / "blocks")
    (folder / "blocks").mkdir()
    for _, block in blocks:
        event = block.event
        assert isinstance(event, KnownEvent)
        event = replace(event, dataset_id=key.dataset_id) if isinstance(event, Seed) else change(event)
        (written,), state = build_blocks(state, [event], system_time=block.system_time, version=3)
        (folder / "blocks" / str(written.hash)).write_bytes(written.raw)
    assert state is not None
    (folder / "refs" / "head").write_text(str(state.head))
    return folder


def with_query(query: str) -> Callable[[KnownEvent], KnownEvent]:
    def change(event: KnownEvent) -> KnownEvent:
        if not isinstance(event, SetTransform):
            return event
        assert isinstance(event.transform, TransformSql)
        steps = (SqlQueryStep(query=query),)
        return replace(event, transform=replace(event.transform, queries=steps))

    return change


def test_it_is_not_checked_and_derived_no_further_and_status_says_why(
    measured: Story, tmp_path: Path
) -> None:
    key, node = generate(), measured.node
    folder = rewritten(measured.copy("honest", tmp_path / "theirs"), key, with_query(REFUSED))
    measured.pull(f"{folder.as_uri()} --as theirs")

    (verdict,) = measured.verify("theirs", code=1)

    assert verdict["verdict"] == "not-checked"
    (problem,) = verdict["problems"]
    assert problem["kind"] == "replay-refused"
    assert problem["text"].startswith("not checked, like later blocks of the same query: the engine refuses")
    assert "reflect" in problem["text"]
    (whole,) = measured.verify("theirs --integrity")
    assert whole["verdict"] == "valid"

    (tmp_path / "key").write_text(key.text())
    node.run(f"key import theirs {tmp_path / 'key'}")
    measured.ingest("measured", [record(3)])
    said = node.fails("pull theirs")
    assert "reflect" in said
    (row,) = node.run("status theirs --output json")
    assert "reflect" in row["problem"]
    assert "`odf commit theirs FILE`" in row["remedy"]
    assert measured.records("theirs") == [2]

    query = json.dumps(derivative("theirs", {"measured": "measured"}, QUERY)["content"]["metadata"][0])
    said = node.fails("commit theirs -", stdin=query.encode())
    assert "the query that is replaced is refused now, so its state cannot be migrated" in said
    assert "`odf reset theirs 0 --yes`" in said
    assert "`odf reset theirs 0 --yes`" in row["remedy"]
    node.run("reset theirs 0 --yes")
    node.run("commit theirs -", stdin=query.encode())
    measured.pull("theirs")
    assert measured.chain("theirs").column("id") == [1, 2, 3]
    (row,) = node.run("status theirs --output json")
    assert row["problem"] is None
    assert [one["verdict"] for one in measured.verify("theirs")] == ["valid"]


def test_a_block_on_which_the_query_fails_is_not_checked_and_the_next_block_is(
    story: Story, tmp_path: Path
) -> None:
    story.add(root("counted", COLUMNS), derivative("whole", {"measured": "counted"}, QUERY))
    for records in ([record(1), record(2)], [record(3)]):
        story.ingest("counted", records)
        story.pull("whole")
    folder = rewritten(story.copy("whole", tmp_path / "foreign"), generate(), with_query(FAILS_ON_1))
    story.pull(f"{folder.as_uri()} --as foreign")

    (verdict,) = story.verify("foreign", code=1)

    assert (verdict["verdict"], verdict["transforms"]) == ("not-checked", 1)
    (problem,) = verdict["problems"]
    assert (problem["kind"], problem["sequence_number"]) == ("replay-failed", 3)
    assert problem["text"].startswith("not checked: the query fails on what this block read: ")
    assert "Division by zero" in problem["text"]
