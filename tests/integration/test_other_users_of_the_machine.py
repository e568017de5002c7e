"""What programs without credentials, such as those of other users of the machine, reach of Kafka and Redis."""

import asyncio
import contextlib
import itertools
import shutil
import socket
import struct
import subprocess
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import redis
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourcePatternType,
    ResourceType,
)
from odf_testing.embedded import EmbeddedNode
from odf_testing.secure_kafka import without_users
from redis.backoff import NoBackoff
from redis.retry import Retry

from odf_cli.embedded.parts.kafka_redis import kafka_part
from odf_cli.embedded.parts.managed_process import PartSpec
from odf_cli.embedded.parts.tcp_ports import allocate
from odf_common.adapters.kafka.admin import KafkaTopics
from odf_common.adapters.kafka.cluster import KafkaCluster
from odf_common.adapters.kafka.topic_messages import publish
from odf_common.ports.bus import AUDIT, DEAD_LETTERS, INGEST_COMMANDS, NODE_CLAIMS, NOTIFICATIONS
from odf_common.service.settings import child_environment

ANSWER = 20.0  # seconds
REFUSED = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
NUMBERS = itertools.count()
Clients = dict[str, str]
Operation = Callable[[Clients, str], object]


@pytest.fixture
def topic(node: EmbeddedNode) -> Iterator[str]:
    name = f"odf.push.open.{next(NUMBERS)}"
    node.topics().create_push_topic(name)
    node.produce(name, [b"1", b"2", b"3"])
    yield name
    node.topics().delete_topic(name)


@pytest.fixture
def plain(node: EmbeddedNode) -> Clients:
    return {"bootstrap.servers": node.kafka}


def read(clients: Clients, topic: str) -> None:
    consumer = Consumer({**clients, "group.id": "of others", "allow.auto.create.topics": False})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        answered(consumer)
    finally:
        consumer.close()


def join(clients: Clients, topic: str) -> None:
    consumer = Consumer({**clients, "group.id": "odf.ingest"})
    try:
        consumer.subscribe([topic])
        answered(consumer)
    finally:
        consumer.close()


def answered(consumer: Consumer) -> None:
    message = consumer.poll(ANSWER)
    assert message is not None, "no answer"
    if message.error():
        raise KafkaException(message.error())


def write(clients: Clients, topic: str, **settings: object) -> None:
    errors: list[KafkaError | None] = []
    producer = Producer({**clients, "message.timeout.ms": 15_000, **settings})
    producer.produce(topic, b'{"id": 7}', on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(ANSWER) == 0
    (error,) = errors
    if error is not None:
        raise KafkaException(error)


def write_in_a_transaction(clients: Clients, topic: str) -> None:
    producer = Producer({**clients, "transactional.id": "of others"})
    producer.init_transactions(ANSWER)
    producer.begin_transaction()
    producer.produce(topic, b'{"id": 8}')
    producer.commit_transaction(ANSWER)


@cache
def admin_of(**clients: str) -> AdminClient:
    """Return the one administrator with these settings; librdkafka aborts if it is removed while an answer comes."""
    return AdminClient(dict(clients))


def setting(topic: str) -> ConfigResource:
    entry = ConfigEntry("retention.ms", "1", incremental_operation=AlterConfigOpType.SET)
    return ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])


def rule() -> AclBinding:
    operation, permission = AclOperation.ALL, AclPermissionType.ALLOW
    return AclBinding(
        ResourceType.TOPIC, "*", ResourcePatternType.LITERAL, "User:ANONYMOUS", "*", operation, permission
    )


def committed(topic: str) -> ConsumerGroupTopicPartitions:
    return ConsumerGroupTopicPartitions("odf.ingest", [TopicPartition(topic, 0, 1)])


def configuration(kind: ResourceType, name: str) -> list[ConfigResource]:
    return [ConfigResource(kind, name)]


# Operations of an administrator, of which each answer is a future.
REQUESTS: dict[str, Callable[[AdminClient, str], Any]] = {
    "create a topic": lambda admin, _: admin.create_topics([NewTopic("odf.push.more", 1)]),
    "delete a topic": lambda admin, topic: admin.delete_topics([topic]),
    "delete records": lambda admin, topic: admin.delete_records([TopicPartition(topic, 0, 1)]),
    "add partitions": lambda admin, topic: admin.create_partitions([NewPartitions(topic, 2)]),
    "read a configuration": lambda admin, topic: admin.describe_configs(
        configuration(ResourceType.TOPIC, topic)
    ),
    "read the broker's configuration": lambda admin, _: admin.describe_configs(
        configuration(ResourceType.BROKER, "1")
    ),
    "change a configuration": lambda admin, topic: admin.incremental_alter_configs([setting(topic)]),
    "describe a topic of the node": lambda admin, _: admin.describe_topics(TopicCollection([AUDIT])),
    "move a group": lambda admin, topic: admin.alter_consumer_group_offsets([committed(topic)]),
    "delete a group": lambda admin, _: admin.delete_consumer_groups(["odf.ingest"]),
    "add a rule": lambda admin, _: admin.create_acls([rule()]),
}


