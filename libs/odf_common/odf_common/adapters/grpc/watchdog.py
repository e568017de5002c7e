"""An end to waiting for somebody who has fallen silent, and to asking more of them."""

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


class Attention:
    """Whether somebody who is being asked, and speaks now and then while at work, is silent; for many threads."""

    def __init__(self, seconds: float) -> None:
        """Count as silent who says nothing for so many seconds."""
        self._seconds = seconds
        self._questions = 0
        self._heard = 0.0
        self._mutex = threading.Lock()

    def begin(self) -> None:
        """Note that a question is put."""
        with self._mutex:
            if self._questions == 0:
                self._heard = time.monotonic()
            self._questions += 1

    def hear(self) -> None:
        """Note a word."""
        self._heard = time.monotonic()

    def end(self) -> None:
        """Note that a question is over."""
        with self._mutex:
            self._questions -= 1

    @property
    def is_silent(self) -> bool:
        """Tell whether it is asked and says nothing."""
        return self._questions > 0 and time.monotonic() - self._heard > self._seconds
