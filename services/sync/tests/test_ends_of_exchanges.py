"""How the server closes an exchange, whatever happened in it."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest
from structlog.testing import capture_logs

from odf_common.errors import Damaged, StorageUnavailable, Unavailable
from odf_sync.http.smart_routes import FAULT_SECONDS, _run
from odf_sync.repositories.http_dataset import UnexpectedStatus
from odf_sync.smart.channel import PeerClosed
from odf_sync.smart.exchange import CLOSE_FAULT, CLOSE_OK, PUSH, End, ExchangeState, Side, TransferRefused
from odf_sync.smart.messages import SeedBlockOverwriteRestricted

BYE: Final = (1000, b"bye")  # the client's close code


class Channel:
    """An exchange in some state, and how it was ended: by a close frame, or by waiting for that of the client."""

    def __init__(self, state: ExchangeState, *, is_silent: bool) -> None:
        self.end = End(side=Side.SERVER, table=PUSH, state=state)
        self.frames: list[tuple[int, bytes]] = []
        self.waits: list[float] = []
        self.is_silent = is_silent

    async def close(self, code: int, reason: bytes) -> None:
        self.frames.append((code, reason))

    async def await_close(self, seconds: float) -> None:
        self.waits.append(seconds)
        if self.is_silent:
            raise TimeoutError
        raise PeerClosed(close_code=BYE[0], reason=BYE[1].decode())

    async def receive(self, seconds: float) -> None:
        await self.await_close(seconds)


def ended(state: ExchangeState, error: Exception | None = None, *, is_silent: bool = False) -> Channel:
    channel = Channel(state, is_silent=is_silent)
    request = SimpleNamespace(path="/push")

    async def serve(_: object) -> None:
        if error is not None:
            raise error

    with capture_logs():
        asyncio.run(_run(cast("Any", channel), cast("Any", request), serve))
    return channel


def test_a_confirmed_exchange_is_closed_by_the_client_or_else_by_the_server() -> None:
    waited = ended(ExchangeState.DONE)
    assert (waited.frames, waited.waits) == ([BYE], [FAULT_SECONDS])
    assert ended(ExchangeState.DONE, is_silent=True).frames == [(CLOSE_OK, b"")]


def test_after_a_refusal_any_client_closes() -> None:
    refused = ended(ExchangeState.FAILED)
    assert (refused.frames, refused.waits) == ([BYE], [FAULT_SECONDS])
    ((code, _),) = ended(ExchangeState.FAILED, is_silent=True).frames
    assert code == CLOSE_FAULT


def test_a_client_that_has_closed_gets_its_own_frame_back() -> None:
    assert ended(ExchangeState.READY, PeerClosed(close_code=1001, reason="bye")).frames == [(1001, b"bye")]


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (TransferRefused(fault=SeedBlockOverwriteRestricted()), "SeedBlockOverwriteRestricted"),
        (Unavailable(what="the coordinator", why="secret"), "the coordinator cannot be reached"),
        (UnexpectedStatus(what="secret", status=500), "the node cannot reach its store; try again"),
        (StorageUnavailable(file="secret", why="secret"), "the node cannot reach its store; try again"),
        (Damaged(file="secret", why="secret"), "the node cannot use what it has stored"),
        (TimeoutError(), "no message in time"),
        (ZeroDivisionError("secret"), "Internal error"),
    ],
)
def test_a_fault_is_the_reason_of_the_servers_close_frame(error: Exception, text: str) -> None:
    ((code, reason),) = ended(ExchangeState.COMPLETING, error).frames
    assert code == CLOSE_FAULT
    assert text in json.dumps(json.loads(reason))
    assert b"secret" not in reason
