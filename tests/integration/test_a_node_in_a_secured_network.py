"""A node whose connections are all secured: Kafka with SASL and TLS, Redis with TLS, mutual TLS for gRPC, https.

An administrator creates the topics.
"""

import asyncio
import json
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import aiokafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from faust.transport.drivers.aiokafka import credentials_to_aiokafka_auth
from odf_testing.certificates import tls_in_front_of
from odf_testing.embedded import EmbeddedNode
from odf_testing.secure_kafka import PASSWORD, USER, SecureKafka, secure_kafka, token_endpoint
from odf_testing.story import as_text, root

from odf_cli.embedded.parts.kafka_redis import redis_server
from odf_cli.embedded.parts.tcp_ports import allocate
from odf_common.adapters.kafka.admin import KafkaTopics
from odf_common.adapters.kafka.client_config import common
from odf_common.adapters.kafka.cluster import KafkaCluster
from odf_common.adapters.kafka.topic_messages import first_messages, publish
from odf_common.adapters.tls import ClientTls
from odf_common.errors import Unavailable
from odf_common.service.settings import child_environment
from odf_coordinator.views.credentials import credentials_for

PREFIX = "team."
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureKafka]:
    with secure_kafka(tmp_path_factory.mktemp("secure")) as kafka:
        yield kafka


@pytest.fixture
def redis(tmp_path: Path, kafka: SecureKafka) -> Iterator[str]:
    """Return the address of a Redis with TLS and a password."""
    port = allocate(tmp_path, ("redis",))["redis"]
    command = (redis_server(child_environment()), "--port", str(port), "--save", "", "--dir", str(tmp_path))
    with subprocess.Popen([*command, "--requirepass", PASSWORD], stdout=subprocess.DEVNULL) as process:
        with tls_in_front_of(f"127.0.0.1:{port}", kafka.certificate, kafka.key) as address:
            yield address
        process.kill()


@pytest.fixture
def settings(tmp_path: Path, kafka: SecureKafka, redis: str) -> dict[str, str]:
    password = tmp_path / "password"
    password.write_text(f"{PASSWORD}\n")
    files = {"CA_FILE": kafka.certificate, "CERTIFICATE_FILE": kafka.certificate, "KEY_FILE": kafka.key}
    return {
        "ODF_KAFKA": kafka.bootstrap,
        "ODF_KAFKA_PREFIX": PREFIX,
        "ODF_KAFKA_SECURITY_PROTOCOL": "sasl_ssl",
        "ODF_KAFKA_SASL_MECHANISM": "scram-sha-512",
        "ODF_KAFKA_USERNAME": USER,
        "ODF_KAFKA_MANAGE_TOPICS": "0",
        "ODF_REDIS": f"rediss://{redis}/0",
        "ODF_KAFKA_PASSWORD_FILE": str(password),
        "ODF_REDIS_PASSWORD_FILE": str(password),
        **{
            f"ODF_{server}_{name}": str(file)
            for server in ("KAFKA", "REDIS", "GRPC", "HTTP")
            for name, file in files.items()
            if (server, name) != ("HTTP", "CA_FILE")
        },
    }


def create(kafka: SecureKafka, *topics: dict[str, Any]) -> None:
    """Create topics as an administrator does, from a row of `odf topics` each."""
    admin = AdminClient({**common(kafka.cluster())})
    wanted = [
        NewTopic(
            row["topic"], row["partitions"], config=dict(one.split("=") for one in row["config"].split(", "))
        )
        for row in topics
    ]
    for answer in admin.create_topics(wanted).values():
        answer.result(10)


def viewed(node: EmbeddedNode) -> list[dict[str, Any]]:
    with urlopen(f"{node.node.views}/datasets", timeout=10) as answer:
        rows: list[dict[str, Any]] = json.load(answer)
    return rows


