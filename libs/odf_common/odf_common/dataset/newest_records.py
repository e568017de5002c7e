"""The newest records of a dataset, read from as few slices as possible."""

from collections.abc import Callable, Iterator

import pyarrow as pa

from odf_common.chain.walk import ReadBlock, iterate
from odf_common.hashing.multihash import Multihash
from odf_common.metadata.events import DataEvent, DataSlice


def newest_records(
    read: ReadBlock, head: Multihash, records: int, read_slice: Callable[[DataSlice], pa.Table]
) -> pa.Table | None:
    """Return the last `records` records of the chain that ends at `head`, in offset order; None if it has no slices.

    Columns that were added later are null in older records. Raises what `read` and `read_slice` raise.
    """
    tables: list[pa.Table] = []
    missing = records
    for slice_ in _slices(read, head):
        if missing <= 0:
            break
        table = read_slice(slice_)
        tables.append(table.slice(max(len(table) - missing, 0)))
        missing -= len(tables[-1])
    return pa.concat_tables(reversed(tables), promote_options="default") if tables else None


def _slices(read: ReadBlock, head: Multihash) -> Iterator[DataSlice]:
    """Iterate over the slices of a chain, newest first."""
    for _, decoded, _ in iterate(read, head):
        event = decoded.block.event
        if isinstance(event, DataEvent) and event.new_data is not None:
            yield event.new_data
