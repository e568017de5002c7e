"""Retries while a part of the node is unavailable: one log line when it is lost, one when it is back."""

import threading
from collections.abc import Callable
from itertools import chain, repeat
from typing import Final, TypeVar

import structlog

from odf_common.errors import Unavailable
from odf_common.service import metrics

log = structlog.stdlib.get_logger(__name__)

T = TypeVar("T")
BACK_OFF: Final = (0.05, 0.1, 0.2, 0.5)  # seconds; the last one repeats


def keep_trying(
    action: Callable[[], T],
    stop: threading.Event,
    *,
    final: type[Unavailable] | tuple[type[Unavailable], ...] = (),
) -> T | None:
    """Return the action's result, retrying after each `Unavailable`; None if `stop` is set first.

    Errors of a class in `final` are raised at once.
    """
    for number, pause in enumerate(chain(BACK_OFF, repeat(BACK_OFF[-1]))):
        try:
            done = action()
        except Unavailable as error:
            if isinstance(error, final):
                raise
            metrics.RETRIES.labels(error.code).inc()
            if number == 0:
                log.warning("unavailable, retrying", what=error.what, why=error.why)
        else:
            if number > 0:
                log.info("available again", tries=number + 1)
            return done
        if stop.wait(pause):
            return None
    raise AssertionError("repeat never ends")
