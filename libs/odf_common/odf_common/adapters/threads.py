"""A pool of threads that keeps working while the system starts no other thread for the process.

The standard pool would raise an error after it has queued the task. After that, gRPC's server, for example, would
never accept a call again.
"""

from concurrent.futures import ThreadPoolExecutor

import structlog

from odf_common.errors import lacks_threads

log = structlog.stdlib.get_logger(__name__)


class SteadyThreadPool(ThreadPoolExecutor):
    """A pool that starts its first thread at once; if no further thread can be started, tasks wait for the others."""

    def __init__(self, most: int, name: str) -> None:
        """Start up to `most` threads; raises `RuntimeError` if the first cannot be started."""
        super().__init__(most, thread_name_prefix=name)
        self.submit(int)

    def _adjust_thread_count(self) -> None:
        try:
            super()._adjust_thread_count()
        except RuntimeError as error:
            if not self._threads or not lacks_threads(error):
                raise
            log.warning("cannot start another thread", pool=self._thread_name_prefix)
