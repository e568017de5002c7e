"""A run: distinct keys in ascending order, and a row for each if it has rows; one immutable file.

Layout: row blocks (Arrow IPC record batches), the keys as fixed-width values, a directory, and a trailer with the
directory's size and checksum. The keys are divided into chunks, the rows into blocks; each has a CRC-32, which is
checked before anything in it is used for the first time. So a lookup reads what it touches and no more, and damage is
found, never used: `RunDamaged`. The directory is a few facts in JSON, then arrays that are used where they are mapped,
so that opening a long run costs as much as opening a short one.
"""

import base64
import binascii
import json
import struct
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any, Final, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from odf_ingest.history.keys import Keys

KEYS_PER_CHUNK: Final = 256
CHUNKS_PER_SEARCH: Final = 1024
BLOCK_BYTES: Final = 1 << 14  # of rows, about
MAX_BLOCK_ROWS: Final = 8192
KEYS_PER_MERGE_STEP: Final = 1 << 17  # of the longest run
_ALIGNMENT: Final = 64  # of row blocks, so that Arrow uses them where they are
_SPOOL_BYTES: Final = 1 << 23  # of keys that a writer holds in memory
_TRAILER: Final = struct.Struct(
    "<8sQQI"
)  # magic, size of the directory and of its JSON, CRC-32 of the directory
_MAGIC: Final = b"ODFRUN\x00\x03"
_BLOCK: Final = np.dtype(
    [("at", "<i8"), ("size", "<i8"), ("checksum", "<i8")]
)  # of rows, as in the directory
_CHECKSUM: Final = np.dtype("<i8")
Places = npt.NDArray[np.int64]


class RunDamaged(Exception):
    """A run's bytes are not those that were written."""

    def __init__(self, run: "Run | None", why: object) -> None:
        """Name the run, unless it could not be opened."""
        super().__init__(str(why))
        self.run = run


@dataclass(frozen=True, slots=True, kw_only=True)
class _Facts:
    """What the directory says about all of a run."""

    dtype: str
    count: int
    keys_at: int
    schema: str | None
    """The rows' schema, base64; None: there are only keys."""
    block_rows: int
    """Rows per block; only the last block has fewer."""
    blocks: int
    chunks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Directory:
    """The facts, the blocks of rows, the CRC-32 of each chunk of keys, the first key of each, and the last key."""

    facts: _Facts
    blocks: npt.NDArray[Any]
    chunks: npt.NDArray[np.int64]
    first: Keys
    last: Keys

    def raw(self) -> tuple[bytes, bytes]:
        """Return the facts and the arrays as they are written."""
        text = json.dumps({name: getattr(self.facts, name) for name in _Facts.__slots__}).encode()
        text += b" " * (-len(text) % _CHECKSUM.itemsize)  # so that the arrays are aligned
        return text, b"".join(array.tobytes() for array in (self.blocks, self.chunks, self.first, self.last))

    @classmethod
    def read(cls, content: pa.Buffer, facts_size: int) -> Self:
        """Return the directory in `content`, without copying arrays. Raises `ValueError` or `TypeError`."""
        facts = _Facts(**json.loads(content[:facts_size].to_pybytes()))
        dtype: np.dtype[Any] = np.dtype(facts.dtype)
        offset = facts_size
        arrays = []
        counts = ((_BLOCK, facts.blocks), (_CHECKSUM, facts.chunks), (dtype, facts.chunks), (dtype, 1))
        for kind, count in counts:
            arrays.append(np.frombuffer(content, kind, count, offset))
            offset += count * kind.itemsize
        blocks, chunks, first, last = arrays
        return cls(facts=facts, blocks=blocks, chunks=chunks, first=first, last=last)


