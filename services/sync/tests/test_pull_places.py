"""The target of a pull: the user chooses the reference, a URL never does, and the result describes that reference."""

from pathlib import Path

import pytest
from odf_testing.builders import a_chain, a_seed
from odf_testing.node_datasets import hold
from odf_testing.sync_node import SyncNode

from odf_common.errors import InvalidInput, NotFound
from odf_common.metadata.events import SetInfo
from odf_common.ports.store import ObjectKind
from odf_sync.transfer.local_copy import Step
from odf_sync.transfer.remote_chain import LocalAhead


@pytest.fixture
def node(tmp_path: Path) -> SyncNode:
    """Have `cities`, whose reference `theirs` is one block behind its head."""
    made = SyncNode(tmp_path / "home")
    chain = a_chain(a_seed(), SetInfo(description="first"), SetInfo(description="second"))
    dataset = chain.state.dataset_id
    hold(made.datasets, "cities", chain)
    made.refs.compare_and_set(dataset, expected=None, new=chain.blocks[1].hash, ref="theirs")
    return made


def elsewhere(node: SyncNode, folder: Path, ref: str) -> str:
    """Return the URL of a folder that has the blocks of `cities`, its head where our reference is."""
    (entry,) = node.catalog.entries()
    for kind in ("blocks", "refs"):
        (folder / kind).mkdir(parents=True)
    for name in node.blobs.names(entry.dataset_id, ObjectKind.BLOCK):
        block = node.blobs.read(entry.dataset_id, ObjectKind.BLOCK, name)
        (folder / "blocks" / str(name)).write_bytes(block)
    (folder / "refs" / "head").write_text(str(node.refs.head(entry.dataset_id, ref)))
    return folder.as_uri()


def last(node: SyncNode, url: str, alias: str) -> Step:
    return node.pull(url, alias)[-1]


def test_a_pull_without_news_into_a_reference_reports_its_block(node: SyncNode, tmp_path: Path) -> None:
    (entry,) = node.catalog.entries()
    url = elsewhere(node, tmp_path / "cities", "theirs")
    staged, head = node.refs.head(entry.dataset_id, "theirs"), node.refs.head(entry.dataset_id)

    assert last(node, url, "cities@theirs") == Step(alias="cities", state="up-to-date", head=staged)
    for alias in ("cities", ""):
        with pytest.raises(LocalAhead, match="the local chain is ahead"):
            last(node, url, alias)
    assert node.refs.head(entry.dataset_id) == head


@pytest.mark.parametrize(
    "name", ["cities@theirs", "cities@", "ci ties", "..", "cities%2F..%2Fx", "did:odf:x"]
)
def test_a_url_chooses_neither_a_reference_nor_an_odd_name(node: SyncNode, tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidInput, match="choose one with --as"):
        last(node, f"https://example.org/{name}", "")
    with pytest.raises(InvalidInput, match="is not a reference"):
        last(node, elsewhere(node, tmp_path / "x", "head"), "ci ties")


def test_a_reference_requires_a_head(node: SyncNode, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="towns"):
        last(node, elsewhere(node, tmp_path / "x", "head"), "towns@theirs")
