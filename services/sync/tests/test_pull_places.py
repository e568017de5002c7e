"""Where a copy goes: the person chooses the reference, a URL never does, and what is told is of that reference."""

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from odf_testing.builders import a_chain, a_seed

from odf_common.adapters.memory import MemoryBlobStore, MemoryCatalog, MemoryRefStore
from odf_common.dataset.state_cache import ChainStates, NoStateCache
from odf_common.errors import InvalidInput, NotFound
from odf_common.metadata.events import SetInfo
from odf_common.ports.store import CatalogEntry, ObjectKind
from odf_common.service.environment import Environment
from odf_common.service.request_reply import Replies
from odf_common.service.settings import Settings
from odf_sync.transfer.pull import Step, pull

NO_ONE = cast("Replies", None)  # nothing here is committed


@pytest.fixture
def env(tmp_path: Path) -> Environment:
    """Have `cities`, whose reference `theirs` is a block behind its head."""
    refs, catalog = MemoryRefStore(), MemoryCatalog()
    blobs = MemoryBlobStore(refs)
    chain = a_chain(a_seed(), SetInfo(description="first"), SetInfo(description="second"))
    dataset = chain.state.dataset_id
    for block in chain.blocks:
        blobs.put(dataset, ObjectKind.BLOCK, block.hash, block.raw)
    refs.compare_and_set(dataset, expected=None, new=chain.state.head)
    refs.compare_and_set(dataset, expected=None, new=chain.blocks[1].hash, ref="theirs")
    catalog.add(CatalogEntry(alias="cities", dataset_id=dataset))
    states = ChainStates(blobs, refs, NoStateCache())
    return cast(
        "Environment",
        SimpleNamespace(
            catalog=catalog, refs=refs, blobs=blobs, states=states, settings=Settings(home=tmp_path)
        ),
    )


def elsewhere(env: Environment, folder: Path, ref: str) -> str:
    """Return the URL of a folder that has the blocks of `cities`, its head where our reference is."""
    (entry,) = env.catalog.entries()
    for kind in ("blocks", "refs"):
        (folder / kind).mkdir(parents=True)
    for name in env.blobs.names(entry.dataset_id, ObjectKind.BLOCK):
        block = env.blobs.read(entry.dataset_id, ObjectKind.BLOCK, name)
        (folder / "blocks" / str(name)).write_bytes(block)
    (folder / "refs" / "head").write_text(str(env.refs.head(entry.dataset_id, ref)))
    return folder.as_uri()


def last(env: Environment, url: str, alias: str) -> Step:
    return list(pull(env, NO_ONE, url, alias))[-1]


def test_nothing_new_at_a_reference_tells_where_that_is(env: Environment, tmp_path: Path) -> None:
    (entry,) = env.catalog.entries()
    url = elsewhere(env, tmp_path / "cities", "theirs")
    staged, head = env.refs.head(entry.dataset_id, "theirs"), env.refs.head(entry.dataset_id)

    assert last(env, url, "cities@theirs") == Step(alias="cities", state="up-to-date", head=staged)
    assert last(env, url, "cities") == Step(alias="cities", state="up-to-date", head=head), "it is ahead"
    assert last(env, url, "") == Step(alias="cities", state="up-to-date", head=head)


@pytest.mark.parametrize(
    "name", ["cities@theirs", "cities@", "ci ties", "..", "cities%2F..%2Fx", "did:odf:x"]
)
def test_a_url_chooses_no_reference_and_no_odd_name(env: Environment, tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidInput, match="choose one with --as"):
        last(env, f"https://example.org/{name}", "")
    with pytest.raises(InvalidInput, match="is not a reference"):
        last(env, elsewhere(env, tmp_path / "x", "head"), "ci ties")


def test_a_reference_is_kept_beside_a_head_only(env: Environment, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="towns"):
        last(env, elsewhere(env, tmp_path / "x", "head"), "towns@theirs")
