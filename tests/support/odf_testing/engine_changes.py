"""Changelogs as plain rows, for tests of the incremental operators."""

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from odf_engine_spark.operators.changes import TAKES_AWAY, Changes

Row = tuple[object, ...]


def changes(types: Sequence[pa.DataType], rows: Sequence[Row]) -> Changes:
    """Return rows of (op, *values) as changes."""
    columns = [pa.array([row[at + 1] for row in rows], type_) for at, type_ in enumerate(types)]
    table = pa.table(columns, names=[f"c{at}" for at in range(len(types))])
    return Changes(records=table, operations=np.array([row[0] for row in rows], dtype=np.int64))


def plain(out: Changes) -> list[Row]:
    """Return changes as rows of (op, *values)."""
    columns = [column.to_pylist() for column in out.records.columns]
    return list(zip(out.operations.tolist(), *columns, strict=True))


def standing(rows: Iterable[Row]) -> Counter[Row]:
    """Return the records that remain after these changes; every removed one has to exist."""
    there: Counter[Row] = Counter()
    for operation, *record in rows:
        if operation not in TAKES_AWAY:
            there[tuple(record)] += 1
            continue
        assert there[tuple(record)] > 0, record
        there[tuple(record)] -= 1
    return +there


def packed(table: pa.Table) -> bytes:
    """Return a table's bytes in the stream format of Arrow."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return bytes(sink.getvalue().to_pybytes())
