"""Creates, describes and deletes topics; topics are never created automatically."""

import time
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import Future
from functools import cache
from typing import Final, TypeVar

from confluent_kafka import (
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
    Uuid,
)
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ListOffsetsResultInfo,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourcePatternType,
    ResourceType,
    TopicDescription,
)

from odf_common.adapters.kafka.client_config import (
    common,
    new_admin_client,
    note_connected,
    unavailable,
)
from odf_common.adapters.kafka.cluster import (
    KafkaCluster,
    TopicSpec,
    missing_topics,
    node_topic,
    partition_of,
    push_topic,
)
from odf_common.errors import InvalidInput, NotFound, OdfError, Unavailable
from odf_common.ports.bus import PARTITIONS, PUSH_TOPICS, TopicInfo

__all__ = ["KafkaTopics", "partition_of"]

ADMIN_TIMEOUT_SECONDS: Final = 10.0
DESCRIBE_TIMEOUT_SECONDS: Final = 4.0  # commands that show topics answer within five
TOPIC_POLL_SECONDS: Final = 0.02  # between polls for a topic being created
# librdkafka's local errors have an underscore in their name, but are public.
_MISSING: Final = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001
        KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
    }
)
_OUTDATED: Final = frozenset(
    {
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
    }
)
_REFUSED: Final = frozenset({KafkaError._SSL, KafkaError._AUTHENTICATION})  # noqa: SLF001
TOPICS_PER_REQUEST: Final = 500  # topics described by one request
T = TypeVar("T")
_Answers = dict[int, "Future[ListOffsetsResultInfo]"]  # by partition


