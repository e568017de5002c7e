"""Named repositories: manifests in the node's home."""

import asyncio
import ssl
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest
from odf_testing.certificates import self_signed

from odf_common.adapters.kafka.client_config import common
from odf_common.adapters.kafka.cluster import KafkaCluster, Sasl
from odf_common.adapters.local import durable
from odf_common.adapters.local.repositories import LocalRepositories, UnknownRepository
from odf_common.adapters.repository_urls import dataset_url, repository_url, require_no_credentials
from odf_common.adapters.s3.location import S3Access, S3Location, checked_endpoint
from odf_common.adapters.server_tls import server_context
from odf_common.adapters.tls import ClientTls
from odf_common.errors import AlreadyExists, InvalidInput
from odf_common.identity.dataset_refs import Name, parse_remote_alias
from odf_common.metadata.events import Repository

SHOP = Name("shop")


def test_a_repository_is_a_manifest_that_is_found_by_name(tmp_path: Path) -> None:
    known = LocalRepositories(tmp_path)
    assert known.names() == ()
    known.add(Name("Shop"), "https://example.org/data")
    assert known.find(SHOP) == Repository(url="https://example.org/data/")
    assert known.names() == (SHOP,)
    (file,) = (tmp_path / "repositories").iterdir()
    assert file.name == "shop.yaml"
    assert file.read_text() == "kind: Repository\nversion: 1\ncontent:\n  url: https://example.org/data/\n"


def test_a_name_is_taken_once_and_can_be_freed(tmp_path: Path) -> None:
    known = LocalRepositories(tmp_path)
    known.add(SHOP, "file:///srv/data")
    with pytest.raises(AlreadyExists, match="SHOP"):
        known.add(Name("SHOP"), "file:///srv/other")
    known.remove(SHOP)
    with pytest.raises(UnknownRepository):
        known.remove(SHOP)
    with pytest.raises(UnknownRepository) as caught:
        known.find(SHOP)
    assert "odf repo add" in caught.value.advice()
    assert known.names() == ()


def test_of_two_that_add_a_name_at_the_same_time_one_waits_for_the_other(tmp_path: Path) -> None:
    known = LocalRepositories(tmp_path)
    with ThreadPoolExecutor(1) as pool:
        with durable.lock_file(tmp_path / "locks" / "repositories"):
            adding = pool.submit(known.add, SHOP, "file:///srv/data")
            assert not wait([adding], timeout=0.1).done
            assert known.names() == ()
        adding.result()
    assert known.names() == (SHOP,)


@pytest.mark.parametrize(
    "manifest",
    ["", "kind: Repository", "kind: Repository\nversion: 1\ncontent: {url: 'gopher://example.org'}\n"],
)
def test_a_damaged_manifest_is_named_and_can_be_removed(tmp_path: Path, manifest: str) -> None:
    known = LocalRepositories(tmp_path)
    known.add(SHOP, "file:///srv/data")
    (tmp_path / "repositories" / "shop.yaml").write_text(manifest)
    (tmp_path / "repositories" / "not a name.yaml").touch()
    with pytest.raises(InvalidInput, match=r"shop\.yaml|expected a URL that begins with file"):
        known.find(SHOP)
    assert known.names() == (SHOP,)
    known.remove(SHOP)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "shop",
        "/srv/data",
        "gopher://example.org",
        "http://",
        "https:///path",
        "http://example.org:port/",
        "file://host/srv",
        "file://srv",
        "https://example.org/?a=b",
        "https://example.org/#a",
        "https://exam ple.org/",
        "https://user:secret@example.org/",
        "https://token@example.org/",
    ],
)
def test_an_invalid_url_of_a_repository_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        repository_url(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "advice"),
    [
        ("https://joe:secret@h:8/a", "`odf login https://h:8`"),
        ("odf+http://secret@h/a@b", "`odf login http://h`"),
        ("http://:secret@[::1/a", "`odf login http://[::1`"),
        ("http://a@secret@h?b", "`odf login http://h`"),
        ("http://@h", "`odf login http://h`"),
        ("s3+http://key:secret@h/bucket", "ODF_S3_SECRET_KEY"),
        ("s3://key:secret@bucket/a", "ODF_S3_SECRET_KEY"),
        ("ftp://joe:secret@h/a", "without them"),
    ],
)
def test_a_url_with_credentials_is_refused_with_what_to_do_instead(url: str, advice: str) -> None:
    with pytest.raises(InvalidInput, match="credentials do not belong in a URL") as caught:
        require_no_credentials(url)
    assert advice in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["flights@next", "http://h/a@b", "http://h?a@b", "http://h#a@b", "shop/a", ""]
)
def test_an_at_sign_elsewhere_is_not_of_credentials(text: str) -> None:
    require_no_credentials(text)


