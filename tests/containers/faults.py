"""The table of faults: what happens to which containers, for how long, and which parts `odf status` names meanwhile."""

import time
from dataclasses import dataclass
from typing import Final, Protocol

from tests.containers.node import HOME, Node

START_SECONDS: Final = 90.0  # of a broker, or of Spark
FILLER: Final = f"{HOME}/filler"
ENGINE: Final = "engine-spark"
BROKER_ANSWERS: Final = "from confluent_kafka.admin import AdminClient as C; C({'bootstrap.servers': 'kafka:9092'}).list_topics(timeout=2)"


class Fault(Protocol):
    """Something that is wrong from `begin` to `end`."""

    def begin(self, node: Node) -> None:
        """The fault is there."""

    def end(self, node: Node) -> None:
        """The fault is over."""


@dataclass(frozen=True, slots=True)
class Off:
    """A container is off some of its networks, by default all, and comes back with the same or another address."""

    service: str
    networks: tuple[str, ...] = ()
    same_address: bool = False
    restarts: bool = False  # at the end

    def begin(self, node: Node) -> None:
        """Disconnect it."""
        for network in self.networks or node.networks_of(self.service):
            node.disconnect(self.service, network)

    def end(self, node: Node) -> None:
        """Connect it again."""
        for network in self.networks or node.networks_of(self.service):
            node.connect(self.service, network, same_address=self.same_address)
        if self.restarts:
            node.container(self.service).restart(timeout=0)
            _await_start(node, self.service)


@dataclass(frozen=True, slots=True)
class Frozen:
    """No process of a container runs; its connections stay open."""

    service: str

    def begin(self, node: Node) -> None:
        """Freeze it."""
        node.container(self.service).pause()

    def end(self, node: Node) -> None:
        """Thaw it."""
        node.container(self.service).unpause()


@dataclass(frozen=True, slots=True)
class Killed:
    """The processes of a container are killed, and started at the end."""

    service: str
    loses_data: bool = False

    def begin(self, node: Node) -> None:
        """Kill it."""
        if self.loses_data:
            node.execute(self.service, ["redis-cli", "flushall"])
        node.container(self.service).kill()

    def end(self, node: Node) -> None:
        """Start it; a broker and an engine answer then."""
        node.container(self.service).start()
        _await_start(node, self.service)


@dataclass(frozen=True, slots=True)
class Loss:
    """Three of ten packets between two containers are dropped, in both directions."""

    service: str
    peer: str
    network: str

    def begin(self, node: Node) -> None:
        """Drop packets."""
        self._filter(node, "-A")

    def end(self, node: Node) -> None:
        """Drop none."""
        self._filter(node, "-D")

    def _filter(self, node: Node, change: str) -> None:
        peer = node.address(self.peer, self.network)
        rule = "-m statistic --mode random --probability 0.3 -j DROP"
        script = f"iptables {change} INPUT -s {peer} {rule} && iptables {change} OUTPUT -d {peer} {rule}"
        node.filter_packets(self.service, script)


@dataclass(frozen=True, slots=True)
class Full:
    """The volume of the node's home has no space left; services may be killed and started meanwhile."""

    restarted: tuple[str, ...] = ()

    def begin(self, node: Node) -> None:
        """Fill it."""
        node.execute("ingest", ["sh", "-c", f"cat /dev/zero > {FILLER}"])
        for name in self.restarted:
            node.container(name).kill()
        for name in self.restarted:
            node.container(name).start()

    def end(self, node: Node) -> None:
        """Free it."""
        node.execute("ingest", ["rm", "-f", FILLER])


@dataclass(frozen=True, slots=True)
class TakenOver:
    """A container is frozen, and a second one of its service runs meanwhile, and still when the first is thawed."""

    service: str

    def begin(self, node: Node) -> None:
        """Freeze the first, start the second."""
        node.container(self.service).pause()
        node.run_second(self.service)

    def end(self, node: Node) -> None:
        """Thaw the first."""
        node.container(self.service).unpause()


@dataclass(frozen=True, slots=True)
class Case:
    """Faults at the same time, for some seconds."""

    name: str
    faults: tuple[Fault, ...]
    seconds: float = 25.0
    named: tuple[str, ...] = ()  # parts of which `odf status` names one within ten seconds

    @property
    def breaks_http(self) -> bool:
        """Whether the HTTP server itself is off the network or does not run."""
        return any(getattr(fault, "service", None) == "sync" for fault in self.faults)

    @property
    def starts_slowly(self) -> bool:
        """Whether a broker or Spark starts at the end, which the recovery does not count."""
        return any(
            isinstance(fault, Killed | Off)
            and fault.service in SLOW_STARTS
            and (isinstance(fault, Killed) or fault.restarts)
            for fault in self.faults
        )

    @property
    def fills_home(self) -> bool:
        """Whether the case needs a node whose home is small."""
        return any(isinstance(fault, Full) for fault in self.faults)


