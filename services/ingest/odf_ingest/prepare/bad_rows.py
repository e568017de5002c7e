"""Malformed rows of a file or of a message that is a batch of its own.

Either the batch is refused because of its first bad row, or the bad rows are left out: `rejects_rows` in
`commit/rejects.py` decides. A row is identified by its line; a row of a table by its number.
"""

from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Final, Protocol

import numpy as np
import pyarrow as pa

from odf_common.errors import InvalidInput
from odf_common.metadata.events import AddPushSource, ReadStep, ReadStepParquet
from odf_ingest.merge.difference import MAX_PLACES, RepeatedKey
from odf_ingest.prepare.batch import BadRecord
from odf_ingest.read import (
    FileRecords,
    infer_batch,
    infer_records,
    read_batch,
    read_file,
    read_inferred,
    read_records,
    split_file,
    suspects,
)
from odf_ingest.read.arrow_ipc import row_stream
from odf_ingest.read.isolate_bad_records import isolate_bad_records
from odf_ingest.read.whole_table import decode_table, refused_rows, row_label, with_columns

RECORDS_PER_READ: Final = 16_384  # that are read together
MAX_BAD_ROWS: Final = 10_000  # per table: each row is searched for, and stored, separately


class BadRows(Protocol):
    """Handles the bad rows of a batch: leaves them out, or refuses the batch."""

    def infer(self, base: pa.Schema | None) -> pa.Schema | None:
        """Return the columns of `base` followed by the other columns of the rows.

        Raises `InvalidInput` if columns cannot be inferred.
        """

    def without(self, table: pa.Table, faults: Mapping[int, str]) -> pa.Table:
        """Return the table without the rows in `faults`, or raise `InvalidInput` with the location of the first one."""


def with_places(error: InvalidInput, source: AddPushSource, content: Callable[[], bytes]) -> InvalidInput:
    """Return an error of the merge with the locations of its records in the batch, if they can be determined."""
    # The rows of a query's output have no place in the file.
    if not isinstance(error, RepeatedKey) or source.preprocess is not None:
        return error
    records = split_file(source.read, content())
    if records is None:
        return error
    return error.with_facts(places=tuple(records.places[row] for row in error.rows[:MAX_PLACES]))


class RefusedRows:
    """The rows of a batch that is refused if one of them is bad."""

    count = 0
    bad: tuple[BadRecord, ...] = ()

    def __init__(self, step: ReadStep, content: Callable[[], bytes]) -> None:
        """Use `content`, which returns the bytes of the batch, and `step`, which reads them."""
        self._step = step
        self._content = content

    def infer(self, base: pa.Schema | None) -> pa.Schema | None:
        """Return the columns of `base` followed by the other columns of the batch."""
        return infer_batch(self._step, self._content(), base)

    def without(self, table: pa.Table, faults: Mapping[int, str]) -> pa.Table:
        """Return the table if `faults` is empty; raises `InvalidInput` with the location of the first bad row."""
        if faults:
            row = min(faults)
            raise InvalidInput(where=self._place_of(row), text=faults[row])
        return table

    def _place_of(self, row: int) -> str:
        if isinstance(self._step, ReadStepParquet):
            return row_label(row)
        records = split_file(self._step, self._content())
        return f"record {row + 1}" if records is None else records.places[row]


class _LeftRows:
    """The indices of the good rows of a batch, ascending, and the reason for each bad row."""

    def __init__(self, count: int) -> None:
        self.indices = np.arange(count)
        self.reasons: dict[int, str] = {}

    def without(self, table: pa.Table, faults: Mapping[int, str]) -> pa.Table:
        """Return the table, which has the rows left so far, without those of `faults`."""
        if not faults:
            return table
        self.reasons |= {int(self.indices[row]): reason for row, reason in faults.items()}
        is_good = np.ones(len(table), np.bool_)
        is_good[list(faults)] = False
        self.indices = self.indices[is_good]
        return table.filter(pa.array(is_good))


class TextRows:
    """Rows of text that are read together. Bad rows are left out, and kept with their reasons."""

    def __init__(self, records: FileRecords) -> None:
        self.records = records
        self._left = _LeftRows(len(records.places))

    def read(self, schema: pa.Schema | None, *, is_declared: bool) -> pa.Table | None:
        """Return the rows that can be read as records; None if there are none."""
        read, step = (read_records if is_declared else read_inferred), self.records.step
        tables, indices = [], []
        for start in range(0, self.count, RECORDS_PER_READ):
            outcome = isolate_bad_records(
                self.records.messages(start, start + RECORDS_PER_READ),
                lambda some: read(step, some, schema),
                lambda some: suspects(step, some, schema),
            )
            self._left.reasons |= {start + row: reason for row, reason in outcome.bad.items()}
            if outcome.table is not None:
                tables.append(outcome.table)
                indices.append(start + outcome.kept)
        if not tables:
            return None
        self._left.indices = np.concatenate(indices)
        return pa.concat_tables(tables, promote_options="permissive")

    def infer(self, base: pa.Schema | None) -> pa.Schema:
        """Return the columns of the good rows."""
        return infer_records(self.records.step, self.records.messages(0, self.count), base)

    def without(self, table: pa.Table, faults: Mapping[int, str]) -> pa.Table:
        """Return the table, which has the rows left so far, without those of `faults`."""
        return self._left.without(table, faults)

    @property
    def count(self) -> int:
        """Return the number of rows, bad ones included."""
        return len(self.records.places)

    @property
    def first_fault(self) -> tuple[str, str]:
        """Return the place of the first row that was left out, and the reason."""
        row = min(self._left.reasons)
        return self.records.places[row], self._left.reasons[row]

    @property
    def bad(self) -> tuple[BadRecord, ...]:
        """Return the rows that were left out. Offsets are row numbers; reasons begin with the location, if known."""
        return tuple(
            BadRecord(
                partition=0,
                offset=row,
                value=self.records.messages(row, row + 1)[0],
                reason=f"{self.records.places[row]}: {reason}".removeprefix(": "),
                header_bytes=len(self.records.header),
            )
            for row, reason in sorted(self._left.reasons.items())
        )


