"""The logical hash of records: arrow-digest v0 with SHA3-256, whatever file format stores them (wire-facts §4.2–4.5).

It covers the names and types of the schema and the values in order, but not nullability, metadata, batches and row
groups. Columns are hashed in parallel, since `hashlib` releases the GIL.
"""

import hashlib
import struct
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.types as kind

from odf_common.errors import InvalidInput
from odf_common.hashing.arrow_digest import (
    Mask,
    UnhashableType,
    canonical,
    encoded_blocks,
    frame,
    plain,
    type_seed,
    validity,
    zero_nulls,
)
from odf_common.hashing.multihash import Multihash

__all__ = ["LogicalHasher", "UnhashableType", "check_hashable", "logical_hash"]

_WORTH_THREADS: Final = 1 << 18  # bytes; below this, starting threads costs more than hashing
_HASH_CHUNK_BYTES: Final = 1 << 23  # bytes of a stream hashed at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class _Leaf:
    """A column or nested field with values: its path, its seed, and the nullable fields on its path.

    There is a hasher for each of these fields. The reference implementation uses the null mask of the outermost struct
    that has any nulls, so only the end of the records shows which hasher has the right digest.
    """

    path: tuple[int, ...]
    levels: tuple[int, ...]
    hashers: "tuple[hashlib._Hash, ...]"
    has_nulls: list[bool] = field(default_factory=list)

    def update(self, column: pa.ChunkedArray) -> None:
        for chunk in column.chunks:
            array, masks = _descend(chunk, self.path)
            for index, level in enumerate(self.levels):
                mask = masks[level]
                self.has_nulls[index] |= mask is not None
                values = array if level == len(masks) - 1 else zero_nulls(array)
                for block in encoded_blocks(values, mask):
                    self.hashers[index].update(block.data)

    def digest(self) -> bytes:
        chosen = self.has_nulls.index(True) if any(self.has_nulls) else -1
        return self.hashers[chosen].digest()


class LogicalHasher:
    """Computes the logical hash of records in batches; the result does not depend on the sizes of batches."""

    def __init__(self, schema: pa.Schema) -> None:
        """Start without records; raises `UnhashableType` if the schema has a type that cannot be hashed."""
        self._schema = schema
        self._main = hashlib.sha3_256()
        self._leaves = tuple(self._walk(tuple(schema), (), (), ""))

    def update(self, batch: pa.RecordBatch | pa.Table) -> None:
        """Add records; raises `InvalidInput` if their columns differ from the schema."""
        table = pa.Table.from_batches([batch]) if isinstance(batch, pa.RecordBatch) else batch
        if table.schema.names != self._schema.names or table.schema.types != self._schema.types:
            raise InvalidInput(text=f"records to hash have columns {table.schema}, not {self._schema}")
        columns = [(leaf, table.column(leaf.path[0])) for leaf in self._leaves]
        columns.sort(key=lambda pair: pair[1].nbytes * len(pair[0].levels), reverse=True)
        jobs = [(leaf.update, column) for leaf, column in columns]
        _run(jobs, in_threads=table.nbytes >= _WORTH_THREADS)

    def finish(self) -> Multihash:
        """Return the hash of all records that were added."""
        main = self._main.copy()
        for leaf in self._leaves:
            main.update(leaf.digest())
        return Multihash.arrow0(main.digest())

    def _walk(
        self, fields: Sequence[pa.Field], path: tuple[int, ...], levels: tuple[int, ...], parent: str
    ) -> Iterator[_Leaf]:
        for index, column in enumerate(fields):
            depth, name = len(path), f"{parent}{column.name}"
            type_ = canonical(column.type)
            self._main.update(frame(column.name) + struct.pack("<Q", depth))
            if kind.is_struct(type_):
                outer = (*levels, depth) if column.nullable else levels
                yield from self._walk(tuple(type_.fields), (*path, index), outer, f"{name}.")
                continue
            seed = type_seed(column.type, name)
            masks = (*levels, depth)
            yield _Leaf(
                path=(*path, index),
                levels=masks,
                hashers=tuple(hashlib.sha3_256(seed) for _ in masks),
                has_nulls=[False] * len(masks),
            )


def logical_hash(records: pa.Table | pa.RecordBatch | pa.RecordBatchReader) -> Multihash:
    """Return the logical hash of all records, in order; raises `UnhashableType` (spec: Physical and Logical Hashes)."""
    hasher = LogicalHasher(records.schema)
    if isinstance(records, pa.RecordBatchReader):
        for table in _group_batches(records):
            hasher.update(table)
    else:
        hasher.update(records)
    return hasher.finish()


def check_hashable(schema: pa.Schema) -> None:
    """Raise `UnhashableType` with the column unless records of this schema can be hashed."""
    LogicalHasher(schema)


def _group_batches(reader: pa.RecordBatchReader) -> Iterator[pa.Table]:
    """Combine small batches, so that hashing a column of a group is worth the cost of a thread."""
    batches: list[pa.RecordBatch] = []
    size = 0
    for batch in reader:
        batches.append(batch)
        size += batch.nbytes
        if size >= _HASH_CHUNK_BYTES:
            yield pa.Table.from_batches(batches, reader.schema)
            batches, size = [], 0
    yield pa.Table.from_batches(batches, reader.schema)


def _descend(array: pa.Array, path: tuple[int, ...]) -> tuple[pa.Array, list[Mask | None]]:
    """Return the values at a path and, per field on it, the mask of rows in which it and its parents are valid."""
    array = plain(array)
    masks = [validity(array)]
    for index in path[1:]:
        array = plain(array.field(index))
        own, outer = validity(array), masks[-1]
        masks.append(outer if own is None else own if outer is None else np.logical_and(own, outer))
    return array, masks


def _run(
    jobs: Sequence[tuple[Callable[[pa.ChunkedArray], None], pa.ChunkedArray]], *, in_threads: bool
) -> None:
    if not in_threads or len(jobs) == 1:
        for job, column in jobs:
            job(column)
        return
    workers = min(len(jobs), pa.cpu_count())
    with ThreadPoolExecutor(workers) as pool:
        for done in [pool.submit(job, column) for job, column in jobs]:
            done.result()
