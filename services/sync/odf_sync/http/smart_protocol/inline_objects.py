"""Small objects of a push, whose bytes come in the exchange itself (ADR 0069).

What has arrived of one that was cut off is kept as that of an upload is, and the next push uploads the rest.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from typing import Final

from odf_common.errors import InvalidInput
from odf_sync.access.rate_limits import pace_of_body
from odf_sync.http.simple_protocol.object_uploads import ExpectedUpload
from odf_sync.smart.channel import Channel, PeerClosed
from odf_sync.smart.exchange import ProtocolViolated
from odf_sync.smart.messages import MAX_INLINE_BYTES, MAX_INLINE_OBJECTS, ObjectFile
from odf_sync.transfer.partial_files import partial_file

LEAST_PIECE_BYTES: Final = 1024  # in a message, but the last one of an object
HELD_BYTES: Final = 256 * 1024  # of an object, written together


async def receive_inline(
    channel: Channel, files: tuple[ObjectFile, ...], expected: Callable[[ObjectFile], ExpectedUpload]
) -> None:
    """Store the objects of a list, whose bytes follow in its order, each in messages of its own.

    Raises `InvalidInput` for bytes that do not hash to their name, or are too many, and `TimeoutError` for a client
    that is too slow.
    """
    size = sum(file.size for file in files)
    if len(files) > MAX_INLINE_OBJECTS or size > MAX_INLINE_BYTES:
        raise InvalidInput(text="too many objects, or bytes of them", where="object_files")
    for file in files:
        await _receive_object(channel, file.size, expected(file))


async def _receive_object(channel: Channel, size: int, upload: ExpectedUpload) -> None:
    with ExitStack() as stack:
        opened = partial_file(upload.file.parent, upload.file.name)
        file = await asyncio.to_thread(stack.enter_context, opened)
        file.clear()
        held = bytearray()
        try:
            async for piece in _pieces(channel, size):
                upload.note(len(piece))
                held += piece
                if len(held) >= HELD_BYTES:
                    await asyncio.to_thread(file.write, bytes(held))
                    held = bytearray()
        except (PeerClosed, TimeoutError):
            await asyncio.to_thread(file.write, bytes(held))
            raise
        except ProtocolViolated:
            file.clear()
            raise
        await asyncio.to_thread(file.write, bytes(held))
        if not await upload.is_taken(file):
            raise InvalidInput(text="an object does not match its hash", where="object_files")


async def _pieces(channel: Channel, size: int) -> AsyncIterator[bytes]:
    pace, left = pace_of_body(), size
    while left:
        try:
            piece = await channel.receive_bytes(pace.seconds_left())
        except TimeoutError as error:
            raise TimeoutError(pace.too_slow()) from error
        # Tiny ones would take the event loop more time than their bytes are worth.
        if len(piece) < min(left, LEAST_PIECE_BYTES):
            raise ProtocolViolated(text="too few bytes of an object in a message", where="message")
        if len(piece) > left:
            raise ProtocolViolated(text="more bytes than the object has", where="message")
        pace.note(len(piece))
        left -= len(piece)
        yield piece
