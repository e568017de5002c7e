"""Which environment each part of an embedded node gets."""

from dataclasses import replace
from pathlib import Path

import pytest

from odf_cli.embedded.node_file import Node, Part, client_settings_for
from odf_cli.embedded.plan import make_plan
from odf_common.service.environments import engine_environment
from odf_common.service.settings import Settings

SECRETS = {
    "ODF_S3_ACCESS_KEY": "key",
    "ODF_S3_SECRET_KEY": "s3-secret",
    "ODF_S3_SESSION_TOKEN": "s3-token",
    "ODF_STORE": "s3://bucket",
}
REDIS = {"ODF_REDIS": "redis://:redis-secret@127.0.0.1:6379"}
KAFKA = {
    "ODF_KAFKA": "127.0.0.1:9092",
    "ODF_KAFKA_SECURITY_PROTOCOL": "sasl_plaintext",
    "ODF_KAFKA_SASL_MECHANISM": "plain",
    "ODF_KAFKA_USERNAME": "odf",
    "ODF_KAFKA_PASSWORD_FILE": "/kafka-secret",
}
# Under names that nobody foresees.
FOREIGN = {"DATABASE_URL": "postgres://odf:pg-secret@db/odf", "JAVA_TOOL_OPTIONS": "-Dkey=java-secret"}
OF_THE_SYSTEM = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "JAVA_HOME": "/opt/java"}
PROGRAMS = ("kafka", "redis")
OF_PROGRAMS = {"PATH", "LC_ALL", "JAVA_HOME", "ODF_HOME", "ODF_PART"}
OF_THE_ENGINE = OF_PROGRAMS | {
    *("ODF_ENGINE", "ODF_INSTANCE", "ODF_LOG_LEVEL", "ODF_METRICS_PORT", "ODF_SPARK_MASTER"),
    *("PYTHONUNBUFFERED", "TMPDIR"),
}


@pytest.mark.parametrize("elsewhere", [{}, {**REDIS, **KAFKA}], ids=["embedded", "existing"])
def test_parts_that_need_no_credentials_get_the_listed_variables_only(
    tmp_path: Path, elsewhere: dict[str, str]
) -> None:
    options = {"ODF_HOME": str(tmp_path), "ODF_LOG_LEVEL": "debug", "ODF_SPARK_MASTER": "local[3]"}
    environment = {**OF_THE_SYSTEM, **options, **SECRETS, **elsewhere, **FOREIGN}
    plan = make_plan(Settings.from_env(environment), (), environment, pid=1)
    parts = {part.name: part.environment for part in plan.parts}
    for name, of_part in parts.items():
        assert (of_part["PATH"], of_part["ODF_HOME"], of_part["ODF_PART"]) == (
            "/usr/bin:/bin",
            str(tmp_path),
            name,
        )
        if name == "engine-spark":
            assert of_part.keys() == OF_THE_ENGINE
            assert Settings.from_env(of_part).spark_master == "local[3]"
        elif name in PROGRAMS:
            assert of_part.keys() == OF_PROGRAMS
        else:
            assert of_part.items() >= {**SECRETS, **elsewhere, **FOREIGN}.items()
            files = {of_part.get(f"ODF_{server}_PASSWORD_FILE") for server in ("KAFKA", "REDIS")}
            assert elsewhere or files == {str(tmp_path / "secrets" / one) for one in ("kafka-admin", "redis")}
    assert parts.keys() >= {"engine-spark", "coordinator", "sync", *(() if elsewhere else PROGRAMS)}


def test_kafka_s_address_takes_clients_without_credentials_on_a_single_tenant_node_only(
    tmp_path: Path,
) -> None:
    single = planned(tmp_path, "single")
    multi = planned(tmp_path, "multi")
    assert single.kafka != single.kafka_sasl
    assert multi.kafka == multi.kafka_sasl == single.kafka
    file = str(tmp_path / "secrets" / "kafka-producer.properties")
    assert single.kafka_client_file == multi.kafka_client_file == file
    assert (single.addresses().get("kafka client"), multi.addresses()["kafka client"]) == (None, file)
    lines = Path(file).read_text().splitlines()
    assert f"bootstrap.servers={multi.kafka}" in lines
    assert Path(file).stat().st_mode & 0o777 == 0o600


def test_a_running_node_s_servers_are_reached_with_its_secrets_and_others_as_configured(
    tmp_path: Path,
) -> None:
    node = planned(tmp_path, "single")
    settings = Settings(home=tmp_path)
    used = client_settings_for(settings, replace(node, parts=(Part(name="redis", pid=1, state="ready"),)))
    assert (used.kafka, used.kafka_username) == (node.kafka_sasl, "odf")
    assert used.redis_password_file == tmp_path / "secrets" / "redis"
    other = Node(home=tmp_path, pid=1, kafka="kafka:9092", redis="redis:6379")
    assert client_settings_for(settings, other) == replace(settings, kafka="kafka:9092", redis="redis:6379")
    configured = replace(settings, kafka="k:1", redis="r:1")
    assert client_settings_for(configured, node) == configured


def planned(home: Path, tenancy: str) -> Node:
    return make_plan(Settings(home=home, tenancy=tenancy), ("ingest",), {"PATH": "/usr/bin:/bin"}, pid=1).node


def test_the_engine_gets_every_setting_of_its_door(tmp_path: Path) -> None:
    door = {
        "ODF_GRPC_CERTIFICATE_FILE": "/grpc.pem",
        "ODF_GRPC_KEY_FILE": "/grpc.key",
        "ODF_GRPC_CA_FILE": "/ca.pem",
        "ODF_HTTP_CERTIFICATE_FILE": "/http.pem",
        "ODF_HTTP_KEY_FILE": "/http.key",
        "ODF_METRICS_TOKEN_FILE": "/token",
        "ODF_ENGINE_SECRET_FILE": "/engine",
        "ODF_METRICS_HOST": "127.0.0.1",
        "ODF_GRPC_LISTEN_HOST": "127.0.0.1",
        "ODF_LISTEN_UNPROTECTED": "1",
        "ODF_ENGINE_SPARE": "1",
        "ODF_ENGINE_SPARE_AFTER_MS": "0",
        "ODF_SIGNED_COLUMNS": "1",
    }
    environment = {**OF_THE_SYSTEM, "ODF_HOME": str(tmp_path), **door}
    assert engine_environment(environment) == environment
    assert Settings.from_env(engine_environment(environment)).metrics_token_file == Path("/token")
