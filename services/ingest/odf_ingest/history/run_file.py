"""A run: an immutable file of distinct keys in ascending order, with or without one row per key.

The file begins with the rows as an Arrow IPC file, if there are rows; the keys follow as fixed-width values. Its layout
and its checksum are in the manifest of its folder (`run_store.py`).
"""

import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from odf_ingest.history.keys import Keys

_ALIGNMENT: Final = 64  # of the keys, so that numpy uses them where they are
_SPOOL_BYTES: Final = 1 << 23  # of keys that a writer holds in memory
Places = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLimits:
    """Sizes by which runs are written, merged and opened."""

    runs_per_merge: int = 8
    """Number of runs of similar length that are merged into one. A key is copied about log8(number of keys) times."""
    keys_in_memory: int = 1 << 17
    """Runs with more keys are merged from disk to disk."""
    keys_per_merge_step: int = 1 << 17
    """Number of keys of the longest run that are merged at a time."""
    block_bytes: int = 1 << 14
    """Approximate size in bytes of a block of rows."""
    block_rows: int = 8192
    """Maximum number of rows in a block."""
    mapped_from_bytes: int = 1 << 18
    """Files of this size in bytes or larger are memory-mapped; smaller ones are read into memory."""
    synced_from_bytes: int = 1 << 24
    """Files of this size in bytes or larger are synced to disk, because rebuilding them after a power cut is slow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLayout:
    """The layout of a run: type and number of its keys, and the size of its rows in bytes, 0 if it has none."""

    dtype: str
    count: int
    rows_bytes: int


class RunWriter:
    """Writes a run. Its memory use does not depend on the length of the run."""

    def __init__(
        self, file: IO[bytes], dtype: np.dtype[Any], schema: pa.Schema | None, limits: RunLimits
    ) -> None:
        """Write to the empty `file`; `schema` is that of the rows, None for a run without rows."""
        self._file = file
        self._dtype = dtype
        self._limits = limits
        self._keys = tempfile.SpooledTemporaryFile(_SPOOL_BYTES)  # noqa: SIM115 - closed in `finish`
        self._count = 0  # keys
        self._blocks = None if schema is None else pa.ipc.new_file(file, schema)
        self._block_rows = 0
        self._rows: list[pa.Table] = []

    def add(self, keys: Keys, rows: pa.Table | None) -> None:
        """Add ascending keys, all greater than the keys added before, and their rows."""
        self._keys.write(np.ascontiguousarray(keys, self._dtype).tobytes())
        self._count += len(keys)
        if rows is None or len(rows) == 0:
            return
        # Once per run: all blocks but the last have as many rows, so a row's number leads to its block.
        if self._block_rows == 0:
            count = self._limits.block_bytes * len(rows) // max(rows.nbytes, 1)
            self._block_rows = min(max(count, 1), self._limits.block_rows)
        self._rows.append(rows)
        waiting = sum(map(len, self._rows))
        if waiting >= self._block_rows:
            self._write_rows(waiting - waiting % self._block_rows)

    def finish(self) -> RunLayout:
        """Write the remaining rows and all keys, and return the layout."""
        if self._blocks is not None:
            self._write_rows(sum(map(len, self._rows)))
            self._blocks.close()
        rows_bytes = self._file.tell()
        self._file.write(bytes(-rows_bytes % _ALIGNMENT))
        self._keys.seek(0)
        shutil.copyfileobj(self._keys, self._file)
        self._keys.close()
        return RunLayout(dtype=self._dtype.str, count=self._count, rows_bytes=rows_bytes)

    def _write_rows(self, count: int) -> None:
        if self._rows and self._blocks is not None:
            rows = pa.concat_tables(self._rows).combine_chunks()
            self._blocks.write_table(rows.slice(0, count), self._block_rows)
            self._rows = [rows.slice(count)]


class Run:
    """A run that can be read; its content is in memory or memory-mapped."""

    def __init__(self, content: pa.Buffer, layout: RunLayout) -> None:
        """Use the content without copying it."""
        self.content = content
        self.layout = layout
        dtype: np.dtype[Any] = np.dtype(layout.dtype)
        offset = content.size - layout.count * dtype.itemsize
        self.keys: Keys = np.frombuffer(content, dtype, layout.count, offset)
        self._blocks = pa.ipc.open_file(content.slice(0, layout.rows_bytes)) if layout.rows_bytes else None
        self.schema: pa.Schema | None = None if self._blocks is None else self._blocks.schema
        has_blocks = self._blocks is not None and self._blocks.num_record_batches
        self._block_rows = len(self._block(0)) if has_blocks else 1

    def __len__(self) -> int:
        """Return the number of keys."""
        return len(self.keys)

    def find(self, keys: Keys) -> Places:
        """Return the row of each of the ascending keys; -1 for a key that the run does not have."""
        rows = np.full(len(keys), -1, np.int64)
        # Keys that grow, as numbers and times do, are greater than all of most runs.
        end = int(keys.searchsorted(self.keys[-1:], side="right").sum())
        start = int(keys[:end].searchsorted(self.keys[:1]).sum())
        if start < end:
            wanted = keys[start:end]
            # As wide as the run's keys, all of which numpy would convert otherwise; none is greater than the last.
            places = self.keys.searchsorted(wanted.astype(self.keys.dtype))
            rows[start:end] = np.where(self.keys[places] == wanted, places, -1)
        return rows

    def position(self, key: Keys) -> int:
        """Return the number of keys that are less than this one, an array of length 1."""
        narrow = key.astype(self.keys.dtype)
        return int(self.keys.searchsorted(narrow, side="left" if narrow[0] == key[0] else "right")[0])

    def rows(self, start: int = 0, end: int | None = None) -> pa.Table:
        """Return the rows from `start` up to, but not including, `end`, without copying them."""
        assert self.schema is not None
        end, step = len(self) if end is None else end, self._block_rows
        if start >= end:
            return self.schema.empty_table()
        blocks = [self._block(number) for number in range(start // step, -(-end // step))]
        return pa.Table.from_batches(blocks, self.schema).slice(start % step, end - start)

    def blocks_of(self, rows: Places) -> tuple[list[pa.RecordBatch], Places]:
        """Return the blocks that contain these ascending rows, and the index of each row in the concatenated blocks.

        `rows` must not be empty.
        """
        numbers = rows // self._block_rows
        is_first = np.ones(len(rows), np.bool_)
        np.not_equal(numbers[1:], numbers[:-1], out=is_first[1:])
        blocks = [self._block(number) for number in numbers[is_first].tolist()]
        # Only a run's last block is shorter, and then it is the last of these.
        return blocks, (is_first.cumsum() - 1) * self._block_rows + rows % self._block_rows

    def _block(self, number: int) -> pa.RecordBatch:
        assert self._blocks is not None
        return self._blocks.get_batch(number)


def take_rows(matches: Iterable[tuple[Run, Places]]) -> list[pa.Table]:
    """Return the rows of runs at these ascending indices: one table for all runs with the same schema.

    There is at least one index per run. Runs are combined because Arrow's `take` costs about the same for the blocks of
    many runs as for those of one.
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


