"""Data slices: untrusted Parquet files, above all their footers."""

import os
import struct
from pathlib import Path
from tempfile import NamedTemporaryFile

import atheris
import pyarrow as pa

from odf_common.data.slices import hash_slice, read_slice, slice_schema
from odf_common.errors import OdfError

# Held for the life of the process: opening a file is expensive, writing it again is not.
_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
_FILE = NamedTemporaryFile(dir=os.environ.get("TMPDIR") or _MEMORY)  # noqa: SIM115
MAGIC = b"PAR1"


def check(raw: bytes) -> None:
    """Read `raw` by every function for slices; a table that is read is whole."""
    _FILE.seek(0)
    _FILE.truncate()
    _FILE.write(raw)
    _FILE.flush()
    file = Path(_FILE.name)
    for read in (slice_schema, hash_slice):
        try:
            read(file)
        except OdfError:
            continue
    try:
        table: pa.Table = read_slice(file)
    except OdfError:
        return
    table.validate(full=True)


def mutate(raw: bytes, limit: int, seed: int) -> bytes:
    """Change the footer alone three times out of four, and keep its length right."""
    size = struct.unpack("<I", raw[-8:-4])[0] if len(raw) >= 12 else len(raw)
    if seed % 4 == 0 or size + 12 > len(raw):
        return bytes(atheris.Mutate(raw, limit))
    data, footer = raw[: -8 - size], raw[-8 - size : -8]
    changed: bytes = atheris.Mutate(footer, max(1, limit - len(data) - 8))
    return data + changed + struct.pack("<I", len(changed)) + MAGIC
