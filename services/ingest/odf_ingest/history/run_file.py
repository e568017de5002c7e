"""A run: distinct keys in ascending order, and a row for each if it has rows; one immutable file.

Layout: row blocks (Arrow IPC record batches), the keys as fixed-width values, a directory (JSON), and a trailer with
the directory's size and checksum. The keys are divided into chunks, the rows into blocks; each has a CRC-32, which is
checked before anything in it is used for the first time. So a lookup reads what it touches and no more, and damage is
found, never used: `RunDamaged`.
"""

import base64
import binascii
import json
import struct
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import IO, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from odf_ingest.history.keys import Keys

CHUNK: Final = 1024  # keys
CHUNKS: Final = 1024  # that are searched at a time
BLOCK_BYTES: Final = 1 << 14  # of rows, about
MAX_BLOCK_ROWS: Final = 8192
STEP: Final = 1 << 17  # keys of the longest run that are merged at a time
_ALIGNMENT: Final = 64  # of row blocks, so that Arrow uses them where they are
_SPOOL: Final = 1 << 23  # bytes of keys that a writer holds in memory
_TRAILER: Final = struct.Struct("<8sQI")  # magic, size and CRC-32 of the directory
_MAGIC: Final = b"ODFRUN\x00\x02"
Places = npt.NDArray[np.int64]


class RunDamaged(Exception):
    """A run's bytes are not those that were written."""

    def __init__(self, run: "Run | None", why: object) -> None:
        """Name the run, unless it could not be opened."""
        super().__init__(str(why))
        self.run = run


@dataclass(slots=True)
class _Directory:
    """What the end of a file tells about the rest."""

    dtype: str
    count: int = 0
    keys_at: int = 0
    first: str = ""
    """The first key of each chunk, base64."""
    chunks: list[int] = field(default_factory=list)
    """CRC-32 of each chunk of keys."""
    schema: str | None = None
    """The rows' schema, base64; None: there are only keys."""
    block_rows: int = 0
    blocks: list[tuple[int, int, int]] = field(default_factory=list)
    """Position, size and CRC-32 of each block of rows."""


class RunWriter:
    """Writes a run; the memory that it takes does not depend on the length of the run."""

    def __init__(self, file: IO[bytes], dtype: np.dtype[Any], schema: pa.Schema | None) -> None:
        """Write to the empty `file`; rows have this schema."""
        self._file = file
        self._dtype = dtype
        self._schema = schema
        self._keys = tempfile.SpooledTemporaryFile(_SPOOL)  # noqa: SIM115 - closed in `finish`
        self._rows: list[pa.Table] = []
        self._waiting = 0  # rows
        self._at = 0
        self._directory = _Directory(dtype.str)
        if schema is not None:
            self._directory.schema = _text(schema.serialize().to_pybytes())

    def add(self, keys: Keys, rows: pa.Table | None) -> None:
        """Add keys, all greater than those before, and their rows."""
        self._keys.write(np.ascontiguousarray(keys, self._dtype).tobytes())
        self._directory.count += len(keys)
        if rows is None or len(rows) == 0:
            return
        if self._directory.block_rows == 0:
            wanted = BLOCK_BYTES * len(rows) // max(rows.nbytes, 1)
            self._directory.block_rows = min(max(wanted, 1), MAX_BLOCK_ROWS)
        self._rows.append(rows)
        self._waiting += len(rows)
        if self._waiting >= self._directory.block_rows:
            self._write_blocks(is_last=False)

    def finish(self) -> None:
        """Write what is left, the keys and the directory."""
        self._write_blocks(is_last=True)
        directory, size = self._directory, self._dtype.itemsize
        self._pad()
        directory.keys_at = self._at
        self._keys.seek(0)
        first = []
        while chunk := self._keys.read(CHUNK * size):
            first.append(chunk[:size])
            directory.chunks.append(zlib.crc32(chunk))
            self._write(chunk)
        self._keys.close()
        directory.first = _text(b"".join(first))
        text = json.dumps({name: getattr(directory, name) for name in _Directory.__slots__}).encode()
        self._write(text)
        self._write(_TRAILER.pack(_MAGIC, len(text), zlib.crc32(text)))
        self._file.flush()

    def _write_blocks(self, *, is_last: bool) -> None:
        if not self._rows:
            return
        rows, step = pa.concat_tables(self._rows).combine_chunks(), self._directory.block_rows
        end = len(rows) if is_last else len(rows) - len(rows) % step
        for start in range(0, end, step):
            (batch,) = rows.slice(start, min(step, end - start)).to_batches()
            content = batch.serialize()
            self._pad()
            self._directory.blocks.append((self._at, content.size, zlib.crc32(content)))
            self._write(content)
        self._rows = [rows.slice(end)] if end < len(rows) else []
        self._waiting = len(rows) - end

    def _pad(self) -> None:
        self._write(bytes(-self._at % _ALIGNMENT))

    def _write(self, content: bytes | pa.Buffer) -> None:
        self._file.write(content)
        self._at += len(content)


