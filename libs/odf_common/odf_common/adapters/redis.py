"""Locks and cached chain states in Redis; without Redis the node is slower, but still correct.

A lock only avoids wasted work, because compare-and-set protects the head. So while Redis is unavailable every lock is
granted, and a state that is not in the cache is computed from the blocks again.
"""

import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar, cast

import redis
import structlog
from redis.exceptions import LockError

from odf_common.adapters.networks import ALWAYS
from odf_common.adapters.socket_users import ServerOfAnotherUser, require_own_end
from odf_common.adapters.tls import ClientTls
from odf_common.errors import Unavailable
from odf_common.identity.dataset_refs import DatasetId

log = structlog.stdlib.get_logger(__name__)

T = TypeVar("T")
REDIS_TIMEOUT_SECONDS: Final = 0.5
RECONNECT_INTERVAL_SECONDS: Final = 1.0  # between attempts while it is lost
LOG_INTERVAL_SECONDS: Final = 60.0  # between log lines about refused commands


class RedisConnection:
    """A connection pool that logs once when Redis becomes unavailable, and once when it is available again."""

    def __init__(
        self,
        address: str,
        *,
        password: str | None = None,
        tls: ClientTls | None = None,
        users: frozenset[int] | None = None,
        prefix: str = "",
    ) -> None:
        """Use `host:port` or a `redis://` or `rediss://` URL, which may name a user; connects on the first call.

        If `users` is given, nothing is sent to a Redis server that runs as any other user of this machine. All keys
        begin with `prefix`, because nodes that share a Redis server may have copies of the same dataset.
        """
        url = address if "://" in address else f"redis://{address}/0"
        self.client = redis.Redis.from_url(
            url,
            **({} if password is None else {"password": password}),
            **({} if tls is None else _tls(tls)),
            redis_connect_func=None if users is None else partial(_log_in_to, users),
            socket_timeout=REDIS_TIMEOUT_SECONDS,
            socket_connect_timeout=REDIS_TIMEOUT_SECONDS,
            socket_keepalive=True,
            socket_keepalive_options={
                name: value for level, name, value in ALWAYS if level == socket.IPPROTO_TCP
            },
            health_check_interval=15,
        )
        self.prefix = prefix
        self._is_lost = False
        self._next_try = 0.0
        self._next_complaint = 0.0

    def ask(self, question: Callable[["redis.Redis"], T], otherwise: T) -> T:
        """Return the result of `question`; `otherwise` while Redis is unavailable.

        A connection that was lost is tried again at most once per second.
        """
        if self._is_lost and time.monotonic() < self._next_try:
            return otherwise
        try:
            answer = question(self.client)
        except redis.ResponseError as error:
            # Redis answers but refuses: a key of another type, out of memory. Other keys may still work.
            self._complain(error)
            return otherwise
        except redis.RedisError as error:
            if not self._is_lost:
                log.warning("redis is lost, continuing without it", why=str(error))
            self._is_lost = True
            self._next_try = time.monotonic() + RECONNECT_INTERVAL_SECONDS
            return otherwise
        if self._is_lost:
            log.info("redis is back")
            self._is_lost = False
        return answer

    def require_answer(self) -> None:
        """Raise `Unavailable` unless Redis answers and accepts the user and password."""
        try:
            self.client.ping()
        except redis.RedisError as error:
            raise Unavailable(what="Redis", why=str(error)) from error

    def _complain(self, error: redis.ResponseError) -> None:
        if time.monotonic() >= self._next_complaint:
            self._next_complaint = time.monotonic() + LOG_INTERVAL_SECONDS
            log.warning("redis refuses, continuing without it", why=str(error))

    def close(self) -> None:
        """Close the connections."""
        self.client.close()


class RedisLock:
    """A lock that is held until `release` or until it expires."""

    def __init__(self, connection: RedisConnection, lock: redis.lock.Lock) -> None:
        """Represent a granted lock, which Redis does not have if it was unavailable."""
        self._connection = connection
        self._lock = lock

    def release(self) -> None:
        """Release the lock; do nothing if it has expired, even if another process holds it now."""
        self._connection.ask(self._release, otherwise=None)

    def _release(self, _: "redis.Redis") -> None:
        with suppress(LockError):  # it has expired, or was granted while Redis was lost
            self._lock.release()


class RedisLocks:
    """Locks in Redis, one per dataset."""

    def __init__(self, connection: RedisConnection) -> None:
        self._connection = connection

    def acquire(self, dataset: DatasetId, ttl_ms: int) -> RedisLock | None:
        """Return the lock of a dataset; None while another process holds it.

        While Redis is unavailable, every lock is granted.
        """
        key = f"{self._connection.prefix}odf:lock:{dataset}"
        lock = self._connection.client.lock(key, timeout=ttl_ms / 1000, thread_local=False)

        def take(client: "redis.Redis") -> bool:
            if lock.acquire(blocking=False):
                return True
            # A lock with no expiry, or with more than the TTL, is not one of ours: make it expire.
            left = client.pttl(key)
            if left < 0 or left > ttl_ms:
                client.pexpire(key, ttl_ms)
            return False

        return RedisLock(self._connection, lock) if self._connection.ask(take, otherwise=True) else None


class RedisStateCache:
    """A cache of the last known state per dataset, as bytes that include the head for which the state is valid."""

    def __init__(self, connection: RedisConnection) -> None:
        self._connection = connection

    def get(self, dataset: DatasetId) -> bytes | None:
        """Return the cached state of a dataset; None if there is none."""
        return self._connection.ask(
            lambda client: cast("bytes | None", client.get(self._key(dataset))), otherwise=None
        )

    def put(self, dataset: DatasetId, state: bytes) -> None:
        """Store the state of a dataset, replacing an earlier one."""
        self._connection.ask(lambda client: client.set(self._key(dataset), state), otherwise=None)

    def forget(self, dataset: DatasetId) -> None:
        """Remove the cached state of a dataset."""
        self._connection.ask(lambda client: client.delete(self._key(dataset)), otherwise=0)

    def _key(self, dataset: DatasetId) -> str:
        return f"{self._connection.prefix}odf:state:{dataset}"


def _log_in_to(users: frozenset[int], connection: redis.Connection) -> None:
    """Authenticate on a new connection; raises `redis.ConnectionError` if the server runs as none of these users."""
    try:
        own = cast("socket.socket", connection._sock)  # noqa: SLF001 - it has no public name
        require_own_end(own, users)
    except ServerOfAnotherUser as error:
        raise redis.ConnectionError(f"{error}; {error.advice()}") from error
    except OSError as error:  # it is closed already
        raise redis.ConnectionError(str(error)) from error
    connection.on_connect()


def _tls(tls: ClientTls) -> Mapping[str, object]:
    tls.context()  # names a file that cannot be used, before the first connection
    return {
        "ssl_ca_certs": tls.ca_file and str(tls.ca_file),
        "ssl_certfile": tls.certificate_file and str(tls.certificate_file),
        "ssl_keyfile": tls.key_file and str(tls.key_file),
    }
