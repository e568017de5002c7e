"""Separates good and bad messages of a group that cannot be read as a whole, or finds the first bad message.

Good messages stay in order. `commit/rejects.py` decides about the bad ones.
"""

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from odf_common.errors import InvalidInput
from odf_ingest.read.message_buffer import MessageBuffer

# A larger group with bad messages is first split into groups of this size.
MESSAGES_PER_GROUP: Final = 1024
RECORDS_PER_SEARCH: Final = 16_384  # the first bad record is searched in groups of this size

T = TypeVar("T")
Read = Callable[[Sequence[T]], pa.Table]
Suspects = Callable[[Sequence[T]], Mapping[int, str | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOutcome:
    """The records of the good values, the indices of these values, and the reasons for bad values by index."""

    table: pa.Table | None
    kept: npt.NDArray[np.int64]
    bad: Mapping[int, str]


def isolate_bad_records(
    values: Sequence[T | None], read: Read[T], suspects: Suspects[T], *, chunk: int = MESSAGES_PER_GROUP
) -> ReadOutcome:
    """Read all values that `read` accepts. A value is bad if `read` of it alone raises an error, which is the reason.

    Nulls (tombstones) are bad. `suspects` returns values that are bad or have to be read alone. A group with bad values
    is split into groups of `chunk` values, and these into halves.
    """
    bad: dict[int, str] = {}
    indices = np.arange(len(values))
    empty = _empty(values)
    if empty:
        bad |= dict.fromkeys(empty, "is empty")
        indices = np.array([index for index in range(len(values)) if index not in empty], dtype=np.int64)
    bisection = _Bisection(values, read, suspects, bad)
    bisection.chunk = chunk
    bisection.take(indices)
    kept = np.concatenate(bisection.kept) if bisection.kept else np.empty(0, dtype=np.int64)
    table = pa.concat_tables(bisection.tables, promote_options="permissive") if bisection.tables else None
    return ReadOutcome(table=table, kept=kept, bad=bad)


def read_one_by_one(
    values: Sequence[bytes], names: Sequence[str], read: Read[bytes], suspects: Suspects[bytes]
) -> pa.Table:
    """Return one record per value; raises `InvalidInput` with the name of the first value that `read` refuses."""
    tables = []
    for start in range(0, len(values), RECORDS_PER_SEARCH):
        outcome = isolate_bad_records(values[start : start + RECORDS_PER_SEARCH], read, suspects)
        if outcome.bad:
            first = min(outcome.bad)
            raise InvalidInput(where=names[start + first], text=outcome.bad[first])
        if outcome.table is not None:
            tables.append(outcome.table)
    return pa.concat_tables(tables)


class _Bisection(Generic[T]):
    """The tables of good groups in order, and the bad values found so far."""

    def __init__(
        self, values: Sequence[T | None], read: Read[T], suspects: Suspects[T], bad: dict[int, str]
    ) -> None:
        self._values = values
        self._read = read
        self._suspects = suspects
        self._bad = bad
        self.chunk = MESSAGES_PER_GROUP
        self.kept: list[npt.NDArray[np.int64]] = []
        self.tables: list[pa.Table] = []

    def take(self, indices: npt.NDArray[np.int64]) -> None:
        """Read a group, recursively in halves if it has bad values."""
        error = self._read_whole(indices)
        if error is None:
            return
        if len(indices) == 1:
            self._bad[int(indices[0])] = str(error)
        elif len(indices) > self.chunk:
            for start in range(0, len(indices), self.chunk):
                self._chunk(indices[start : start + self.chunk])
        else:
            middle = len(indices) // 2
            self.take(indices[:middle])
            self.take(indices[middle:])

    def _chunk(self, indices: npt.NDArray[np.int64]) -> None:
        error = self._read_whole(indices)
        if error is None:
            return
        reasons = {}
        for number, reason in self._suspects(self._select(indices)).items():
            if reason is not None:
                reasons[number] = reason
                continue
            try:
                self._read(self._select(indices[number : number + 1]))
            except InvalidInput as error:
                reasons[number] = str(error)
        self._bad |= {int(indices[number]): reason for number, reason in reasons.items()}
        self.take(np.delete(indices, list(reasons)))

    def _read_whole(self, indices: npt.NDArray[np.int64]) -> InvalidInput | None:
        if len(indices) == 0:
            return None
        try:
            table = self._read(self._select(indices))
        except InvalidInput as error:
            return error
        self.tables.append(table)
        self.kept.append(indices)
        return None

    def _select(self, indices: npt.NDArray[np.int64]) -> Sequence[T]:
        if len(indices) == len(self._values):
            return self._values  # type: ignore[return-value]  # nulls are not among the indices
        if isinstance(self._values, MessageBuffer):
            return self._values.take(indices)  # type: ignore[return-value]  # as above
        return [self._values[index] for index in indices]


def _empty(values: Sequence[object]) -> AbstractSet[int]:
    if isinstance(values, MessageBuffer):
        return values.empty
    return {index for index, value in enumerate(values) if value is None}
