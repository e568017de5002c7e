"""A whole node as users run it: started by `odf up`, used through `odf`, with its processes at hand."""

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Final

import grpc

from odf_cli.embedded.node_file import Node, client_settings_for, read_node
from odf_cli.embedded.orphans import leftovers
from odf_common.adapters.grpc.client import channel
from odf_common.adapters.kafka.admin import KafkaTopics
from odf_common.adapters.kafka.client_config import common
from odf_common.adapters.kafka.cluster import KafkaCluster
from odf_common.adapters.kafka.topic_messages import publish
from odf_common.adapters.local.secrets import secret_file
from odf_common.adapters.redis import RedisConnection
from odf_common.service.connections import kafka_cluster, redis_connection
from odf_common.service.protection import ENGINE_SECRET, peer_credentials
from odf_common.service.settings import Settings, child_environment
from odf_testing.warm_commands import run_warm

ODF: Final = Path(sys.executable).with_name("odf")
COLD: Final = ("up", "down")  # commands that start and end processes
PATIENCE: Final = 60.0  # seconds
COMMAND_SECONDS: Final = 600.0
LOOK_SECONDS: Final = 0.05  # between two checks
PAUSE_PER_LOOK: Final = 2.0  # times the duration of a check


class CommandFailed(AssertionError):
    """An `odf` command returned another exit code than expected."""


