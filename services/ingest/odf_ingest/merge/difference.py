"""The operations that turn one state of a table with keys into another: +A, -R, and -C with +C."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from odf_common.data.columns import Operation
from odf_common.errors import InvalidInput
from odf_common.metadata.scalars import Strings
from odf_ingest.history.keys import Keys, equal, key_array, key_order
from odf_ingest.merge.interface import MergeResult, by_key

PARALLEL_ROWS: Final = 1 << 16  # from which threads are worth it
MAX_PLACES: Final = 5  # of the records with a repeated key that an error names
Indices = npt.NDArray[np.int64]


class RepeatedKey(InvalidInput):
    """A snapshot has more than one record with the same key, so it is refused as a whole."""

    ADVICE = (
        "correct the source, or keep one record of each key by a WHERE in `preprocess`; or add the "
        "column that tells them apart to `primaryKey`"
    )

    key: str
    """The key's columns and values, as text."""
    rows: tuple[int, ...]
    """Indices of the records with the key."""
    places: tuple[str, ...] = ()
    """Locations in the file of the first of these records; by default their numbers are shown."""

    def __post_init__(self) -> None:
        places = self.places or tuple(f"record {row + 1}" for row in self.rows[:MAX_PLACES])
        left = len(self.rows) - len(places)
        self.text = (
            f"the snapshot has the key {self.key} in {len(self.rows)} records: {_list_places(places, left)}"
        )


def _list_places(places: tuple[str, ...], left: int) -> str:
    """Return locations as text, such as "lines 2 and 4"; `left` is the number of further ones that are not listed."""
    words = [place.split(" ") for place in places]
    if all(len(one) == 2 and one[0] == words[0][0] for one in words):
        kind, names = f"{words[0][0]}s ", [number for _, number in words]
    else:
        kind, names = "", list(places)
    *first, last = [*names, *([f"{left} more"] if left else [])]
    return f"{kind}{(', ' if kind else '; ').join(first)} and {last}"


def difference(  # noqa: PLR0913 - all by name
    current: pa.Table,
    new: pa.Table,
    *,
    key: Strings,
    sorting: "SortKeys | None" = None,
    compared: Strings | None,
    event_time: str,
    retracts_missing: bool,
) -> MergeResult:
    """Return the operations that turn `current` into `new`, ordered by key, then operation.

    Raises `RepeatedKey` if two records of `new` have equal keys. `compared` are the columns to compare; None: all but
    the key. A new event time that is null does not count as a change. Retractions repeat the old values. `sorting` is
    the result of `begin_sorting` for the new keys, if it has been called.
    """
    current = alike(current, new.schema)
    match = _match_keys(key_array(current, key), (sorting or begin_sorting(new, key))())
    columns = [name for name in compared or new.column_names if name not in key]
    is_changed = _is_changed_mask(current, new, match, columns, event_time)
    parts = [
        (new, _others(len(new), match.new), Operation.APPEND),
        (current, match.old[is_changed], Operation.CORRECT_FROM),
        (new, match.new[is_changed], Operation.CORRECT_TO),
    ]
    if retracts_missing:
        parts.append((current, _others(len(current), match.old), Operation.RETRACT))
    records = pa.concat_tables([table.take(pa.array(indices)) for table, indices, _ in parts])
    ops = pa.concat_arrays(
        [pa.repeat(pa.scalar(int(op), pa.uint8()), len(indices)) for _, indices, op in parts]
    )
    ordered, ops = by_key(records.combine_chunks(), ops, key)
    return MergeResult(records=ordered, ops=ops)