class RunWriter:
    """Writes a run; the memory that it takes does not depend on the length of the run."""

    def __init__(self, file: IO[bytes], dtype: np.dtype[Any], schema: pa.Schema | None) -> None:
        """Write to the empty `file`; rows have this schema."""
        self._file = file
        self._dtype = dtype
        self._schema = schema
        self._keys = tempfile.SpooledTemporaryFile(_SPOOL_BYTES)  # noqa: SIM115 - closed in `finish`
        self._last: Keys = np.zeros(1, dtype)
        self._count = 0  # keys
        self._rows: list[pa.Table] = []
        self._waiting = 0  # rows
        self._block_rows = 0
        self._blocks: list[tuple[int, int, int]] = []  # as `_BLOCK`
        self._position = 0

    def add(self, keys: Keys, rows: pa.Table | None) -> None:
        """Add keys, all greater than those before, and their rows."""
        self._keys.write(np.ascontiguousarray(keys, self._dtype).tobytes())
        self._count += len(keys)
        self._last = keys[-1:] if len(keys) else self._last
        if rows is None or len(rows) == 0:
            return
        # Once per run: all blocks but the last have as many rows, so a row's number leads to its block.
        if self._block_rows == 0:
            count = BLOCK_BYTES * len(rows) // max(rows.nbytes, 1)
            self._block_rows = min(max(count, 1), MAX_BLOCK_ROWS)
        self._rows.append(rows)
        self._waiting += len(rows)
        if self._waiting >= self._block_rows:
            self._write_blocks(is_last=False)

    def finish(self) -> None:
        """Write what is left, the keys and the directory."""
        self._write_blocks(is_last=True)
        self._pad()
        directory = self._keys_written()
        self._pad()
        facts, arrays = directory.raw()
        self._write(facts)
        self._write(arrays)
        size = len(facts) + len(arrays)
        # Last: a file that was cut off ends with something else, and is refused.
        self._write(_TRAILER.pack(_MAGIC, size, len(facts), zlib.crc32(arrays, zlib.crc32(facts))))
        self._file.flush()

    def _keys_written(self) -> _Directory:
        """Write the keys, and return the directory."""
        keys_at, size = self._position, self._dtype.itemsize
        first, chunks = [], []
        self._keys.seek(0)
        while chunk := self._keys.read(KEYS_PER_CHUNK * size):
            first.append(chunk[:size])
            chunks.append(zlib.crc32(chunk))
            self._write(chunk)
        self._keys.close()
        facts = _Facts(
            dtype=self._dtype.str,
            count=self._count,
            keys_at=keys_at,
            schema=None if self._schema is None else _text(self._schema.serialize().to_pybytes()),
            block_rows=self._block_rows,
            blocks=len(self._blocks),
            chunks=len(chunks),
        )
        return _Directory(
            facts=facts,
            blocks=np.array(self._blocks, _BLOCK),
            chunks=np.array(chunks, _CHECKSUM),
            first=np.frombuffer(b"".join(first), self._dtype),
            last=np.ascontiguousarray(self._last, self._dtype),
        )

    def _write_blocks(self, *, is_last: bool) -> None:
        if not self._rows:
            return
        rows, step = pa.concat_tables(self._rows).combine_chunks(), self._block_rows
        end = len(rows) if is_last else len(rows) - len(rows) % step
        for start in range(0, end, step):
            (batch,) = rows.slice(start, min(step, end - start)).to_batches()
            content = batch.serialize()
            self._pad()
            self._blocks.append((self._position, content.size, zlib.crc32(content)))
            self._write(content)
        self._rows = [rows.slice(end)] if end < len(rows) else []
        self._waiting = len(rows) - end

    def _pad(self) -> None:
        self._write(bytes(-self._position % _ALIGNMENT))

    def _write(self, content: bytes | pa.Buffer) -> None:
        self._file.write(content)
        self._position += len(content)