class EmbeddedNode:
    """A node with its own home; `run` runs commands on it."""

    # Saves time in tests; benchmarks measure commands as users run them.
    forks_commands: ClassVar[bool] = False

    def __init__(self, home: Path, settings: Mapping[str, str] | None = None) -> None:
        """Prepare the node; `up` starts it."""
        self.home = home
        self._environment = {
            **{name: value for name, value in child_environment().items() if not name.startswith("ODF_")},
            "ODF_HOME": str(home),
            **(settings or {}),
        }

    def guest(self, home: Path, settings: Mapping[str, str] | None = None) -> "EmbeddedNode":
        """Prepare another node, which saves two JVMs: it uses this one's engine, and its Kafka under a prefix."""
        borrowed = {"ODF_KAFKA_PREFIX": f"{home.name}.", **self.lent_engine, **self.kafka_settings()}
        return EmbeddedNode(home, {**borrowed, **(settings or {})})

    def kafka_settings(self) -> Mapping[str, str]:
        """Return the variables with which another node or service uses this node's Kafka."""
        used = self.connected
        assert used.kafka is not None
        return {
            "ODF_KAFKA": used.kafka,
            "ODF_KAFKA_SECURITY_PROTOCOL": used.kafka_security_protocol,
            "ODF_KAFKA_SASL_MECHANISM": str(used.kafka_sasl_mechanism),
            "ODF_KAFKA_USERNAME": str(used.kafka_username),
            "ODF_KAFKA_PASSWORD_FILE": str(used.kafka_password_file),
        }

    def up(self, *services: str) -> None:
        """Start it on free ports; nothing is shared with other nodes."""
        self.run(shlex.join(["up", "--detach", *services]))

    def down(self) -> None:
        """Stop it, and assert that no process is left."""
        self.run("down")
        left = list(leftovers(self.home))
        assert left == [], f"processes left behind: {left}"

    def run(
        self, line: str, *, stdin: bytes | None = None, code: int = 0, timeout: float = COMMAND_SECONDS
    ) -> Any:
        """Run `odf LINE`, assert its exit code, and return its output, parsed if it is JSON."""
        done = self.attempt(line, stdin=stdin, timeout=timeout)
        if done.returncode != code:
            said = f"{done.stdout.decode()}{done.stderr.decode()}"
            raise CommandFailed(f"odf {line}: exit code {done.returncode}, not {code}\n{said}{self.logs()}")
        text = done.stdout.decode()
        with contextlib.suppress(json.JSONDecodeError):
            return json.loads(text)
        return text

    def fails(self, line: str, *, code: int = 1, stdin: bytes | None = None) -> str:
        """Run `odf LINE`, assert that it fails with this code, and return its stderr."""
        done = self.attempt(line, stdin=stdin)
        said = done.stderr.decode()
        assert done.returncode == code, f"odf {line}: exit code {done.returncode}, not {code}: {said}"
        return said

    def start(self, line: str, *, stderr: int = subprocess.PIPE) -> "subprocess.Popen[bytes]":
        """Start `odf LINE`, and return the running process."""
        return subprocess.Popen(
            [str(ODF), *shlex.split(line)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=self._environment,
        )

    def attempt(
        self, line: str, *, stdin: bytes | None = None, timeout: float = COMMAND_SECONDS
    ) -> "subprocess.CompletedProcess[bytes]":
        """Run `odf LINE`, whatever its exit code."""
        words = shlex.split(line)
        if self.forks_commands and words[0] not in COLD:
            return run_warm(words, self._environment, stdin or b"", timeout)
        return subprocess.run(
            [str(ODF), *words],
            input=stdin or b"",
            capture_output=True,
            timeout=timeout,
            env=self._environment,
            check=False,
        )

    @property
    def node(self) -> Node:
        """Return the addresses of its parts."""
        return read_node(self.home)

    @property
    def connected(self) -> Settings:
        """Return the settings with which the node's own clients reach its Kafka and Redis."""
        return client_settings_for(Settings.from_env(self._environment), self.node)

    @property
    def kafka(self) -> str:
        """Return Kafka's address as users see it: without credentials, it only takes messages to push topics."""
        address = self.node.kafka
        assert address is not None
        return address

    @property
    def engine(self) -> str:
        """Return the address of the engine."""
        address = self.node.engine
        assert address is not None
        return address

    @property
    def lent_engine(self) -> Mapping[str, str]:
        """Return the settings with which a node of another home uses this one's engine."""
        file = secret_file(self.home, ENGINE_SECRET)
        return {"ODF_ENGINE": self.engine, "ODF_ENGINE_SECRET_FILE": str(file)}

    def grpc_channel(self, service: str) -> grpc.Channel:
        """Return a channel to a service, as the node's own programs open one."""
        address = self.node.grpc[service]
        return channel(address, peer_credentials(Settings(home=self.home), address))

    @property
    def cluster(self) -> KafkaCluster:
        """Return Kafka as the node's own clients see it."""
        return kafka_cluster(self.connected)

    @property
    def clients(self) -> dict[str, Any]:
        """Return the configuration of Kafka clients that may do everything."""
        return dict(common(self.cluster))

    @property
    def producers(self) -> dict[str, Any]:
        """Return the configuration of producers: none but the address, except for a guest's topics."""
        is_guest = "ODF_KAFKA" in self._environment
        return self.clients if is_guest else {"bootstrap.servers": self.kafka}

    def redis(self) -> RedisConnection:
        """Return a connection to Redis."""
        return redis_connection(self.connected)

    def topics(self) -> KafkaTopics:
        """Return its topics."""
        return KafkaTopics(self.cluster)

    def produce(self, topic: str, messages: Iterable[bytes], *, key: bytes | None = None) -> int:
        """Publish messages; return their number once all are durable."""
        return publish(self.cluster, topic, messages, key=key)

    def pid(self, name: str) -> int | None:
        """Return the process of a part, None while it is being restarted."""
        return next((part.pid for part in (*self.node.services, *self.node.parts) if part.name == name), None)

    def state(self, name: str) -> str | None:
        """Return the state of a part."""
        return next(
            (part.state for part in (*self.node.services, *self.node.parts) if part.name == name), None
        )

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> int:
        """Kill a part; return the pid that it had."""
        pid = self.pid(name)
        assert pid is not None, f"{name} is not running"
        os.kill(pid, number)
        return pid

    def await_restart(self, name: str, old: int, timeout: float = 3 * PATIENCE) -> float:
        """Return the seconds until a killed part was ready again."""
        begun = time.monotonic()
        self.eventually(lambda: self.state(name) == "ready" and self.pid(name) != old, timeout)
        return time.monotonic() - begun

    def eventually(self, claim: Callable[[], bool], timeout: float = PATIENCE) -> None:
        """Return when the condition holds; fail if it does not in time.

        Checks by commands are rarer than cheap ones, since the awaited work needs the processor, too.
        """
        deadline = time.monotonic() + timeout
        while True:
            begun = time.monotonic()
            if claim():
                return
            now = time.monotonic()
            assert now < deadline, f"did not happen within {timeout:g} s{self.logs()}"
            time.sleep(max(LOOK_SECONDS, PAUSE_PER_LOOK * (now - begun)))

    def logs(self, lines: int = 8) -> str:
        """Return the end of every log, for messages of failed tests."""
        texts = []
        for log in sorted((self.home / "logs").glob("*.log")):
            text = "\n".join(line[:300] for line in log.read_text(errors="replace").splitlines()[-lines:])
            texts.append(f"\n--- {log.name}\n{text}")
        return "".join(texts)