def request(name: str, clients: Clients, topic: str) -> None:
    for answer in REQUESTS[name](admin_of(**clients), topic).values():
        answer.result(ANSWER)


def elsewhere(operation: Operation, other: str, clients: Clients, _: str) -> None:
    """Do something with another topic."""
    operation(clients, other)


OPERATIONS: dict[str, Operation] = {
    "read a push topic": read,
    **{f"read {name}": partial(elsewhere, read, name) for name in (AUDIT, DEAD_LETTERS, NOTIFICATIONS)},
    **{f"write {name}": partial(elsewhere, write, name) for name in (INGEST_COMMANDS, AUDIT, NODE_CLAIMS)},
    "join a group": join,
    **{name: partial(request, name) for name in REQUESTS},
}


@pytest.mark.parametrize(
    "operation", [*OPERATIONS.values(), write_in_a_transaction], ids=[*OPERATIONS, "write in a transaction"]
)
def test_a_client_without_credentials_is_refused(
    operation: Operation, plain: Clients, node: EmbeddedNode, topic: str
) -> None:
    with pytest.raises(KafkaException) as refused:
        operation(plain, topic)
    assert refused.value.args[0].code() in REFUSED, refused.value
    assert node.topics().watermarks(topic, 0) == (0, 3)


def test_a_client_without_credentials_sees_push_topics_only(plain: Clients, topic: str) -> None:
    admin = admin_of(**plain)
    names = admin.list_topics(timeout=ANSWER).topics
    assert topic in names
    assert {name for name in names if not name.startswith("odf.push.")} == set()
    groups = admin.list_consumer_groups().result(ANSWER)
    assert (groups.valid, groups.errors) == ([], [])


@pytest.mark.parametrize("is_idempotent", [False, True])
def test_a_client_without_credentials_publishes_to_push_topics(
    plain: Clients, node: EmbeddedNode, topic: str, is_idempotent: bool
) -> None:
    write(plain, topic, **{"enable.idempotence": is_idempotent})
    assert node.topics().watermarks(topic, 0) == (0, 4)
    ends = admin_of(**plain).list_offsets({TopicPartition(topic, 0): OffsetSpec.latest()})
    assert [end.result(ANSWER).offset for end in ends.values()] == [4]


def test_the_files_of_settings_are_for_the_node_s_user_and_say_how_to_connect(
    node: EmbeddedNode, topic: str
) -> None:
    producers, admins = (settings_of(node, user) for user in ("producer", "admin"))
    write(producers, topic)
    write_in_a_transaction(producers, topic)
    for name, operation in OPERATIONS.items():
        with pytest.raises(KafkaException) as refused:
            operation(producers, topic)
        assert refused.value.args[0].code() in REFUSED, name
    read(admins, topic)
    assert AUDIT in admin_of(**admins).list_topics(timeout=ANSWER).topics
    with pytest.raises(KafkaException):
        write({**producers, "sasl.password": "guessed", "message.timeout.ms": "3000"}, topic)


def test_kafka_s_controller_and_broker_answer_nothing_without_credentials(node: EmbeddedNode) -> None:
    pid = node.pid("kafka")
    assert pid is not None
    ports = listening_ports(pid)
    plain = int(node.kafka.rpartition(":")[2])
    assert plain in ports
    assert len(ports) == 3
    assert [port for port in ports if is_described(port)] == [plain]


ONCE = Retry(NoBackoff(), 0)
REDIS_COMMANDS = (
    "CONFIG GET dir",
    "CONFIG SET dir /tmp",
    "SAVE",
    "BGSAVE",
    "BGREWRITEAOF",
    "DEBUG SLEEP 0",
    "MODULE LIST",
    "SLAVEOF NO ONE",
    "REPLICAOF NO ONE",
    "FLUSHALL",
    "FLUSHDB",
    "KEYS *",
    "SCAN 0",
    "MONITOR",
    "SHUTDOWN NOSAVE",
    "ACL LIST",
    "CLIENT LIST",
    "SCRIPT FLUSH",
    "MIGRATE 127.0.0.1 1 odf:lock:x 0 1",
    "EVAL return(1) 0",
    "PUBLISH odf:x y",
    "INFO",
    "GET other:key",
    "SET other:key x",
)


@pytest.mark.parametrize("command", REDIS_COMMANDS)
def test_redis_refuses_whoever_has_no_password_and_the_node_what_it_does_not_need(
    node: EmbeddedNode, command: str
) -> None:
    host, _, port = str(node.node.redis).rpartition(":")
    with contextlib.closing(redis.Redis(host, int(port), retry=ONCE)) as stranger:
        for one in (command, "PING", "GET odf:lock:x"):
            with pytest.raises(redis.AuthenticationError):
                stranger.execute_command(*one.split())
    with contextlib.closing(node.redis().client) as client:
        assert client.ping()
        with pytest.raises(redis.exceptions.NoPermissionError):
            client.execute_command(*command.split())


