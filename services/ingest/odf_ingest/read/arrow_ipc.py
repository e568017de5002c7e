"""Reads Arrow IPC, as stream or file: one table, like Parquet.

The specification has no read step for it, so chains do not contain it. Pushed files, HTTP bodies, gRPC streams and
messages may have this format instead of that of their source. Dead letters of rows of tables have it too: each is a
stream of one row.

The sizes of compressed buffers are checked before Arrow reads them, because Arrow allocates as many bytes as a buffer
claims. The file format is a stream with a footer that locates the messages. The footer is ignored, so exactly the
messages that were checked are read (Arrow columnar format, "Serialization and Interprocess Communication").
"""

import json
import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kind

from odf_common.codec.flatbuffers.untrusted_buffer import Source
from odf_common.data.json_values import plain, record_rows
from odf_common.data.slices import expanded_bytes
from odf_common.errors import InvalidInput
from odf_common.metadata.events import ReadStepParquet
from odf_ingest.read.format import infer_records, read_records
from odf_ingest.read.types.columns import extend_columns
from odf_ingest.read.types.kinds import UUID
from odf_ingest.read.whole_table import (
    DECODING,
    PLAIN_LAYOUTS,
    decode_schema,
    decode_table,
    require_bounded,
    require_distinct,
    row_label,
    with_columns,
)

MAGIC: Final = b"ARROW1"  # begins and ends the file format; a stream begins with its schema
_PADDED_MAGIC_BYTES: Final = 8
_LENGTH: Final = struct.Struct("<i")  # of the footer, before the last magic
_BUFFER: Final = struct.Struct("<qq")  # its place in the body, and its length
_DECOMPRESSED: Final = struct.Struct("<q")  # begins a compressed buffer
_EARLY_COMPRESSION: Final = b"ARROW:experimental_compression"  # of Arrow 0.17, which newer ones still read
_HEADER: Final = 2  # slots of the tables Message, DictionaryBatch and RecordBatch
_DATA: Final = 1
_BUFFERS, _COMPRESSION = 2, 3


def stream_of(source: pa.NativeFile) -> pa.Buffer:
    """Return the Arrow stream in `source`; of a file, without its footer. Raises `InvalidInput`."""
    source.seek(0)
    content: pa.Buffer = source.read_buffer()
    if content.size < _PADDED_MAGIC_BYTES or content.slice(0, len(MAGIC)).to_pybytes() != MAGIC:
        return content
    end = content.size - len(MAGIC) - _LENGTH.size
    footer = _LENGTH.unpack(content.slice(end, _LENGTH.size).to_pybytes())[0] if end > 0 else -1
    length = end - footer - _PADDED_MAGIC_BYTES
    if footer < 0 or length < 0:
        raise InvalidInput(text="is not Arrow data: its footer is cut off")
    return content.slice(_PADDED_MAGIC_BYTES, length)


def decompressed_bytes(stream: pa.Buffer) -> int:
    """Return the decompressed size in bytes that the compressed buffers of a stream claim to have.

    Raises `InvalidInput`, and errors of Arrow.
    """
    size = 0
    for message in pa.ipc.MessageReader.open_stream(pa.BufferReader(stream)):
        if message.type in ("record batch", "dictionary") and message.body is not None:
            try:
                size += _claimed_bytes(message)
            except (struct.error, IndexError) as error:
                raise InvalidInput(text="is not Arrow data: a message is damaged") from error
    return size


def _claimed_bytes(message: pa.Message) -> int:
    source = Source(message.metadata.to_pybytes())
    batch = _inner(source, source.follow(0), _HEADER)
    if message.type == "dictionary":
        batch = _inner(source, batch, _DATA)
    slots, _ = source.vtable(batch)
    is_compressed = len(slots) > _COMPRESSION and slots[_COMPRESSION]
    if not is_compressed and _EARLY_COMPRESSION not in source.raw:
        return 0
    first, count = source.span(source.follow(batch + slots[_BUFFERS]), width=_BUFFER.size)
    size = 0
    for at in range(first, first + count * _BUFFER.size, _BUFFER.size):
        offset, length = _BUFFER.unpack_from(source.raw, at)
        if length > 0:
            size += max(
                _DECOMPRESSED.unpack(message.body.slice(offset, _DECOMPRESSED.size).to_pybytes())[0], 0
            )
    return size


def _inner(source: Source, table: int, slot: int) -> int:
    """Return the position of the FlatBuffers table that a slot of another table refers to."""
    return source.follow(table + source.vtable(table)[0][slot])


STREAM: Final = b"\xff\xff\xff\xff"  # precedes each message of a stream; UTF-8 text cannot begin with it


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadArrowIpc(ReadStepParquet):
    """The read step for Arrow IPC. Columns are selected as in a Parquet file."""


@decode_table.register(ReadArrowIpc)
def _decode(step: ReadArrowIpc, source: pa.NativeFile) -> pa.Table:
    table = _read(source)
    require_storable(table.schema)
    size = sum(expanded_bytes(chunk) for column in table.columns for chunk in column.chunks)
    require_bounded(size)
    with DECODING.admit(size):
        return _decode_dictionaries(table)