def write_run(file: IO[bytes], keys: Keys, rows: pa.Table | None, limits: RunLimits) -> RunLayout:
    """Write a run of ascending, distinct keys and their rows, and return its layout."""
    writer = RunWriter(file, keys.dtype, None if rows is None else rows.schema, limits)
    writer.add(keys, rows)
    return writer.finish()


def write_merged(file: IO[bytes], runs: Sequence[Run], drop: str | None, limits: RunLimits) -> RunLayout:
    """Merge runs, given oldest first, into one run and return its layout.

    A key that several runs have gets the row of the newest. Rows in which the column `drop` is false are left out.
    """
    schemas = [run.schema for run in runs if run.schema is not None]
    schema = pa.unify_schemas(schemas, promote_options="permissive") if schemas else None
    writer = RunWriter(file, np.result_type(*(run.keys.dtype for run in runs)), schema, limits)
    for keys, rows in _merge(runs, schema, limits.keys_per_merge_step):
        if rows is None or drop is None:
            writer.add(keys, rows)
        else:
            is_kept = rows.column(drop).combine_chunks()
            writer.add(keys[is_kept.to_numpy(zero_copy_only=False)], rows.filter(is_kept))
    return writer.finish()


def _merge(
    runs: Sequence[Run], schema: pa.Schema | None, step: int
) -> Iterator[tuple[Keys, pa.Table | None]]:
    """Yield the merged keys and rows in parts; a part covers `step` keys of the longest run."""
    longest = max(runs, key=len)
    before = [0] * len(runs)
    for stop in range(step, len(longest) + step, step):
        after = [len(run) for run in runs]
        if stop < len(longest):
            after = [run.position(longest.keys[stop : stop + 1]) for run in runs]
        bounds = list(zip(runs, before, after, strict=True))
        keys = np.concatenate([run.keys[start:end] for run, start, end in bounds])
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
