"""The memory that a table of strangers takes when it is decoded, computed before it does.

A file or message may have a value once, and say that millions of rows have it: as a dictionary, as a run, or in a
compressed buffer. Some hundred bytes can stand for more rows than any machine holds.
"""

from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as kind

_MEMORY_LIMIT: Final = Path("/sys/fs/cgroup/memory.max")  # of a container
_MEMORY_SHARE: Final = (
    8  # one part of the memory in so many: tables are copied, and more than one is read at a time
)
_WIDTH: Final = 8  # bytes of a value whose type does not say it


def row_width(type_: pa.DataType) -> float:
    """Return the bytes that a value of a type takes at least."""
    try:
        return float(type_.bit_width) / 8
    except ValueError:
        return _WIDTH


def expanded_bytes(values: pa.Array) -> int:
    """Return the bytes that the values of dictionaries and runs take when each row has its own; 0 for plain ones."""
    type_ = values.type
    if kind.is_dictionary(type_):
        return int(_sizes(values.dictionary)[values.indices.drop_null().to_numpy()].sum())
    if kind.is_run_end_encoded(type_):
        runs = np.diff(np.minimum(values.run_ends.to_numpy(), len(values)), prepend=0)
        return int(np.dot(runs.astype(np.float64), _sizes(values.values)))
    if kind.is_struct(type_):
        return sum(expanded_bytes(values.field(index)) for index in range(type_.num_fields))
    is_list = kind.is_list(type_) or kind.is_large_list(type_) or kind.is_fixed_size_list(type_)
    return expanded_bytes(values.values) if is_list else 0


def _sizes(values: pa.Array) -> npt.NDArray[np.float64]:
    """Return the bytes of each value, of nested ones not less than that."""
    type_ = values.type
    is_text = kind.is_string(type_) or kind.is_binary(type_)
    if is_text or kind.is_large_string(type_) or kind.is_large_binary(type_):
        lengths: npt.NDArray[np.float64] = pc.fill_null(pc.binary_length(values), 0).to_numpy(
            zero_copy_only=False
        )
        return lengths.astype(np.float64)
    is_plain = not (kind.is_nested(type_) or kind.is_binary_view(type_) or kind.is_string_view(type_))
    return np.full(len(values), row_width(type_) if is_plain else values.nbytes, np.float64)


def parquet_text_bytes(source: Path | pa.NativeFile, limit: int) -> int:
    """Return the bytes of a Parquet file's strings when each row has its own; it stops counting beyond `limit`."""
    with pq.ParquetFile(source, memory_map=True) as parquet:
        columns = [parquet.schema.column(index) for index in range(len(parquet.schema))]
        texts = [column.path for column in columns if column.physical_type == "BYTE_ARRAY"]
    size = 0
    with pq.ParquetFile(source, memory_map=True, read_dictionary=texts) as parquet:
        for group in range(parquet.num_row_groups):
            for column in parquet.read_row_group(group, columns=texts, use_threads=False).columns:
                size += sum(map(expanded_bytes, column.chunks))
            if size > limit:
                break
    return size
