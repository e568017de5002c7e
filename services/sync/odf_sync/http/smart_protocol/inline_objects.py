"""Small objects of a push, whose bytes come in the exchange itself (ADR 0069).

What has arrived of one that was cut off is kept as that of an upload is, and the next push uploads the rest.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import ExitStack
from typing import Final

from odf_common.errors import InvalidInput
from odf_sync.access.rate_limits import BodyPace, pace_of_body
from odf_sync.http.simple_protocol.object_uploads import ExpectedUpload
from odf_sync.smart.channel import Channel, PeerClosed
from odf_sync.smart.exchange import ProtocolViolated
from odf_sync.smart.messages import MAX_INLINE_BYTES, ObjectFile
from odf_sync.transfer.partial_files import partial_file

HELD_BYTES: Final = 256 * 1024  # of an object, written together


async def receive_inline(channel: Channel, objects: Iterable[tuple[ObjectFile, ExpectedUpload]]) -> None:
    """Store the objects, whose bytes follow in this order, each in messages of its own.

    Raises `InvalidInput` for bytes that do not hash to their name, or are too many, and `TimeoutError` for a client
    that is too slow.
    """
    uploads = tuple(objects)
    size = sum(file.size for file, _ in uploads)
    if size > MAX_INLINE_BYTES:
        raise InvalidInput(text=f"{size} bytes, of at most {MAX_INLINE_BYTES}", where="object_files")
    pace = pace_of_body()
    for file, upload in uploads:
        await _receive_object(channel, pace, file.size, upload)


async def _receive_object(channel: Channel, pace: BodyPace, size: int, upload: ExpectedUpload) -> None:
    with ExitStack() as stack:
        opened = partial_file(upload.file.parent, upload.file.name)
        file = await asyncio.to_thread(stack.enter_context, opened)
        file.clear()
        held = bytearray()
        try:
            async for piece in _pieces(channel, pace, size):
                upload.note(len(piece))
                held += piece
                if len(held) >= HELD_BYTES:
                    await asyncio.to_thread(file.write, bytes(held))
                    held = bytearray()
        except (PeerClosed, TimeoutError):
            file.write(bytes(held))
            raise
        except ProtocolViolated:
            file.clear()
            raise
        await asyncio.to_thread(file.write, bytes(held))
        if not await upload.is_taken(file):
            raise InvalidInput(text="an object does not match its hash", where="object_files")


async def _pieces(channel: Channel, pace: BodyPace, size: int) -> AsyncIterator[bytes]:
    left = size
    while left:
        piece = await channel.receive_bytes(pace.seconds_left())
        pace.note(len(piece))
        left -= len(piece)
        if left < 0:
            raise ProtocolViolated(text="more bytes than the object has", where="message")
        yield piece
