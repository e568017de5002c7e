"""The messages of Arrow IPC, before Arrow reads them: it allocates for a compressed buffer whatever that claims.

The file format is a stream with a footer, which says where the messages are. Only the stream is read, so what was
counted is what is read (Arrow columnar format, "Serialization and Interprocess Communication").
"""

import struct
from typing import Final

import pyarrow as pa

from odf_common.codec.flatbuffers.untrusted_buffer import Source
from odf_common.errors import InvalidInput

MAGIC: Final = b"ARROW1"  # begins and ends the file format; a stream begins with its schema
_PADDED_MAGIC_BYTES: Final = 8
_LENGTH: Final = struct.Struct("<i")  # of the footer, before the last magic
_BUFFER: Final = struct.Struct("<qq")  # its place in the body, and its length
_DECOMPRESSED: Final = struct.Struct("<q")  # begins a compressed buffer
_EARLY_COMPRESSION: Final = b"ARROW:experimental_compression"  # of Arrow 0.17, which newer ones still read
_HEADER: Final = 2  # slots of the tables Message, DictionaryBatch and RecordBatch
_DATA: Final = 1
_BUFFERS, _COMPRESSION = 2, 3


def stream_of(source: pa.NativeFile) -> pa.Buffer:
    """Return the stream in `source`, without the footer of a file; raises `InvalidInput`."""
    source.seek(0)
    content: pa.Buffer = source.read_buffer()
    if content.size < _PADDED_MAGIC_BYTES or content.slice(0, len(MAGIC)).to_pybytes() != MAGIC:
        return content
    end = content.size - len(MAGIC) - _LENGTH.size
    footer = _LENGTH.unpack(content.slice(end, _LENGTH.size).to_pybytes())[0] if end > 0 else -1
    length = end - footer - _PADDED_MAGIC_BYTES
    if footer < 0 or length < 0:
        raise InvalidInput(text="is not Arrow data: its footer is cut off")
    return content.slice(_PADDED_MAGIC_BYTES, length)


def decompressed_bytes(stream: pa.Buffer) -> int:
    """Return the bytes that compressed buffers of a stream claim; raises `InvalidInput`, and the errors of Arrow."""
    size = 0
    for message in pa.ipc.MessageReader.open_stream(pa.BufferReader(stream)):
        if message.type in ("record batch", "dictionary") and message.body is not None:
            try:
                size += _claimed_bytes(message)
            except (struct.error, IndexError) as error:
                raise InvalidInput(text="is not Arrow data: a message is damaged") from error
    return size


def _claimed_bytes(message: pa.Message) -> int:
    source = Source(message.metadata.to_pybytes())
    batch = _inner(source, source.follow(0), _HEADER)
    if message.type == "dictionary":
        batch = _inner(source, batch, _DATA)
    slots, _ = source.vtable(batch)
    is_compressed = len(slots) > _COMPRESSION and slots[_COMPRESSION]
    if not is_compressed and _EARLY_COMPRESSION not in source.raw:
        return 0
    first, count = source.span(source.follow(batch + slots[_BUFFERS]), width=_BUFFER.size)
    size = 0
    for at in range(first, first + count * _BUFFER.size, _BUFFER.size):
        offset, length = _BUFFER.unpack_from(source.raw, at)
        if length > 0:
            size += max(
                _DECOMPRESSED.unpack(message.body.slice(offset, _DECOMPRESSED.size).to_pybytes())[0], 0
            )
    return size


def _inner(source: Source, table: int, slot: int) -> int:
    """Return the position of the table in a slot of another one."""
    return source.follow(table + source.vtable(table)[0][slot])
