import os
import random
import socket
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from odf_cli.embedded.node_file import (
    Node,
    NoNode,
    Part,
    client_settings_for,
    find_node,
    forget_node,
    read_node,
    write_node,
)
from odf_cli.embedded.parts.tcp_ports import END_PORT, FIRST_PORT, allocate, is_free
from odf_cli.embedded.plan import make_plan
from odf_common.errors import Unavailable
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


@pytest.fixture
def here(tmp_path: Path) -> Node:
    return Node(
        home=tmp_path,
        pid=os.getpid(),
        kafka="127.0.0.1:1",
        http="http://127.0.0.1:2",
        grpc={"coordinator": "127.0.0.1:3"},
        metrics={"coordinator": "127.0.0.1:4"},
        services=(Part(name="coordinator", pid=5, state="ready"),),
        parts=(Part(name="kafka", pid=None, state="restarting"),),
    )


def test_a_written_node_file_is_read_back(here: Node) -> None:
    write_node(here)
    assert read_node(here.home) == here


def test_a_home_without_a_node_says_how_to_start_one(here: Node) -> None:
    with pytest.raises(NoNode) as caught:
        read_node(here.home)
    assert "odf up --detach" in caught.value.advice()


def test_a_node_whose_supervisor_has_ended_is_not_running(here: Node) -> None:
    write_node(replace(here, pid=2**22 + 1))
    with pytest.raises(NoNode):
        read_node(here.home)


def test_a_file_that_is_not_json_is_not_a_node(here: Node) -> None:
    (here.home / "node.json").write_text("{")
    with pytest.raises(NoNode):
        read_node(here.home)


def test_settings_come_before_the_file(here: Node) -> None:
    write_node(here)
    settings = Settings(home=here.home, coordinator_grpc="far:1", sync_http="far:2")
    found = find_node(settings)
    assert found.address("coordinator") == "far:1"
    assert (found.http, found.kafka) == ("http://far:2", "127.0.0.1:1")


def test_settings_alone_are_enough(tmp_path: Path) -> None:
    found = find_node(Settings(home=tmp_path, coordinator_grpc="far:1"))
    assert found.address("coordinator") == "far:1"
    with pytest.raises(Unavailable):
        found.address("sync")


def test_a_forgotten_node_is_removed(here: Node) -> None:
    write_node(here)
    forget_node(here.home)
    forget_node(here.home)
    assert list(here.home.iterdir()) == []


def test_ports_are_free_different_and_remembered(tmp_path: Path) -> None:
    first = allocate(tmp_path, ("a", "b", "c"))
    assert len(set(first.values())) == 3
    assert all(FIRST_PORT <= port < END_PORT and is_free(port) for port in first.values())
    assert allocate(tmp_path, ("a", "b")) == {"a": first["a"], "b": first["b"]}


def test_a_port_that_is_taken_is_replaced(tmp_path: Path) -> None:
    first = allocate(tmp_path, ("a",))["a"]
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", first))
        taken.listen()
        assert allocate(tmp_path, ("a",))["a"] != first


def test_nodes_that_choose_at_the_same_time_get_different_ports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    homes = [tmp_path / name for name in ("one", "two", "three")]
    for home in homes:
        home.mkdir()
    free = next(port for port in range(FIRST_PORT, END_PORT) if is_free(port) and is_free(port + 1))
    drawn = iter([free, free, free + 1, free])
    monkeypatch.setattr(random, "randrange", lambda *_: next(drawn))
    assert allocate(homes[0], ("a",)) == {"a": free}
    assert allocate(homes[1], ("a",)) == {"a": free + 1}, "the other one has not begun to listen yet"
    (claim,) = tmp_path.glob(f"odf-ports-*/{free}")
    os.utime(claim, (0, 0))
    assert allocate(homes[2], ("a",)) == {"a": free}


def test_the_ports_of_a_node_that_starts_again_are_not_given_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    first, second = (tmp_path / name for name in ("one", "two"))
    first.mkdir()
    second.mkdir()
    port = allocate(first, ("a",))["a"]
    (claim,) = tmp_path.glob(f"odf-ports-*/{port}")
    os.utime(claim, (0, 0))
    assert allocate(first, ("a",)) == {"a": port}
    drawn = iter([port, port, FIRST_PORT, *range(FIRST_PORT + 1, END_PORT)])
    monkeypatch.setattr(random, "randrange", lambda *_: next(drawn))
    assert allocate(second, ("a",))["a"] != port


@pytest.mark.parametrize("text", ["{", ""])
def test_a_damaged_list_of_ports_is_written_again(tmp_path: Path, text: str) -> None:
    (tmp_path / "ports.json").write_text(text)
    assert set(allocate(tmp_path, ("a",))) == {"a"}
