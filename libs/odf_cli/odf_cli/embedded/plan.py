"""Plans the processes of a node: the installed services, their addresses and their environment."""

import asyncio
import shutil
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from odf_cli.embedded.checks import require_free
from odf_cli.embedded.credentials import PRODUCER, client_properties, with_kafka, with_redis
from odf_cli.embedded.node_file import Node
from odf_cli.embedded.parts.kafka_redis import kafka_part, redis_part
from odf_cli.embedded.parts.managed_process import PartSpec, is_in_foreground
from odf_cli.embedded.parts.tcp_ports import LOOPBACK, allocate
from odf_common.errors import InvalidInput
from odf_common.resources.secret_text import without_password
from odf_common.service.environments import engine_environment, program_environment
from odf_common.service.probes import grpc_serves, http_answers, listens, once_listening
from odf_common.service.protection import (
    ENGINE_SERVICE,
    SERVICE_ADDRESSES,
    VIEWS,
    peer_credentials,
    require_protected,
    secret_of,
)
from odf_common.service.settings import SINGLE_TENANT, Settings

GROUP: Final = "odf.services"
INFRASTRUCTURE: Final = ("kafka", "redis")
VIEWS_MODULE: Final = "odf_coordinator.views"
CREDENTIALS: Final = (
    "kafka_security_protocol",
    "kafka_sasl_mechanism",
    "kafka_username",
    "kafka_password_file",
    "redis_password_file",
)
TEMPORARY: Final = "scratch/tmp"  # has a folder per service, emptied before it starts


