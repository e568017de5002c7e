"""The operations of a changelog against the current records of their keys (spec: Data Schema, RFC-015).

A record is appended (+A) if its key has no current record. A retraction (-R) or correction (-C) must repeat all values
of the current record, because readers of the dataset find the record by its values. The operations of a key are checked
in order. One that does not fit is left out, and the next one is checked as if it did not exist.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as kind

from odf_common.data.columns import Operation
from odf_common.metadata.scalars import Strings
from odf_ingest.errors import OperationsMismatched
from odf_ingest.history.keys import Keys, equal, key_array
from odf_ingest.read.types.type_names import Quoted, show_value

NO_ROW: Final = -1  # in place of an index
Indices = npt.NDArray[np.int64]
SIGNS: Final = {
    Operation.APPEND: "+A",
    Operation.RETRACT: "-R",
    Operation.CORRECT_FROM: "-C",
    Operation.CORRECT_TO: "+C",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Records ordered by key, each +C directly after its -C, and the current records of their keys.

    `records` has the `count` new records first, then the current ones. `before` has for each new record the index of
    the record that is current for its key just before it, if all operations fit; `NO_ROW` if there is none.
    """

    records: pa.Table
    count: int
    ops: npt.NDArray[np.uint8]
    before: Indices
    starts: npt.NDArray[np.bool_]
    """Whether a record is the first of its key."""
    rows: Indices
    """The index of each new record in its batch."""
    key: Strings
    event_time: str

    @classmethod
    def from_tables(
        cls,
        *,
        new: pa.Table,
        ops: npt.NDArray[np.uint8],
        rows: Indices,
        current: pa.Table,
        key: Strings,
        event_time: str,
    ) -> Self:
        """Return the changes for ordered new records and the dataset's current records; both have the same columns."""
        keys = key_array(new, key)
        starts = np.append(np.ones(min(len(new), 1), np.bool_), keys[1:] != keys[:-1])
        before = np.arange(len(new), dtype=np.int64) - 1
        before[np.append(False, ops[:-1] == Operation.RETRACT)[: len(new)]] = NO_ROW
        found = _find(key_array(current, key), keys[starts])
        before[starts] = np.where(found == NO_ROW, NO_ROW, found + len(new))
        records = pa.concat_tables([new, current]).combine_chunks()
        return cls(
            records=records,
            count=len(new),
            ops=ops,
            before=before,
            starts=starts,
            rows=rows,
            key=key,
            event_time=event_time,
        )

    @property
    def is_retraction(self) -> npt.NDArray[np.bool_]:
        """Return a mask of the records that are a -R or a -C."""
        return np.isin(self.ops, (Operation.RETRACT, Operation.CORRECT_FROM))

    def complete(self, *, is_whole: bool) -> pa.Table:
        """Return the new records. A -R or -C without an event time gets that of the record it retracts or corrects.

        With `is_whole` it gets all values of that record, and its own are ignored. Raises `OperationsMismatched` unless
        all operations fit.
        """
        rows = np.flatnonzero(self.is_retraction & (self.before != NO_ROW))
        differing = np.full(self.count, NO_ROW)
        if not is_whole:
            differing[rows] = self._first_differences(rows, self.before[rows])
        faults = {int(self.rows[row]): why for row, why in self._faults(differing, is_whole=is_whole)}
        if faults:
            raise OperationsMismatched(text=faults[min(faults)], faults=faults)
        names = [name for name in self.records.column_names if is_whole or name == self.event_time]
        records = self.records.slice(0, self.count)
        for name in names:
            column = self.records.column(name)
            missing = rows if is_whole else rows[column.take(pa.array(rows)).is_null().to_numpy()]
            if len(missing):
                source = np.arange(self.count)
                source[missing] = self.before[missing]
                records = records.set_column(
                    records.column_names.index(name),
                    records.schema.field(name),
                    column.take(pa.array(source)),
                )
        return records

    def _faults(self, differing: Indices, *, is_whole: bool) -> Iterator[tuple[int, str]]:
        """Yield the records that do not fit, with the reason.

        `differing` has for each record the first column that differs from its record in `before`, or `NO_ROW`.
        """
        is_append = self.ops == Operation.APPEND
        has_record = self.before != NO_ROW
        wrong = (is_append & has_record) | (self.is_retraction & ~has_record) | (differing != NO_ROW)
        if not wrong.any():
            return
        starts = np.flatnonzero(self.starts)
        of_key = np.cumsum(self.starts) - 1
        ends = np.append(starts[1:], self.count)
        for number in np.unique(of_key[wrong]):
            yield from self._follow(int(starts[number]), int(ends[number]), differing, is_whole=is_whole)

    def _follow(self, row: int, end: int, differing: Indices, *, is_whole: bool) -> Iterator[tuple[int, str]]:
        """Yield the records of one key that do not fit, with the reason."""
        current = int(self.before[row])
        while row < end:
            op = Operation(self.ops[row])
            is_correction = op is Operation.CORRECT_FROM
            why = self._fault(row, op, current, differing, is_whole=is_whole)
            if why is None:
                current = NO_ROW if op is Operation.RETRACT else row + is_correction
            else:
                yield row, why
                if is_correction:
                    yield row + 1, f"the -C of this +C is rejected: {why}"
            row += 1 + is_correction

    def _fault(
        self, row: int, op: Operation, current: int, differing: Indices, *, is_whole: bool
    ) -> str | None:
        """Return the reason why a record does not fit the current record of its key; None if it fits."""
        if op is Operation.APPEND:
            return None if current == NO_ROW else self._repetition(row, current)
        if current == NO_ROW:
            return (
                f"column {self.key[0]}: {self._key_of(row)} has no record that {SIGNS[op]} could take back; "
                "append it first (+A)"
            )
        if is_whole:
            return None
        known = current == self.before[row]
        number = differing[row] if known else self._first_differences(np.array([row]), np.array([current]))[0]
        return None if number == NO_ROW else self._different(row, op, current, int(number))

    def _repetition(self, row: int, current: int) -> str:
        same = self._first_differences(np.array([row]), np.array([current]))[0] == NO_ROW
        return (
            f"column {self.key[0]}: {self._key_of(row)} has a record already, "
            f"{'with the same values' if same else 'with other values'}; change it by -C and +C, retract it first "
            "(-R), or merge as UpsertStream"
        )

    def _different(self, row: int, op: Operation, current: int, number: int) -> str:
        name = self.records.column_names[number]
        column = self.records.column(number)
        return (
            f"column {name}: {SIGNS[op]} of {self._key_of(row)} has {_show(column[row])}, and its record has "
            f"{_show(column[current])}; repeat all values of the record, event time included, or set "
            "retractions=complete"
        )

    def _key_of(self, row: int) -> str:
        return ", ".join(f"{name} = {_show(self.records.column(name)[row])}" for name in self.key)

    def _first_differences(self, left: Indices, right: Indices) -> Indices:
        """Return for each pair of records the first column that differs.

        A null event time on the left is not a difference.
        """
        first = np.full(len(left), NO_ROW)
        rows, others = pa.array(left), pa.array(right)
        for number, name in enumerate(self.records.column_names):
            column = self.records.column(number).combine_chunks()
            mine = column.take(rows)
            is_other = ~equal(mine, column.take(others))
            if name == self.event_time:
                is_other &= mine.is_valid().to_numpy(zero_copy_only=False)
            first[is_other & (first == NO_ROW)] = number
        return first


def _find(keys: Keys, wanted: Keys) -> Indices:
    """Return the index of each wanted key in `keys`, which are distinct; `NO_ROW` for a key that is not among them."""
    if len(keys) == 0 or len(wanted) == 0:
        return np.full(len(wanted), NO_ROW)
    order = np.argsort(keys)
    places = np.minimum(np.searchsorted(keys[order], wanted), len(keys) - 1)
    rows = order[places]
    return np.where(keys[rows] == wanted, rows, NO_ROW)


def _show(value: pa.Scalar) -> str:
    if not value.is_valid:
        return "NULL"
    if kind.is_temporal(value.type):
        return show_value(Quoted(value.cast(pa.string()).as_py()))
    plain = value.as_py()
    return show_value(plain if isinstance(plain, str | bytes) else Quoted(str(plain)))
