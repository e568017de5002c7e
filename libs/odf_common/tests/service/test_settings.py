"""Settings of Kafka, Redis and buckets reach the clients that connect to them."""

import re
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
from odf_common.errors import InvalidInput, Unavailable
from odf_common.ports.store import ObjectKind
from odf_common.resources.secret_text import without_password
from odf_common.service.connections import (
    kafka_cluster,
    redis_connection,
    s3_access,
    stores,
    trusted_networks,
)
from odf_common.service.node_home import TenancyChanged, require_tenancy
from odf_common.service.settings import Settings, describe_variables, unknown_variables


def test_no_variables_give_the_defaults() -> None:
    settings = Settings.from_env({})
    assert settings.home == Path.cwd() / ".odf"
    assert (settings.kafka, settings.block_version, settings.slice_max_bytes) == (None, 3, 16 * 1024 * 1024)
    assert settings.verify_on_commit
    assert not settings.signed_columns
    assert not settings.sign_blocks


def test_variables_are_parsed() -> None:
    settings = Settings.from_env({
        "ODF_HOME": "data", "ODF_KAFKA": "a:9092, b:9092", "ODF_REDIS": "redis://r:1/0", "ODF_SIGNED_COLUMNS": "1",
        "ODF_LOG_LEVEL": "DEBUG", "ODF_BLOCK_VERSION": "2", "ODF_ENGINE": "", "ODF_SIGN_BLOCKS": "1",
    })  # fmt: skip
    assert settings.home == Path.cwd() / "data"
    assert settings.kafka == "a:9092,b:9092"
    assert settings.redis == "redis://r:1/0"
    assert (settings.signed_columns, settings.log_level, settings.block_version) == (True, "debug", 2)
    assert settings.engine is None
    assert settings.sign_blocks


def test_all_faults_are_reported_together() -> None:
    wrong = {
        "ODF_KAFKA": "kafka", "ODF_ENGINE": "h:99999", "ODF_BLOCK_VERSION": "4", "ODF_SIGNED_COLUMNS": "maybe",
        "ODF_LOG_LEVEL": "loud", "ODF_METRICS_PORT": "-1", "ODF_SPARK_MASTER": "sc://host",
    }  # fmt: skip
    with pytest.raises(InvalidInput) as caught:
        Settings.from_env(wrong)
    assert all(name in str(caught.value) for name in wrong)


def test_passwords_are_not_shown() -> None:
    variables = {
        "ODF_REDIS": "redis://me:secret@host:1/0",
        "ODF_RESOURCES": "postgresql://me:secret@host/odf?a=b",
    }
    shown = Settings.from_env(variables).shown()
    assert shown["ODF_REDIS"] == "redis://me:***@host:1/0"
    assert shown["ODF_RESOURCES"] == "postgresql://me:***@host/odf?a=b"


@pytest.mark.parametrize(
    ("url", "fault"),
    [
        ("mysql://me:secret@host/odf", "expected postgresql://"),
        ("postgresql://me:secret@host", "expected postgresql://"),
        ("postgresql://me:sec/ret@host/odf", "%2F"),
        ("postgresql://me:secret@host:99999/odf", "expected host:port"),
        ("postgresql://me:secret@ho\u2100st/odf", "expected host:port"),
        ("postgresql://me@host/odf?password=secret", "expected no password among the options"),
        ("postgresql://me@host/odf?sslpassword=secret", "expected no password among the options"),
    ],
)
def test_a_wrong_address_of_a_database_is_refused_without_its_password(url: str, fault: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        Settings.from_env({"ODF_RESOURCES": url})
    assert fault in str(caught.value)
    assert "sec" not in str(caught.value)


def test_switches_are_shown_as_they_are_written() -> None:
    shown = Settings.from_env({"ODF_SIGN_BLOCKS": "yes"}).shown()
    assert (shown["ODF_SIGN_BLOCKS"], shown["ODF_ENGINE_SPARE"]) == (1, 0)
    assert not any(isinstance(value, bool) for value in shown.values())
    defaults = {name: default for name, default, _ in describe_variables()}
    assert (defaults["ODF_VERIFY_ON_COMMIT"], defaults["ODF_SIGN_BLOCKS"]) == ("1", "0")


def test_a_missing_setting_is_unavailable_by_name() -> None:
    with pytest.raises(Unavailable, match="ODF_ENGINE is not set"):
        Settings.from_env({}).required("engine")


def test_every_setting_says_what_it_is_for() -> None:
    assert all(meaning for _, _, meaning in describe_variables())


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("redis://:secret@host:1/0", "redis://:***@host:1/0"),
        ("rediss://me:se:cr/et@t@host:1/0", "rediss://me:***@host:1/0"),
        ("rediss://me@host:1/0", "rediss://me@host:1/0"),
        ("host:1", "host:1"),
    ],
)
def test_no_part_of_a_password_in_an_address_is_shown(address: str, shown: str) -> None:
    assert without_password(address) == shown


SASL = {
    "ODF_KAFKA": "kafka:9093", "ODF_KAFKA_SECURITY_PROTOCOL": "SASL_SSL", "ODF_KAFKA_SASL_MECHANISM": "SCRAM-SHA-512",
    "ODF_KAFKA_USERNAME": "odf", "ODF_KAFKA_PASSWORD_FILE": "/run/secrets/kafka",
}  # fmt: skip