def _read(source: pa.NativeFile) -> pa.Table:
    stream = stream_of(source)
    try:
        size = decompressed_bytes(stream)
        require_bounded(size)
        with DECODING.admit(size):
            table = pa.ipc.open_stream(stream).read_all().replace_schema_metadata(None)
        table.validate(full=True)  # offsets that leave their buffer would crash a reader
        return table
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InvalidInput(text=f"is not Arrow data: {error}") from error


@decode_schema.register(ReadArrowIpc)
def _columns(step: ReadArrowIpc, source: pa.NativeFile) -> pa.Schema:
    try:
        schema = pa.ipc.open_stream(stream_of(source)).schema
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InvalidInput(text=f"is not Arrow data: {error}") from error
    require_storable(schema)
    return pa.schema([column.with_type(_plain(column.type)) for column in schema])


def row_stream(table: pa.Table, row: int) -> bytes:
    """Return one row of a table, with all columns, as an Arrow stream."""
    one = _decode_dictionaries(table.slice(row, 1))
    for index, column in enumerate(one.schema):
        if column.type in PLAIN_LAYOUTS:  # a stream of views has the values of all rows
            type_ = PLAIN_LAYOUTS[column.type]
            one = one.set_column(index, column.with_type(type_), one.column(index).cast(type_))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, one.schema) as writer:
        writer.write_table(one)
    return bytes(sink.getvalue())


def row_text(stream: bytes) -> bytes | None:
    """Return the row in a stream from `row_stream` as a JSON object for display; None if it is not such a stream."""
    if not stream.startswith(STREAM):
        return None
    try:
        (row,) = record_rows(_read(pa.BufferReader(stream)))
    except (InvalidInput, ValueError):
        return None
    return json.dumps(plain(row), ensure_ascii=False).encode()


@read_records.register(ReadArrowIpc)
def _records(step: ReadArrowIpc, values: Sequence[bytes], schema: pa.Schema | None) -> pa.Table:
    tables = []
    for value in values:
        row = _read(pa.BufferReader(value))
        if len(row) != 1:
            raise InvalidInput(text=f"expected one row, got {len(row)}")
        try:
            tables.append(with_columns(row, schema))
        except InvalidInput as error:  # its number is not that of its file
            raise InvalidInput(text=str(error).removeprefix(f"{row_label(0)}: ")) from error
    return pa.concat_tables(tables, promote_options="permissive")


@infer_records.register(ReadArrowIpc)
def _infer(step: ReadArrowIpc, values: Sequence[bytes], base: pa.Schema | None) -> pa.Schema:
    for value in values:
        with suppress(InvalidInput):
            base = extend_columns(base, _read(pa.BufferReader(value)).schema)
    return pa.schema([]) if base is None else base


def _plain(type_: pa.DataType) -> pa.DataType:
    """Return the type of the values of a dictionary-encoded or run-end encoded column."""
    is_encoded = kind.is_run_end_encoded(type_) or kind.is_dictionary(type_)
    return _plain(type_.value_type) if is_encoded else type_


def require_storable(schema: pa.Schema) -> None:
    """Raise `InvalidInput` for a column whose type cannot be stored in a slice, or whose name is not unique."""
    for column in schema:
        is_encoded = kind.is_run_end_encoded(column.type)
        why = _unstorable(column.type.value_type if is_encoded else column.type)
        if why is not None:
            raise InvalidInput(where=f"column {column.name}", text=f"{why} cannot be stored")
    require_distinct(schema.names)


def _unstorable(type_: pa.DataType) -> str | None:
    """Return the name of the part of a type that cannot be stored; None if all of it can."""
    if kind.is_dictionary(type_):
        return _unstorable(type_.value_type)
    if kind.is_map(type_) or kind.is_list_view(type_) or kind.is_large_list_view(type_):
        return str(type_)
    if kind.is_struct(type_):
        return next((why for field in type_.fields if (why := _unstorable(field.type))), None)
    if kind.is_list(type_) or kind.is_large_list(type_) or kind.is_fixed_size_list(type_):
        return _unstorable(type_.value_type)
    is_refused = kind.is_union(type_) or kind.is_duration(type_) or kind.is_interval(type_)
    is_refused = is_refused or kind.is_run_end_encoded(type_) or _is_unknown_extension(type_)
    # Parquet has neither decimals that end before the point nor binary values of no width.
    is_refused = is_refused or (kind.is_decimal(type_) and type_.scale < 0)
    is_refused = is_refused or (kind.is_fixed_size_binary(type_) and type_.byte_width == 0)
    return str(type_) if is_refused else None


def _is_unknown_extension(type_: pa.DataType) -> bool:
    return isinstance(type_, pa.BaseExtensionType) and type_ != UUID


def _decode_dictionaries(table: pa.Table) -> pa.Table:
    """Return the table with plain columns instead of encoded ones."""
    for index, column in enumerate(table.schema):
        held = table.column(index)
        if kind.is_run_end_encoded(column.type):
            chunks = [pc.run_end_decode(chunk) for chunk in held.chunks]
            held = pa.chunked_array(chunks, column.type.value_type)
        if kind.is_dictionary(held.type):
            held = held.cast(held.type.value_type)
        if held.type != column.type:
            table = table.set_column(index, column.with_type(held.type), held)
    return table
