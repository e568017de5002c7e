"""The operations that turn one state of a keyed table into another: append, retract, correct from and to."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from odf_common.data.columns import Operation
from odf_common.errors import InvalidInput
from odf_common.metadata.steps import Strings
from odf_ingest.history.equality import equal
from odf_ingest.history.keys import Keys, key_array, key_order
from odf_ingest.merge.ordering import by_key
from odf_ingest.merge.strategy import Merged

Indices = npt.NDArray[np.int64]


def difference(
    known: pa.Table,
    new: pa.Table,
    *,
    key: Strings,
    compared: Strings | None,
    event_time: str,
    retracts_missing: bool,
) -> Merged:
    """Return the operations that turn `known` into `new`, by key, then operation.

    Keys are unique in both; raises `InvalidInput` if those of `new` are not. `compared`: columns to compare; None: all
    except the key. A null new event time alone is not a change. Retractions repeat the old values.
    """
    known = alike(known, new.schema)
    match = _matched(key_array(known, key), _distinct(key_array(new, key), key))
    columns = [name for name in compared or new.column_names if name not in key]
    is_changed = _changed(known, new, match, columns, event_time)
    parts = [
        (new, _others(len(new), match.new), Operation.APPEND),
        (known, match.old[is_changed], Operation.CORRECT_FROM),
        (new, match.new[is_changed], Operation.CORRECT_TO),
    ]
    if retracts_missing:
        parts.append((known, _others(len(known), match.old), Operation.RETRACT))
    records = pa.concat_tables([table.take(pa.array(indices)) for table, indices, _ in parts])
    ops = pa.concat_arrays(
        [pa.repeat(pa.scalar(int(op), pa.uint8()), len(indices)) for _, indices, op in parts]
    )
    ordered, ops = by_key(records.combine_chunks(), ops, key)
    return Merged(records=ordered, ops=ops)


def alike(known: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return records with the columns and types of a schema; missing columns are null."""
    if known.num_columns == 0:
        return schema.empty_table()
    columns = [
        known.column(field.name).cast(field.type)
        if field.name in known.column_names
        else pa.nulls(len(known), field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


class _Sorted(NamedTuple):
    """Keys, ascending, and the row of each."""

    keys: Keys
    rows: Indices


class _Match(NamedTuple):
    """The rows of equal keys in both tables, ordered by key."""

    old: Indices
    new: Indices


def _sorted(keys: Keys) -> _Sorted:
    # numpy.unique is no choice: where it need not sort, it hashes, which is a hundred times slower.
    if len(keys) < 2 or bool(np.all(np.greater_equal(keys[1:], keys[:-1]))):
        return _Sorted(keys, np.arange(len(keys)))
    # Keys are distinct, or refused, so the faster sort that is not stable serves.
    order = key_order(keys) if keys.dtype.kind == "S" else np.argsort(keys)
    return _Sorted(keys[order], order)


def _distinct(keys: Keys, names: Strings) -> _Sorted:
    """Return the keys sorted; raises `InvalidInput` if two are equal."""
    found = _sorted(keys)
    if bool(np.any(found.keys[1:] == found.keys[:-1])):
        raise InvalidInput(text=f"a snapshot has more than one record with the same key ({', '.join(names)})")
    return found


def _matched(old_keys: Keys, new: _Sorted) -> _Match:
    old = _sorted(old_keys)
    if len(old.keys) == 0 or len(new.keys) == 0:
        none: Indices = np.empty(0, dtype=np.int64)
        return _Match(none, none)
    indices = np.searchsorted(old.keys, new.keys)
    indices[indices == len(old.keys)] = 0
    is_same = old.keys[indices] == new.keys
    return _Match(old.rows[indices[is_same]], new.rows[is_same])


def _others(count: int, rows: Indices) -> Indices:
    """Return the rows below `count` that are not among `rows`, ascending."""
    is_other = np.ones(count, dtype=np.bool_)
    is_other[rows] = False
    return np.flatnonzero(is_other)


def _changed(
    old: pa.Table, new: pa.Table, match: _Match, columns: list[str], event_time: str
) -> npt.NDArray[np.bool_]:
    """Return which pairs of rows differ in one of the columns."""
    changed = np.zeros(len(match.new), dtype=np.bool_)
    for name in columns:
        if name not in new.column_names:
            raise InvalidInput(where=f"column {name}", text="is to be compared, but is missing")
        after = _picked(new.column(name), match.new)
        differs = ~equal(_picked(old.column(name), match.old), after)
        if name == event_time:
            differs &= after.is_valid().to_numpy(zero_copy_only=False)
        changed |= differs
    return changed


def _picked(column: pa.ChunkedArray, rows: Indices) -> pa.Array:
    values = column.combine_chunks()
    if len(rows) == len(values) and bool(np.all(rows[1:] > rows[:-1])):
        return values  # all rows in their order
    return values.take(pa.array(rows))
