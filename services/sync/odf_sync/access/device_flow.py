"""Logins started by a program and completed by its user in a browser (OAuth 2.0 Device Authorization Grant).

Pending logins are kept in memory: after a restart of sync, a login has to be started again.
"""

import threading
import uuid
from collections import Counter
from dataclasses import dataclass
from typing import Final

from odf_common.adapters.system_clock import SYSTEM_CLOCK
from odf_common.ports.clock import Clock

EXPIRES_SECONDS: Final = 300
INTERVAL_SECONDS: Final = 5
REMEMBERED_SECONDS: Final = 300  # after that, so that a client that still polls learns why
REPEATED_SECONDS: Final = 30  # in which the token is given again
MAX_LOGINS: Final = 1000  # logins at a time, with those remembered


@dataclass(slots=True, kw_only=True)
class _Login:
    address: str
    expires_ms: int
    token: str | None = None


class DeviceLogins:
    """Pending logins; thread-safe."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._logins: dict[str, _Login] = {}

    def begin(self, address: str) -> str:
        """Return the code of a new login from an address.

        While there are too many, it replaces one that has expired, or else the oldest of the address that has most: one
        client cannot block others.
        """
        now = self._clock.now().ms
        with self._lock:
            since = now - REMEMBERED_SECONDS * 1000
            self._logins = {code: login for code, login in self._logins.items() if login.expires_ms > since}
            if len(self._logins) >= MAX_LOGINS:
                del self._logins[self._least_missed(now)]
            code = str(uuid.uuid4())  # 122 bits of the system's randomness
            self._logins[code] = _Login(address=address, expires_ms=now + EXPIRES_SECONDS * 1000)
            return code

    def _least_missed(self, now: int) -> str:
        oldest = next(iter(self._logins))
        if self._logins[oldest].expires_ms <= now:
            return oldest
        logins = Counter(login.address for login in self._logins.values())
        return max(self._logins, key=lambda code: logins[self._logins[code].address])  # the oldest is first

    def is_pending(self, code: str) -> bool:
        """Return whether a login can be completed."""
        with self._lock:
            return self._pending(code) is not None

    def complete(self, code: str, token: str) -> bool:
        """Complete a pending login with the user's token; False if it is not pending."""
        with self._lock:
            login = self._pending(code)
            if login is None:
                return False
            login.token = token
            return True

    def _pending(self, code: str) -> _Login | None:
        login = self._logins.get(code)
        is_over = login is None or login.expires_ms <= self._clock.now().ms or login.token is not None
        return None if is_over else login

    def poll(self, code: str) -> str | None:
        """Return the token, None until the user has logged in.

        The first answer may be lost, and other implementations repeat it: for `REPEATED_SECONDS` it is given again.

        Raises `KeyError` for an unknown code, and `TimeoutError` for one that has expired.
        """
        with self._lock:
            login, now = self._logins[code], self._clock.now().ms
            if login.expires_ms <= now:
                raise TimeoutError
            if login.token is not None:
                login.expires_ms = min(login.expires_ms, now + REPEATED_SECONDS * 1000)
            return login.token
