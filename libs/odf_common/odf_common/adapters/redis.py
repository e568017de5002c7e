"""Locks and cached chain states in Redis; with Redis lost the node is slower, never wrong.

A lock only avoids wasted work: the head is guarded by its compare-and-set. So without Redis every lock is granted,
and a state that cannot be read is folded again.
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
    """One connection pool; logs once when Redis is lost, and once when it is back."""

    def __init__(
        self,
        address: str,
        *,
        password: str | None = None,
        tls: ClientTls | None = None,
        users: frozenset[int] | None = None,
        prefix: str = "",
    ) -> None:
        """Use `host:port`, or a `redis://` or `rediss://` URL, which may name a user; connects on the first call.

        With `users` it sends nothing, and no password, to a server of another user of this machine. All keys begin with
        `prefix`: nodes that share a Redis may have copies of one dataset.
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
        """Return Redis's answer; `otherwise` while it is lost, when it is tried once a second at most."""
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
        """Raise `Unavailable` unless Redis answers and accepts this user and password."""
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
    """A lock that is held until `release`, or until it expires."""

    def __init__(self, connection: RedisConnection, lock: redis.lock.Lock) -> None:
        """Hold `lock`, which is also not acquired if Redis was lost."""
        self._connection = connection
        self._lock = lock

    def release(self) -> None:
        """Release the lock, unless it has expired and belongs to another process."""
        self._connection.ask(self._release, otherwise=None)

    def _release(self, _: "redis.Redis") -> None:
        with suppress(LockError):  # it has expired, or was granted while Redis was lost
            self._lock.release()


class RedisLocks:
    """One lock per dataset."""

    def __init__(self, connection: RedisConnection) -> None:
        self._connection = connection

    def acquire(self, dataset: DatasetId, ttl_ms: int) -> RedisLock | None:
        """Return the dataset's lock, even while Redis is lost; None while another process holds it."""
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
    """The last known state of each chain as bytes; a state contains the head it belongs to."""

    def __init__(self, connection: RedisConnection) -> None:
        self._connection = connection

    def get(self, dataset: DatasetId) -> bytes | None:
        """Return the last bytes put; None if unknown."""
        return self._connection.ask(
            lambda client: cast("bytes | None", client.get(self._key(dataset))), otherwise=None
        )

    def put(self, dataset: DatasetId, state: bytes) -> None:
        """Store the bytes, replacing earlier ones."""
        self._connection.ask(lambda client: client.set(self._key(dataset), state), otherwise=None)

    def forget(self, dataset: DatasetId) -> None:
        """Drop the state of a dataset."""
        self._connection.ask(lambda client: client.delete(self._key(dataset)), otherwise=0)

    def _key(self, dataset: DatasetId) -> str:
        return f"{self._connection.prefix}odf:state:{dataset}"


def _log_in_to(users: frozenset[int], connection: redis.Connection) -> None:
    """Authenticate on a new connection; raises `redis.ConnectionError` if its server is of none of these users."""
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
