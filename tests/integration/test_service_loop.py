"""A service of one handler over the real broker: its replies, and its shutdown."""

import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from odf_testing.embedded import EmbeddedNode

from odf_common.adapters.kafka.kafka_bus import KafkaBus
from odf_common.codec.envelopes import decode, envelope
from odf_common.identity.dataset_refs import DatasetId
from odf_common.ports.bus import COORDINATOR_REPLIES, DEAD_LETTERS, INGEST_COMMANDS, Inbox, ReceivedMessage
from odf_common.proto.odf.bus.v1.bus_pb2 import ImportChain
from odf_common.service.settings import child_environment

DATASET = DatasetId.of_key(bytes(32))
TINY = textwrap.dedent("""
    from odf_common.codec.envelopes import envelope
    from odf_common.errors import InvalidInput
    from odf_common.ports.bus import INGEST_COMMANDS, COORDINATOR_REPLIES
    from odf_common.proto.odf.bus.v1.bus_pb2 import Committed
    from odf_common.service.run import OutgoingMessage, Service, Subscription, run_service

    def handle(message):
        if message.import_chain.new_head == b"bug":
            raise ZeroDivisionError
        if message.import_chain.new_head == b"bad":
            raise InvalidInput(text="bad head")
        yield OutgoingMessage(topic=COORDINATOR_REPLIES, envelope=envelope(message.dataset_id, Committed(), cause=message))

    def build(env):
        print("built", flush=True)
        return Service(name="tiny", subscriptions=(Subscription(topic=INGEST_COMMANDS, handler=handle),))

    if __name__ == "__main__":
        run_service(build)
""")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedNode]:
    made = EmbeddedNode(tmp_path_factory.mktemp("broker"))
    made.up("kafka", "redis")
    yield made
    made.down()


@pytest.fixture(scope="module")
def bus(broker: EmbeddedNode) -> Iterator[KafkaBus]:
    made = KafkaBus(broker.cluster)
    yield made
    made.close()


@pytest.fixture
def program(tmp_path: Path) -> Path:
    file = tmp_path / "tiny.py"
    file.write_text(TINY)
    return file


def start(program: Path, broker: EmbeddedNode) -> "subprocess.Popen[bytes]":
    used = broker.connected
    addresses = {
        "ODF_HOME": str(broker.home),
        **broker.kafka_settings(),
        "ODF_REDIS": str(used.redis),
        "ODF_REDIS_PASSWORD_FILE": str(used.redis_password_file),
    }
    environment = {**child_environment(), **addresses, "ODF_ENGINE": "127.0.0.1:1", "ODF_INSTANCE": "tiny"}
    return subprocess.Popen([sys.executable, str(program)], env=environment, stdout=subprocess.DEVNULL)


def ask(bus: KafkaBus, head: bytes) -> None:
    bus.send(INGEST_COMMANDS, envelope(DATASET, ImportChain(new_head=head), correlation_id=head.decode()))
    bus.flush()


def take(broker: EmbeddedNode, inbox: Inbox) -> ReceivedMessage:
    taken: list[ReceivedMessage] = []

    def came() -> bool:
        message = inbox.poll(0.1)
        if message is not None:
            taken.append(message)
        return bool(taken)

    broker.eventually(came)
    return taken[0]


def test_a_command_is_answered_and_sigterm_ends_the_service(
    broker: EmbeddedNode, bus: KafkaBus, program: Path
) -> None:
    inbox = bus.subscribe(COORDINATOR_REPLIES, group=None)
    with start(program, broker) as service:
        ask(bus, b"one")
        answer = take(broker, inbox)
        assert decode(answer.key, answer.value).correlation_id == "one"
        service.send_signal(signal.SIGTERM)
        assert service.wait(10) == 0
    inbox.close()


def test_handled_messages_are_not_handled_again_after_a_restart(
    broker: EmbeddedNode, bus: KafkaBus, program: Path
) -> None:
    inbox = bus.subscribe(COORDINATOR_REPLIES, group=None)
    for head in (b"two", b"three"):
        with start(program, broker) as service:
            ask(bus, head)
            answer = take(broker, inbox)
            assert decode(answer.key, answer.value).correlation_id == head.decode()
            service.terminate()
            service.wait(10)
    inbox.close()


def test_a_refused_message_is_a_dead_letter(broker: EmbeddedNode, bus: KafkaBus, program: Path) -> None:
    letters, replies = bus.subscribe(DEAD_LETTERS, group=None), bus.subscribe(COORDINATOR_REPLIES, group=None)
    with start(program, broker) as service:
        ask(bus, b"bad")
        ask(bus, b"good")
        letter, answer = take(broker, letters), take(broker, replies)
        assert decode(letter.key, letter.value).correlation_id == "bad"
        assert decode(answer.key, answer.value).correlation_id == "good"
        service.terminate()
        service.wait(10)
    letters.close()
    replies.close()


def test_a_bug_ends_its_message_and_not_the_process(
    broker: EmbeddedNode, bus: KafkaBus, program: Path
) -> None:
    letters, replies = bus.subscribe(DEAD_LETTERS, group=None), bus.subscribe(COORDINATOR_REPLIES, group=None)
    with start(program, broker) as service:
        ask(bus, b"bug")
        ask(bus, b"after")
        letter, answer = take(broker, letters), take(broker, replies)
        assert decode(letter.key, letter.value).correlation_id == "bug"
        assert decode(answer.key, answer.value).correlation_id == "after"
        service.terminate()
        assert service.wait(10) == 0
    letters.close()
    replies.close()
