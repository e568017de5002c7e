"""A warning that is repeated is logged at once, and then after pauses that double, with how often it was withheld.

Otherwise a source that is tried three times a second would fill the disk, and so would anyone who can send bytes to a
port.
"""

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

# Facts that differ between two lines about the same.
VARIABLE_FACTS: Final = frozenset({"timestamp", "correlation"})
REPEATED: Final = "repeated"


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatLimits:
    """How often the same is logged."""

    first_seconds: float = 1.0
    """The first pause; each one is twice as long as the one before."""
    most_seconds: float = 600.0
    """The longest pause."""
    forgotten_seconds: float = 60.0
    """What has not occurred for so long, or for its pause if that is longer, is new."""
    remembered: int = 1000
    """Of how many different lines."""


@dataclass(slots=True)
class _Seen:
    until: float
    pause: float
    last: float
    withheld: int = 0


class RepeatedLogs(logging.Filter):
    """Passes warnings and errors on unless the same has just been logged; thread-safe."""

    def __init__(
        self, limits: RepeatLimits | None = None, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        """Remember nothing yet."""
        super().__init__()
        self._limits = limits or RepeatLimits()
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._seen: OrderedDict[int, _Seen] = OrderedDict()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to log a record; one that was withheld is counted in the next one."""
        if record.levelno < logging.WARNING:
            return True
        key, now, limits = _key(record), self._monotonic(), self._limits
        with self._lock:
            seen = self._seen.pop(key, None)
            if seen is None or now - seen.last > max(seen.pause, limits.forgotten_seconds):
                self._seen[key] = _Seen(
                    until=now + limits.first_seconds, pause=limits.first_seconds, last=now
                )
                if len(self._seen) > limits.remembered:
                    self._seen.popitem(last=False)
                return True
            self._seen[key] = seen
            seen.last = now
            if now < seen.until:
                seen.withheld += 1
                return False
            withheld, seen.withheld = seen.withheld, 0
            seen.pause = min(2 * seen.pause, limits.most_seconds)
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
