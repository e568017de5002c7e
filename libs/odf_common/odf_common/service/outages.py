"""Detects which parts of the node a service cannot reach, and since when, for `odf status`, the log and the metrics.

Every two seconds the service sends a health check to each part that it uses, and waits up to two seconds for the
answers. A push that needs a silent part is therefore answered within five seconds. An outage begins after two
consecutive failures, so it is detected within ten seconds, and a part that is merely busy does not count as one.
"""

import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Final

import structlog
from prometheus_client import Gauge

from odf_common.adapters.local.outage_files import Outage, OutageFile
from odf_common.errors import OdfError, Unavailable
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.clock import Clock
from odf_common.service.part_checks import CHECK_TIMEOUT_SECONDS, Check, why_silent

log = structlog.stdlib.get_logger(__name__)

CHECK_SECONDS: Final = 2.0  # between two checks of a part
MIN_FAILURES: Final = 2  # in a row
UNREACHABLE: Final = Gauge(
    "odf_unreachable_seconds",
    "Seconds since this service cannot reach a part of the node; 0 if it can.",
    ("part",),
)


class PartSilent(Unavailable):
    """A part of the node that this operation needs does not answer; `what` is the name of the part."""

    MESSAGE = "{what} does not answer"


class SilentParts:
    """The parts that did not answer the last health check, by this service or by a service that it uses; thread-safe.

    A part is listed after a single failed check of this service; an outage needs several.
    """

    def __init__(self) -> None:
        """Start without silent parts."""
        self._whys: Mapping[str, str] = {}

    def replace(self, whys: Mapping[str, str]) -> None:
        """Replace the set of silent parts: names of parts, and the reason why each one is silent."""
        self._whys = dict(whys)

    def find(self, parts: Iterable[str]) -> PartSilent | None:
        """Return an error for the first of these parts that is silent; None if all of them have answered."""
        whys = self._whys
        return next((PartSilent(what=part, why=whys[part]) for part in parts if part in whys), None)


class OutageWatch:
    """Checks the parts that a service uses, and writes the current outages to the file of the service."""

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
        """Create a watch, which checks nothing before `run`; each check updates `silent` for use by the service."""
        self._silent = SilentParts() if silent is None else silent
        self._answer_seconds = answer_seconds
        self._service = service
        self._file = file
        self._checks = checks
        self._clock = clock
        self._running: dict[str, Future[None]] = {}
        self._failures: dict[
            str, tuple[int, Timestamp]
        ] = {}  # their number in a row, and the time of the first
        self._outages: dict[str, tuple[Timestamp, str]] = {}  # since when, and why

    def run(self, stop: threading.Event) -> None:
        """Check every `CHECK_SECONDS` until `stop` is set.

        The file of outages is removed at the end, and at the start, because a killed process leaves its file behind.
        """
        self._file.write(())
        with ThreadPoolExecutor(len(self._checks) or 1, thread_name_prefix="outages") as pool:
            while not stop.wait(CHECK_SECONDS):
                self.check(pool)
        self._file.write(())

    def check(self, pool: ThreadPoolExecutor) -> None:
        """Send a health check to each part, unless the previous one is still running, and record the results."""
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
            self._record_check(part, why)
        if before or self._outages:
            self._file.write(tuple(self._list_outages()))

    def _why_silent(self, part: str) -> str | None:
        """Return the reason why a part did not answer; None if it answered."""
        if not self._running[part].done():
            return f"no answer within {self._answer_seconds:g} s"
        error = self._running.pop(part).exception()
        if error is None or isinstance(error, OdfError):
            return None if error is None else why_silent(error)
        raise error

    def _record_check(self, part: str, why: str | None) -> None:
        """Record the result of a check: the reason why the part did not answer, or None if it did.

        An outage begins after `MIN_FAILURES` consecutive failures, and ends with the next answer.
        """
        now = self._clock.now()
        if why is None:
            self._failures.pop(part, None)
            if (outage := self._outages.pop(part, None)) is not None:
                since, _ = outage
                log.info("part answers again", part=part, seconds=_seconds(since, now))
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


def _seconds(since: Timestamp, now: Timestamp) -> float:
    return max(now.ms - since.ms, 0) / 1000
