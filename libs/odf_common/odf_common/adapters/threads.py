"""A thread pool that continues to work while the operating system refuses to start further threads.

The standard pool raises an error after it has queued the task. gRPC's server, for example, would then never
accept another call.
"""

from concurrent.futures import ThreadPoolExecutor

import structlog

from odf_common.errors import lacks_threads

log = structlog.stdlib.get_logger(__name__)


class SteadyThreadPool(ThreadPoolExecutor):
    """A pool that starts its first thread at once; while no more threads can be started, tasks wait for a free one."""

    def __init__(self, most: int, name: str) -> None:
        """Create a pool of up to `most` threads; raises `RuntimeError` if the first thread cannot be started."""
        super().__init__(most, thread_name_prefix=name)
        self.submit(int)

    def _adjust_thread_count(self) -> None:
        try:
            super()._adjust_thread_count()
        except RuntimeError as error:
            if not self._threads or not lacks_threads(error):
                raise
            log.warning("cannot start another thread", pool=self._thread_name_prefix)
