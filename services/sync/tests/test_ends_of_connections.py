"""What a client still waits for when it ends an exchange is waited for no more, and is no error in a log."""

import asyncio
import gc
from typing import Any, cast

import pytest

from odf_sync.smart.channel import PeerClosed
from odf_sync.smart.connection import Connection


class Ending:
    """A channel on which nothing comes before its end, and then that it was closed, or nothing."""

    def __init__(self, *, is_told: bool) -> None:
        self._is_told = is_told
        self._ends = asyncio.Event()
        self.left = 0

    async def receive(self) -> object:
        try:
            await self._ends.wait()
        except asyncio.CancelledError:
            self.left += 1
            raise
        raise PeerClosed

    async def close(self, code: int, reason: bytes) -> None:
        assert (code, reason) == (1000, b"done")
        if self._is_told:
            self._ends.set()
            await asyncio.sleep(0)
            await asyncio.sleep(0)


@pytest.mark.parametrize("is_told", [True, False])
def test_a_message_that_is_awaited_at_the_end_is_given_up_without_a_trace(
    caplog: pytest.LogCaptureFixture, *, is_told: bool
) -> None:
    channel = Ending(is_told=is_told)
    with asyncio.Runner() as runner:
        connection = Connection(runner, cast("Any", channel), {})
        assert connection.poll(0.0) is None
        assert connection.poll(0.01) is None
        connection.close(b"done")
    assert channel.left == (0 if is_told else 1)
    del connection
    gc.collect()
    assert caplog.records == []
