"""Which environment each part of an embedded node gets."""

from dataclasses import replace
from pathlib import Path

import pytest

from odf_common.embedded.node_file import Node, Part, connected
from odf_common.embedded.plan import make_plan
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
WITHHELD = ("ODF_KAFKA", "ODF_REDIS", "ODF_S3_", "ODF_STORE")


@pytest.mark.parametrize("elsewhere", [{}, {**REDIS, **KAFKA}], ids=["embedded", "existing"])
def test_parts_that_need_no_credentials_get_none(tmp_path: Path, elsewhere: dict[str, str]) -> None:
    environment = {"ODF_HOME": str(tmp_path), "PATH": "/usr/bin:/bin", **SECRETS, **elsewhere}
    plan = make_plan(Settings.from_env(environment), (), {**environment, "OTHER": "kept"}, pid=1)
    parts = {part.name: part.environment for part in plan.parts}
    without = {"engine-spark"} if elsewhere else {"engine-spark", "kafka", "redis"}
    for name, of_part in parts.items():
        assert (of_part["OTHER"], of_part["ODF_HOME"], of_part["ODF_PART"]) == ("kept", str(tmp_path), name)
        if name in without:
            assert not [one for one in of_part if one.startswith(WITHHELD)]
            Settings.from_env(of_part)
        else:
            assert of_part.items() >= {**SECRETS, **elsewhere}.items()
            files = {of_part.get(f"ODF_{server}_PASSWORD_FILE") for server in ("KAFKA", "REDIS")}
            assert elsewhere or files == {str(tmp_path / "secrets" / one) for one in ("kafka-admin", "redis")}
    assert parts.keys() >= {"engine-spark", "coordinator", "sync"} | without


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
    used = connected(settings, replace(node, parts=(Part(name="redis", pid=1, state="ready"),)))
    assert (used.kafka, used.kafka_username) == (node.kafka_sasl, "odf")
    assert used.redis_password_file == tmp_path / "secrets" / "redis"
    other = Node(home=tmp_path, pid=1, kafka="kafka:9092", redis="redis:6379")
    assert connected(settings, other) == replace(settings, kafka="kafka:9092", redis="redis:6379")
    configured = replace(settings, kafka="k:1", redis="r:1")
    assert connected(configured, node) == configured


def planned(home: Path, tenancy: str) -> Node:
    return make_plan(Settings(home=home, tenancy=tenancy), ("ingest",), {"PATH": "/usr/bin:/bin"}, pid=1).node
