"""Notices which parts of the node a service cannot reach, and since when, for `odf status`, the log and the metrics.

It asks every part that the service uses every three seconds. An answer takes at most two seconds, and two in a row must
be missing, so an outage is known within ten seconds, and a busy part is none.
"""

import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from typing import Final
from urllib.parse import urlsplit

import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client import Gauge

from odf_common.adapters.grpc.client import calling, channel, require_server
from odf_common.adapters.grpc.peer_secret import PeerCredentials
from odf_common.adapters.kafka.admin import KafkaTopics
from odf_common.adapters.local.outage_files import Outage, OutageFile
from odf_common.errors import OdfError, Unavailable
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.clock import Clock
from odf_common.service.connections import kafka_cluster, redis_connection
from odf_common.service.protection import ENGINE_SERVICE, peer_credentials, secret_of
from odf_common.service.settings import ENGINE, Settings

log = structlog.stdlib.get_logger(__name__)

CHECK_SECONDS: Final = 3.0  # between two checks of a part
CHECK_TIMEOUT_SECONDS: Final = 2.0
MIN_FAILURES: Final = 2  # in a row
UNREACHABLE: Final = Gauge(
    "odf_unreachable_seconds",
    "Seconds since this service cannot reach a part of the node; 0 if it can.",
    ("part",),
)
Check = Callable[[], None]  # raises `OdfError` unless a part answers within `CHECK_TIMEOUT_SECONDS`


@dataclass(eq=False, kw_only=True)
class PartSilent(Unavailable):
    """A part of the node that is needed does not answer; `what` is its name."""

    MESSAGE = "{what} does not answer"


class SilentParts:
    """The parts that owe their last answer, to this service or to one that it uses; thread-safe.

    One that owes it to this service may still be in no outage.
    """

    def __init__(self) -> None:
        """No part is silent until a check says so."""
        self._whys: Mapping[str, str] = {}

    def replace(self, whys: Mapping[str, str]) -> None:
        """From now on these parts are silent; the values say why."""
        self._whys = dict(whys)

    def find(self, parts: Iterable[str]) -> PartSilent | None:
        """Return the error of the first of these parts that is silent, None if all have answered."""
        whys = self._whys
        return next((PartSilent(what=part, why=whys[part]) for part in parts if part in whys), None)


class OutageWatch:
    """Checks the parts that a service uses, and keeps the outages in its file."""

    def __init__(
        self,
        service: str,
        file: OutageFile,
        checks: Mapping[str, Check],
        clock: Clock,
        *,
        silent: SilentParts | None = None,
        answer_seconds: float = CHECK_TIMEOUT_SECONDS,
    ) -> None:
        """Check nothing before `run`; `silent` is kept current for the service's own use."""
        self._silent = SilentParts() if silent is None else silent
        self._answer_seconds = answer_seconds
        self._service = service
        self._file = file
        self._checks = checks
        self._clock = clock
        self._running: dict[str, Future[None]] = {}
        self._failures: dict[str, tuple[int, Timestamp]] = {}  # in a row, and when the first was
        self._outages: dict[str, tuple[Timestamp, str]] = {}

    def run(self, stop: threading.Event) -> None:
        """Check until the service stops. The file is removed then, and at the start: a killed process leaves one."""
        self._file.write(())
        with ThreadPoolExecutor(len(self._checks) or 1, thread_name_prefix="outages") as pool:
            while not stop.wait(CHECK_SECONDS):
                self.check(pool)
        self._file.write(())

    def check(self, pool: ThreadPoolExecutor) -> None:
        """Ask each part once; one that still owes its last answer is not asked again."""
        for part, check in self._checks.items():
            if part not in self._running:
                self._running[part] = pool.submit(check)
        wait(self._running.values(), self._answer_seconds)
        before = bool(self._outages)
        answers = {part: self._why_silent(part) for part in self._checks}
        silent = {part: why for part, why in answers.items() if why is not None}
        # A service in another network may answer, and still do nothing because it cannot reach what it needs.
        self._silent.replace({**self._file.seen_by(self._checks), **silent})
        for part, why in answers.items():
            self._note(part, why)
        if before or self._outages:
            self._file.write(tuple(self._list_outages()))

    def _why_silent(self, part: str) -> str | None:
        """Return the reason if a part did not answer, else None."""
        if not self._running[part].done():
            return f"no answer within {self._answer_seconds:g} s"
        error = self._running.pop(part).exception()
        if error is None or isinstance(error, OdfError):
            return None if error is None else why_silent(error)
        raise error

    def _note(self, part: str, why: str | None) -> None:
        now = self._clock.now()
        if why is None:
            self._failures.pop(part, None)
            if (outage := self._outages.pop(part, None)) is not None:
                log.info("part answers again", part=part, seconds=_seconds(outage[0], now))
            UNREACHABLE.labels(part).set(0)
            return
        count, since = self._failures.get(part, (0, now))
        self._failures[part] = (count + 1, since)
        if count + 1 >= MIN_FAILURES:
            if part not in self._outages:
                log.warning("part does not answer", part=part, why=why)
            self._outages[part] = (since, why)
            UNREACHABLE.labels(part).set(_seconds(since, now))

    def _list_outages(self) -> Iterable[Outage]:
        for part, (since, why) in self._outages.items():
            second = Timestamp.from_ms(since.ms // 1000 * 1000)
            yield Outage(part=part, seen_by=self._service, since=str(second), why=why)


def checks_of(settings: Settings, services: Iterable[str]) -> Mapping[str, Check]:
    """Return the checks of Kafka, Redis and the bucket, if they are configured, and of these services."""
    checks: dict[str, Check] = {}
    if settings.kafka is not None:
        checks["kafka"] = partial(KafkaTopics(kafka_cluster(settings)).require_answer, CHECK_TIMEOUT_SECONDS)
    if settings.redis is not None:
        checks["redis"] = redis_connection(settings).require_answer
    if settings.store is not None:
        url = urlsplit(settings.store.endpoint or settings.s3_endpoint)
        address = f"{url.hostname}:{url.port or (443 if url.scheme == 'https' else 80)}"
        checks["store"] = partial(require_server, "the bucket", address, CHECK_TIMEOUT_SECONDS)
    for name in services:
        field = "engine" if name == ENGINE_SERVICE else f"{name}_grpc"
        configured: str | None = getattr(settings, field) or (ENGINE if name == ENGINE_SERVICE else None)
        if configured is not None:
            credentials = peer_credentials(settings, configured, secret_of(name))
            checks[name] = service_check(name, configured, credentials)
    return checks


def service_check(name: str, address: str, credentials: PeerCredentials) -> Check:
    """Return a check that asks a service for its health; one that is not ready yet answers, too."""
    health = health_pb2_grpc.HealthStub(channel(address, credentials))

    def check() -> None:
        with calling(name):
            health.Check(health_pb2.HealthCheckRequest(), timeout=CHECK_TIMEOUT_SECONDS)

    return check


def why_silent(error: OdfError) -> str:
    """Return why a part does not answer, without its name, which is shown next to it."""
    return (isinstance(error, Unavailable) and error.why) or str(error)


def _seconds(since: Timestamp, now: Timestamp) -> float:
    return max(now.ms - since.ms, 0) / 1000