class Run:
    """A run for reading, in memory or in a memory map."""

    def __init__(self, content: pa.Buffer, *, is_checked: bool) -> None:
        """Read the directory; `is_checked`: this process has just written the content."""
        self.content = content
        directory = _directory_of(content)
        facts = directory.facts
        dtype: np.dtype[Any] = np.dtype(facts.dtype)
        self._directory = directory
        self._block_rows = max(facts.block_rows, 1)
        self._keys: Keys = np.frombuffer(content, dtype, facts.count, facts.keys_at)
        self.schema = (
            None if facts.schema is None else pa.ipc.read_schema(pa.py_buffer(base64.b64decode(facts.schema)))
        )
        self._unchecked = 0 if is_checked else facts.chunks
        self._chunk_checked = bytearray([is_checked]) * facts.chunks
        self._block_checked = bytearray([is_checked]) * facts.blocks

    def __len__(self) -> int:
        """Return the number of keys."""
        return len(self._keys)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Return the type of the keys."""
        return self._keys.dtype

    def find(self, keys: Keys) -> Places:
        """Return the row of each of the ascending keys, -1 where the run does not have it."""
        places = np.full(len(keys), -1, np.int64)
        if len(keys) == 0 or len(self) == 0:
            return places
        # Keys that grow, as numbers and times do, are greater than all of most runs.
        end = int(keys.searchsorted(self._directory.last, side="right")[0])
        start = int(keys[:end].searchsorted(self._directory.first[:1])[0])
        if start < end:
            places[start:end] = self._find(keys[start:end])
        return places

    def _find(self, keys: Keys) -> Places:
        """Return the row of each key, -1 where there is none; all are between the run's first and last."""
        if self._unchecked == 0 and self.dtype == keys.dtype:  # numpy would convert all keys to another width
            places = self._keys.searchsorted(
                keys
            )  # all are below the length, as no key is greater than the last
            return np.where(self._keys[places] == keys, places, -1)
        rows = np.empty(len(keys), np.int64)
        chunks = np.searchsorted(self._directory.first, keys, side="right") - 1
        starts = np.flatnonzero(chunks != np.append(-1, chunks[:-1]))  # of the keys of each chunk
        for first in range(0, len(starts), CHUNKS_PER_SEARCH):
            begun = starts[first : first + CHUNKS_PER_SEARCH]
            end = starts[first + CHUNKS_PER_SEARCH] if first + CHUNKS_PER_SEARCH < len(starts) else len(keys)
            rows[begun[0] : end] = self._find_in(chunks[begun], keys[begun[0] : end])
        return rows

    def _find_in(self, numbers: Places, keys: Keys) -> Places:
        """Return the row of each key, -1 where none of these chunks has it; reads no other chunk."""
        chunks = np.concatenate([self._chunk(number) for number in numbers.tolist()])
        places = np.searchsorted(chunks, keys)
        places[places == len(chunks)] = 0
        rows: Places = numbers[places // KEYS_PER_CHUNK] * KEYS_PER_CHUNK + places % KEYS_PER_CHUNK
        return np.where(chunks[places] == keys, rows, -1)

    def position(self, key: Keys) -> int:
        """Return how many keys are less than this one, an array of length 1."""
        number = int(np.searchsorted(self._directory.first, key, side="right")[0]) - 1
        return (
            0 if number < 0 else number * KEYS_PER_CHUNK + int(np.searchsorted(self._chunk(number), key)[0])
        )

    def keys(self, start: int = 0, end: int | None = None) -> Keys:
        """Return the keys of some rows."""
        end = len(self) if end is None else end
        for number in range(start // KEYS_PER_CHUNK, -(-end // KEYS_PER_CHUNK)):
            self._chunk(number)
        return self._keys[start:end]

    def rows(self, start: int = 0, end: int | None = None) -> pa.Table:
        """Return some consecutive rows, without copying them."""
        end, step = len(self) if end is None else end, self._block_rows
        if start >= end:
            return self._schema.empty_table()
        blocks = [self._block(number) for number in range(start // step, -(-end // step))]
        return pa.Table.from_batches(blocks, self._schema).slice(start % step, end - start)

    def blocks_of(self, rows: Places) -> tuple[list[pa.RecordBatch], Places]:
        """Return the blocks with these ascending rows, at least one, and where in them each row is."""
        numbers = rows // self._block_rows
        is_first = np.ones(len(rows), np.bool_)
        np.not_equal(numbers[1:], numbers[:-1], out=is_first[1:])
        blocks = [self._block(number) for number in numbers[is_first].tolist()]
        # Only a run's last block is shorter, and then it is the last of these.
        return blocks, (is_first.cumsum() - 1) * self._block_rows + rows % self._block_rows

    @property
    def _schema(self) -> pa.Schema:
        assert self.schema is not None
        return self.schema

    def _chunk(self, number: int) -> Keys:
        chunk = self._keys[number * KEYS_PER_CHUNK : (number + 1) * KEYS_PER_CHUNK]
        if not self._chunk_checked[number]:
            if zlib.crc32(chunk.data) != self._directory.chunks.item(number):
                raise RunDamaged(self, f"keys from {number * KEYS_PER_CHUNK}: the checksum is wrong")
            self._chunk_checked[number] = True
            self._unchecked -= 1
        return chunk

    def _block(self, number: int) -> pa.RecordBatch:
        start, size, checksum = self._directory.blocks.item(number)
        content = self.content.slice(start, size)
        if not self._block_checked[number]:
            if zlib.crc32(content) != checksum:
                raise RunDamaged(self, f"block {number}: the checksum is wrong")
            self._block_checked[number] = True
        return pa.ipc.read_record_batch(content, self._schema)


def take(matches: Iterable[tuple[Run, Places]]) -> list[pa.Table]:
    """Return rows of runs by their ascending indices, at least one of each run; a table for runs of one schema.

    What it costs to take rows from a table hardly depends on how many runs its blocks are from.
    """
    tables: list[tuple[pa.Schema, list[pa.RecordBatch], list[Places]]] = []
    before = 0  # rows in the blocks of the last table
    for run, rows in matches:
        if not tables or not tables[-1][0].equals(run.schema):
            tables.append((run.schema, [], []))
            before = 0
        _, blocks, places = tables[-1]
        new, rows_in_blocks = run.blocks_of(rows)
        blocks += new
        places.append(rows_in_blocks + before)
        before += sum(map(len, new))
    return [
        pa.Table.from_batches(blocks, schema).take(pa.array(np.concatenate(places)))
        for schema, blocks, places in tables
    ]


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
    """Yield keys and rows by key, in parts whose size depends on `KEYS_PER_MERGE_STEP` only."""
    longest = max(runs, key=len)
    before = [0] * len(runs)
    for stop in range(KEYS_PER_MERGE_STEP, len(longest) + KEYS_PER_MERGE_STEP, KEYS_PER_MERGE_STEP):
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
        magic, size, facts_size, checksum = _TRAILER.unpack(content[-_TRAILER.size :].to_pybytes())
        end = len(content) - _TRAILER.size
        facts = content[end - size : end] if magic == _MAGIC and facts_size <= size <= end else b""
        if not facts or zlib.crc32(facts) != checksum:
            raise RunDamaged(None, "the directory is missing, or its checksum is wrong")
        return _Directory.read(facts, facts_size)
    except (struct.error, ValueError, TypeError, binascii.Error) as error:
        raise RunDamaged(None, error) from error


def _text(raw: bytes) -> str:
    return base64.b64encode(raw).decode()
