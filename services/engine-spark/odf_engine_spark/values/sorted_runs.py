"""Lists in a state that pass from request to request without being read, such as most values of `min` and `max`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from odf_engine_spark.values.equality_codes import in_one_piece
from odf_engine_spark.values.python_values import Plain


@dataclass(frozen=True, slots=True)
class HeldValues:
    """The concatenated values of all lists of a column, and the function that reads them."""

    values: pa.Array
    read: Callable[[pa.Array], list[Plain]]


@dataclass(frozen=True, slots=True)
class Run:
    """A list: the held values from `start` to `end` (exclusive), and then `more`."""

    held: HeldValues | None = None
    start: int = 0
    end: int = 0
    more: list[Plain] = field(default_factory=list)

    def __len__(self) -> int:
        """Return the number of values."""
        return self.end - self.start + len(self.more)

    def plain(self) -> list[Plain]:
        """Return all values as Python values."""
        if self.held is None:
            return self.more
        return [*self.held.read(self.held.values.slice(self.start, self.end - self.start)), *self.more]


def read_runs(column: pa.ChunkedArray, read: Callable[[pa.Array], list[Plain]]) -> list[Run]:
    """Return the lists of a column without reading their values; raises `ValueError` if a value is null."""
    lists = in_one_piece(column)
    if lists.values.null_count:
        raise ValueError("a value in the state is null")
    held, edges = HeldValues(lists.values, read), lists.offsets.to_pylist()
    return [Run(held, edges[index], edges[index + 1]) for index in range(len(lists))]


def write_runs(
    runs: Sequence[Run], type_: pa.DataType, write: Callable[[Sequence[Plain]], pa.Array]
) -> pa.Array:
    """Return a column of these lists, which must all be new or from the same column."""
    more = write([value for run in runs for value in run.more])
    held = next((run.held.values for run in runs if run.held is not None), more.slice(0, 0))
    places, first = [], len(held)
    for run in runs:
        places.append(np.arange(run.start, run.end))
        places.append(np.arange(first, first + len(run.more)))
        first += len(run.more)
    rows = np.concatenate(places) if places else np.zeros(0, dtype=np.int64)
    flat = pa.concat_arrays([held, more]).take(pa.array(rows, pa.int64()))
    edges = np.cumsum([0, *(len(run) for run in runs)], dtype=np.int32)
    return pa.ListArray.from_arrays(pa.array(edges), flat, type=type_)
