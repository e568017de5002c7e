"""Reads a dataset's folder without any service: checks the invariants that hold after every fault, returns the records.

Blocks are decoded by our codec, slices by Arrow's own Parquet reader, so that errors of our reader are found.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from odf_common.adapters.local.exported_dataset import FolderDataset
from odf_common.chain.walk import fold, iterate
from odf_common.hashing.multihash import Multihash
from odf_common.metadata.events import DataEvent, ExecuteTransform, MetadataBlock
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.store import NAMED_BY_CONTENT

OFFSET, SYSTEM_TIME = "offset", "system_time"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredChain:
    """A chain whose links, rules, objects and offsets were checked; blocks oldest first."""

    blocks: tuple[tuple[Multihash, MetadataBlock], ...]
    table: pa.Table | None
    watermark: Timestamp | None

    @property
    def head(self) -> Multihash:
        """Return the last block's hash."""
        return self.blocks[-1][0]

    @property
    def transforms(self) -> int:
        """Return the number of committed transforms."""
        return sum(isinstance(block.event, ExecuteTransform) for _, block in self.blocks)

    @property
    def data_blocks(self) -> int:
        """Return the number of blocks with records."""
        return sum(
            isinstance(block.event, DataEvent) and block.event.new_data is not None
            for _, block in self.blocks
        )

    def rows(self) -> list[dict[str, Any]]:
        """Return all records in order."""
        return [] if self.table is None else list(self.table.to_pylist())

    def column(self, name: str) -> list[Any]:
        """Return one column of all records in order."""
        return [] if self.table is None else list(self.table.column(name).to_pylist())

    def records(self) -> list[tuple[object, ...]]:
        """Return all records without offset and system time, in an order that does not depend on arrival."""
        if self.table is None:
            return []
        bare = self.table.drop_columns([OFFSET, SYSTEM_TIME])
        return sorted((tuple(row.values()) for row in bare.to_pylist()), key=repr)


def read_chain(folder: Path) -> StoredChain:
    """Return the chain of a folder; raises or fails if an invariant does not hold.

    Head to seed by hashes, every rule, each object there with the bytes its name says, offsets dense from 0,
    watermarks and system times never falling.
    """
    store = FolderDataset(folder)
    head = store.head()
    assert head is not None, f"{folder} has no head"

    fold(store.read_block, head)
    blocks = tuple((name, decoded.block) for name, decoded, _ in iterate(store.read_block, head))[::-1]
    for (_, before), (_, after) in pairwise(blocks):
        assert before.system_time.ns <= after.system_time.ns, "system time fell"
    events = [block.event for _, block in blocks if isinstance(block.event, DataEvent)]
    tables = [_slice(folder, event) for event in events if event.new_data is not None]
    for event in events:
        if event.new_checkpoint is not None:
            _require(folder / "checkpoints" / str(event.new_checkpoint.physical_hash))
    # A schema may have been extended: earlier records have nulls.
    table = pa.concat_tables(tables, promote_options="default") if tables else None
    if table is not None:
        assert table.column(OFFSET).to_pylist() == list(range(table.num_rows)), "offsets are not dense"
    marks = [event.new_watermark for event in events if event.new_watermark is not None]
    for earlier, later in pairwise(marks):
        assert earlier.ns <= later.ns, "a watermark fell"
    return StoredChain(blocks=blocks, table=table, watermark=marks[-1] if marks else None)


def assert_objects_are_whole(folder: Path) -> None:
    """Fail if an object does not match its name: it was partly written, or damaged."""
    for kind in NAMED_BY_CONTENT:
        for file in (folder / kind).glob("f1620*"):
            _require(file)


def _slice(folder: Path, event: DataEvent) -> pa.Table:
    declared = event.new_data
    assert declared is not None
    file = folder / "data" / str(declared.physical_hash)
    _require(file)
    assert file.stat().st_size == declared.size, f"{file.name} is not of the declared size"
    table = pq.ParquetFile(file).read()
    interval = declared.offset_interval
    first, last = table.column(OFFSET)[0].as_py(), table.column(OFFSET)[-1].as_py()
    assert (first, last) == (interval.start, interval.end), f"{file.name} has other offsets than declared"
    return table


def _require(file: Path) -> None:
    assert file.is_file(), f"{file.parent.name}/{file.name} is missing"
    digest = hashlib.sha3_256(file.read_bytes()).digest()
    assert Multihash.sha3(digest) == Multihash.parse(file.name), f"{file.parent.name}/{file.name} is damaged"


def flip(file: Path, position: int | None = None) -> None:
    """Flip one bit of one byte, by default of the middle one."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2 if position is None else position] ^= 1
    overwrite(file, bytes(content))


def overwrite(file: Path, content: bytes) -> None:
    """Replace a file's bytes in place, even if it is write-protected."""
    file.chmod(0o644)
    file.write_bytes(content)


@contextmanager
def flipped(file: Path, position: int | None = None) -> Iterator[None]:
    """Have one bit flipped inside the block."""
    before, mode = file.read_bytes(), file.stat().st_mode
    flip(file, position)
    try:
        yield
    finally:
        overwrite(file, before)
        file.chmod(mode)
