"""Copies whose chain has diverged from their source: left as they are, or replaced by force."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from odf_testing.sync_node import SyncNode

from odf_common.errors import AlreadyExists
from odf_common.hashing.multihash import Multihash
from odf_sync.transfer.remote_chain import ChainsDiverged, LocalAhead


@pytest.fixture
def source(tmp_path: Path) -> SyncNode:
    node = SyncNode(tmp_path / "source")
    node.add_cities(["Kyiv", "Osaka"], ["Quito"])
    return node


@pytest.fixture
def copy(tmp_path: Path) -> SyncNode:
    return SyncNode(tmp_path / "copy")


@pytest.fixture(params=["odf+http", "http", "file"])
def url(request: pytest.FixtureRequest, source: SyncNode, tmp_path: Path) -> Iterator[str]:
    """Return the location of the dataset of `source`: its server, by either protocol, or a folder it is pushed to."""
    with ExitStack() as stack:
        if request.param == "file":
            yield (tmp_path / "shared" / "cities").as_uri()
        else:
            base = stack.enter_context(source.served())
            yield f"{'odf+' if request.param == 'odf+http' else ''}{base}/cities"


def publish(source: SyncNode, url: str) -> None:
    if url.startswith("file:"):
        source.push("cities", url, is_forced=True)


def head_of(node: SyncNode) -> Multihash:
    head = node.head("cities")
    assert head is not None
    return head


def rewind(node: SyncNode, block: Multihash) -> None:
    entry = node.catalog.by_alias("cities")
    assert entry is not None
    node.refs.compare_and_set(entry.dataset_id, expected=node.head("cities"), new=block)


def diverge(source: SyncNode, copy: SyncNode, url: str) -> Multihash:
    """Copy the dataset, and have its source replace its last block by two others; return the common block."""
    common = head_of(source)
    source.coordinator.push("cities", "Oslo", minute=9)
    publish(source, url)
    copy.pull(url, "cities")
    rewind(source, common)
    source.coordinator.push("cities", "Bern", minute=10)
    source.coordinator.push("cities", "Rome", minute=11)
    publish(source, url)
    return common


def test_a_diverged_copy_is_replaced_by_force_only(source: SyncNode, copy: SyncNode, url: str) -> None:
    common = diverge(source, copy, url)
    before = head_of(copy)
    with pytest.raises(ChainsDiverged) as refused:
        copy.pull(url, "cities")
    assert refused.value.common_block == str(common)
    assert "--force" in refused.value.advice()
    assert head_of(copy) == before

    *steps, last = copy.pull(url, "cities", is_forced=True)
    assert (last.state, last.head, last.replaced) == ("updated", head_of(source), before)
    (warning,) = [step for step in steps if step.state == "replacing"]
    assert warning.replaced == before
    assert [step.state for step in steps].index("replacing") < [step.state for step in steps].index(
        "committing"
    )
    assert (last.new_blocks, last.new_records) == (2, 2)
    assert head_of(copy) == head_of(source)
    assert source.content("cities").keys() <= copy.content("cities").keys()
    again = copy.pull(url, "cities", is_forced=True)[-1]
    assert (again.state, again.replaced) == ("up-to-date", None)


def test_force_changes_nothing_about_a_copy_that_has_not_diverged(
    source: SyncNode, copy: SyncNode, url: str
) -> None:
    publish(source, url)
    assert copy.pull(url, "cities", is_forced=True)[-1].replaced is None
    source.coordinator.push("cities", "Oslo", minute=9)
    publish(source, url)
    *_, last = copy.pull(url, "cities", is_forced=True)
    assert (last.state, last.new_blocks, last.replaced) == ("updated", 1, None)


def test_blocks_that_were_taken_back_there_are_dropped_here_by_force_only(
    source: SyncNode, copy: SyncNode, url: str
) -> None:
    publish(source, url)
    copy.pull(url, "cities")
    common = head_of(source)
    source.coordinator.push("cities", "Oslo", minute=9)
    publish(source, url)
    copy.pull(url, "cities")
    ahead = head_of(copy)
    rewind(source, common)
    publish(source, url)
    with pytest.raises(LocalAhead, match="is ahead: it has 1 block more than that at") as refused:
        copy.pull(url, "cities")
    assert "odf pull URL --force" in refused.value.advice()
    assert head_of(copy) == ahead
    *_, last = copy.pull(url, "cities", is_forced=True)
    assert (last.state, last.head, last.replaced) == ("updated", common, ahead)
    assert (last.new_blocks, last.new_records) == (0, 0)
    assert head_of(copy) == common
    assert copy.pull(url, "cities")[-1].state == "up-to-date"


def test_another_dataset_does_not_replace_a_copy(source: SyncNode, copy: SyncNode, tmp_path: Path) -> None:
    url = (tmp_path / "shared" / "cities").as_uri()
    source.push("cities", url)
    copy.pull(url, "cities")
    other = SyncNode(tmp_path / "other")
    other.add_cities()
    elsewhere = (tmp_path / "elsewhere" / "cities").as_uri()
    other.push("cities", elsewhere)
    before = head_of(copy)
    with pytest.raises(AlreadyExists, match="another dataset named cities"):
        copy.pull(elsewhere, "cities", is_forced=True)
    assert head_of(copy) == before
