"""A pool of threads that keeps working while the system starts no other thread for the process.

The standard pool raises an error then, after it has queued the task. gRPC's server, for one, would never take a call
again.
"""

from concurrent.futures import ThreadPoolExecutor

import structlog

from odf_common.errors import lacks_threads

log = structlog.stdlib.get_logger(__name__)


class SteadyThreadPool(ThreadPoolExecutor):
    """One thread from the start; if no other can be started, tasks wait for those that exist."""

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
