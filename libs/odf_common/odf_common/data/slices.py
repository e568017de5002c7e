"""Data slices: Parquet files, written once and not trusted when they are read (spec: Data Slice; wire-facts §5.2).

Files have no Arrow-specific metadata, so that every reader finds the same types, and the logical hash is the same when
it is computed on writing and on reading.

The memory for decoding an untrusted table is computed in advance. A file or message may contain a value only once and
declare millions of rows with it, by a dictionary, a run or a compressed buffer. So a few hundred bytes can expand to
more rows than any machine can hold.
"""

import errno
import hashlib
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as kind

from odf_common.data.columns import as_stored
from odf_common.errors import InvalidInput, NotFound, VerificationFailed, is_transient
from odf_common.hashing.logical import LogicalHasher
from odf_common.hashing.multihash import Multihash

_MEMORY_LIMIT: Final = Path("/sys/fs/cgroup/memory.max")  # of a container
_MEMORY_SHARE: Final = (
    8  # one part of the memory in so many: tables are copied, and more than one is read at a time
)
_WIDTH: Final = 8  # bytes of a value whose type does not say it


def row_width(type_: pa.DataType) -> float:
    """Return the minimum size in bytes of a value of this type."""
    try:
        return float(type_.bit_width) / 8
    except ValueError:
        return _WIDTH


def expanded_bytes(values: pa.Array) -> int:
    """Return the size in bytes of dictionary and run-length encoded values after expansion; 0 for other encodings."""
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
    """Return the size in bytes of each value; for nested values, an upper bound."""
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
    """Return the size in bytes of a Parquet file's strings after expansion; counting stops once it exceeds `limit`."""
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


ROW_GROUP_ROWS: Final = 1 << 16
_NO_MEMORY: Final = "Cannot allocate memory"
_VALUE_BYTES: Final = 8  # of a decoded value, approximately
_HARMLESS_BYTES: Final = 1 << 28  # decoded, that are allowed for a file of any size
_MAX_INFLATION: Final = 4096  # ratio of decoded to stored bytes; honest files stay below it
MAX_FOREIGN_BYTES: Final = 1 << 34  # decoded, of an untrusted file, which is read as a whole


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceFile:
    """A written slice: the hashes of its records and of its bytes, and its `size` in bytes."""

    logical_hash: Multihash
    physical_hash: Multihash
    size: int


class CorruptSlice(VerificationFailed):
    """A data slice cannot be read as a Parquet file."""

    file: str
    why: str


def write_slice(table: pa.Table, file: Path) -> SliceFile:
    """Write all records to a new file and compute its hashes on the way; the file is not synced yet.

    The first column must be the offset. Before anything is written, raises `UnhashableType` or `InvalidInput` for a
    column that cannot be stored, and `InvalidInput` for an empty table, because slices without records do not exist.
    """
    if len(table) == 0:
        raise InvalidInput(text="a data slice needs at least one record")
    stored = without_nulls_behind_nulls(as_stored(table))
    hasher = LogicalHasher(stored.schema)
    with ThreadPoolExecutor(1) as pool, _HashingFile(file) as sink:
        hashing = pool.submit(hasher.update, stored)
        _encode(stored, sink)
        hashing.result()
    return SliceFile(logical_hash=hasher.finish(), physical_hash=sink.hash(), size=sink.size)


def read_slice(file: Path, columns: list[str] | None = None) -> pa.Table:
    """Return the records in file order, after Arrow's validation; raises `NotFound` or `CorruptSlice`."""
    with _reading(file), pq.ParquetFile(file, memory_map=True) as parquet:
        _check_declared(parquet, file)
        table = parquet.read(columns, use_threads=True)
        table.validate(full=True)
        return table.replace_schema_metadata(None)


