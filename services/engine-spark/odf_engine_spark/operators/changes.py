"""The changelogs between the engine's incremental operators (RFC-015).

An operator converts changes to changes. The changes of a query's input are its records; the two records of a correction
are adjacent. The output of an operator depends on the sequence of changes, not on how it was split into requests.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from odf_common.data.columns import Operation
from odf_common.errors import InvalidQuery
from odf_engine_spark.values.operations import Numbers

APPEND: Final = int(Operation.APPEND)
RETRACT: Final = int(Operation.RETRACT)
FROM: Final = int(Operation.CORRECT_FROM)
TO: Final = int(Operation.CORRECT_TO)
TAKES_AWAY: Final = frozenset({RETRACT, FROM})


class InvalidChange(InvalidQuery):
    """A record retracts another one that is final or never existed; the text names the record."""


class NothingToRetract(Exception):
    """A change retracts a record that does not exist, as far as the state shows."""

    def __init__(self, row: int) -> None:
        """Use the position of the change."""
        super().__init__(row)
        self.row = row


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Records and the operation of each. Columns are addressed by position."""

    records: pa.Table
    operations: Numbers


@dataclass(frozen=True, slots=True)
class ChangelogBuilder:
    """The changelog so far: operations, and the numbers of the rows that they apply to."""

    operations: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)

    def add(self, row: int) -> None:
        """Emit a new row."""
        self.operations.append(APPEND)
        self.rows.append(row)

    def take(self, row: int) -> None:
        """Emit the retraction of a row."""
        self.operations.append(RETRACT)
        self.rows.append(row)

    def correct(self, old: int, new: int) -> None:
        """Emit the correction of a row to another one."""
        self.operations.extend((FROM, TO))
        self.rows.extend((old, new))


def steps(operations: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each change: a single record, or the two records of a correction."""
    start, total = 0, len(operations)
    while start < total:
        is_pair = operations[start] == FROM and start + 1 < total and operations[start + 1] == TO
        end = start + 2 if is_pair else start + 1
        yield start, end
        start = end


def positional(columns: Sequence[pa.Array | pa.ChunkedArray]) -> pa.Table:
    """Return columns as a table, named by their positions."""
    return pa.Table.from_arrays(list(columns), names=[str(index) for index in range(len(columns))])


def canonical(table: pa.Table) -> pa.Table:
    """Return the table in one chunk, without data under its nulls, so that equal tables are equal bytes."""
    everything = pa.array(range(len(table)), pa.int64())
    return table.take(everything).combine_chunks()
