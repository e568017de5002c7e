"""Changelogs between the engine's incremental operators (RFC-015; design: law 4).

An operator takes changes and gives changes. The changes of a query's input are those of its records; a correction's
halves stand side by side. What an operator puts out depends on the sequence of changes, never on how it was cut.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from odf_common.data.columns import Operation
from odf_engine_spark.values.operations import Numbers

APPEND: Final = int(Operation.APPEND)
RETRACT: Final = int(Operation.RETRACT)
FROM: Final = int(Operation.CORRECT_FROM)
TO: Final = int(Operation.CORRECT_TO)
TAKES_AWAY: Final = frozenset({RETRACT, FROM})


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Records and what each does: `operations` has one number a record. Columns are known by their place."""

    records: pa.Table
    operations: Numbers


@dataclass(frozen=True, slots=True)
class Altered:
    """What came out, in order: the operation and where the record is found."""

    operations: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)

    def add(self, row: int) -> None:
        """Note that a record came."""
        self.operations.append(APPEND)
        self.rows.append(row)

    def take(self, row: int) -> None:
        """Note that a record went."""
        self.operations.append(RETRACT)
        self.rows.append(row)

    def correct(self, old: int, new: int) -> None:
        """Note that a record became another."""
        self.operations.extend((FROM, TO))
        self.rows.extend((old, new))


def steps(operations: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield where each change starts and ends: a record by itself, or both halves of a correction."""
    start, total = 0, len(operations)
    while start < total:
        is_pair = operations[start] == FROM and start + 1 < total and operations[start + 1] == TO
        end = start + 2 if is_pair else start + 1
        yield start, end
        start = end


def positional(columns: Sequence[pa.Array | pa.ChunkedArray]) -> pa.Table:
    """Return the columns as a table, named by their places."""
    return pa.Table.from_arrays(list(columns), names=[str(place) for place in range(len(columns))])


def canonical(table: pa.Table) -> pa.Table:
    """Return the table in one chunk and with nothing behind its nulls: equal tables are the same bytes."""
    everything = pa.array(range(len(table)), pa.int64())
    return table.take(everything).combine_chunks()