class TableRows:
    """Rows of a table. Bad rows are left out, and kept as Arrow streams of one row with their reasons.

    Bad rows are taken from the batch by reading it again, so that it does not stay in memory next to its records.
    """

    def __init__(self, step: ReadStepParquet, source: Callable[[], pa.NativeFile]) -> None:
        """Read the batch that `source` opens; raises `InvalidInput` if it is not a table."""
        self._step = step
        self._source = source
        self.count = len(self._table())
        self._left = _LeftRows(self.count)

    def _table(self) -> pa.Table:
        with self._source() as source:
            return decode_table(self._step, source)

    def read(self, schema: pa.Schema | None, *, is_declared: bool) -> pa.Table | None:
        """Return the rows that fit the schema; None if there are none.

        Raises `InvalidInput` if more than `MAX_BAD_ROWS` do not fit.
        """
        del is_declared  # a table has its columns, so declared and inferred schemas are read in the same way
        table = self._table()
        faults = refused_rows(table, schema, MAX_BAD_ROWS + 1)
        if len(faults) == len(table):
            return None
        return with_columns(self.without(table, faults), schema)

    def without(self, table: pa.Table, faults: Mapping[int, str]) -> pa.Table:
        """Return the table, which has the rows left so far, without those in `faults`.

        Raises `InvalidInput` with the location of the first bad row if there are more than `MAX_BAD_ROWS`.
        """
        left = self._left.without(table, faults)
        if len(self._left.reasons) > MAX_BAD_ROWS and len(left):
            where, why = self.first_fault
            text = f"{why}; more than {MAX_BAD_ROWS:,} rows do not fit, which refuses all"
            raise InvalidInput(where=where, text=text)
        return left

    @property
    def first_fault(self) -> tuple[str, str]:
        """Return the place of the first row that was left out, and the reason."""
        row = min(self._left.reasons)
        return row_label(row), self._left.reasons[row]

    @property
    def bad(self) -> tuple[BadRecord, ...]:
        """Return the rows that were left out, with their numbers as offsets; reasons begin with the place."""
        table = self._table()
        return tuple(
            BadRecord(
                partition=0, offset=row, value=row_stream(table, row), reason=f"{row_label(row)}: {reason}"
            )
            for row, reason in sorted(self._left.reasons.items())
        )


class RejectedRows:
    """The rows of a file, or of a message that is a batch of its own; bad rows are left out.

    The batch is refused if all rows are bad, or if single rows of its format cannot be stored as dead letters.
    """

    def __init__(self, step: ReadStep, batch: Path | bytes) -> None:
        self._step = step
        self._batch = batch
        self._has_bad = False

    def infer(self, base: pa.Schema | None) -> pa.Schema | None:
        """Return the columns of `base` followed by the other columns of the good rows.

        Raises `InvalidInput` if columns cannot be inferred.
        """
        try:
            return infer_batch(self._step, self._content(), base)
        except InvalidInput:
            if not isinstance(self._rows, TextRows):
                raise
            return self._rows.infer(base)

    def read(self, schema: pa.Schema | None, *, is_declared: bool) -> pa.Table:
        """Return the good rows; raises `InvalidInput` if the batch is refused."""
        try:
            if isinstance(self._batch, bytes):
                return read_batch(self._step, self._batch, schema)
            return read_file(self._step, self._batch, schema)
        except InvalidInput:
            if self._rows is None:
                raise
            self._has_bad = True
            table = self._rows.read(schema, is_declared=is_declared)
            if table is None:
                raise
            return table

    def without(self, table: pa.Table, faults: Mapping[int, str]) -> pa.Table:
        """Return the table without the rows in `faults`; raises `InvalidInput` with the first one if no row is left."""
        if not faults:
            return table
        if self._rows is None:
            return RefusedRows(self._step, self._content).without(table, faults)
        left = self._rows.without(table, faults)
        if len(left) == 0:
            where, why = self._rows.first_fault
            raise InvalidInput(where=where, text=why)
        self._has_bad = True
        return left

    @property
    def count(self) -> int:
        """Return the number of rows in the batch; 0 if no row is bad."""
        return self._rows.count if self._has_bad and self._rows is not None else 0

    @property
    def bad(self) -> tuple[BadRecord, ...]:
        """Return the rows that were left out, with their numbers as offsets; reasons begin with the place."""
        return self._rows.bad if self._has_bad and self._rows is not None else ()

    @cached_property
    def _rows(self) -> TextRows | TableRows | None:
        if isinstance(self._step, ReadStepParquet):
            return TableRows(self._step, self._open)
        records = split_file(self._step, self._content())
        return None if records is None else TextRows(records)

    def _content(self) -> bytes:
        return self._batch if isinstance(self._batch, bytes) else self._batch.read_bytes()

    def _open(self) -> pa.NativeFile:
        return (
            pa.BufferReader(self._batch)
            if isinstance(self._batch, bytes)
            else pa.memory_map(str(self._batch))
        )
