"""Malformed rows of a file, which is a batch of its own: the first one refuses all, or each is left out.

Which of both applies is decided by `rejects_rows` in `commit/rejects.py`. A row is named by its line.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Final, Protocol

import numpy as np
import pyarrow as pa

from odf_common.errors import InvalidInput
from odf_common.metadata.events import AddPushSource
from odf_common.metadata.steps import ReadStep
from odf_ingest.merge import MAX_PLACES, RepeatedKey
from odf_ingest.prepare.batch import BadRecord
from odf_ingest.read import (
    FileRecords,
    infer_batch,
    infer_records,
    read_file,
    read_inferred,
    read_records,
    split_file,
    suspects,
)
from odf_ingest.read.isolate_bad_records import isolate_bad_records

RECORDS_PER_READ: Final = 16_384  # that are read together


class BadRows(Protocol):
    """How bad rows are handled."""

    def without(self, table: pa.Table, faults: Mapping[int, str]) -> pa.Table:
        """Return the table without the rows of `faults`, or raise `InvalidInput` with the place of the first."""


def with_places(error: InvalidInput, source: AddPushSource, content: Callable[[], bytes]) -> InvalidInput:
    """Return the error of a merge with the lines of its records in the batch, if they can be found."""
    # The rows of a query's output have no place in the file.
    if not isinstance(error, RepeatedKey) or source.preprocess is not None:
        return error
    records = split_file(source.read, content())
    if records is None:
        return error
    return replace(error, places=tuple(records.places[row] for row in error.rows[:MAX_PLACES]))


class RefusedRows:
    """A bad row refuses its batch."""

    count = 0
    bad: tuple[BadRecord, ...] = ()

    def __init__(self, step: ReadStep, content: Callable[[], bytes]) -> None:
        """`content` returns the batch that `step` reads."""
        self._step = step
        self._content = content

    def without(self, table: pa.Table, faults: Mapping[int, str]) -> pa.Table:
        """Return the table; raises `InvalidInput` with the place of the first bad row."""
        if faults:
            row = min(faults)
            records = split_file(self._step, self._content())
            where = f"record {row + 1}" if records is None else records.places[row]
            raise InvalidInput(where=where, text=faults[row])
        return table


class TextRows:
    """Rows of text that are read together; bad ones are left out, and collected with the reason."""

    def __init__(self, records: FileRecords) -> None:
        self.records = records
        self._indices = np.arange(len(records.places))
        self._reasons: dict[int, str] = {}

    def read(self, schema: pa.Schema | None, *, is_declared: bool) -> pa.Table | None:
        """Return the rows that can be read; None if there are none."""
        read, step = (read_records if is_declared else read_inferred), self.records.step
        tables, indices = [], []
        for start in range(0, len(self.records.places), RECORDS_PER_READ):
            outcome = isolate_bad_records(
                self.records.messages(start, start + RECORDS_PER_READ),
                lambda some: read(step, some, schema),
                lambda some: suspects(step, some, schema),
            )
            self._reasons |= {start + row: reason for row, reason in outcome.bad.items()}
            if outcome.table is not None:
                tables.append(outcome.table)
                indices.append(start + outcome.kept)
        if not tables:
            return None
        self._indices = np.concatenate(indices)
        return pa.concat_tables(tables, promote_options="permissive")

    def without(self, table: pa.Table, faults: Mapping[int, str]) -> pa.Table:
        """Return the table, which has the rows left so far, without those of `faults`."""
        if not faults:
            return table
        self._reasons |= {int(self._indices[row]): reason for row, reason in faults.items()}
        good = np.setdiff1d(np.arange(len(table)), list(faults))
        self._indices = self._indices[good]
        return table.take(pa.array(good))

    @property
    def bad(self) -> tuple[BadRecord, ...]:
        """Return the rows that were left out, with their numbers as offsets; reasons begin with the place, if known."""
        return tuple(
            BadRecord(
                partition=0,
                offset=row,
                value=self.records.messages(row, row + 1)[0],
                reason=f"{self.records.places[row]}: {reason}".removeprefix(": "),
                header_bytes=len(self.records.header),
            )
            for row, reason in sorted(self._reasons.items())
        )


class RejectedRows:
    """The rows of a file, of which bad ones are left out; unless all are bad, or its format has no rows of text."""

    def __init__(self, step: ReadStep, file: Path) -> None:
        self._step = step
        self._file = file
        self._has_bad = False

    def infer(self, base: pa.Schema | None) -> pa.Schema | None:
        """Return the columns of the file, of its good rows if it has bad ones; raises `InvalidInput` if it has none."""
        try:
            return infer_batch(self._step, self._file.read_bytes(), base)
        except InvalidInput:
            if self._rows is None:
                raise
            records = self._rows.records
            return infer_records(records.step, records.messages(0, len(records.places)), base)

    def read(self, schema: pa.Schema | None, *, is_declared: bool) -> pa.Table:
        """Return the good rows; raises `InvalidInput` if the file is refused."""
        try:
            return read_file(self._step, self._file, schema)
        except InvalidInput:
            if self._rows is None:
                raise
            self._has_bad = True
            table = self._rows.read(schema, is_declared=is_declared)
            if table is None:
                raise
            return table

    def without(self, table: pa.Table, faults: Mapping[int, str]) -> pa.Table:
        """Return the table without these rows; raises `InvalidInput` with the first if no others are left."""
        if not faults:
            return table
        if self._rows is None or len(faults) == len(table):
            return RefusedRows(self._step, self._file.read_bytes).without(table, faults)
        self._has_bad = True
        return self._rows.without(table, faults)

    @property
    def count(self) -> int:
        """Return how many rows the file has; 0 if none is bad."""
        return len(self._rows.records.places) if self._has_bad and self._rows is not None else 0

    @property
    def bad(self) -> tuple[BadRecord, ...]:
        """Return the rows that were left out, with their numbers as offsets; reasons begin with the place."""
        return self._rows.bad if self._has_bad and self._rows is not None else ()

    @cached_property
    def _rows(self) -> TextRows | None:
        records = split_file(self._step, self._file.read_bytes())
        return None if records is None else TextRows(records)