Allocate = Callable[[Iterable[str]], Mapping[str, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The processes to run, and the description of the node that they form."""

    node: Node
    parts: tuple[PartSpec, ...]


def make_plan(
    settings: Settings,
    services: Sequence[str],
    environment: Mapping[str, str],
    *,
    pid: int,
    may_change_ports: bool = False,
) -> Plan:
    """Return the plan for these services, by default all installed ones; missing addresses get free ports.

    Kafka and Redis are included unless their addresses are configured. Raises `InvalidInput` for an unknown service,
    `PortTaken` and `AddressTaken` if a part could not listen, and `Unprotected` if a part would be open without TLS.
    """
    modules = _modules(services)
    addresses = configured_addresses(settings, modules)
    for variable, address in addresses.items():
        require_protected(settings, variable, address)
    if (host := settings.grpc_listen_host) is not None:
        require_protected(settings, "ODF_GRPC_LISTEN_HOST", host + ":0")
    require_free(addresses)
    allocated = partial(allocate, settings.home, must_keep=not may_change_ports)
    kafka_ports = _kafka_ports(settings, allocated)
    addressed = _with_addresses(settings, allocated, kafka_ports)
    base = {**environment, **_variables(addressed), "PYTHONUNBUFFERED": "1"}
    metrics = _metrics_addresses(settings, allocated, modules)
    parts = [_service(name, module, addressed, base, metrics) for name, module in modules.items()]
    if settings.kafka is None:
        environment = {**program_environment(base), "ODF_PART": "kafka"}
        parts.append(kafka_part(settings.home, kafka_ports, environment, prefix=settings.kafka_prefix))
    if settings.redis is None:
        environment = {**program_environment(base), "ODF_PART": "redis"}
        port = _port(addressed.redis)
        parts.append(redis_part(settings.home, port, environment, prefix=settings.kafka_prefix))
    # Kafka first: the others wait for it.
    parts.sort(key=lambda part: part.name not in INFRASTRUCTURE)
    node = _node(addressed, modules, metrics, pid)
    if settings.kafka is None:
        node = replace(
            node,
            kafka=f"{LOOPBACK}:{kafka_ports.get('kafka', kafka_ports['kafka-sasl'])}",
            kafka_sasl=node.kafka,
            kafka_client_file=str(client_properties(settings.home, PRODUCER)),
        )
    return Plan(node=node, parts=tuple(parts))


def installed_services() -> Mapping[str, str]:
    """Return the modules of the installed services by name, in display order."""
    modules = {
        point.name: point.module.partition(".")[0]
        for point in entry_points(group=GROUP)
        if find_spec(f"{point.module.partition('.')[0]}.__main__") is not None
    }
    if "coordinator" in modules and find_spec(VIEWS_MODULE) is not None:
        modules[VIEWS] = VIEWS_MODULE
    names = [name for name in (*SERVICE_ADDRESSES, VIEWS) if name in modules]
    return {name: modules[name] for name in names}


def _modules(services: Sequence[str]) -> Mapping[str, str]:
    there = installed_services()
    for name in services:
        if name not in there and name not in INFRASTRUCTURE:
            raise InvalidInput(text=f"unknown service {name}; installed: {', '.join(there)}")
    if not services:
        return there
    with_views = {*services, VIEWS} if "coordinator" in services else set(services)
    return {name: module for name, module in there.items() if name in with_views}


def configured_addresses(settings: Settings, modules: Mapping[str, str]) -> Mapping[str, str]:
    """Return the configured listen addresses of these services, by the variable of the setting."""
    fields = [field for name, field in SERVICE_ADDRESSES.items() if name in modules]
    fields += ["sync_http"] if "sync" in modules else []
    fields += ["views_http"] if VIEWS in modules else []
    addresses = {f"ODF_{field.upper()}": getattr(settings, field) for field in fields}
    return {variable: address for variable, address in addresses.items() if address is not None}


def _kafka_ports(settings: Settings, allocated: Allocate) -> Mapping[str, int]:
    """Return the ports of the embedded Kafka for `kafka_part`; empty if another Kafka is configured.

    Producers know the port `kafka` of the home. On a multi-tenant node, it requires authentication.
    """
    if settings.kafka is not None:
        return {}
    if settings.tenancy == SINGLE_TENANT:
        return allocated(("kafka", "kafka-sasl", "kafka-controller"))
    ports = allocated(("kafka", "kafka-controller"))
    return {"kafka-sasl": ports["kafka"], "kafka-controller": ports["kafka-controller"]}


def _with_addresses(settings: Settings, allocated: Allocate, kafka_ports: Mapping[str, int]) -> Settings:
    """Return the settings with all addresses set: missing ones become free ports on loopback.

    For the embedded Kafka and Redis, the credentials of the node's own clients are set as well.
    """
    if settings.kafka is None:
        settings = with_kafka(settings, f"{LOOPBACK}:{kafka_ports['kafka-sasl']}")
    if settings.redis is None:
        settings = with_redis(settings, f"{LOOPBACK}:{allocated(('redis',))['redis']}")
    fields = (*SERVICE_ADDRESSES.values(), "sync_http", "views_http")
    missing = [field for field in fields if getattr(settings, field) is None]
    names = {field: _variable_name(field) for field in missing}
    ports = allocated(names.values())
    addresses: dict[str, Any] = {field: f"{LOOPBACK}:{ports[name]}" for field, name in names.items()}
    return replace(settings, **addresses)


def _variable_name(field: str) -> str:
    return "engine-spark" if field == "engine" else field.removesuffix("_grpc").replace("_", "-")


def _variables(addressed: Settings) -> Mapping[str, str]:
    """Return environment variables with the addresses of the node, and with the credentials for Kafka and Redis."""
    fields = ("kafka", "redis", *SERVICE_ADDRESSES.values(), "sync_http", "views_http", *CREDENTIALS)
    values = {field: getattr(addressed, field) for field in fields}
    return {"ODF_HOME": str(addressed.home)} | {
        f"ODF_{field.upper()}": str(value) for field, value in values.items() if value is not None
    }


def _metrics_addresses(
    settings: Settings, allocated: Allocate, modules: Mapping[str, str]
) -> Mapping[str, str]:
    """Return the address for metrics of each process; raises `Unprotected`."""
    ports = allocated([f"{name}-metrics" for name in modules])
    addresses = {name: f"{settings.metrics_host}:{ports[f'{name}-metrics']}" for name in modules}
    for address in addresses.values():
        require_protected(settings, "ODF_METRICS_HOST", address)
    return addresses


def _service(
    name: str, module: str, addressed: Settings, base: Mapping[str, str], metrics: Mapping[str, str]
) -> PartSpec:
    temporary = addressed.home / TEMPORARY / name
    address = str(addressed.views_http) if name == VIEWS else str(getattr(addressed, SERVICE_ADDRESSES[name]))
    answers = (
        http_answers(address, "/health")
        if name == VIEWS
        else grpc_serves(address, peer_credentials(addressed, address, secret_of(name)))
    )
    environment = {
        **(engine_environment(base) if name == ENGINE_SERVICE else base),
        "TMPDIR": str(temporary),
        "ODF_PART": name,
        "ODF_INSTANCE": f"embedded.{name}",
        "ODF_METRICS_PORT": str(_port(metrics[name])),
    }
    return PartSpec(
        name=name,
        command=(sys.executable, "-m", module),
        environment=environment,
        probe=listens(address) if name == VIEWS else once_listening(address, answers),
        liveness=answers,
        prepare=emptier_of(temporary),
        is_service=name != VIEWS,
        is_ours=True,
        is_elsewhere=partial(is_in_foreground, addressed.home, name),
    )


def emptier_of(folder: Path) -> Callable[[], Awaitable[None]]:
    """Return a function that empties a folder, in which a killed part may have left temporary files."""

    def make() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)

    return lambda: asyncio.to_thread(make)


def _node(addressed: Settings, modules: Mapping[str, str], metrics: Mapping[str, str], pid: int) -> Node:
    return Node(
        home=addressed.home,
        pid=pid,
        kafka=addressed.kafka,
        redis=without_password(str(addressed.redis)),
        engine=addressed.engine,
        http=addressed.http_url if "sync" in modules else None,
        views=f"http://{addressed.views_http}" if VIEWS in modules else None,
        grpc={
            name: getattr(addressed, field) for name, field in SERVICE_ADDRESSES.items() if name in modules
        },
        metrics=metrics,
    )


def _port(address: str | None) -> int:
    assert address is not None, "addresses were given"
    return int(address.rpartition(":")[2])
