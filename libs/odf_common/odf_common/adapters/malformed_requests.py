"""Limits the logging of requests that aiohttp cannot parse, which any client can send in any number."""

import logging
from typing import Final

from prometheus_client import Counter

SERVER: Final = "aiohttp.server"  # the logger of its servers
ERROR: Final = "HttpProcessingError"  # its base class for such requests
TEXT: Final = "a request is not HTTP, or has headers that are too long"

MALFORMED: Final = Counter(
    "odf_http_malformed_requests_total", "Requests that are not HTTP, or have headers that are too long."
)


class MalformedRequests(logging.Filter):
    """Counts malformed requests, and logs the same constant warning for each, without its bytes or a traceback.

    Since all these lines are equal, the limit on repeated warnings applies to them.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Count and replace a record of a malformed request; return whether its original level is logged.

        aiohttp logs a request that is not HTTP at all only at level debug.
        """
        is_logged = logging.getLogger().isEnabledFor(record.levelno)
        error = record.exc_info[1] if record.exc_info else None
        # By its name: not every service has aiohttp.
        if any(kind.__name__ == ERROR for kind in type(error).__mro__):
            MALFORMED.inc()
            record.levelno, record.levelname = logging.WARNING, logging.getLevelName(logging.WARNING)
            record.msg, record.args, record.exc_info, record.exc_text = TEXT, (), None, None
        return is_logged


def count_malformed_requests() -> None:
    """Count malformed requests to all HTTP servers of this process."""
    logging.getLogger(SERVER).setLevel(logging.DEBUG)
    logging.getLogger(SERVER).filters[:] = [MalformedRequests()]
