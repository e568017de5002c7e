"""A node in containers, as deploy/compose describes it: networks, volumes, limits, and what one does to containers.

The compose files are read, and mapped to testcontainers; Kafka and Redis come from our images instead of a registry's.
Each network has a subnet of its own choice that is then stated, so that a container can ask for an address in it.
Health checks are executed by us at the interval of the compose file: podman runs none without systemd.
"""

import ipaddress
import json
import re
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Self

import docker
import docker.errors
import yaml
from docker.models.containers import Container
from docker.models.volumes import Volume
from docker.types import IPAMConfig, IPAMPool, Mount
from testcontainers.core.container import DockerContainer
from testcontainers.core.network import Network
from tests.containers.images import COMPOSE, PREFIX, SERVICES

HOME: Final = "/var/lib/odf"
ENGINE: Final = "engine-spark"
HEALTH_SECONDS: Final = 15.0
READY_SECONDS: Final = 240.0
POLL_SECONDS: Final = 1.0
PAGE_BYTES: Final = 4096
_DEFAULT: Final = re.compile(r"\$\{\w+:-([^}]*)\}")
COMMAND: Final = "odf"  # the container in which `odf` is executed
ORDER: Final = ("kafka", "redis", "coordinator", "ingest", "verifier", "views", "sync", ENGINE)


class CommandFailed(AssertionError):
    """A command in a container ended with another status than 0."""