def read_foreign_slice(file: Path, records: int, most: int = MAX_FOREIGN_BYTES) -> pa.Table:
    """Return the records of an untrusted file; raises `CorruptSlice` before reading would take more than `most` bytes.

    A number of records other than `records` is refused here only if reading them would take much memory. A dictionary
    stores a string once, however many records have it, so the expanded size is computed before the file is read.
    """
    with _reading(file), pq.ParquetFile(file, memory_map=True) as parquet:
        limit = _decoded_limit(file, most)
        _check_declared(parquet, file, limit)
        if parquet.metadata.num_rows != records and _decoded_bytes(parquet.metadata) > _HARMLESS_BYTES:
            why = f"contains {parquet.metadata.num_rows} records, but {records} are declared"
            raise CorruptSlice(file=file.name, why=why)
        written_out = parquet_text_bytes(file, limit)
        if written_out > limit:
            size = file.stat().st_size
            why = f"{size} bytes expand to at least {written_out} bytes of strings"
            raise CorruptSlice(file=file.name, why=why)
    return read_slice(file)


def hash_slice(file: Path) -> Multihash:
    """Return the logical hash of a file of any size; only one row group is in memory at a time.

    Raises `NotFound`, `CorruptSlice`, or `UnhashableType`.
    """
    with _reading(file), pq.ParquetFile(file, memory_map=True) as parquet:
        _check_declared(parquet, file)
        hasher = LogicalHasher(parquet.schema_arrow)
        for group in range(parquet.num_row_groups):
            table = parquet.read_row_group(group)
            table.validate(full=True)
            hasher.update(table)
        return hasher.finish()


def slice_schema(file: Path) -> pa.Schema:
    """Return the schema of a slice's records; raises `NotFound` or `CorruptSlice`."""
    with _reading(file):
        return pq.read_schema(file, memory_map=True).remove_metadata()


def _encode(table: pa.Table, sink: "_HashingFile") -> None:
    offset, *others = table.schema
    try:
        pq.write_table(
            table,
            pa.PythonFile(sink, mode="w"),
            row_group_size=ROW_GROUP_ROWS,
            version="2.6",
            compression="snappy",
            use_dictionary=[path for column in others for path in _leaves(column, "")],
            column_encoding={offset.name: "DELTA_BINARY_PACKED"},
            store_schema=False,
        )
    except (pa.ArrowException, NotImplementedError, OSError) as error:
        if (isinstance(error, OSError) and error.errno is not None) or is_transient(error):
            raise  # from the disk or the process; Arrow's own have no number
        raise InvalidInput(text=f"the records cannot be stored as Parquet: {error}") from error


def _leaves(column: pa.Field, parent: str) -> list[str]:
    """Return the Parquet paths of the values in a column, except booleans."""
    name = f"{parent}{column.name}"
    if kind.is_struct(column.type):
        return [path for inner in column.type.fields for path in _leaves(inner, f"{name}.")]
    if kind.is_list(column.type):
        return _leaves(column.type.value_field.with_name("element"), f"{name}.list.")
    return [] if kind.is_boolean(column.type) else [name]


def _decoded_limit(file: Path, most: int) -> int:
    """Return the maximum size in bytes of the decoded file: in proportion to its size on disk, up to `most`."""
    return min(max(_HARMLESS_BYTES, file.stat().st_size * _MAX_INFLATION), most)


def _decoded_bytes(metadata: pq.FileMetaData) -> int:
    return int(metadata.num_rows * metadata.num_columns * _VALUE_BYTES)


def _check_declared(parquet: pq.ParquetFile, file: Path, limit: int | None = None) -> None:
    """Raise `CorruptSlice` if the footer is inconsistent or declares more than `limit`, before memory is allocated."""
    metadata = parquet.metadata
    groups = [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)]
    if min(groups, default=0) < 0 or sum(groups) != metadata.num_rows:
        raise CorruptSlice(
            file=file.name, why=f"row groups of {groups} records in a file of {metadata.num_rows}"
        )
    widths = {metadata.row_group(index).num_columns for index in range(metadata.num_row_groups)}
    if widths - {metadata.num_columns}:
        raise CorruptSlice(
            file=file.name, why=f"row groups of {widths} columns in a file of {metadata.num_columns}"
        )
    size, limit = file.stat().st_size, limit or _decoded_limit(file, sys.maxsize)
    if _decoded_bytes(metadata) > limit:
        why = f"{size} bytes claim to contain {metadata.num_rows} records, more than {limit >> 20} MiB of values"
        raise CorruptSlice(file=file.name, why=why)
    # Not by column: Arrow aborts the process for a column chunk with damaged metadata.
    inflated = sum(metadata.row_group(index).total_byte_size for index in range(metadata.num_row_groups))
    if inflated > limit:
        raise CorruptSlice(file=file.name, why=f"{size} bytes claim to contain {inflated} bytes")


