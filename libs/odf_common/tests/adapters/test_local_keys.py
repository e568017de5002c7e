import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from odf_testing.memory_store import MemoryCatalog

from odf_common.adapters.local.key_files import (
    NODE,
    NoPrivateKey,
    NotOwned,
    dataset_key,
    keep_dataset_key,
    node_key,
    require_owned,
)
from odf_common.errors import InvalidInput
from odf_common.identity.keys import generate
from odf_common.ports.store import CatalogEntry


def test_the_nodes_key_is_created_once_and_readable_by_its_owner_only(tmp_path: Path) -> None:
    folder = tmp_path / "home" / "keys"
    before = os.umask(0)
    try:
        key = node_key(folder)
    finally:
        os.umask(before)
    assert node_key(folder) == key
    assert (folder / NODE).stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o777 == 0o700
    assert [file.name for file in folder.iterdir()] == [NODE]


def test_concurrent_creators_get_the_same_key(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: node_key(tmp_path / "keys"), range(32)))
    assert len({key.raw for key in made}) == 1


def test_a_truncated_key_is_refused_and_left_unchanged(tmp_path: Path) -> None:
    (tmp_path / NODE).write_bytes(b"short")
    with pytest.raises(InvalidInput, match="32 bytes"):
        node_key(tmp_path)
    assert (tmp_path / NODE).read_bytes() == b"short"


def test_a_datasets_key_is_read_from_its_file(tmp_path: Path) -> None:
    key = generate()
    (tmp_path / key.dataset_id.folder).write_bytes(key.raw)
    assert dataset_key(tmp_path, key.dataset_id) == key


def test_a_dataset_of_another_node_has_no_local_key(tmp_path: Path) -> None:
    with pytest.raises(NoPrivateKey) as caught:
        dataset_key(tmp_path, generate().dataset_id)
    assert "ODF_HOME" in caught.value.advice()


def test_a_dataset_is_a_copy_until_its_key_is_here(tmp_path: Path) -> None:
    key, catalog = generate(), MemoryCatalog()
    with pytest.raises(NotOwned, match=f"{key.dataset_id} is a copy; only the node that has"):
        require_owned(tmp_path, catalog, key.dataset_id)
    catalog.add(CatalogEntry(alias="cities", dataset_id=key.dataset_id))
    with pytest.raises(NotOwned, match="cities is a copy") as caught:
        require_owned(tmp_path, catalog, key.dataset_id)
    assert "odf key import" in caught.value.advice()
    keep_dataset_key(tmp_path, key)
    require_owned(tmp_path, catalog, key.dataset_id)


def test_the_key_of_another_dataset_is_not_used_for_it(tmp_path: Path) -> None:
    dataset = generate().dataset_id
    (tmp_path / dataset.folder).write_bytes(generate().raw)
    with pytest.raises(InvalidInput, match="another dataset"):
        dataset_key(tmp_path, dataset)
