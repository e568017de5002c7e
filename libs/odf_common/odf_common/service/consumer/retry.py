"""Retries while a part of the node is unavailable, with one log line at the first failure and one at recovery."""

import threading
from collections.abc import Callable
from itertools import count
from typing import Final, TypeVar

import structlog

from odf_common.errors import Unavailable
from odf_common.ports.clock import Backoff
from odf_common.service import metrics

log = structlog.stdlib.get_logger(__name__)

T = TypeVar("T")
UNAVAILABLE_BACKOFF: Final = Backoff(first=0.05, most=0.5)


def keep_trying(
    action: Callable[[], T],
    stop: threading.Event,
    *,
    final: type[Unavailable] | tuple[type[Unavailable], ...] = (),
) -> T | None:
    """Return the result of `action`, which is called again after each `Unavailable`; None if `stop` is set first.

    Errors of the classes in `final` are not retried but raised.
    """
    for tries in count(1):
        try:
            done = action()
        except Unavailable as error:
            if isinstance(error, final):
                raise
            metrics.RETRIES.labels(error.code).inc()
            if tries == 1:
                log.warning("unavailable, retrying", what=error.what, why=error.why)
        else:
            if tries > 1:
                log.info("available again", tries=tries)
            return done
        if stop.wait(UNAVAILABLE_BACKOFF.pause(tries)):
            return None
    raise AssertionError("count never ends")
