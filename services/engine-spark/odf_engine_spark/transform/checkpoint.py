"""The checkpoint of a transform: an Arrow IPC stream with the state that later requests need.

It has one row per input with the input's last watermark, and one row per stored table: records that open windows, joins
and sessions still need, groups, top-N rows and running values. Each table is an Arrow IPC stream itself. The watermark
of the output and the version of the format are in the schema's metadata. Equal states are equal bytes. A checkpoint is
validated, because other programs can write to its storage.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pyarrow as pa

from odf_common.adapters.local.faults import waiting_helps
from odf_common.errors import InvalidInput

FORMAT: Final = b"odf-engine-spark/3"
_INPUT: Final = "input"
_TABLE: Final = "table"
_SCHEMA: Final = pa.schema(
    [
        pa.field("kind", pa.string(), nullable=False),
        pa.field("name", pa.string(), nullable=False),
        ("watermark", pa.int64()),
        ("records", pa.binary()),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The state between two requests: stored tables, and the watermarks of output and inputs (nanoseconds)."""

    watermark: int | None = None
    inputs: Mapping[str, int | None] = field(default_factory=dict)
    tables: Mapping[str, pa.Table] = field(default_factory=dict)


def write_state(state: State, file: Path) -> None:
    """Write the state as a checkpoint; equal states give equal bytes."""
    watermark = b"" if state.watermark is None else str(state.watermark).encode()
    schema = _SCHEMA.with_metadata({b"format": FORMAT, b"watermark": watermark})
    inputs, tables = sorted(state.inputs), sorted(state.tables)
    rows = pa.Table.from_arrays(
        [
            pa.array([_INPUT] * len(inputs) + [_TABLE] * len(tables), pa.string()),
            pa.array(inputs + tables, pa.string()),
            pa.array([state.inputs[name] for name in inputs] + [None] * len(tables), pa.int64()),
            pa.array([None] * len(inputs) + [_to_ipc(state.tables[name]) for name in tables], pa.binary()),
        ],
        schema=schema,
    )
    file.write_bytes(_to_ipc(rows))


def read_state(file: Path | None) -> State:
    """Return the state in a checkpoint, an empty one for None; raises `InvalidInput` for an invalid checkpoint."""
    if file is None:
        return State()
    try:
        with waiting_helps():
            return _state(_from_ipc(file.read_bytes()))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InvalidInput(text=f"not a checkpoint of this engine: {error}", where=file.name) from error


def _state(table: pa.Table) -> State:
    metadata = table.schema.metadata or {}
    if metadata.get(b"format") != FORMAT:
        written = metadata.get(b"format", b"unknown").decode(errors="replace")
        raise ValueError(f"its format is {written!r}, not {FORMAT.decode()!r}: recompute the dataset")
    if not table.schema.equals(_SCHEMA) or table.column("kind").null_count or table.column("name").null_count:
        raise ValueError("unknown columns")
    rows = table.to_pylist()
    inputs = {row["name"]: row["watermark"] for row in rows if row["kind"] == _INPUT}
    tables = {row["name"]: _from_ipc(row["records"] or b"") for row in rows if row["kind"] == _TABLE}
    if len(inputs) + len(tables) != len(rows):
        raise ValueError("an input or a table occurs twice")
    watermark = metadata.get(b"watermark", b"")
    if watermark and not -(1 << 63) <= int(watermark) < 1 << 63:
        raise ValueError("a watermark is out of range")
    return State(watermark=int(watermark) if watermark else None, inputs=inputs, tables=tables)


def _to_ipc(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table.combine_chunks())
    return bytes(sink.getvalue().to_pybytes())


def _from_ipc(raw: bytes) -> pa.Table:
    with pa.ipc.open_stream(pa.BufferReader(raw)) as stream:
        table = stream.read_all()
    table.validate(full=True)
    return table
