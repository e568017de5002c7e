from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from odf_testing.chains import flip, flipped, overwrite
from odf_testing.embedded import EmbeddedNode
from odf_testing.story import Row, Story, derivative, root

from odf_common.metadata.events import ExecuteTransform

COLUMNS = ("id BIGINT", "place STRING", "at TIMESTAMP(3)")
QUERY = "SELECT window.start AS event_time, place, count(*) AS n FROM visits GROUP BY window(at, '1 minute'), place"
NAME = "visits.minutely"
KINDS = {
    "block": "block-hash-mismatch",
    "data": "physical-hash-mismatch",
    "checkpoint": "checkpoint-hash-mismatch",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """An object to damage: its file below the dataset's folder, and its expected name in reports."""

    file: str
    block: str
    sequence_number: int


@pytest.fixture(scope="module")
def targets(node: EmbeddedNode) -> dict[str, Target]:
    """A windowed derivative with several transforms; one object of each kind in its middle."""
    story = Story(node)
    story.add(root("visits", COLUMNS, event_time="at"), derivative(NAME, {"visits": "visits"}, QUERY))
    for minute in range(4):
        rows = [
            {"id": id_, "place": f"p{id_ % 3}", "at": f"2026-01-01T00:{minute:02}:{id_:02}Z"}
            for id_ in range(30)
        ]
        story.ingest("visits", rows)
        story.pull(NAME)
    chain = story.chain(NAME)
    found = {}
    for hash_, block in chain.blocks:
        event = block.event
        if (
            isinstance(event, ExecuteTransform)
            and event.new_data is not None
            and event.new_checkpoint is not None
        ):
            number = int(block.sequence_number)
            found["data"] = Target(
                file=f"data/{event.new_data.physical_hash}", block=str(hash_), sequence_number=number
            )
            found["checkpoint"] = Target(
                file=f"checkpoints/{event.new_checkpoint.physical_hash}",
                block=str(hash_),
                sequence_number=number,
            )
            found["block"] = Target(file=f"blocks/{hash_}", block=str(hash_), sequence_number=number)
            if len(found) == 3 and number < len(chain.blocks) - 2:
                break
    assert len(found) == 3
    return found


@pytest.fixture
def copy(story: Story, targets: dict[str, Target], tmp_path: Path) -> Path:
    """A copy of the derivative in a folder."""
    return story.copy(NAME, tmp_path / "copy")


def test_an_undamaged_dataset_is_valid(story: Story, copy: Path) -> None:
    for ref in (NAME, copy.as_uri()):
        (verdict,) = story.verify(ref)
        assert (verdict["verdict"], verdict["problems"]) == ("valid", [])
        assert verdict["blocks"] == len(story.chain(NAME).blocks)


@pytest.mark.parametrize("what", KINDS)
@pytest.mark.parametrize("place", ["first", "middle", "last"])
def test_a_flipped_byte_in_a_copy_is_found_and_named(
    story: Story, targets: dict[str, Target], copy: Path, what: str, place: str
) -> None:
    file = copy / targets[what].file
    flip(file, {"first": 0, "middle": file.stat().st_size // 2, "last": -1}[place])
    (verdict,) = story.verify(copy.as_uri(), code=3)
    assert_named(verdict, what, targets[what])


@pytest.mark.parametrize("what", KINDS)
def test_a_flipped_byte_in_the_live_store_is_found_and_named(
    story: Story, targets: dict[str, Target], what: str
) -> None:
    with flipped(story.folder(NAME) / targets[what].file):
        (verdict,) = story.verify(NAME, code=3)
        assert_named(verdict, what, targets[what])
    assert story.verify(NAME)[0]["verdict"] == "valid"


def test_verify_all_names_the_one_dataset_that_is_damaged(story: Story, targets: dict[str, Target]) -> None:
    with flipped(story.folder(NAME) / targets["data"].file):
        verdicts = story.verify("visits visits.minutely --integrity", code=3)
    assert {one["dataset"]: one["verdict"] for one in verdicts} == {"visits": "valid", NAME: "invalid"}


@pytest.fixture
def heads(story: Story, copy: Path) -> Iterator[list[tuple[str, Path]]]:
    """The copy's head and the live one, which is restored afterwards."""
    live = story.folder(NAME) / "refs" / "head"
    before = live.read_bytes()
    yield [(copy.as_uri(), copy / "refs" / "head"), (NAME, live)]
    overwrite(live, before)
    assert story.verify(NAME)[0]["verdict"] == "valid"


def test_a_flipped_byte_in_a_head_is_found_and_named(story: Story, heads: list[tuple[str, Path]]) -> None:
    for ref, head in heads:
        # The last digit becomes another digit: a hash that no block has.
        text = head.read_text()
        head.write_text(text[:-1] + ("1" if text[-1] == "0" else "0"))
        (verdict,) = story.verify(ref, code=3)
        assert verdict["verdict"] == "invalid"
        (problem,) = verdict["problems"]
        assert problem["kind"] == "block-missing"
        assert problem["object"] == head.read_text().strip()


def test_a_head_that_is_not_a_hash_is_found_and_named(story: Story, heads: list[tuple[str, Path]]) -> None:
    for ref, head in heads:
        flip(head, 0)
        (verdict,) = story.verify(ref, code=3)
        assert verdict["verdict"] == "invalid"
        assert [problem["kind"] for problem in verdict["problems"]] == ["head-unreadable"]


@pytest.mark.parametrize("what", KINDS)
def test_a_lost_object_is_found_and_named(
    story: Story, targets: dict[str, Target], copy: Path, what: str
) -> None:
    (copy / targets[what].file).unlink()
    (verdict,) = story.verify(copy.as_uri(), code=3)
    (problem,) = verdict["problems"]
    assert problem["kind"] == ("block-missing" if what == "block" else "object-missing")
    assert problem["object"] == targets[what].file.rpartition("/")[2]


def test_every_damaged_object_is_reported(story: Story, targets: dict[str, Target], copy: Path) -> None:
    for what in ("data", "checkpoint"):
        flip(copy / targets[what].file)
    (verdict,) = story.verify(copy.as_uri(), code=3)
    assert {problem["kind"] for problem in verdict["problems"]} == {KINDS["data"], KINDS["checkpoint"]}


def assert_named(verdict: Row, what: str, target: Target) -> None:
    """The verdict names kind, block, sequence number and object of exactly this damage."""
    assert verdict["verdict"] == "invalid"
    (problem,) = verdict["problems"]
    assert problem["kind"] == KINDS[what]
    assert problem["block"] == target.block
    assert problem["sequence_number"] == target.sequence_number
    assert problem["object"] == target.file.rpartition("/")[2]
