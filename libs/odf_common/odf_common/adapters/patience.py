"""An end to waiting for somebody who has fallen silent."""

import threading
import time
from collections.abc import Callable


class Patience:
    """Calls `give_up` once, from a thread of its own, when it was not renewed for so many seconds."""

    def __init__(self, seconds: float, give_up: Callable[[], object]) -> None:
        """Begin now."""
        self._seconds = seconds
        self._give_up = give_up
        self._until = time.monotonic() + seconds
        self._ended = threading.Event()
        self.is_over = False
        threading.Thread(target=self._watch, name="patience", daemon=True).start()

    def renew(self) -> None:
        """Begin again."""
        self._until = time.monotonic() + self._seconds

    def end(self) -> None:
        """Do nothing any more."""
        self._ended.set()

    def _watch(self) -> None:
        while not self._ended.wait(max(self._until - time.monotonic(), 0)):
            if time.monotonic() >= self._until:
                self.is_over = True
                self._give_up()
                return
