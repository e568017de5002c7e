"""Settings of Kafka, Redis and buckets reach the clients that connect to them."""

from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
from odf_testing.certificates import self_signed
from odf_testing.contracts import CONTENT, NAME, a_dataset

from odf_common.adapters.kafka.cluster import BROKER_DEFAULT, KafkaCluster, Sasl, TopicPolicy
from odf_common.adapters.local.stores import LocalBlobStore, LocalRefStore
from odf_common.adapters.networks import AddressForbidden
from odf_common.adapters.s3.location import AWS, S3Access, S3Location
from odf_common.errors import InvalidInput
from odf_common.ports.store import ObjectKind
from odf_common.service.connections import (
    kafka_cluster,
    redis_connection,
    s3_access,
    stores,
    trusted_networks,
)
from odf_common.service.settings import Settings

KAFKA: Final = {"ODF_KAFKA": "kafka:9093"}
KEY: Final = {"ODF_S3_ACCESS_KEY": "key", "ODF_S3_SECRET_KEY": "secret", "ODF_S3_SESSION_TOKEN": "token"}


def cluster(environ: dict[str, str]) -> KafkaCluster:
    return kafka_cluster(Settings.from_env({**KAFKA, **environ}))


def secret(folder: Path, text: str) -> str:
    file = folder / text
    file.write_text(text)
    file.chmod(0o600)
    return str(file)


def test_a_cluster_without_security_has_the_topics_of_its_broker() -> None:
    plain = cluster({})
    assert plain == KafkaCluster("kafka:9093", topics=TopicPolicy(replication_factor=BROKER_DEFAULT))


def test_topics_are_those_of_the_settings() -> None:
    environ = {
        "ODF_KAFKA_MANAGE_TOPICS": "0",
        "ODF_KAFKA_REPLICATION_FACTOR": "3",
        "ODF_KAFKA_MIN_INSYNC_REPLICAS": "2",
    }
    expected = TopicPolicy(is_ours=False, replication_factor=3, min_insync_replicas=2)
    assert cluster(environ).topics == expected


@pytest.mark.parametrize("protocol", ["ssl", "sasl_ssl", "sasl_plaintext"])
def test_a_client_of_kafka_uses_the_configured_ca_certificate_and_login(
    tmp_path: Path, protocol: str
) -> None:
    certificate, key = self_signed(tmp_path)
    tls = {
        "ODF_KAFKA_CA_FILE": str(certificate),
        "ODF_KAFKA_CERTIFICATE_FILE": str(certificate),
        "ODF_KAFKA_KEY_FILE": str(key),
        "ODF_KAFKA_KEY_PASSWORD_FILE": secret(tmp_path, "of-the-key"),
        "ODF_KAFKA_CHECK_HOSTNAME": "0",
    }
    sasl = {
        "ODF_KAFKA_SASL_MECHANISM": "oauthbearer",
        "ODF_KAFKA_USERNAME": "odf",
        "ODF_KAFKA_PASSWORD_FILE": secret(tmp_path, "password"),
        "ODF_KAFKA_TOKEN_URL": "https://tokens.example",
        "ODF_KAFKA_TOKEN_SCOPE": "kafka",
    }
    has_tls, has_sasl = protocol.endswith("ssl"), protocol.startswith("sasl")
    found = cluster({
        "ODF_KAFKA_SECURITY_PROTOCOL": protocol, **(tls if has_tls else {}), **(sasl if has_sasl else {}),
    })  # fmt: skip

    assert found.security_protocol == protocol.upper()
    if found.tls is not None:
        assert (found.tls.ca_file, found.tls.certificate_file, found.tls.key_file) == (
            certificate,
            certificate,
            key,
        )
        assert (found.tls.key_password, found.tls.checks_hostname) == ("of-the-key", False)
    if found.sasl is not None:
        assert found.sasl == Sasl(
            mechanism="OAUTHBEARER",
            username="odf",
            password="password",
            token_url="https://tokens.example",
            token_scope="kafka",
        )


def test_an_invalid_certificate_is_named_before_connecting_to_kafka(tmp_path: Path) -> None:
    file = secret(tmp_path, "nonsense")
    with pytest.raises(InvalidInput) as refused:
        cluster({"ODF_KAFKA_SECURITY_PROTOCOL": "ssl", "ODF_KAFKA_CA_FILE": file})
    assert refused.value.where == file