@pytest.mark.parametrize(
    "url", ["file:///srv", "http://a:80/x", "odf+https://a", "s3://bucket/prefix", "s3+http://a:9/b"]
)
def test_urls_of_repositories_end_with_a_slash(url: str) -> None:
    assert repository_url(url) == repository_url(url + "/") == url + "/"


def test_a_dataset_is_below_its_repository() -> None:
    assert dataset_url("http://a/", parse_remote_alias("shop/orders")) == "http://a/orders"
    assert dataset_url("http://a/", parse_remote_alias("shop/alice/orders")) == "http://a/alice/orders"
    assert dataset_url("file:///srv/", "fed01") == "file:///srv/fed01"


@pytest.mark.parametrize(
    ("url", "location"),
    [
        ("s3://bucket", S3Location(bucket="bucket")),
        ("s3://my.bucket-1/a/b/", S3Location(bucket="my.bucket-1", prefix="a/b")),
        (
            "s3+http://host:9000/bucket/a",
            S3Location(bucket="bucket", prefix="a", endpoint="http://host:9000"),
        ),
        ("s3+https://[::1]:9000/bucket", S3Location(bucket="bucket", endpoint="https://[::1]:9000")),
    ],
)
def test_urls_name_a_bucket_a_prefix_and_maybe_an_endpoint(url: str, location: S3Location) -> None:
    assert S3Location.parse(url) == location
    assert S3Location.parse(str(location)) == location


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("https://bucket", "got the scheme 'https'"),
        ("bucket", "got the scheme ''"),
        ("s3://", "'' is not the name of a bucket"),
        ("s3:///a", "'' is not the name of a bucket"),
        ("s3://Bucket", "'Bucket' is not the name of a bucket"),
        ("s3://b_c_d/", "'b_c_d' is not the name of a bucket"),
        ("s3+http://host", "'' is not the name of a bucket"),
        ("s3+http:///bucket", "expected http"),
        ("s3+http://ho st/bucket", "expected http"),
        ("s3+http://host:port/bucket", "expected http"),
        ("s3://bucket/a//b", "'' cannot be a part of a prefix"),
        ("s3://bucket/../other", "'..' cannot be a part of a prefix"),
        ("s3://bucket/a?b", "a query or a fragment"),
        ("s3://bucket/a#b", "a query or a fragment"),
        ("s3://[bucket", "expected s3://bucket"),
    ],
)
def test_other_urls_are_refused_with_a_reason(url: str, why: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        S3Location.parse(url)
    assert why in str(caught.value)


def test_credentials_in_a_url_are_refused_and_not_repeated() -> None:
    with pytest.raises(InvalidInput, match="set ODF_S3_ACCESS_KEY") as caught:
        S3Location.parse("s3+http://key:secret@host/bucket")
    assert "secret@" not in str(caught.value)


def test_secrets_are_not_shown() -> None:
    assert "hidden" not in repr(S3Access(access_key="key", secret_key="hidden", session_token="hidden"))


@pytest.mark.parametrize("text", ["host", "ftp://host", "http://host/path", "http://user@host", ""])
def test_an_endpoint_is_a_scheme_and_a_host(text: str) -> None:
    with pytest.raises(InvalidInput, match="expected http"):
        checked_endpoint(text)


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
