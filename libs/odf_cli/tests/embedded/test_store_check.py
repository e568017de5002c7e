from pathlib import Path

import pytest
from odf_testing.contracts import an_entry

from odf_cli.embedded.checks import StoreChanged, require_store
from odf_common.adapters.local.catalog import LocalCatalog
from odf_common.errors import StorageUnavailable
from odf_common.service.settings import Settings

NOWHERE = "s3+http://127.0.0.1:9/some-bucket/prefix"


def settings(home: Path, store: str = "") -> Settings:
    return Settings.from_env({"ODF_HOME": str(home), "ODF_STORE": store})


def test_a_home_without_a_bucket_needs_no_record_of_its_store(tmp_path: Path) -> None:
    require_store(settings(tmp_path))
    assert not (tmp_path / "store").exists()


def test_a_bucket_that_cannot_be_reached_is_named_and_not_remembered(tmp_path: Path) -> None:
    with pytest.raises(StorageUnavailable) as caught:
        require_store(settings(tmp_path, NOWHERE))
    assert str(caught.value) == (
        f"the S3 server cannot be reached (Connection refused): {NOWHERE} cannot be used now"
    )
    assert not (tmp_path / "store").exists()


def test_a_home_with_datasets_cannot_be_given_another_store(tmp_path: Path) -> None:
    LocalCatalog(tmp_path).add(an_entry())
    with pytest.raises(StoreChanged) as caught:
        require_store(settings(tmp_path, NOWHERE))
    assert str(caught.value) == f"the datasets of this home are in its folder, and ODF_STORE names {NOWHERE}"
    (tmp_path / "store").write_text(f"{NOWHERE}\n")
    with pytest.raises(StoreChanged, match=r"are in s3[+]http://127.0.0.1:9/some-bucket/prefix, and"):
        require_store(settings(tmp_path))
