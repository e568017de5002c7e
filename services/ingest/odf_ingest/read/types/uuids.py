"""String columns → UUIDs, only in canonical form (RFC 9562), upper or lower case."""

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from odf_common.errors import InvalidInput
from odf_ingest.read.types.type_names import show_value

UUID: Final = pa.uuid()
_CANONICAL: Final = r"^[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}$"
_DIGITS: Final = 32
_NIBBLES: Final = np.zeros(256, np.uint8)
for _value in range(16):
    _NIBBLES[[ord(f"{_value:x}"), ord(f"{_value:X}")]] = _value


def to_uuids(texts: pa.Array) -> pa.Array:
    """Return the UUIDs; raises `InvalidInput` with the first string that is not a UUID."""
    is_uuid = pc.match_substring_regex(texts, _CANONICAL)
    if pc.any(pc.invert(is_uuid), min_count=0).as_py():
        first = texts.filter(pc.invert(is_uuid))[0].as_py()
        raise InvalidInput(
            text=f"{show_value(first)} is not a UUID, such as 123e4567-e89b-12d3-a456-426614174000"
        )
    digits = pc.replace_substring(pc.fill_null(texts, "0" * _DIGITS), "-", "")
    raw = np.frombuffer(digits.cast(pa.binary(_DIGITS)).buffers()[1], np.uint8, len(texts) * _DIGITS)
    nibbles = _NIBBLES[raw]
    packed = pa.py_buffer((nibbles[::2] << 4) | nibbles[1::2])
    values = pa.Array.from_buffers(pa.binary(_DIGITS // 2), len(texts), [None, packed])
    values = pc.if_else(texts.is_valid(), values, pa.scalar(None, values.type))
    return pa.ExtensionArray.from_storage(UUID, values)