@pytest.mark.parametrize("has_tls", [False, True])
def test_a_client_of_redis_has_its_password_prefix_and_tls(tmp_path: Path, *, has_tls: bool) -> None:
    certificate, key = self_signed(tmp_path)
    tls = {
        "ODF_REDIS_CA_FILE": str(certificate),
        "ODF_REDIS_CERTIFICATE_FILE": str(certificate),
        "ODF_REDIS_KEY_FILE": str(key),
    }
    connection = redis_connection(
        Settings.from_env({
            "ODF_REDIS": "rediss://redis:6380" if has_tls else "redis:6379", **(tls if has_tls else {}),
            "ODF_REDIS_PASSWORD_FILE": secret(tmp_path, "password"), **KAFKA, "ODF_KAFKA_PREFIX": "test.",
        })
    )  # fmt: skip
    options = connection.client.connection_pool.connection_kwargs
    assert (options["password"], connection.prefix) == ("password", "test.")
    given = {
        name: options[name] for name in options if name in {"ssl_ca_certs", "ssl_certfile", "ssl_keyfile"}
    }
    expected = {"ssl_ca_certs": certificate, "ssl_certfile": certificate, "ssl_keyfile": key}
    assert given == ({name: str(file) for name, file in expected.items()} if has_tls else {})


def test_credentials_are_sent_to_the_servers_of_the_settings_and_to_no_other() -> None:
    settings = Settings.from_env({**KEY, "ODF_STORE": "s3+http://ours:9000/bucket", "ODF_S3_REGION": "here"})
    known = S3Access(region="here", access_key="key", secret_key="secret", session_token="token")
    assert s3_access(settings, S3Location(bucket="b", endpoint="http://ours:9000")) == known
    for endpoint in (None, AWS, "http://theirs:9000", "https://ours:9000"):
        assert s3_access(settings, S3Location(bucket="b", endpoint=endpoint)) == S3Access()
    elsewhere = replace(settings, s3_endpoint="http://buckets:9000")
    for endpoint in (None, "http://ours:9000", "http://buckets:9000"):
        assert s3_access(elsewhere, S3Location(bucket="b", endpoint=endpoint)).access_key == "key"
    assert s3_access(elsewhere, S3Location(bucket="b", endpoint=AWS)).access_key is None


def test_a_credentials_file_is_read_for_the_servers_of_the_settings_only(tmp_path: Path) -> None:
    file = tmp_path / "credentials"
    settings = Settings.from_env({
        "ODF_S3_CREDENTIALS_FILE": str(file), "ODF_S3_ENDPOINT": "http://ours:9000", "ODF_S3_ADDRESSING": "path",
    })  # fmt: skip
    ours = s3_access(settings, S3Location(bucket="b"))
    assert (ours.credentials_file, ours.endpoint, ours.addressing) == (file, "http://ours:9000", "path")
    assert s3_access(settings, S3Location(bucket="b", endpoint=AWS)) == S3Access(addressing="path")


def test_objects_are_in_the_home_or_in_a_bucket_with_copies_in_the_home(tmp_path: Path) -> None:
    blobs, refs = stores(Settings.from_env({"ODF_HOME": str(tmp_path)}))
    assert (type(blobs), type(refs)) == (LocalBlobStore, LocalRefStore)

    copy = tmp_path / "cache" / a_dataset().folder / ObjectKind.DATA / str(NAME)
    copy.parent.mkdir(parents=True)
    copy.write_bytes(CONTENT)
    blobs, _ = stores(Settings.from_env({"ODF_HOME": str(tmp_path), "ODF_STORE": "s3://bucket"}))
    assert blobs.local_copy(a_dataset(), ObjectKind.DATA, NAME) == copy


def test_private_networks_are_allowed_only_where_the_settings_name_them() -> None:
    networks = trusted_networks(Settings.from_env({"ODF_FETCH_NETWORKS": "10.0.0.0/8"}))
    networks.require("ours", "10.1.2.3")
    with pytest.raises(AddressForbidden):
        networks.require("theirs", "192.168.1.1")
