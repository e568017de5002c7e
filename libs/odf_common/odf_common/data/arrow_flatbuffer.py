"""Arrow schemas as bare FlatBuffers: the IPC `Schema` table without the enclosing message (wire-facts §1.1).

Arrow's own code writes and checks the table; this module only removes and adds the message around it.
"""

import struct
from typing import Final

import pyarrow as pa

from odf_common.errors import InvalidInput

_FRAME_BYTES: Final = 8  # continuation marker, length of the message
_HEADER_SLOT: Final = 2  # of Message: version, header_type, header, bodyLength
_ALIGNMENT: Final = 8
# A Message without a body, followed by its header: root offset 16; vtable of 10 bytes for a table of 12 (version +4,
# header_type +6, header +8); then the table, whose header offset is still to be set.
_MESSAGE: Final = struct.pack("<IH5HiHBBII", 16, 0, 10, 12, 4, 6, 8, 10, 4, 1, 0, 0, 0)
_HEADER_AT: Final = 24  # bytes into _MESSAGE


def write_schema(schema: pa.Schema) -> bytes:
    """Return the bare table, without metadata; equal schemas give equal bytes."""
    message: bytes = schema.remove_metadata().serialize().to_pybytes()[_FRAME_BYTES:]
    table = _uint32(message, 0)
    vtable = table - struct.unpack_from("<i", message, table)[0]
    slot = table + struct.unpack_from("<H", message, vtable + 4 + 2 * _HEADER_SLOT)[0]
    header = slot + _uint32(message, slot)
    first = min(header, header - struct.unpack_from("<i", message, header)[0])
    cut = first - first % _ALIGNMENT
    return struct.pack("<II", _ALIGNMENT + header - cut, 0) + message[cut:]


def read_schema(raw: bytes) -> pa.Schema:
    """Return the schema of a bare table; raises `InvalidInput` for other bytes."""
    if len(raw) < _ALIGNMENT or _uint32(raw, 0) >= len(raw):
        raise InvalidInput(text=f"{len(raw)} bytes are not an Arrow schema", where="SetDataSchema")
    message = bytearray(_MESSAGE)
    struct.pack_into("<I", message, _HEADER_AT, len(_MESSAGE) - _HEADER_AT + _uint32(raw, 0))
    message += raw
    message += bytes(-len(message) % _ALIGNMENT)
    framed = struct.pack("<iI", -1, len(message)) + message
    try:
        return pa.ipc.read_schema(pa.py_buffer(framed)).remove_metadata()
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise InvalidInput(text=f"not an Arrow schema: {error}", where="SetDataSchema") from error


def _uint32(raw: bytes, position: int) -> int:
    return int(struct.unpack_from("<I", raw, position)[0])
