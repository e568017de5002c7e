"""Checks of this machine and the node, with a remedy for each failure. The checks are independent, and none raises."""

import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from odf_cli.embedded.checks import (
    require_connected,
    require_free,
    require_home,
    require_redis,
    require_store,
)
from odf_cli.embedded.node_file import Node, NoNode, Part, client_settings_for
from odf_cli.embedded.part_states import RECONNECTS, located_node, remedy_of
from odf_cli.embedded.parts.kafka_redis import java, kafka_folder, redis_server
from odf_cli.embedded.plan import configured_addresses, installed_services
from odf_common.adapters.kafka.admin import KafkaTopics
from odf_common.errors import OdfError, Unavailable
from odf_common.resources.secret_text import without_password
from odf_common.service.connections import kafka_cluster
from odf_common.service.protection import ENGINE_SERVICE
from odf_common.service.settings import Settings, child_environment, unknown_variables

OK: Final = "ok"
WARNING: Final = "warning"
FAILED: Final = "failed"
GIB: Final = 1024**3
MIN_JAVA_VERSION: Final = 17
FREE_AT_LEAST: Final = GIB  # bytes; Kafka alone preallocates some
ADVISED_FREE_BYTES: Final = 5 * GIB
# At least the sum of all parts' peaks in the benchmarks, which a test compares.
ADVISED_MEMORY_BYTES: Final = 4 * GIB
MIN_OPEN_FILES: Final = 4096  # Kafka keeps several files per partition open
CLOCK_SECONDS: Final = 5.0
KAFKA_SECONDS: Final = 3.0  # of a broker that does not answer; all checks together take less than five
PACKAGES: Final = ("odf-common", "pyspark", "pyarrow", "confluent-kafka", "grpcio")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of a check: `state` is ok, warning or failed; `remedy` is empty if it is ok."""

    check: str
    state: str
    text: str
    remedy: str = ""


Check = Callable[[Settings, Node | None], Iterator[Finding]]


class Silent(Unavailable):
    """Kafka or Redis of a running node does not answer."""

    remedy: str

    def __str__(self) -> str:
        """Return a sentence with the reason."""
        return f"it does not answer: {self.why}"

    def advice(self) -> str:
        """Return the remedy for the part."""
        return self.remedy


def examine(settings: Settings) -> Iterator[Finding]:
    """Yield the findings of all checks as soon as each is known; takes some seconds."""
    node = _find_running_node(settings)
    for check in CHECKS:
        try:
            yield from check(settings, node)
        except OdfError as error:
            yield _failure(check.__name__.strip("_"), error)
        except Exception as error:  # noqa: BLE001 - a check that breaks must not hide the others
            yield Finding(
                check=check.__name__.strip("_"), state=FAILED, text=f"the check itself failed: {error!r}"
            )


def _find_running_node(settings: Settings) -> Node | None:
    """Return the running node; None if there is none or if no service answers at the configured addresses."""
    try:
        node = located_node(settings)
    except NoNode:
        return None
    parts = node.services or node.parts
    return None if all(part.state == "unreachable" for part in parts) else node


def _versions(settings: Settings, node: Node | None) -> Iterator[Finding]:
    del settings, node
    text = [f"python {sys.version.split()[0]}"]
    for name in PACKAGES:
        if name == "pyspark" and ENGINE_SERVICE not in installed_services():
            continue
        try:
            text.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            yield Finding(
                check="versions", state=FAILED, text=f"{name} is not installed", remedy="run `make setup`"
            )
    yield Finding(check="versions", state=OK, text=", ".join(text))


def _variables(settings: Settings, node: Node | None) -> Iterator[Finding]:
    del settings, node
    for text in unknown_variables(child_environment()):
        yield Finding(
            check="settings",
            state=WARNING,
            text=text,
            remedy="correct or unset it; `odf config` shows all settings",
        )


def _java(settings: Settings, node: Node | None) -> Iterator[Finding]:
    del node
    if (
        settings.kafka is not None and ENGINE_SERVICE not in installed_services()
    ):  # the image of another service
        return
    program = java(child_environment())
    output = subprocess.run(
        [program, "-version"], capture_output=True, text=True, check=False, timeout=20
    ).stderr
    match = re.search(r'version "(\d+)', output)
    number = int(match[1]) if match else 0
    if number < MIN_JAVA_VERSION:
        yield Finding(
            check="java",
            state=FAILED,
            text=f"{program} is version {number or 'unknown'}; Spark and Kafka need {MIN_JAVA_VERSION} or later",
            remedy="install a newer JDK, or set JAVA_HOME to one",
        )
    else:
        yield Finding(check="java", state=OK, text=f"{program}, version {number}")


def _programs(settings: Settings, node: Node | None) -> Iterator[Finding]:
    del node
    if settings.kafka is None:
        jars = len(list(kafka_folder().glob("*.jar")))
        if jars:
            yield Finding(check="kafka jars", state=OK, text=f"{jars} in {kafka_folder()}")
        else:
            yield Finding(
                check="kafka jars",
                state=FAILED,
                text=f"none in {kafka_folder()}",
                remedy="run `make setup`, which needs Maven (mvn), or set ODF_KAFKA to a cluster of yours",
            )
        if not jars and shutil.which("mvn") is None:
            yield Finding(
                check="maven",
                state=FAILED,
                text="mvn is not on the PATH",
                remedy="install Maven (Debian: apt-get install maven)",
            )
    if settings.redis is None:
        yield Finding(check="redis-server", state=OK, text=redis_server(child_environment()))
    yield Finding(check="services", state=OK, text=", ".join(installed_services()))


def _home(settings: Settings, node: Node | None) -> Iterator[Finding]:
    del node
    parent = _existing(settings.home)
    if parent != settings.home and parent.is_dir() and os.access(parent, os.W_OK):
        text, remedy = (
            f"{settings.home} does not exist",
            "`odf up` creates it; if it should exist, check ODF_HOME",
        )
        yield Finding(check="home", state=WARNING, text=text, remedy=remedy)
        return
    require_home(settings.home)
    yield Finding(check="home", state=OK, text=f"{settings.home} can be written")


def _store(settings: Settings, node: Node | None) -> Iterator[Finding]:
    del node
    if settings.store is not None:
        require_store(settings)
        yield Finding(check="store", state=OK, text=f"{settings.store} can be written, with conditions")


def _disk(settings: Settings, node: Node | None) -> Iterator[Finding]:
    del node
    advice = "free some space: without it no commit succeeds"
    drop = "; `odf system drop-data DATASET` drops files that `odf pull DATASET` computes again"
    for name, folder, more in (
        ("disk", _existing(settings.home), drop),
        ("temporary files", Path(tempfile.gettempdir()), ""),
    ):
        usage = shutil.disk_usage(folder)
        state = FAILED if usage.free < FREE_AT_LEAST else WARNING if usage.free < ADVISED_FREE_BYTES else OK
        text = f"{usage.free / GIB:.1f} GiB free of {usage.total / GIB:.1f} at {folder}"
        yield Finding(check=name, state=state, text=text, remedy="" if state == OK else advice + more)


def _memory(settings: Settings, node: Node | None) -> Iterator[Finding]:
    del settings
    lines = Path("/proc/meminfo").read_text().splitlines()
    free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    is_short = free < ADVISED_MEMORY_BYTES and node is None
    yield Finding(
        check="memory",
        state=WARNING if is_short else OK,
        text=f"{free / GIB:.1f} GiB available",
        remedy=f"a busy node takes about {ADVISED_MEMORY_BYTES // GIB} GiB: stop other programs"
        if is_short
        else "",
    )


def _open_files(settings: Settings, node: Node | None) -> Iterator[Finding]:
    del settings, node
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    is_short = most not in (-1, resource.RLIM_INFINITY) and most < MIN_OPEN_FILES
    yield Finding(
        check="open files",
        state=WARNING if is_short else OK,
        text="no limit" if most in (-1, resource.RLIM_INFINITY) else f"at most {most} per process",
        remedy=f"raise the hard limit to {MIN_OPEN_FILES} or more (`ulimit -Hn`)" if is_short else "",
    )


def _clock(settings: Settings, node: Node | None) -> Iterator[Finding]:
    """Compare the clock with the newest commit.

    System time never goes back, so if the clock was set back, new commits get times in the future.
    """
    del node
    heads = (settings.home / "datasets").glob("*/refs/head")
    newest = max((file.stat().st_mtime for file in heads), default=0.0)
    ahead = newest - time.time()
    if ahead > CLOCK_SECONDS:
        yield Finding(
            check="clock",
            state=FAILED,
            text=f"the newest commit is {ahead:.0f} s in the future: the clock went back",
            remedy="set the clock (`timedatectl`); until then commits are given that time",
        )
    else:
        yield Finding(check="clock", state=OK, text=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))


def _addresses(settings: Settings, node: Node | None) -> Iterator[Finding]:
    if node is not None:
        return
    configured = configured_addresses(settings, installed_services())
    require_free(configured)
    if configured:
        yield Finding(check="addresses", state=OK, text=f"{', '.join(configured)}: free")


def _kafka(settings: Settings, node: Node | None) -> Iterator[Finding]:
    settings = client_settings_for(settings, node) if node else settings
    if settings.kafka is not None:
        with _require_answer("kafka", node):
            require_connected("Kafka", "ODF_KAFKA", settings.kafka, settings.kafka.split(","))
            KafkaTopics(kafka_cluster(settings)).require_answer(KAFKA_SECONDS)
        yield Finding(check="kafka", state=OK, text=f"answers at {settings.kafka}")


def _redis(settings: Settings, node: Node | None) -> Iterator[Finding]:
    settings = client_settings_for(settings, node) if node else settings
    if settings.redis is not None:
        with _require_answer("redis", node):
            require_redis(settings)
        yield Finding(check="redis", state=OK, text=f"answers at {without_password(settings.redis)}")


@contextmanager
def _require_answer(name: str, node: Node | None) -> Iterator[None]:
    """Replace an `Unavailable` by `Silent`, with the remedy for the part, unless it already has suitable advice."""
    try:
        yield
    except Unavailable as error:
        part = next((part for part in node.parts if part.name == name), None) if node else None
        if node is not None and part is not None and any(one.pid for one in node.parts):
            log = node.log(name)
            advice = remedy_of(part, log) if part.pid is not None else part.remedy or _see_log(log)
        elif error.advice():
            raise
        else:
            advice = RECONNECTS
        raise Silent(what=name, why=error.why or str(error), remedy=advice) from error


def _node(settings: Settings, node: Node | None) -> Iterator[Finding]:
    if node is None:
        yield Finding(
            check="node", state=OK, text=f"none is running for {settings.home}; `odf up` starts one"
        )
        return
    for part in (*node.services, *node.parts):
        if part.state not in ("ready", "foreground"):
            yield Finding(
                check=part.name,
                state=FAILED,
                text=_state(part) + (f": {part.problem}" if part.problem else ""),
                remedy=part.remedy or _see_log(node.log(part.name)),
            )
        else:
            yield Finding(check=part.name, state=OK, text=_state(part))


def _see_log(log: Path) -> str:
    return f"see the end of {log}"


def _state(part: Part) -> str:
    return f"{part.state} since {part.since}" if part.since else part.state


CHECKS: Final[Sequence[Check]] = (
    _versions,
    _variables,
    _java,
    _programs,
    _home,
    _store,
    _disk,
    _memory,
    _open_files,
    _clock,
    _addresses,
    _kafka,
    _redis,
    _node,
)


def _failure(check: str, error: OdfError) -> Finding:
    return Finding(check=check.replace("_", " "), state=FAILED, text=str(error), remedy=error.advice())


def _existing(folder: Path) -> Path:
    return next(parent for parent in (folder, *folder.parents) if parent.exists())