def _await_start(node: Node, service: str) -> None:
    """Wait until a broker or an engine answers: the starts of Kafka and Spark are none of the node's."""
    if service not in SLOW_STARTS:
        return
    asked, command = SLOW_STARTS[service]
    deadline = time.monotonic() + START_SECONDS
    while node.execute(asked, command)[0] != 0:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{service} does not answer")
        time.sleep(0.5)


# Where to ask whether it answers, and how.
SLOW_STARTS: Final = {
    "kafka": ("verifier", ("python", "-c", BROKER_ANSWERS)),
    ENGINE: (ENGINE, ("python", "-m", "odf_common.service.health", ENGINE)),
}
SINGLE: Final = (
    Case("Kafka off its network, new address", (Off("kafka"),), named=("kafka",)),
    Case("Kafka off its network, same address", (Off("kafka", same_address=True),), named=("kafka",)),
    Case("Redis off its network, new address", (Off("redis"),), named=("redis",)),
    Case(
        "coordinator off the network of Kafka, new address",
        (Off("coordinator", ("node",)),),
        named=("coordinator", "kafka"),
    ),
    Case("coordinator off both networks, new addresses", (Off("coordinator"),), named=("coordinator",)),
    Case(
        "coordinator off both, same addresses",
        (Off("coordinator", same_address=True),),
        named=("coordinator",),
    ),
    Case("ingest off both networks, same addresses", (Off("ingest", same_address=True),), named=("ingest",)),
    Case("ingest off both networks, new addresses", (Off("ingest"),), named=("ingest",)),
    Case("engine off its network, same address", (Off(ENGINE, same_address=True),), named=(ENGINE,)),
    Case(
        "engine off its network, new address, then restarted",
        (Off(ENGINE, restarts=True),),
        seconds=20,
        named=(ENGINE,),
    ),
    Case("verifier off both networks, new addresses", (Off("verifier"),), named=("verifier",)),
    Case("sync off both networks, new addresses", (Off("sync"),), named=("sync",)),
    Case("coordinator frozen for a minute", (Frozen("coordinator"),), 60, ("coordinator",)),
    Case("ingest frozen", (Frozen("ingest"),), named=("ingest",)),
    Case("engine frozen", (Frozen(ENGINE),), named=(ENGINE,)),
    Case("Kafka frozen", (Frozen("kafka"),), named=("kafka",)),
    Case("Redis frozen", (Frozen("redis"),), named=("redis",)),
    Case("coordinator frozen, a second takes over, the first thawed", (TakenOver("coordinator"),)),
    Case("ingest killed", (Killed("ingest"),), 15, ("ingest",)),
    Case("coordinator killed", (Killed("coordinator"),), 15, ("coordinator",)),
    Case("engine killed", (Killed(ENGINE),), 15, (ENGINE,)),
    Case("verifier killed", (Killed("verifier"),), 15, ("verifier",)),
    Case("sync killed", (Killed("sync"),), 15, ("sync",)),
    Case("Kafka killed", (Killed("kafka"),), 15, ("kafka",)),
    Case("Kafka killed for a minute", (Killed("kafka"),), 60, ("kafka",)),
    Case("Redis killed, data lost", (Killed("redis", loses_data=True),), 15, ("redis",)),
    Case("30 % loss between coordinator and Kafka", (Loss("coordinator", "kafka", "node"),)),
    Case("30 % loss between coordinator and engine", (Loss("coordinator", ENGINE, "engine"),)),
    Case("volume full", (Full(),), 45, ("disk",)),
    Case(
        "volume full, coordinator and ingest killed and started meanwhile",
        (Full(("coordinator", "ingest")),),
        45,
        ("disk",),
    ),
)
PAIRS: Final = (
    Case("ingest and coordinator killed", (Killed("ingest"), Killed("coordinator")), 15, ("ingest",)),
    Case("Kafka and Redis killed", (Killed("kafka"), Killed("redis")), 15, ("kafka",)),
    Case("Kafka and coordinator killed", (Killed("kafka"), Killed("coordinator")), 15, ("kafka",)),
    Case("Kafka and coordinator off, new addresses", (Off("kafka"), Off("coordinator")), named=("kafka",)),
    Case(
        "coordinator and engine off, new addresses", (Off("coordinator"), Off(ENGINE)), named=("coordinator",)
    ),
    Case("ingest off, Kafka frozen", (Off("ingest"), Frozen("kafka")), named=("kafka",)),
    Case("engine off, Redis killed", (Off(ENGINE), Killed("redis")), named=(ENGINE,)),
    Case("sync off, ingest killed", (Off("sync"), Killed("ingest")), named=("ingest",)),
    Case(
        "coordinator frozen, 30 % loss between ingest and Kafka",
        (Frozen("coordinator"), Loss("ingest", "kafka", "node")),
        named=("coordinator",),
    ),
    Case("volume full, Kafka off", (Full(), Off("kafka")), 30, ("disk", "kafka")),
)
CASES: Final = (*SINGLE, *PAIRS)