def test_names_of_protocol_and_mechanism_are_taken_in_any_case() -> None:
    settings = Settings.from_env(SASL)
    assert settings.kafka_security_protocol == "sasl_ssl"
    assert settings.kafka_sasl_mechanism == "scram-sha-512"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"ODF_KAFKA": ""}, "ODF_KAFKA_SECURITY_PROTOCOL needs ODF_KAFKA"),
        ({"ODF_KAFKA_USERNAME": ""}, "=sasl_ssl or sasl_plaintext needs ODF_KAFKA_USERNAME"),
        ({"ODF_KAFKA_SASL_MECHANISM": "oauthbearer"}, "=oauthbearer needs ODF_KAFKA_TOKEN_URL"),
        ({"ODF_KAFKA_TOKEN_URL": "https://a"}, "ODF_KAFKA_TOKEN_URL needs ODF_KAFKA_SASL_MECHANISM=oauthbearer"),
        ({"ODF_KAFKA_SECURITY_PROTOCOL": ""}, "ODF_KAFKA_PASSWORD_FILE needs ODF_KAFKA_SECURITY_PROTOCOL=sasl_ssl"),
        ({"ODF_KAFKA_CERTIFICATE_FILE": "c"}, "ODF_KAFKA_CERTIFICATE_FILE needs ODF_KAFKA_KEY_FILE"),
        ({"ODF_REDIS_PASSWORD_FILE": "p"}, "ODF_REDIS_PASSWORD_FILE needs ODF_REDIS"),
        ({"ODF_REDIS": "redis://r", "ODF_REDIS_CA_FILE": "c"}, "ODF_REDIS_CA_FILE needs ODF_REDIS=rediss://…"),
    ],
    ids=lambda it: next(iter(it)) if isinstance(it, dict) else "",
)  # fmt: skip
def test_settings_without_effect_and_missing_ones_are_refused(change: dict[str, str], text: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(text)):
        Settings.from_env({**SASL, **change})


def test_a_store_is_a_place_in_a_bucket_whose_secrets_are_not_shown() -> None:
    settings = Settings.from_env({
        "ODF_STORE": "s3+http://host:9000/bucket/a/", "ODF_S3_ACCESS_KEY": "key", "ODF_S3_SECRET_KEY": "hidden-1",
        "ODF_S3_SESSION_TOKEN": "hidden-2", "ODF_S3_ENDPOINT": "https://storage.example/",
    })  # fmt: skip
    assert settings.store == S3Location(bucket="bucket", prefix="a", endpoint="http://host:9000")
    assert settings.s3_endpoint == "https://storage.example"
    shown = settings.shown()
    assert (shown["ODF_S3_ACCESS_KEY"], shown["ODF_STORE"]) == ("key", "s3+http://host:9000/bucket/a")
    assert "hidden" not in f"{shown} {settings!r}"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "ODF_KAFKA_PASSWORD",
            "ODF_KAFKA_PASSWORD is not a setting of the node; did you mean ODF_KAFKA_PASSWORD_FILE?",
        ),
        ("ODF_LOGLEVEL", "ODF_LOGLEVEL is not a setting of the node; did you mean ODF_LOG_LEVEL?"),
        ("ODF_XQWVJYZZZ", "ODF_XQWVJYZZZ is not a setting of the node"),
        ("ODF_TEAM_BUILD", "ODF_TEAM_BUILD is not a setting of the node"),
    ],
)
def test_an_unknown_variable_is_named(name: str, text: str) -> None:
    others = {"ODF_HOME": "/x", "ODF_PART": "sync", "ODF_PUBLISH": "1", "_ODF_COMPLETE": "x", "PATH": "/bin"}
    assert unknown_variables({**others, name: ""}) == (text,)
    assert unknown_variables(others) == ()


def test_replicas_of_a_topic_are_enough_for_its_writes() -> None:
    kafka = {"ODF_KAFKA": "a:1", "ODF_KAFKA_MIN_INSYNC_REPLICAS": "2"}
    with pytest.raises(
        InvalidInput, match="ODF_KAFKA_MIN_INSYNC_REPLICAS=2 is more than ODF_KAFKA_REPLICATION_F"
    ):
        Settings.from_env({**kafka, "ODF_KAFKA_REPLICATION_FACTOR": "1"})
    for factor in ("", "2", "3"):
        Settings.from_env({**kafka, "ODF_KAFKA_REPLICATION_FACTOR": factor})


@pytest.mark.parametrize(
    ("environ", "why"),
    [
        ({"ODF_STORE": "http://host/bucket"}, "ODF_STORE: expected s3://bucket"),
        ({"ODF_STORE": "s3://key:secret@host/bucket"}, "ODF_STORE: credentials do not belong in a URL"),
        ({"ODF_S3_ENDPOINT": "host"}, "ODF_S3_ENDPOINT: expected http"),
        ({"ODF_S3_ACCESS_KEY": "key"}, "ODF_S3_ACCESS_KEY needs ODF_S3_SECRET_KEY"),
        ({"ODF_S3_SECRET_KEY": "secret@key"}, "ODF_S3_SECRET_KEY needs ODF_S3_ACCESS_KEY"),
    ],
    ids=["scheme", "credentials", "endpoint", "half a key", "other half"],
)
def test_unusable_settings_of_a_store_are_refused(environ: dict[str, str], why: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        Settings.from_env(environ)
    assert why in str(caught.value)
    assert "secret@" not in str(caught.value)


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
