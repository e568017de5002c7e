"""A channel that is opened again while its calls find no server.

gRPC pauses ever longer between look-ups of a name that it did not find, up to two minutes, and no option ends that. A
container has no name while it does not run, so its service would be called long after its return. Another channel
looks up at once.
"""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Self

import grpc

from odf_common.errors import lacks_threads

RENEW_SECONDS: Final = 2.0  # between two channels; more than a connection takes
# A channel that could not start the thread which ends its calls believes from then on that it has it: its calls never
# end, and closing it waits for them. So it is kept until the process ends.
_STUCK: Final[list[grpc.Channel]] = []


class RenewedChannel(grpc.Channel):
    """The newest of the channels that `open_` returns; an earlier one ends with its last call."""

    def __init__(
        self,
        open_: Callable[[], grpc.Channel],
        is_lost: Callable[[grpc.RpcError], bool],
        *,
        seconds: float = RENEW_SECONDS,
    ) -> None:
        """Open another channel, `seconds` after the last one, if a call has failed so that `is_lost`."""
        self._seconds = seconds
        self._open = open_
        self._is_lost = is_lost
        self._mutex = threading.Lock()
        self._opened = time.monotonic()
        self.newest = open_()

    def note(self, channel: grpc.Channel, error: object) -> None:
        """Open another channel if a call on the newest one has failed without a server, or without a thread."""
        is_stuck = _lacks_thread(error)
        if not is_stuck and not (isinstance(error, grpc.RpcError) and self._is_lost(error)):
            return
        with self._mutex:
            is_due = is_stuck or time.monotonic() >= self._opened + self._seconds
            if channel is self.newest and is_due:
                if is_stuck:
                    _STUCK.append(channel)
                self.newest, self._opened = self._open(), time.monotonic()

    def unary_unary(self, *words: Any, **options: Any) -> Any:
        return _Method(self, "unary_unary", words, options)

    def unary_stream(self, *words: Any, **options: Any) -> Any:
        return _Method(self, "unary_stream", words, options)

    def stream_unary(self, *words: Any, **options: Any) -> Any:
        return _Method(self, "stream_unary", words, options)

    def stream_stream(self, *words: Any, **options: Any) -> Any:
        return _Method(self, "stream_stream", words, options)

    def subscribe(self, callback: Any, try_to_connect: bool = False) -> None:  # noqa: FBT001, FBT002 - of gRPC
        self.newest.subscribe(callback, try_to_connect)

    def unsubscribe(self, callback: Any) -> None:
        self.newest.unsubscribe(callback)

    def close(self) -> None:
        self.newest.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Method:
    """A method of the newest channel; what its calls end with is noted."""

    def __init__(
        self, owner: RenewedChannel, kind: str, words: tuple[Any, ...], options: Mapping[str, Any]
    ) -> None:
        self._owner = owner
        self._kind, self._words, self._options = kind, words, options
        self._bound: tuple[grpc.Channel | None, Any] = None, None

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self._noting("__call__", arguments, options)

    def with_call(self, *arguments: Any, **options: Any) -> Any:
        return self._noting("with_call", arguments, options)

    def future(self, *arguments: Any, **options: Any) -> Any:
        return self._noting("future", arguments, options)

    def _noting(self, way: str, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
        channel, method = self._bound
        if channel is None or channel is not self._owner.newest:
            channel = self._owner.newest
            method = getattr(channel, self._kind)(*self._words, **self._options)
            self._bound = channel, method
        try:
            answer = getattr(method, way)(*arguments, **options)
        except (grpc.RpcError, RuntimeError) as error:
            self._owner.note(channel, error)
            raise
        if isinstance(answer, grpc.Future):  # in flight
            answer.add_done_callback(lambda call: self._owner.note(channel, call))
        return answer


def _lacks_thread(error: object) -> bool:
    """Return whether a call, or what it raised, has failed because no thread could be started."""
    try:
        # Interceptors return a call that has failed already.
        cause = error.exception() if isinstance(error, grpc.Future) else error
    except grpc.FutureCancelledError:
        return False
    return isinstance(cause, BaseException) and lacks_threads(cause)