def test_secrets_and_configurations_are_for_the_node_s_user_only(node: EmbeddedNode) -> None:
    files = [node.home / "redis" / "redis.conf", node.home / "kafka" / "server.properties"]
    files += (node.home / "secrets").iterdir()
    assert len(files) > 4
    assert {file.name: oct(file.stat().st_mode & 0o777) for file in files} == {
        file.name: "0o600" for file in files
    }
    assert oct((node.home / "secrets").stat().st_mode & 0o777) == "0o700"
    secrets = [file.read_text().strip() for file in (node.home / "secrets").iterdir() if not file.suffix]
    texts = [log.read_text(errors="replace") for log in (node.home / "logs").iterdir()]
    pids = (part.pid for part in (*node.node.parts, *node.node.services))
    texts += (Path(f"/proc/{pid}/cmdline").read_text() for pid in pids)
    assert [secret for secret in secrets for text in texts if secret in text] == []


async def formatted(part: PartSpec) -> None:
    assert part.prepare is not None
    await part.prepare()


async def answers(part: PartSpec) -> bool:
    assert part.liveness is not None
    return await part.liveness()


def settings_of(node: EmbeddedNode, user: str) -> Clients:
    """Return the settings in a file for Kafka's clients, as librdkafka takes them."""
    lines = (node.home / "secrets" / f"kafka-{user}.properties").read_text().splitlines()
    pairs = (line.split("=", 1) for line in lines if not line.startswith(("#", "sasl.jaas.config=")))
    return dict(pairs)


def listening_ports(pid: int) -> list[int]:
    """Return the TCP ports on which a process listens, by the kernel's tables."""
    handles = (str(handle.readlink()) for handle in Path(f"/proc/{pid}/fd").iterdir())
    sockets = {name[len("socket:[") : -1] for name in handles if name.startswith("socket:[")}
    tables = (Path(f"/proc/{pid}/net/{name}").read_text().splitlines() for name in ("tcp", "tcp6"))
    lines = [line.split() for table in tables for line in table]
    listening = "0A"
    return [
        int(line[1].rpartition(":")[2], 16) for line in lines if line[3] == listening and line[9] in sockets
    ]


def is_described(port: int) -> bool:
    """Return whether a broker or controller answers DescribeCluster to a client without credentials."""
    return any(_described(port, endpoint) for endpoint in (b"\1", b"\2"))


def _described(port: int, endpoint: bytes) -> bool:
    request = struct.pack(">hhih", 60, 1, 9, -1) + b"\0" + b"\0" + endpoint + b"\0"
    with socket.create_connection(("127.0.0.1", port), ANSWER) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        answer = connection.makefile("rb").read(4 + 4 + 1 + 4 + 2)
    return len(answer) == 15 and answer[4:8] == struct.pack(">i", 9) and answer[-2:] == b"\0\0"


def test_messages_of_a_kafka_that_had_no_users_are_kept(tmp_path: Path) -> None:
    node, name = EmbeddedNode(tmp_path), "odf.push.earlier"
    (tmp_path / "logs").mkdir()
    ports = allocate(tmp_path, ("kafka-sasl", "kafka-controller"))
    part = kafka_part(tmp_path, ports, child_environment())
    properties = Path(part.command[-1])
    properties.write_text(without_users(properties.read_text(), "PLAINTEXT"))
    asyncio.run(formatted(part))
    cluster = KafkaCluster(f"127.0.0.1:{ports['kafka-sasl']}")
    with subprocess.Popen(part.command, stderr=subprocess.DEVNULL) as process:
        while not asyncio.run(answers(part)):
            assert process.poll() is None
        KafkaTopics(cluster).create_push_topic(name)
        publish(cluster, name, [b"1", b"2"])
        process.terminate()
    shutil.rmtree(tmp_path / "secrets")
    node.up("kafka", "redis")
    try:
        assert node.topics().watermarks(name, 0) == (0, 2)
        write({"bootstrap.servers": node.kafka}, name)
        assert node.topics().watermarks(name, 0) == (0, 3)
    finally:
        node.down()


def test_a_multi_tenant_node_takes_nothing_without_credentials(tmp_path: Path) -> None:
    node = EmbeddedNode(tmp_path / "home", {"ODF_TENANCY": "multi"})
    node.up("kafka", "redis")
    try:
        name = "odf.push.shared"
        node.topics().create_push_topic(name)
        with pytest.raises(KafkaException):
            write({"bootstrap.servers": node.kafka, "message.timeout.ms": "3000"}, name)
        pid = node.pid("kafka")
        assert pid is not None
        assert [port for port in listening_ports(pid) if is_described(port)] == []
        file = node.run("status --output json")["kafka_client_file"]
        assert file == str(node.home / "secrets" / "kafka-producer.properties")
        assert file in node.run("status")
        write(settings_of(node, "producer"), name)
        assert node.topics().watermarks(name, 0) == (0, 1)
    finally:
        node.down()
