"""Logging by structlog and the standard library to stderr: JSON lines, or coloured ones on a terminal.

A repeated warning is logged at once, and then at intervals that double, each time with the number of repetitions that
were suppressed. Otherwise a source that is retried three times a second, or anyone who can send bytes to a port, could
fill the disk.
"""

import io
import logging
import math
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TextIO

import structlog

from odf_common.codec.visible_text import visible

_SHARED: Final[tuple[structlog.typing.Processor, ...]] = (
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.processors.StackInfoRenderer(),
)
NOISY: Final = ("py4j", "asyncio", "aiokafka", "faust", "mode", "urllib3", "grpc._cython")
# Facts that differ between two lines about the same.
VARIABLE_FACTS: Final = frozenset({"timestamp", "correlation"})
REPEATED: Final = "repeated"


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatLimits:
    """Limits on how often the same warning is logged."""

    first_seconds: float = 1.0
    """The first interval between two lines; each further interval is twice as long."""
    most_seconds: float = 600.0
    """The longest interval."""
    forgotten_seconds: float = 60.0
    """A warning counts as new if it has not occurred for this time, or for its current interval if that is longer."""
    remembered: int = 1000
    """Number of different warnings that are remembered."""


@dataclass(slots=True)
class _Seen:
    until: float = 0.0
    pause: float = 0.0
    last: float = -math.inf
    withheld: int = 0


class RepeatedLogs(logging.Filter):
    """A filter that suppresses warnings and errors that have just been logged; thread-safe."""

    def __init__(
        self, limits: RepeatLimits | None = None, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        """Start with no remembered warnings."""
        super().__init__()
        self._limits = limits or RepeatLimits()
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._seen: OrderedDict[int, _Seen] = OrderedDict()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to log a record; the next one that is logged gets the number of suppressed repetitions."""
        if record.levelno < logging.WARNING:
            return True
        key, now, limits = _key(record), self._monotonic(), self._limits
        with self._lock:
            seen = self._seen.pop(key, None) or _Seen()
            self._seen[key] = seen
            if len(self._seen) > limits.remembered:
                self._seen.popitem(last=False)
            is_new = now - seen.last > max(seen.pause, limits.forgotten_seconds)
            seen.last = now
            if not is_new and now < seen.until:
                seen.withheld += 1
                return False
            withheld, seen.withheld = seen.withheld, 0
            seen.pause = limits.first_seconds if is_new else min(2 * seen.pause, limits.most_seconds)
            seen.until = now + seen.pause
        if not withheld:
            return True
        if isinstance(record.msg, dict):
            record.msg[REPEATED] = withheld
        else:
            record.msg, record.args = f"{record.getMessage()} ({REPEATED} {withheld} times)", ()
        return True


def _key(record: logging.LogRecord) -> int:
    error = record.exc_info[1] if record.exc_info else None
    return hash((record.name, record.levelno, _content(record), type(error), str(error)[:1000]))


def _content(record: logging.LogRecord) -> str:
    message: Any = record.msg  # structlog's is a dictionary of facts
    if not isinstance(message, dict):
        return record.getMessage()
    return repr(sorted((name, repr(fact)) for name, fact in message.items() if name not in VARIABLE_FACTS))


def configure(level: str, *, service: str) -> None:
    """Send all logs of at least `level` to stderr, with the service's name: as JSON unless stderr is a terminal.

    A warning that is repeated is logged at increasing intervals.
    """
    is_terminal = sys.stderr.isatty()
    renderer: structlog.typing.Processor = (
        _for_people() if is_terminal else structlog.processors.JSONRenderer(default=str)
    )
    structlog.configure(
        processors=[*_SHARED, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=_SHARED,
            processors=[
                _with_service(service),
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *(() if is_terminal else (structlog.processors.format_exc_info,)),  # a terminal gets colours
                *((_visible,) if is_terminal else ()),
                renderer,
            ],
        )
    )
    handler.addFilter(RepeatedLogs())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in NOISY:
        logging.getLogger(name).setLevel(logging.WARNING)


def _for_people() -> structlog.dev.ConsoleRenderer:
    """Return a renderer for terminals whose tracebacks omit local variables, since these may contain secrets."""
    return structlog.dev.ConsoleRenderer(exception_formatter=_traceback)


def _traceback(sink: TextIO, failure: structlog.typing.ExcInfo) -> None:
    text = io.StringIO()
    structlog.dev.plain_traceback(text, failure)
    sink.write(visible(text.getvalue()))


def _visible(_: object, __: str, entry: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Escape invisible characters and terminal control sequences in the values (`codec.visible_text`)."""
    return {key: visible(value) if isinstance(value, str) else value for key, value in entry.items()}


def configure_command() -> None:
    """Send warnings and errors to stderr as plain lines, since stdout is for results; a second call does nothing."""
    if structlog.is_configured():
        return
    structlog.configure(
        processors=[
            structlog.stdlib.add_log_level,
            structlog.processors.format_exc_info,
            _visible,
            structlog.dev.ConsoleRenderer(colors=False, pad_event_to=0, pad_level=False),
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),  # without handlers, which write warnings to stderr
        wrapper_class=structlog.stdlib.BoundLogger,
    )


def _with_service(service: str) -> structlog.typing.Processor:
    """Return a processor that adds the service's name to each line.

    A context variable would not do: threads do not inherit those that the main thread has bound.
    """

    def add(_: object, __: str, entry: structlog.typing.EventDict) -> structlog.typing.EventDict:
        entry["service"] = service
        return entry

    return add