class KafkaTopics:
    """The topics of one cluster (port `Topics`)."""

    def __init__(self, cluster: KafkaCluster, *, prefix: str = "") -> None:
        """Use a cluster; the client connects on the first call.

        `prefix` applies to fixed topics and to permissions for push topics. Names of push topics include
        the prefix already.
        """
        self.prefix = prefix
        self._policy = cluster.topics
        self._admin, self._refusal = _client(cluster)

    def require_answer(self, seconds: float) -> None:
        """Raise `Unavailable` unless the cluster answers within `seconds`; the error says whether TLS or SASL failed.

        The request asks for brokers only, because a cluster may have thousands of topics.
        """
        try:
            self._admin.describe_cluster(request_timeout=seconds).result()
        except KafkaException as error:
            self._admin.poll(0)
            raise Unavailable(what="Kafka", why=self._refusal.why or unavailable(error).why) from error

    def ensure_topics(self, names: Iterable[str], partitions: int = PARTITIONS) -> None:
        """Create those of the fixed topics that are missing, with the prefix; all are writable afterwards.

        Raises `TopicsMissing` if topics are missing and the node may not create them.
        """
        self._create_missing([node_topic(self._policy, self.prefix, name, partitions) for name in names])

    def create_push_topic(self, name: str, partitions: int = 1) -> None:
        """Create a topic with unlimited retention unless it exists; raises `TopicsMissing` if the node may not."""
        spec = push_topic(self._policy, name, partitions)
        if self._policy.is_ours:
            self._create([spec])
        else:
            self._create_missing([spec])

    def add_partitions(self, name: str, total: int) -> None:
        """Increase the number of partitions to `total`.

        Raises `InvalidInput` if the topic has more than that, `NotFound` if it does not exist.
        """
        there = self.partitions(name)
        if total < there:
            text = f"topic {name} already has {there}, and Kafka cannot remove partitions"
            raise InvalidInput(where="partitions", text=text)
        if total > there:
            additions = [NewPartitions(name, total)]
            _outcome(
                self._admin.create_partitions(additions, request_timeout=ADMIN_TIMEOUT_SECONDS)[name], name
            )
            self._await({name}, partitions=total)

    def set_retention(self, name: str, ms: int | None) -> None:
        """Set the retention of a topic in milliseconds, None for unlimited; raises `NotFound`."""
        value = "-1" if ms is None else str(ms)
        retention = ConfigEntry("retention.ms", value, incremental_operation=AlterConfigOpType.SET)
        topic = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[retention])
        changed = self._admin.incremental_alter_configs([topic], request_timeout=ADMIN_TIMEOUT_SECONDS)
        _outcome(changed[topic], name)

    def admit_producers(self, user: str) -> None:
        """Allow a Kafka user to write to all push topics with the prefix, including future ones."""
        self._allow(user, ResourceType.TOPIC, self.prefix + PUSH_TOPICS, ResourcePatternType.PREFIXED)

    def admit_transactions(self, user: str) -> None:
        """Allow a Kafka user to use transactions for writing to topics that the user may write to."""
        self._allow(user, ResourceType.TRANSACTIONAL_ID, "*", ResourcePatternType.LITERAL)

    def _allow(self, user: str, kind: ResourceType, name: str, pattern: ResourcePatternType) -> None:
        any_host, write = "*", AclOperation.WRITE
        rule = AclBinding(kind, name, pattern, f"User:{user}", any_host, write, AclPermissionType.ALLOW)
        answers = self._admin.create_acls([rule], request_timeout=ADMIN_TIMEOUT_SECONDS)
        _outcome(answers[rule], name)

    def describe(self, names: Iterable[str]) -> Mapping[str, TopicInfo | OdfError]:
        """Return the state of each topic, or its error, by name; three requests per `TOPICS_PER_REQUEST` topics."""
        unique = list(dict.fromkeys(names))
        topics: dict[str, TopicInfo | OdfError] = {}
        for start in range(0, len(unique), TOPICS_PER_REQUEST):
            topics |= self._described_at_once(unique[start : start + TOPICS_PER_REQUEST])
        return topics

    def list_names(self) -> Collection[str]:
        """Return the names of all topics of the cluster."""
        return self._topic_names()

    def offsets_at(self, name: str, ms: int) -> Mapping[int, int]:
        """Return for each partition the offset of the first message with timestamp `ms` or later.

        It is the end of the partition if there is no such message. Raises `NotFound`.
        """
        partitions = range(self.partitions(name))
        ends = self._offsets(name, partitions, OffsetSpec.latest())
        offsets = self._offsets(name, partitions, OffsetSpec.for_timestamp(ms))
        return {number: ends[number] if offset < 0 else offset for number, offset in offsets.items()}

    def topic_id(self, name: str) -> str:
        """Return the topic's id, which differs from that of a later topic with the same name; raises `NotFound`."""
        topic_id: Uuid = self._topic(name).topic_id
        return str(topic_id)

    def partitions(self, name: str) -> int:
        """Return the number of partitions of a topic; raises `NotFound`."""
        return len(self._topic(name).partitions)

    def watermarks(self, name: str, partition: int) -> tuple[int, int]:
        """Return the offset of the first message of a partition, and its end (see `ends`); raises `NotFound`."""
        if partition not in {info.id for info in self._topic(name).partitions}:
            raise NotFound(what=f"partition {partition} of topic {name}")
        low = self._offsets(name, (partition,), OffsetSpec.earliest())
        high = self._offsets(name, (partition,), OffsetSpec.latest())
        return low[partition], high[partition]

    def ends(self, name: str) -> Mapping[int, int]:
        """Return the last stable offset of each partition; raises `NotFound`.

        It is the offset of the next message, or of the first message of the oldest open transaction.
        """
        return self._offsets(name, range(self.partitions(name)), OffsetSpec.latest())

    def delete_topic(self, name: str) -> None:
        """Delete a topic if it exists; do nothing if an administrator manages the topics."""
        if not self._policy.is_ours:
            return
        try:
            _outcome(self._admin.delete_topics([name], request_timeout=ADMIN_TIMEOUT_SECONDS)[name], name)
        except NotFound:
            return

    def _topic(self, name: str) -> TopicDescription:
        answers = self._admin.describe_topics(TopicCollection([name]), request_timeout=ADMIN_TIMEOUT_SECONDS)
        description: TopicDescription = _outcome(answers[name], name)
        return description

    def _described_at_once(self, names: list[str]) -> dict[str, TopicInfo | OdfError]:
        answers = self._admin.describe_topics(
            TopicCollection(names), request_timeout=DESCRIBE_TIMEOUT_SECONDS
        )
        topics: dict[str, TopicDescription] = {}
        infos: dict[str, TopicInfo | OdfError] = {}
        for name, answer in answers.items():
            try:
                topics[name] = _outcome(answer, name)
            except OdfError as error:
                infos[name] = error
        places = [(name, partition.id) for name, topic in topics.items() for partition in topic.partitions]
        lows = self._offsets_of(places, OffsetSpec.earliest())
        highs = self._offsets_of(places, OffsetSpec.latest())
        for name, topic in topics.items():
            try:
                low, high = (_offsets_in(some.get(name, {}), name) for some in (lows, highs))
                infos[name] = TopicInfo(topic_id=str(topic.topic_id), low=low, high=high)
            except OdfError as error:
                infos[name] = error
        if any(isinstance(answer, _OutdatedError) for answer in infos.values()):
            self._refresh()  # for the next time
        return infos

    def _offsets_of(self, places: Iterable[tuple[str, int]], spec: OffsetSpec) -> Mapping[str, _Answers]:
        """Request the offsets of partitions of several topics; return futures by topic and partition."""
        specs = {TopicPartition(*partition): spec for partition in places}
        answers: dict[str, _Answers] = {}
        if specs:
            for place, answer in self._list_offsets(specs).items():
                answers.setdefault(place.topic, {})[place.partition] = answer
        return answers

    def _list_offsets(
        self, specs: dict[TopicPartition, OffsetSpec]
    ) -> "dict[TopicPartition, Future[ListOffsetsResultInfo]]":
        """Request offsets as transactional consumers see them; a partition ends at the first open transaction."""
        answers: dict[TopicPartition, Future[ListOffsetsResultInfo]] = self._admin.list_offsets(
            specs,
            isolation_level=IsolationLevel.READ_COMMITTED,
            request_timeout=ADMIN_TIMEOUT_SECONDS,
        )
        return answers

    def _offsets(self, name: str, partitions: Iterable[int], spec: OffsetSpec) -> Mapping[int, int]:
        specs = {TopicPartition(name, partition): spec for partition in partitions}
        deadline = time.monotonic() + ADMIN_TIMEOUT_SECONDS
        while True:
            answers = self._list_offsets(specs)
            try:
                return {place.partition: _outcome(answer, name).offset for place, answer in answers.items()}
            except _OutdatedError:
                if time.monotonic() > deadline:
                    raise
            self._refresh()
            time.sleep(TOPIC_POLL_SECONDS)

    def _refresh(self) -> None:
        """Refresh the client's metadata; by itself the client does so only every few minutes."""
        self._topic_names()

    def _topic_names(self) -> Collection[str]:
        """Return the names of all topics of the cluster."""
        try:
            metadata = self._admin.list_topics(timeout=ADMIN_TIMEOUT_SECONDS)
        except KafkaException as error:
            raise unavailable(error) from error
        note_connected()
        return {name for name, topic in metadata.topics.items() if topic.error is None}

    def _create_missing(self, specs: Iterable[TopicSpec]) -> None:
        there = self._topic_names()
        missing = [spec for spec in specs if spec.name not in there]
        if missing and not self._policy.is_ours:
            raise missing_topics(missing)
        if missing:
            self._create(missing)

    def _create(self, specs: list[TopicSpec]) -> None:
        deadline = time.monotonic() + ADMIN_TIMEOUT_SECONDS
        topics = left = [_new_topic(spec) for spec in specs]
        while left:
            answers = self._admin.create_topics(left, request_timeout=ADMIN_TIMEOUT_SECONDS)
            left = [topic for topic in left if not _is_made(answers[topic.topic], topic.topic, deadline)]
            if left:
                time.sleep(TOPIC_POLL_SECONDS)
        self._await({topic.topic for topic in topics})

    def _await(self, names: set[str], *, partitions: int = 1) -> None:
        """Wait until each topic has `partitions` partitions with leaders; raises `Unavailable` after a timeout."""
        deadline = time.monotonic() + ADMIN_TIMEOUT_SECONDS
        while not self._are_led(names, partitions):
            if time.monotonic() > deadline:
                raise Unavailable(what="Kafka", why="new topics did not become available")
            time.sleep(TOPIC_POLL_SECONDS)

    def _are_led(self, names: Iterable[str], partitions: int) -> bool:
        """Return whether each of the topics has at least `partitions` partitions, all with a leader."""
        topics = self.describe(names).values()
        return all(isinstance(topic, TopicInfo) and len(topic.high) >= partitions for topic in topics)