class _HashingFile:
    """A new file whose bytes are hashed while they are written."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("xb")
        self._digest = hashlib.sha3_256()
        self.size = 0
        self.closed = False

    def write(self, raw: bytes) -> int:
        """Append bytes."""
        self._digest.update(raw)
        self.size += len(raw)
        return self._file.write(raw)

    def flush(self) -> None:
        """Pass written bytes to the operating system."""
        self._file.flush()

    def tell(self) -> int:
        """Return the number of bytes written so far."""
        return self.size

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        self.closed = True

    def hash(self) -> Multihash:
        """Return the physical hash of the bytes written."""
        return Multihash.sha3(self._digest.digest())

    def __enter__(self) -> Self:
        """Return the file itself."""
        return self

    def __exit__(self, *_error: object) -> None:
        """Close the file."""
        self.close()


class _reading:  # noqa: N801 - reads as a verb
    """Converts Arrow's errors for a bad file to `CorruptSlice`; transient errors are not converted."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        """Raise the converted error, if there is one to convert."""
        if isinstance(error, FileNotFoundError):
            raise NotFound(what=f"data slice {self._file.name}") from error
        if error is not None and is_transient(error):
            return
        if isinstance(error, OSError) and error.errno is None and str(error).endswith(_NO_MEMORY):
            # Arrow drops the number of an error of mmap.
            raise OSError(errno.ENOMEM, _NO_MEMORY, str(self._file)) from error
        if isinstance(error, pa.ArrowException | OSError | ValueError | MemoryError | OverflowError):
            why = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise CorruptSlice(file=self._file.name, why=why) from error


# A required field of a struct that is null has no value, and nothing is stored. Parquet's writer takes that for a null
# that is not allowed.
def without_nulls_behind_nulls(table: pa.Table) -> pa.Table:
    """Return the same records, where required fields of null structs are not null; all other nulls stay."""
    columns = [
        pa.chunked_array([_clear(chunk) for chunk in column.chunks], column.type)
        if _has_required_parts(column.type)
        else column
        for column in table.columns
    ]
    return pa.Table.from_arrays(columns, schema=table.schema)


def _has_required_parts(type_: pa.DataType) -> bool:
    if kind.is_list(type_):
        return _has_required_parts(type_.value_type)
    return kind.is_struct(type_) and any(
        not part.nullable or _has_required_parts(part.type) for part in type_.fields
    )


def _clear(values: pa.Array) -> pa.Array:
    if not _has_required_parts(values.type):
        return values
    if kind.is_list(values.type):
        return _list_of(values, values.buffers()[0], _clear(values.values))
    is_there = values.is_valid()
    parts = []
    for index, field in enumerate(values.type.fields):
        part = _clear(values.field(index))
        if not field.nullable and not part.filter(is_there).null_count:
            part = _always_there(part)
        parts.append(part)
    mask = values.is_null() if values.null_count else None
    return pa.StructArray.from_arrays(parts, fields=list(values.type.fields), mask=mask)


def _always_there(values: pa.Array) -> pa.Array:
    """Return the values without their null mask, so that each null becomes whatever its buffer contains."""
    if values.null_count == 0:
        return values
    if isinstance(values, pa.ExtensionArray):
        return pa.ExtensionArray.from_storage(values.type, _always_there(values.storage))
    if kind.is_struct(values.type):
        parts = [values.field(index) for index in range(values.type.num_fields)]
        return pa.StructArray.from_arrays(parts, fields=list(values.type.fields))
    if kind.is_list(values.type):
        return _list_of(values, None, values.values)
    buffers = [None, *values.buffers()[1:]]
    return pa.Array.from_buffers(values.type, len(values), buffers, offset=values.offset)


def _list_of(values: pa.Array, validity: pa.Buffer | None, items: pa.Array) -> pa.Array:
    buffers = [validity, values.buffers()[1]]
    return pa.Array.from_buffers(values.type, len(values), buffers, offset=values.offset, children=[items])
