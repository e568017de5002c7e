"""The container engine and the images that it builds: those of deploy/compose, and those of the Dockerfile here.

Docker is used if its engine answers (or `DOCKER_HOST` is set), else podman, whose API is served for the run by a process of
ours. Settings, by variables: `PYTHON_IMAGE` is the base image, `BUILD_OPTIONS` are further options of the command
`build`, such as mounts of pip's settings.
"""

import os
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

CHECKOUT: Final = Path(__file__).parents[2]
COMPOSE: Final = CHECKOUT / "deploy" / "compose"
HERE: Final = Path(__file__).parent
KAFKA_JARS: Final = CHECKOUT / ".venv" / "share" / "odf" / "kafka"
SERVICES: Final = ("ingest", "coordinator", "views", "engine-spark", "verifier", "sync")
IMAGES: Final = (*SERVICES, "command")
OURS: Final = ("kafka", "redis", "load", "netfilter")
PREFIX: Final = "odf/"
API_SECONDS: Final = 15.0
MISSING: Final = (
    "make containers needs Docker, whose engine runs, or podman 4 or newer (Debian: apt-get install podman "
    "runc netavark aardvark-dns iptables). Neither was found. Linux is needed, "
    "and the right to use Docker, or root for podman"
)


class NoEngine(Exception):
    """Neither Docker nor podman can be used."""


@dataclass(frozen=True, slots=True)
class Engine:
    """A command, `docker` or `podman`, that builds images for the API which testcontainers uses."""

    command: str

    def build_all(self) -> None:
        """All images exist; raises `CalledProcessError` with the engine's output above it."""
        for name in IMAGES:
            self._build(name, COMPOSE / "Dockerfile", CHECKOUT, {})
        for name in OURS:
            self._build(name, HERE / "Dockerfile", HERE / "inside", {"jars": KAFKA_JARS})

    def _build(self, name: str, file: Path, context: Path, contexts: Mapping[str, Path]) -> None:
        python = os.environ.get("PYTHON_IMAGE")
        command = [
            self.command, "build", "--quiet", "--file", str(file), "--target", name, "--tag", f"{PREFIX}{name}",
            *(("--build-arg", f"PYTHON={python}") if python else ()),
            *(f"--build-context={key}={folder}" for key, folder in contexts.items()),
            *shlex.split(os.environ.get("BUILD_OPTIONS", "")),
            str(context),
        ]  # fmt: skip
        begun = time.monotonic()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        print(f"image {PREFIX}{name}: {time.monotonic() - begun:.0f} s", flush=True)


@contextmanager
def container_engine() -> Iterator[Engine]:
    """Yield the engine, whose API `DOCKER_HOST` names meanwhile; raises `NoEngine`."""
    if shutil.which("docker") and _succeeds("docker", "version"):
        yield Engine("docker")
    elif shutil.which("podman") and _succeeds("podman", "info"):
        with tempfile.TemporaryDirectory() as folder, _podman_api(Path(folder) / "podman.sock"):
            yield Engine("podman")
    else:
        raise NoEngine(MISSING)


@contextmanager
def _podman_api(socket: Path) -> Iterator[None]:
    # Without systemd podman cannot run health checks, and would refuse containers that have some.
    environment = {**os.environ, "DISABLE_HC_SYSTEMD": "true"}
    command = ["podman", "system", "service", "--time=0", f"unix://{socket}"]
    with subprocess.Popen(command, env=environment) as service:
        try:
            _await_file(socket)
            # testcontainers would ask for fields that only Docker has, and start a container that removes others.
            os.environ |= {
                "DOCKER_HOST": f"unix://{socket}",
                "TESTCONTAINERS_RYUK_DISABLED": "true",
                "TESTCONTAINERS_CONNECTION_MODE": "docker_host",
                "TESTCONTAINERS_HOST_OVERRIDE": "127.0.0.1",
            }
            yield
        finally:
            service.terminate()


def _await_file(path: Path) -> None:
    deadline = time.monotonic() + API_SECONDS
    while not path.exists():
        if time.monotonic() > deadline:
            raise NoEngine(f"podman serves no API at {path}")
        time.sleep(0.1)


def _succeeds(*command: str) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0
