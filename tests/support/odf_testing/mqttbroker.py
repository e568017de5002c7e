"""A Mosquitto broker, and a publisher."""

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from paho.mqtt import publish

from odf_cli.embedded.parts.tcp_ports import allocate

PROGRAM = shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")
START_SECONDS = 10
LOOK_SECONDS = 0.01


@dataclass(slots=True, kw_only=True)
class MqttBroker:
    """A broker on a loopback port that keeps its sessions in a folder; `settings` are lines of its configuration."""

    folder: Path
    port: int
    settings: tuple[str, ...] = ()
    process: subprocess.Popen[bytes] | None = field(default=None)

    def start(self) -> None:
        """Start it, and wait until it listens."""
        assert PROGRAM is not None
        lines = (
            f"listener {self.port} 127.0.0.1",
            "persistence true",
            f"persistence_location {self.folder}/",
        )
        file = self.folder / "mosquitto.conf"
        file.write_text(
            "\n".join((*lines, "user root", *(self.settings or ("allow_anonymous true",)))) + "\n"
        )
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen([PROGRAM, "-v", "-c", str(file)], stdout=log, stderr=log)
        until = time.monotonic() + START_SECONDS
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
            except OSError:
                assert time.monotonic() < until, (self.folder / "log").read_text()
                time.sleep(LOOK_SECONDS)
            else:
                return

    def stop(self) -> None:
        """Stop it; sessions are saved."""
        if self.process is not None:
            self.process.terminate()
            self.process.wait()
            self.process = None

    def send(self, *messages: tuple[str, bytes], qos: int = 1, retain: bool = False, **more: Any) -> None:
        """Publish messages, and wait until the broker has them."""
        plain: list[Any] = [
            {"topic": topic, "payload": payload, "qos": qos, "retain": retain} for topic, payload in messages
        ]
        publish.multiple(plain, hostname="127.0.0.1", port=self.port, **more)


def require_mosquitto() -> None:
    """Skip the test unless Mosquitto is installed."""
    if PROGRAM is None:
        pytest.skip("no mosquitto; install it (Debian: apt-get install mosquitto)")


@contextmanager
def serving_mqtt(folder: Path, *settings: str) -> Iterator[MqttBroker]:
    """Run a broker inside the block; skips the test where Mosquitto is not installed."""
    require_mosquitto()
    port = allocate(folder, ("server",))["server"]
    broker = MqttBroker(folder=folder, port=port, settings=settings)
    broker.start()
    try:
        yield broker
    finally:
        broker.stop()
