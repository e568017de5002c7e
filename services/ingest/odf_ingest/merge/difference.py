"""The operations that turn one state of a keyed table into another: append, retract, correct from and to."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from odf_common.data.columns import Operation
from odf_common.errors import InvalidInput
from odf_common.metadata.steps import Strings
from odf_ingest.history.equality import equal
from odf_ingest.history.key_index import Keys, key_array
from odf_ingest.merge.ordering import by_key
from odf_ingest.merge.strategy import Merged

Places = npt.NDArray[np.int64]


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
    old_keys, new_keys = key_array(known, key), key_array(new, key)
    if len(np.unique(new_keys)) != len(new_keys):
        raise InvalidInput(text=f"a snapshot has more than one record with the same key ({', '.join(key)})")
    old_places, new_places = _matched(old_keys, new_keys)
    columns = [name for name in compared or new.column_names if name not in key]
    is_changed = _changed(
        known.take(pa.array(old_places)), new.take(pa.array(new_places)), columns, event_time
    )
    parts = [
        (new, np.setdiff1d(np.arange(len(new)), new_places), Operation.APPEND),
        (known, old_places[is_changed], Operation.CORRECT_FROM),
        (new, new_places[is_changed], Operation.CORRECT_TO),
    ]
    if retracts_missing:
        parts.append((known, np.setdiff1d(np.arange(len(known)), old_places), Operation.RETRACT))
    records = pa.concat_tables([table.take(pa.array(places)) for table, places, _ in parts])
    ops = pa.concat_arrays(
        [pa.repeat(pa.scalar(int(op), pa.uint8()), len(places)) for _, places, op in parts]
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


def _matched(old: Keys, new: Keys) -> tuple[Places, Places]:
    """Return the indices of equal keys in both."""
    if len(old) == 0 or len(new) == 0:
        none: Places = np.empty(0, dtype=np.int64)
        return none, none
    order = np.argsort(old, kind="stable")
    ordered = old[order]
    places = np.searchsorted(ordered, new)
    places[places == len(ordered)] = 0
    is_same = ordered[places] == new
    return order[places[is_same]], np.flatnonzero(is_same)


def _changed(old: pa.Table, new: pa.Table, columns: list[str], event_time: str) -> npt.NDArray[np.bool_]:
    changed = np.zeros(len(new), dtype=np.bool_)
    for name in columns:
        if name not in new.column_names:
            raise InvalidInput(where=f"column {name}", text="is to be compared, but is missing")
        differs = ~equal(old.column(name).combine_chunks(), new.column(name).combine_chunks())
        if name == event_time:
            differs &= new.column(name).is_valid().to_numpy()
        changed |= differs
    return changed