class Run:
    """A run for reading, in memory or in a memory map."""

    def __init__(self, content: pa.Buffer, *, is_checked: bool) -> None:
        """Read the directory; `is_checked`: this process has just written the content."""
        self.content = content
        directory = _directory_of(content)
        dtype: np.dtype[Any] = np.dtype(directory.dtype)
        self._directory = directory
        self._keys: Keys = np.frombuffer(content, dtype, directory.count, directory.keys_at)
        self._first: Keys = np.frombuffer(base64.b64decode(directory.first), dtype)
        self.schema = (
            None
            if directory.schema is None
            else pa.ipc.read_schema(pa.py_buffer(base64.b64decode(directory.schema)))
        )
        self._unchecked = 0 if is_checked else len(directory.chunks)  # chunks
        self._chunk_checked = np.full(len(directory.chunks), is_checked)
        self._block_checked = np.full(len(directory.blocks), is_checked)

    def __len__(self) -> int:
        """Return the number of keys."""
        return len(self._keys)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Return the type of the keys."""
        return self._keys.dtype

    def find(self, keys: Keys) -> Places:
        """Return the row of each of the ascending keys, -1 where the run does not have it."""
        found = np.full(len(keys), -1, np.int64)
        if len(keys) == 0 or len(self) == 0:
            return found
        # Keys that grow, as numbers and times do, are greater than all of most runs.
        end = int(np.searchsorted(keys, self._last(), side="right")[0])
        start = int(np.searchsorted(keys[:end], self._first[:1])[0])
        if start < end:
            found[start:end] = self._find(keys[start:end])
        return found

    def _find(self, keys: Keys) -> Places:
        """Return the row of each key, -1 where there is none; none of them is less than all of the run's."""
        if self._unchecked == 0 and self.dtype == keys.dtype:  # numpy would convert all keys to another width
            places = np.searchsorted(self._keys, keys)
            places[places == len(self)] = 0
            return np.where(self._keys[places] == keys, places, -1)
        found = np.empty(len(keys), np.int64)
        chunks = np.searchsorted(self._first, keys, side="right") - 1
        starts = np.flatnonzero(chunks != np.append(-1, chunks[:-1]))  # of the keys of each chunk
        for first in range(0, len(starts), CHUNKS):
            begun = starts[first : first + CHUNKS]
            end = starts[first + CHUNKS] if first + CHUNKS < len(starts) else len(keys)
            found[begun[0] : end] = self._find_in(chunks[begun], keys[begun[0] : end])
        return found

    def _find_in(self, numbers: Places, keys: Keys) -> Places:
        """Return the row of each key, -1 where none of these chunks has it; reads no other chunk."""
        chunks = np.concatenate([self._chunk(number) for number in numbers.tolist()])
        places = np.searchsorted(chunks, keys)
        places[places == len(chunks)] = 0
        rows: Places = numbers[places // CHUNK] * CHUNK + places % CHUNK
        return np.where(chunks[places] == keys, rows, -1)

    def position(self, key: Keys) -> int:
        """Return how many keys are less than this one, an array of length 1."""
        number = int(np.searchsorted(self._first, key, side="right")[0]) - 1
        return 0 if number < 0 else number * CHUNK + int(np.searchsorted(self._chunk(number), key)[0])

    def keys(self, start: int = 0, end: int | None = None) -> Keys:
        """Return the keys of some rows."""
        end = len(self) if end is None else end
        for number in range(start // CHUNK, -(-end // CHUNK)):
            self._chunk(number)
        return self._keys[start:end]

    def rows(self, start: int = 0, end: int | None = None) -> pa.Table:
        """Return some consecutive rows, without copying them."""
        end, step = len(self) if end is None else end, self._directory.block_rows
        if start >= end:
            return self._schema.empty_table()
        blocks = [self._block(number) for number in range(start // step, -(-end // step))]
        return pa.Table.from_batches(blocks, self._schema).slice(start % step, end - start)

    def take(self, rows: Places) -> pa.Table:
        """Return the rows at these ascending indices."""
        step = max(self._directory.block_rows, 1)
        blocks, places = [], []
        before = 0  # rows in the blocks so far
        for number, start, end in _groups(rows // step):
            places.append(rows[start:end] + (before - number * step))
            blocks.append(self._block(number))
            before += len(blocks[-1])
        table = pa.Table.from_batches(blocks, self._schema)
        return table.take(pa.array(np.concatenate(places))) if places else table

    @property
    def _schema(self) -> pa.Schema:
        assert self.schema is not None
        return self.schema

    def _last(self) -> Keys:
        """Return the greatest key, an array of length 1."""
        return self._chunk(len(self._chunk_checked) - 1)[-1:]

    def _chunk(self, number: int) -> Keys:
        chunk = self._keys[number * CHUNK : (number + 1) * CHUNK]
        if not self._chunk_checked[number]:
            if zlib.crc32(chunk.data) != self._directory.chunks[number]:
                raise RunDamaged(self, f"keys from {number * CHUNK}: the checksum is wrong")
            self._chunk_checked[number] = True
            self._unchecked -= 1
        return chunk

    def _block(self, number: int) -> pa.RecordBatch:
        at, size, checksum = self._directory.blocks[number]
        content = self.content.slice(at, size)
        if not self._block_checked[number]:
            if zlib.crc32(content) != checksum:
                raise RunDamaged(self, f"block {number}: the checksum is wrong")
            self._block_checked[number] = True
        return pa.ipc.read_record_batch(content, self._schema)


def write_run(file: IO[bytes], keys: Keys, rows: pa.Table | None) -> None:
    """Write ascending, distinct keys and their rows."""
    writer = RunWriter(file, keys.dtype, None if rows is None else rows.schema)
    writer.add(keys, rows)
    writer.finish()


def write_merged(file: IO[bytes], runs: Sequence[Run], *, drop: str | None = None) -> None:
    """Merge runs, the oldest first: of equal keys, the newest has the row.

    Rows in which the column `drop` is false are left out.
    """
    schemas = [run.schema for run in runs if run.schema is not None]
    schema = pa.unify_schemas(schemas, promote_options="permissive") if schemas else None
    writer = RunWriter(file, np.result_type(*(run.dtype for run in runs)), schema)
    for keys, rows in _merged(runs, schema):
        if rows is None or drop is None:
            writer.add(keys, rows)
        else:
            is_kept = rows.column(drop).combine_chunks()
            writer.add(keys[is_kept.to_numpy(zero_copy_only=False)], rows.filter(is_kept))
    writer.finish()


def _merged(runs: Sequence[Run], schema: pa.Schema | None) -> Iterator[tuple[Keys, pa.Table | None]]:
    """Yield keys and rows by key, in parts whose size depends on `STEP` only."""
    longest = max(runs, key=len)
    before = [0] * len(runs)
    for stop in range(STEP, len(longest) + STEP, STEP):
        after = [len(run) for run in runs]
        if stop < len(longest):
            key = longest.keys(stop, stop + 1)
            after = [run.position(key) for run in runs]
        bounds = list(zip(runs, before, after, strict=True))
        keys = np.concatenate([run.keys(start, end) for run, start, end in bounds])
        # A stable sort detects the sorted runs and merges them; the newest of equal keys is the last.
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        is_last = np.append(keys[1:] != keys[:-1], np.ones(min(len(keys), 1), np.bool_))
        rows = None
        if schema is not None:
            parts = [schema.empty_table(), *(run.rows(start, end) for run, start, end in bounds)]
            rows = pa.concat_tables(parts, promote_options="permissive").combine_chunks()
            rows = rows.take(pa.array(order[is_last]))
        yield keys[is_last], rows
        before = after


def _directory_of(content: pa.Buffer) -> _Directory:
    try:
        magic, size, checksum = _TRAILER.unpack(content[-_TRAILER.size :].to_pybytes())
        end = len(content) - _TRAILER.size
        text = content[end - size : end].to_pybytes() if magic == _MAGIC and size <= end else b""
        if not text or zlib.crc32(text) != checksum:
            raise RunDamaged(None, "the directory is missing, or its checksum is wrong")
        return _Directory(**json.loads(text))
    except (struct.error, ValueError, TypeError, binascii.Error) as error:
        raise RunDamaged(None, error) from error


def _groups(numbers: Places) -> Iterator[tuple[int, int, int]]:
    """Yield each of the ascending numbers, with the start and the end of its places."""
    starts = [*np.flatnonzero(np.diff(numbers, prepend=-2)).tolist(), len(numbers)]
    for start, end in pairwise(starts):
        yield int(numbers[start]), start, end


def _text(raw: bytes) -> str:
    return base64.b64encode(raw).decode()
