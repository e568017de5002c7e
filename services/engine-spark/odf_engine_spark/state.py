"""What the engine keeps between requests: a checkpoint (design: §8, decision).

One Arrow IPC stream: a row an input with its name, last watermark and the records that still wait, themselves an
Arrow IPC stream; the output's watermark and the format's version in the schema's metadata. The same state is the
same bytes. It comes back from storage that anyone may have written: it is checked, never trusted.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pyarrow as pa

from odf_common.errors import InvalidInput

FORMAT: Final = b"odf-engine-spark/1"
_SCHEMA: Final = pa.schema(
    [pa.field("input", pa.string(), nullable=False), ("watermark", pa.int64()), ("records", pa.binary())]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class InputState:
    """An input's last watermark (nanoseconds) and its records whose windows are open."""

    watermark: int | None = None
    waiting: pa.Table | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Everything kept, by the inputs' names in SQL; `watermark` is the output's (nanoseconds)."""

    watermark: int | None = None
    inputs: Mapping[str, InputState] = field(default_factory=dict)

    def of(self, name: str) -> InputState:
        """Return an input's state, empty for a new one."""
        return self.inputs.get(name, InputState())


def write_state(state: State, file: Path) -> None:
    """Write a checkpoint; the same state gives the same bytes."""
    known = b"" if state.watermark is None else str(state.watermark).encode()
    schema = _SCHEMA.with_metadata({b"format": FORMAT, b"watermark": known})
    names = sorted(state.inputs)
    kept = [state.inputs[name] for name in names]
    table = pa.Table.from_arrays(
        [
            pa.array(names, pa.string()),
            pa.array([each.watermark for each in kept], pa.int64()),
            pa.array([None if each.waiting is None else _packed(each.waiting) for each in kept], pa.binary()),
        ],
        schema=schema,
    )
    file.write_bytes(_packed(table))


def read_state(file: Path | None) -> State:
    """Return the state in a checkpoint, empty without one; raises `InvalidInput` unless it is one of ours."""
    if file is None:
        return State()
    try:
        return _state(_unpacked(file.read_bytes()))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InvalidInput(text=f"not a checkpoint of this engine: {error}", where=file.name) from error


def _state(table: pa.Table) -> State:
    metadata = table.schema.metadata or {}
    if metadata.get(b"format") != FORMAT:
        raise ValueError(f"format {metadata.get(b'format', b'unknown')!r}")
    if not table.schema.equals(_SCHEMA) or table.column("input").null_count:
        raise ValueError("unknown columns")
    rows = table.to_pylist()
    inputs = {
        row["input"]: InputState(
            watermark=row["watermark"],
            waiting=None if row["records"] is None else _unpacked(row["records"]),
        )
        for row in rows
    }
    if len(inputs) != len(rows):
        raise ValueError("an input stands there twice")
    known = metadata.get(b"watermark", b"")
    return State(watermark=int(known) if known else None, inputs=inputs)


def _packed(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table.combine_chunks())
    return bytes(sink.getvalue().to_pybytes())


def _unpacked(raw: bytes) -> pa.Table:
    with pa.ipc.open_stream(pa.BufferReader(raw)) as stream:
        table = stream.read_all()
    table.validate(full=True)
    return table