def test_records_are_committed_and_no_secret_is_shown(
    tmp_path: Path, kafka: SecureKafka, settings: dict[str, str]
) -> None:
    node = EmbeddedNode(tmp_path / "home", settings)
    refused = node.fails("up coordinator ingest sync")
    rows = node.run("topics --output json")
    assert all(row["topic"] in refused for row in rows)
    create(kafka, *rows)
    node.up("coordinator", "ingest", "sync")
    try:
        manifest = as_text(root("orders", ["n BIGINT"]))
        topic = f"{PREFIX}odf.push.orders.default"
        assert f"{topic} (partitions=1, retention.ms=-1)" in node.fails("add -", stdin=manifest)
        create(kafka, {"topic": topic, "partitions": 2, "config": "retention.ms=-1"})
        node.run("add -", stdin=manifest)
        publish(kafka.cluster(), topic, [json.dumps({"n": number}).encode() for number in range(3)])
        node.eventually(lambda: node.run("list --output json")[0]["records"] == 3)
        node.eventually(lambda: [row["last_offset"] for row in viewed(node)] == [2])
        url = f"{node.node.http}/orders/refs/head"
        assert url.startswith("https://")
        trusting = ClientTls(ca_file=kafka.certificate).context()
        with urlopen(url, timeout=10, context=trusting) as answer:
            assert answer.read().decode() == node.run("list --output json")[0]["head"]
        shown = [node.run(line) for line in ("config", "status --output json", "doctor")]
        assert PASSWORD not in str(shown) + node.logs(lines=10_000) + (node.home / "node.json").read_text()
        node.run("delete orders --yes")
        assert topic in KafkaTopics(kafka.cluster()).list_names()
    finally:
        node.down()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_all_clients_support_each_mechanism(kafka: SecureKafka, mechanism: str) -> None:
    topic = f"spoken.{mechanism}"
    with token_endpoint() as url:
        cluster = kafka.cluster(mechanism, token_url=url)
        KafkaTopics(cluster).create_push_topic(topic)
        publish(cluster, topic, [b"record"])
        assert first_messages(cluster, topic, 1) == [[(None, b"record")]]
        assert asyncio.run(first_of_the_views(cluster, topic)) == b"record"


async def first_of_the_views(cluster: KafkaCluster, topic: str) -> bytes:
    """Return the first message as the client of the views, which is Faust's, reads it."""
    security = credentials_to_aiokafka_auth(credentials_for(cluster))
    consumer = aiokafka.AIOKafkaConsumer(
        topic, bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest", **security
    )
    async with consumer:
        value: bytes = (await consumer.getone()).value
        return value


def test_refusals_of_the_broker_and_of_the_node_are_named(kafka: SecureKafka) -> None:
    right = kafka.cluster()
    assert right.sasl is not None
    wrong = {
        "Invalid username or password": replace(right, sasl=replace(right.sasl, password="wrong")),
        "certificate verify failed": replace(
            right, bootstrap=kafka.bootstrap.replace("127.0.0.1", "localhost")
        ),
        "cannot be reached": replace(right, tls=ClientTls(ca_file=kafka.certificate)),
    }
    for why, cluster in wrong.items():
        with pytest.raises(Unavailable, match=why):
            KafkaTopics(cluster).require_answer(1.0)


@pytest.mark.parametrize("change", ["password", "certificate"])
def test_a_node_does_not_start_with_a_redis_that_refuses_it(
    tmp_path: Path, settings: dict[str, str], change: str
) -> None:
    (tmp_path / "wrong").write_text("wrong")
    wrong = {"ODF_REDIS_PASSWORD_FILE": str(tmp_path / "wrong")}
    if change == "certificate":
        wrong = {"ODF_REDIS_CERTIFICATE_FILE": "", "ODF_REDIS_KEY_FILE": ""}
    only_redis = {name: value for name, value in settings.items() if name.startswith("ODF_REDIS")}
    said = EmbeddedNode(tmp_path / "home", {**only_redis, **wrong}).fails("up coordinator")
    assert "Redis cannot be reached at 127.0.0.1:" in said
    assert PASSWORD not in said