def _new_topic(spec: TopicSpec) -> NewTopic:
    return NewTopic(
        spec.name,
        num_partitions=spec.partitions,
        replication_factor=spec.replication_factor,
        config=dict(spec.config),
    )


@cache
def _client(cluster: KafkaCluster) -> "tuple[AdminClient, _Refusal]":
    """Return the client of a cluster; there is one per cluster, and it lives as long as the process.

    Late answers are delivered in a thread of the client. If the garbage collector ran in this thread and freed the
    client, librdkafka would abort the whole process (confluent-kafka-python, pull request 2131).
    """
    refusal = _Refusal()
    return new_admin_client({**common(cluster), "error_cb": refusal.note}), refusal


class _Refusal:
    """The last reason why TLS or SASL failed; the error of a request says only that there is no connection."""

    def __init__(self) -> None:
        self.why = ""

    def note(self, error: KafkaError) -> None:
        if error.code() in _REFUSED:
            self.why = error.str()


class _AlreadyThereError(OdfError):
    """The topic already exists."""


class _OutdatedError(Unavailable):
    """The client's metadata is outdated: the leader of a partition, or its epoch, has changed."""


class _FencedError(Unavailable):
    """Too few brokers are available for the replicas of the topic."""


def _is_made(answer: "Future[None]", name: str, deadline: float) -> bool:
    """Return whether the topic now exists; False if too few brokers are available and `deadline` has not passed.

    A broker that was too busy to send heartbeats is fenced until it sends the next one, so a retry can help.
    """
    try:
        _outcome(answer, name)
    except _AlreadyThereError:
        return True
    except _FencedError:
        if time.monotonic() > deadline:
            raise
        return False
    return True


def _offsets_in(answers: _Answers, topic: str) -> dict[int, int]:
    return {number: _outcome(answer, topic).offset for number, answer in sorted(answers.items())}


def _outcome(answer: "Future[T]", name: str) -> T:
    try:
        return answer.result(ADMIN_TIMEOUT_SECONDS)
    except TimeoutError as error:
        raise Unavailable(what="Kafka", why="no answer in time") from error
    except KafkaException as error:
        code = error.args[0].code()
        if code in _MISSING:
            raise NotFound(what=f"topic {name}") from error
        if code == KafkaError.TOPIC_ALREADY_EXISTS:
            raise _AlreadyThereError from error
        if code == KafkaError.INVALID_REPLICATION_FACTOR:
            raise _FencedError(what="Kafka", why=error.args[0].str()) from error
        if code in _OUTDATED:
            raise _OutdatedError(what="Kafka", why=error.args[0].str()) from error
        raise unavailable(error) from error