def alike(records: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return records with the columns and types of a schema; missing columns are null."""
    columns = [
        records.column(field.name).cast(field.type)
        if field.name in records.column_names
        else pa.nulls(len(records), field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


class _SortedKeys(NamedTuple):
    """Keys, ascending, and the row of each."""

    keys: Keys
    rows: Indices


SortKeys = Callable[[], _SortedKeys]


def begin_sorting(new: pa.Table, key: Strings) -> SortKeys:
    """Return a function that returns the sorted keys, and raises `RepeatedKey` if two are equal.

    The keys of a large table are sorted in a thread while the caller reads the current records.
    """
    keys = key_array(new, key)
    if len(keys) < PARALLEL_ROWS:
        return partial(_distinct, new, keys, key)
    pool = ThreadPoolExecutor(1, thread_name_prefix="sort")
    sorting = pool.submit(_distinct, new, keys, key)
    pool.shutdown(wait=False)
    return sorting.result


class _Match(NamedTuple):
    """The indices of rows with equal keys in the old and the new table, in the order of the new one."""

    old: Indices
    new: Indices


def _sort_keys(keys: Keys, *, is_in_runs: bool = False) -> _SortedKeys:
    """Return the sorted keys; `is_in_runs`: they are a concatenation of a few ascending runs."""
    # numpy.unique is not an option: where it need not sort, it hashes, which is much slower.
    if len(keys) < 2 or bool(np.all(np.greater_equal(keys[1:], keys[:-1]))):
        return _SortedKeys(keys, np.arange(len(keys)))
    # Equal keys are refused later, so a faster unstable sort is sufficient. The stable sort is faster for runs.
    if is_in_runs or keys.dtype.kind == "S":
        order = key_order(keys)
    else:
        packed = _sorted_packed(keys)
        if packed is not None:
            return packed
        order = np.argsort(keys)
    return _SortedKeys(keys[order], order)


def _sorted_packed(keys: Keys) -> _SortedKeys | None:
    """Return sorted integer keys; None unless key and row number together fit into 63 bits.

    Each key is packed with its row number into one integer, which takes a third less time than sorting indices.
    """
    low, bits = keys.min(), len(keys).bit_length()
    if keys.dtype != np.int64 or int(keys.max()) - int(low) >= 1 << (63 - bits):
        return None
    packed = (keys - low) << bits
    packed |= np.arange(len(keys))
    packed.sort()
    rows = packed & ((1 << bits) - 1)
    packed >>= bits
    packed += low
    return _SortedKeys(packed, rows)


def _distinct(new: pa.Table, keys: Keys, names: Strings) -> _SortedKeys:
    """Return the sorted keys; raises `RepeatedKey` with the first key in the table that is repeated."""
    order = _sort_keys(keys)
    repeats = np.flatnonzero(order.keys[1:] == order.keys[:-1])
    if len(repeats) == 0:
        return order
    rows = np.concatenate([order.rows[repeats], order.rows[repeats + 1]])
    first = int(rows.min())
    is_same = keys == keys[first]
    values = new.select(names).slice(first, 1).to_pylist()[0]
    raise RepeatedKey(
        key=", ".join(f"{name} = {value}" for name, value in values.items()),
        rows=tuple(np.flatnonzero(is_same).tolist()),
    )


def _match_keys(old_keys: Keys, new: _SortedKeys) -> _Match:
    old = _sort_keys(old_keys, is_in_runs=True)
    if len(old.keys) == 0 or len(new.keys) == 0:
        none: Indices = np.empty(0, dtype=np.int64)
        return _Match(none, none)
    indices = np.searchsorted(old.keys, new.keys)
    indices[indices == len(old.keys)] = 0
    is_same = old.keys[indices] == new.keys
    # In the order of the new rows, so that at most the old ones have to be copied in another order.
    old_of = np.full(len(new.keys), -1, np.int64)
    old_of[new.rows[is_same]] = old.rows[indices[is_same]]
    rows = np.flatnonzero(old_of >= 0)
    return _Match(old_of[rows], rows)


def _others(count: int, rows: Indices) -> Indices:
    """Return the rows below `count` that are not among `rows`, ascending."""
    is_other = np.ones(count, dtype=np.bool_)
    is_other[rows] = False
    return np.flatnonzero(is_other)


def _is_changed_mask(
    old: pa.Table, new: pa.Table, match: _Match, columns: list[str], event_time: str
) -> npt.NDArray[np.bool_]:
    """Return a mask of the pairs of rows that differ in one of the columns."""
    for name in columns:
        if name not in new.column_names:
            raise InvalidInput(where=f"column {name}", text="is to be compared, but is missing")
    before, after = _rows(len(old), match.old), _rows(len(new), match.new)

    def differs(name: str) -> npt.NDArray[np.bool_]:
        now = _pick(new.column(name), after)
        is_other = ~equal(_pick(old.column(name), before), now)
        if name == event_time:
            is_other &= now.is_valid().to_numpy(zero_copy_only=False)
        return is_other

    if len(match.new) < PARALLEL_ROWS:
        changes = [differs(name) for name in columns]
    else:
        # Arrow copies and compares values without the interpreter's lock.
        with ThreadPoolExecutor(pa.cpu_count()) as pool:
            changes = list(pool.map(differs, columns))
    changed = np.zeros(len(match.new), dtype=np.bool_)
    for is_changed in changes:
        changed |= is_changed
    return changed


def _rows(count: int, rows: Indices) -> pa.Array | None:
    """Return row indices as an Arrow array for `take`; None if they are all `count` rows in order."""
    is_all = len(rows) == count and bool(np.all(rows[1:] > rows[:-1]))
    return None if is_all else pa.array(rows)


def _pick(column: pa.ChunkedArray, rows: pa.Array | None) -> pa.Array:
    values = column.combine_chunks()
    return values if rows is None else values.take(rows)
