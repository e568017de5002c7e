from pathlib import Path

import pytest
from odf_testing.builders import a_dataset

from odf_common.adapters.local import LocalCatalog
from odf_common.adapters.local.repositories import LocalRepositories
from odf_common.cli.name_lookup import is_remote
from odf_common.identity.dataset_refs import Name
from odf_common.ports.store import CatalogEntry


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node with the repository `shop` and the dataset `shop/orders` of an account of that name."""
    monkeypatch.setenv("ODF_HOME", str(tmp_path))
    LocalRepositories(tmp_path).add(Name("shop"), "https://data.example.org/")
    LocalCatalog(tmp_path).add(CatalogEntry(dataset_id=a_dataset("orders"), alias="shop/orders"))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("orders", False),
        ("https://data.example.org/orders", True),
        ("shop/prices", True),
        ("shop/ann/prices", True),
        ("ann/prices", False),
        ("shop/orders", False),
    ],
)
def test_a_name_is_remote_if_it_is_in_a_repository_and_not_local(name: str, expected: bool) -> None:
    assert is_remote(name) is expected
