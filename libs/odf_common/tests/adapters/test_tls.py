"""Files of TLS that an administrator names are checked when they are read, and named."""

import asyncio
import ssl
from pathlib import Path

import pytest
from odf_testing.certificates import self_signed

from odf_common.adapters.kafka.client_config import common
from odf_common.adapters.kafka.cluster import KafkaCluster, Sasl
from odf_common.adapters.tls import ClientTls, server_context
from odf_common.errors import InvalidInput


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    with pytest.raises(InvalidInput, match=r"missing: not a file of CA certificates"):
        ClientTls(ca_file=missing).context()


def test_a_certificate_and_its_key_are_presented_and_the_authority_is_trusted(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    context = ClientTls(ca_file=certificate, certificate_file=certificate, key_file=key).context()
    assert [one["subject"] for one in context.get_ca_certs()] == [((("commonName", "127.0.0.1"),),)]
    assert (context.check_hostname, context.verify_mode) == (True, ssl.CERT_REQUIRED)
    unchecked = ClientTls(ca_file=certificate, checks_hostname=False).context()
    assert (unchecked.check_hostname, unchecked.verify_mode) == (False, ssl.CERT_REQUIRED)


def test_files_in_the_wrong_places_are_named(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    with pytest.raises(InvalidInput, match=r"key\.pem: not a file of CA certificates"):
        ClientTls(ca_file=key).context()
    with pytest.raises(InvalidInput, match=r"key\.pem, .*cert\.pem: not a certificate and its private key"):
        ClientTls(ca_file=certificate, certificate_file=key, key_file=certificate).context()


def test_a_server_presents_a_renewed_certificate_once_it_can_be_used(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    first = certificate.read_text()

    async def presented(*renewals: tuple[str, str]) -> list[str]:
        """Return the certificate of a server before and after each renewal of the certificate and the key."""
        server = await asyncio.start_server(
            lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=server_context(certificate, key)
        )
        async with server:
            address = server.sockets[0].getsockname()[:2]
            found = [await asyncio.to_thread(ssl.get_server_certificate, address)]
            for certificate_text, key_text in renewals:
                certificate.write_text(certificate_text)
                key.write_text(key_text)
                found.append(await asyncio.to_thread(ssl.get_server_certificate, address))
        return found

    (tmp_path / "renewed").mkdir()
    second, its_key = (file.read_text() for file in self_signed(tmp_path / "renewed"))
    found = asyncio.run(presented((second, key.read_text()), (second, "no key"), (second, its_key)))
    assert found == [first, first, first, second]
    with pytest.raises(InvalidInput, match=r"cert\.pem"):
        server_context(certificate, tmp_path / "missing")


def test_a_plain_cluster_has_no_settings_of_security() -> None:
    config = common(KafkaCluster("kafka:9092"))
    assert config["bootstrap.servers"] == "kafka:9092"
    assert not [name for name in config if name.startswith(("ssl.", "sasl.", "security."))]


def test_a_hostname_is_checked_unless_disabled() -> None:
    checked, unchecked = (
        common(KafkaCluster("kafka:9093", tls=ClientTls(checks_hostname=checks))) for checks in (True, False)
    )
    assert (checked["security.protocol"], checked["ssl.endpoint.identification.algorithm"]) == (
        "SSL",
        "https",
    )
    assert unchecked["ssl.endpoint.identification.algorithm"] == "none"


def test_no_secret_is_in_the_text_of_a_cluster() -> None:
    sasl = Sasl(mechanism="PLAIN", username="odf", password="s3cret")
    cluster = KafkaCluster("kafka:9093", tls=ClientTls(key_password="s3cret"), sasl=sasl)
    assert "s3cret" not in repr(cluster)