class Node:
    """The containers of a node; a context manager, which removes them with their networks and volumes."""

    def __init__(self, *, home_bytes: int | None = None) -> None:
        """Describe a node; `home_bytes`: size of its home, which is then in memory, else on the engine's disk."""
        self._name = f"odf-test-{uuid.uuid4().hex[:8]}"
        self._client = docker.from_env()
        self._home_bytes = home_bytes
        self._services = _composed("compose.yaml") | _composed("compose.development.yaml")
        self._environment = _variables("development.env")
        self._networks: dict[str, Any] = {}
        self._subnets: dict[str, ipaddress.IPv4Network] = {}
        self._volumes: dict[str, Volume] = {}
        self._containers: dict[str, DockerContainer] = {}
        self._extra: list[DockerContainer] = []
        self._addresses: dict[tuple[str, str], str] = {}
        self._stopped = threading.Event()
        self._checks = threading.Thread(target=self._check_health, daemon=True)

    def __enter__(self) -> Self:
        """Start everything, and wait until all parts are ready."""
        try:
            for name in ("node", "engine"):
                self._networks[name] = self._new_network(name)
            for name in ("home", "engine-scratch", "kafka", "redis"):
                self._volumes[name] = self._new_volume(name)
            for name in (*ORDER, COMMAND):
                self._containers[name] = self.run_service(name)
            self._checks.start()
            self.await_ready(READY_SECONDS)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Remove containers, networks and volumes."""
        self._stopped.set()
        for container in (*self._extra, *reversed(self._containers.values())):
            with suppress(docker.errors.APIError):
                container.stop()
        for one in (*self._networks.values(), *self._volumes.values()):
            with suppress(docker.errors.APIError):
                one.remove()

    # Containers

    def run_service(self, name: str, alias: str | None = None) -> DockerContainer:
        """Start a container of a service, under its name or another one; it answers to the service's name too."""
        described = self._services[name]
        own = {key: str(value) for key, value in described.get("environment", {}).items()}
        image = PREFIX + ("command" if name == COMMAND else name)
        container = DockerContainer(image).with_name(f"{self._name}-{alias or name}")
        container.with_envs(**(own if name in {"kafka", "redis"} else {**self._environment, **own}))
        for mounted in described.get("tmpfs", ()):
            container.with_tmpfs_mount(*mounted.split(":", 1))
        if "command" in described:
            container.with_command(described["command"])
        options = self._limits(name, described)
        if name == COMMAND:
            options["entrypoint"] = ["sleep", "infinity"]
        return self._run(container, name, described["networks"], **options)

    def run_second(self, name: str) -> None:
        """Start another container of a service, which answers to its name too; it stays until `stop_extra`."""
        self._extra.append(self.run_service(name, f"{name}-2"))

    def stop_extra(self) -> None:
        """Remove what runs beside the node's own containers."""
        while self._extra:
            self._extra.pop().stop()

    def restart_all(self) -> None:
        """Restart all services, as a person would who does not know what hangs."""
        for name in ORDER:
            self.container(name).restart(timeout=10)
        self.await_ready(READY_SECONDS)

    def run_beside(self, image: str, environment: Mapping[str, str]) -> Container:
        """Start one of our images in the network of Kafka and the services; it stays until `stop_extra`."""
        container = DockerContainer(f"{PREFIX}{image}").with_envs(**environment)
        self._extra.append(self._run(container, image, ["node"]))
        return container.get_wrapped_container()

    def filter_packets(self, name: str, script: str) -> None:
        """Run a shell script with iptables in the network of a container; raises `CommandFailed`."""
        container = DockerContainer(f"{PREFIX}netfilter").with_command(["sh", "-c", script])
        container.with_kwargs(network_mode=f"container:{self.container(name).id}", cap_add=["NET_ADMIN"])
        with container as running:
            if running.wait() != 0:
                raise CommandFailed(running.get_wrapped_container().logs().decode())

    def _run(
        self, container: DockerContainer, alias: str, networks: Sequence[str], **options: Any
    ) -> DockerContainer:
        if networks:
            first, *others = networks
            network = Network()
            network.name = self._networks[first].name
            container.with_network(network).with_network_aliases(alias)
        else:
            others = []
        container.with_kwargs(**options).start()
        for other in others:
            self._networks[other].connect(container.get_wrapped_container(), aliases=[alias])
        return container

    def _limits(self, name: str, described: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "mounts": [self._mount(one) for one in described.get("volumes", ()) if "secrets" not in str(one)],
            "read_only": described.get("read_only", False),
            "cap_drop": described.get("cap_drop"),
            "security_opt": [one.removesuffix(":true") for one in described.get("security_opt", ())],
            "mem_limit": _DEFAULT.sub(r"\1", described["mem_limit"]) if "mem_limit" in described else None,
            "restart_policy": {"Name": described["restart"]},
        }

    def _mount(self, described: str | Mapping[str, Any]) -> Mount:
        if isinstance(described, str):
            source, target = described.split(":")[:2]
            return Mount(target, self._volumes[source].name, type="volume")
        # A folder of a volume by its path, since podman knows no `subpath` before version 5.
        folder = f"{self._volumes[described['source']].attrs['Mountpoint']}/{described['volume']['subpath']}"
        return Mount(described["target"], folder, type="bind", read_only=described.get("read_only", False))

    def _new_network(self, name: str) -> Any:
        internal = yaml.safe_load((COMPOSE / "compose.yaml").read_text())["networks"][name] is not None
        full_name = f"{self._name}-{name}"
        proposed = self._client.networks.create(full_name, internal=internal)
        proposed.reload()
        subnet = proposed.attrs["IPAM"]["Config"][0]["Subnet"]
        self._subnets[name] = ipaddress.IPv4Network(subnet)
        proposed.remove()
        ipam = IPAMConfig(pool_configs=[IPAMPool(subnet=subnet)])
        return self._client.networks.create(full_name, internal=internal, ipam=ipam)

    def _new_volume(self, name: str) -> Volume:
        options = {}
        if name == "home" and self._home_bytes is not None:
            # In blocks of a page, since podman takes `size` for a quota of the disk.
            options = {
                "type": "tmpfs",
                "device": "tmpfs",
                "o": f"nr_blocks={self._home_bytes // PAGE_BYTES},uid=10001,gid=10001",
            }
        return self._client.volumes.create(f"{self._name}-{name}", driver_opts=options)

    def container(self, name: str) -> Container:
        """Return the container of a service, as it is now."""
        container = self._containers[name].get_wrapped_container()
        container.reload()
        return container

    # Networks

    def networks_of(self, name: str) -> Sequence[str]:
        """Return the node's networks that a service joins."""
        networks: list[str] = self._services[name]["networks"]
        return networks

    def disconnect(self, name: str, network: str) -> None:
        """Take a container from a network; its address is noted."""
        joined = self.container(name).attrs["NetworkSettings"]["Networks"]
        self._addresses[name, network] = joined[self._networks[network].name]["IPAddress"]
        self._networks[network].disconnect(self.container(name))

    def connect(self, name: str, network: str, *, same_address: bool) -> None:
        """Let a container join a network again, with the address that it had or another one."""
        address = self._addresses[name, network]
        if not same_address:
            address = str(_another(ipaddress.IPv4Address(address), self._subnets[network]))
        self._networks[network].connect(self.container(name), aliases=[name], ipv4_address=address)

    def address(self, name: str, network: str) -> str:
        """Return the address of a container in a network."""
        joined = self.container(name).attrs["NetworkSettings"]["Networks"]
        return str(joined[self._networks[network].name]["IPAddress"])

    # Commands

    def execute(
        self,
        name: str,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        user: str = "",
    ) -> tuple[int, str, str]:
        """Run a command in a container; return its status, output and errors."""
        done = self.container(name).exec_run(
            list(command), environment=dict(environment or {}), demux=True, user=user
        )
        parts: tuple[bytes | None, bytes | None] = done.output  # type: ignore[assignment] # of `demux`
        output, errors = ((part or b"").decode() for part in parts)
        return int(done.exit_code or 0), output, errors

    def odf(self, *words: str) -> Any:
        """Return the JSON that an `odf` command prints; raises `CommandFailed`."""
        status, output, errors = self.execute(COMMAND, ["odf", *words, "--output", "json"])
        if status != 0:
            raise CommandFailed(f"odf {' '.join(words)}: {status}\n{output[-2000:]}{errors[-2000:]}")
        return json.loads(output or "null")

    def status(self) -> Mapping[str, Any]:
        """Return `odf status`."""
        status: Mapping[str, Any] = self.odf("status")
        return status

    def not_ready(self) -> dict[str, str]:
        """Return the states of the parts that are not ready; all if there is no answer."""
        try:
            status = self.status()
        except (CommandFailed, docker.errors.APIError, ValueError) as error:
            return {"odf status": str(error)}
        parts = (*status["services"], *status["parts"])
        return {part["name"]: part["state"] for part in parts if part["state"] != "ready"}

    def await_ready(self, seconds: float) -> None:
        """Wait until all parts are ready; raises `TimeoutError`."""
        deadline = time.monotonic() + seconds
        while missing := self.not_ready():
            if time.monotonic() > deadline:
                raise TimeoutError(f"not ready after {seconds:.0f} s: {missing}")
            time.sleep(POLL_SECONDS)

    def _check_health(self) -> None:
        while not self._stopped.wait(HEALTH_SECONDS):
            for name in SERVICES:
                with suppress(docker.errors.APIError):
                    self.container(name).exec_run(
                        self._services[name]["healthcheck"]["test"][1:], detach=True
                    )


def _composed(file: str) -> dict[str, Any]:
    services: dict[str, Any] = yaml.safe_load((COMPOSE / file).read_text())["services"]
    return services


def _variables(file: str) -> dict[str, str]:
    lines = (COMPOSE / file).read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def _another(address: ipaddress.IPv4Address, subnet: ipaddress.IPv4Network) -> ipaddress.IPv4Address:
    """Return an address of a subnet far from another one, and from its first ones, which the engine gives away."""
    first, count = int(subnet.network_address), subnet.num_addresses
    place = int(address) - first + count // 3
    return ipaddress.IPv4Address(first + (place if place < count - 1 else place % count + count // 4))
