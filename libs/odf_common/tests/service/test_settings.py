import re
from pathlib import Path

import pytest

from odf_common.adapters.s3.location import S3Location
from odf_common.errors import InvalidInput, Unavailable
from odf_common.service.settings import Settings, describe_variables, unknown_variables, without_password


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
    shown = Settings.from_env({"ODF_REDIS": "redis://me:secret@host:1/0"}).shown()
    assert shown["ODF_REDIS"] == "redis://me:***@host:1/0"


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
