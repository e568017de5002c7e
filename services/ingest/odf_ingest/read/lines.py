"""Reads records one by one, after reading them together has failed."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import pyarrow as pa

from odf_common.errors import InvalidInput
from odf_ingest.read.isolate_bad_records import isolate_bad_records

_AT_ONCE: Final = 16_384  # records; the first bad one is searched in groups of this size


def read_lines(
    values: Sequence[bytes],
    names: Sequence[str],
    read: Callable[[Sequence[bytes]], pa.Table],
    suspects: Callable[[Sequence[bytes]], Mapping[int, str | None]],
) -> pa.Table:
    """Return one record per value; raises `InvalidInput` with the first value that `read` refuses alone."""
    tables = []
    for start in range(0, len(values), _AT_ONCE):
        outcome = isolate_bad_records(values[start : start + _AT_ONCE], read, suspects)
        if outcome.bad:
            first = min(outcome.bad)
            raise InvalidInput(where=names[start + first], text=outcome.bad[first])
        if outcome.table is not None:
            tables.append(outcome.table)
    return pa.concat_tables(tables)
