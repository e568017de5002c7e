"""Whose home a single-tenant node may serve."""

from pathlib import Path

import pytest

from odf_common.service.node_home import TenancyChanged, require_tenancy
from odf_common.service.settings import Settings


def tenancy(home: Path, value: str) -> Settings:
    return Settings.from_env({"ODF_HOME": str(home), "ODF_TENANCY": value})


def test_a_home_of_a_multi_tenant_node_is_not_made_public_by_a_forgotten_setting(tmp_path: Path) -> None:
    home = tmp_path / "home"
    for _ in range(2):
        require_tenancy(tenancy(home, "multi"))
    with pytest.raises(TenancyChanged, match="everyone could read them") as refused:
        require_tenancy(tenancy(home, "single"))
    assert "ODF_TENANCY=multi" in refused.value.advice()
    assert "$ODF_HOME/tenancy" in refused.value.advice()
    require_tenancy(tenancy(home, "multi"))
    (home / "tenancy").unlink()
    require_tenancy(tenancy(home, "single"))


def test_a_single_tenant_home_may_become_multi_tenant(tmp_path: Path) -> None:
    require_tenancy(tenancy(tmp_path, "single"))
    assert not list(tmp_path.iterdir())
    require_tenancy(tenancy(tmp_path, "multi"))
    assert (tmp_path / "tenancy").read_text() == "multi\n"
