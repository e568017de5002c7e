"""Servers with a certificate of a private CA: trusted once `SSL_CERT_FILE` names that CA."""

import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import urllib3
from aiohttp import connector
from odf_testing.certificates import self_signed, tls_in_front_of
from odf_testing.minioserver import ACCESS_KEY, SECRET_KEY, serving_s3
from odf_testing.sync_node import SyncNode

from odf_common.errors import Unavailable
from odf_common.service.settings import Settings
from odf_sync.repositories import http_dataset

Trust = Callable[[], None]


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    return self_signed(tmp_path)


@pytest.fixture
def trust(certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> Trust:
    """Return a function that makes this process trust the CA, as if started with it."""

    def trust() -> None:
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
        monkeypatch.setattr(
            connector, "_SSL_CONTEXT_VERIFIED", ssl.create_default_context()
        )  # read at import

    return trust


@pytest.fixture
def there(tmp_path: Path, certificate: tuple[Path, Path]) -> Iterator[str]:
    """The `host:port` of a node with a dataset, and with TLS."""
    node = SyncNode(tmp_path / "there")
    node.add_cities(["Kyiv"], ["Quito"])
    with (
        node.served() as base,
        tls_in_front_of(base.removeprefix("http://"), *certificate, is_mutual=False) as address,
    ):
        url = f"https://{address}"
        object.__setattr__(node.settings, "public_url", url)  # known only now
        yield address


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SyncNode:
    monkeypatch.setattr(http_dataset, "READ_RETRY", urllib3.Retry(0, redirect=0))
    return SyncNode(tmp_path / "here")


@pytest.mark.parametrize("scheme", ["https", "odf+https"])
def test_another_node_is_pulled_from_once_its_ca_is_trusted(
    here: SyncNode, there: str, trust: Trust, scheme: str
) -> None:
    with pytest.raises(Unavailable, match="self-signed certificate"):
        here.pull(f"{scheme}://{there}/cities", "copy")
    trust()
    assert here.pull(f"{scheme}://{there}/cities", "copy")[-1].state == "updated"


def test_another_node_is_pushed_to_once_its_ca_is_trusted(here: SyncNode, there: str, trust: Trust) -> None:
    here.add_cities(["Oslo"])
    with pytest.raises(Unavailable, match="self-signed certificate"):
        here.push("cities", f"odf+https://{there}/others")
    trust()
    assert here.push("cities", f"odf+https://{there}/others")[-1].state == "updated"


def test_a_bucket_is_used_once_the_ca_of_its_server_is_trusted(
    tmp_path: Path, certificate: tuple[Path, Path], trust: Trust
) -> None:
    (tmp_path / "minio").mkdir()
    with serving_s3(tmp_path / "minio") as server:
        place = server.new_bucket("node")
        with tls_in_front_of(f"127.0.0.1:{server.port}", *certificate, is_mutual=False) as address:
            environment = {
                "ODF_HOME": str(tmp_path / "home"),
                "ODF_STORE": f"s3+https://{address}/{place.bucket}/node",
                "ODF_S3_ACCESS_KEY": ACCESS_KEY,
                "ODF_S3_SECRET_KEY": SECRET_KEY,
            }
            with pytest.raises(Unavailable, match=r"is not trusted .*self-signed certificate") as refused:
                SyncNode(tmp_path / "home", Settings.from_env(environment)).add_cities()
            assert "SSL_CERT_FILE" in refused.value.advice()
            trust()
            node = SyncNode(tmp_path / "home", Settings.from_env(environment))
            node.add_cities(["Kyiv"])
            assert node.head("cities") is not None
