"""ChangelogStream: records carry their own operation; ordered by key, then operation.

Several corrections of one key follow on each other: each -C has its +C directly behind it (RFC-015).
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from odf_common.data.columns import Operation
from odf_common.errors import InvalidInput
from odf_common.metadata.steps import MergeStrategyChangelogStream, MergeStrategyUpsertStream, Strings
from odf_common.metadata.vocabulary import DatasetVocabulary
from odf_ingest.errors import HalfCorrection
from odf_ingest.merge import History, Merged, key_columns, merge, operation_faults
from odf_ingest.merge.ordering import by_key
from odf_ingest.merge_keys import key_array


@key_columns.register(MergeStrategyChangelogStream)
def _key(strategy: MergeStrategyChangelogStream) -> Strings:
    return strategy.primary_key


@merge.register(MergeStrategyChangelogStream)
def _(
    strategy: MergeStrategyChangelogStream, new: pa.Table, history: History, vocab: DatasetVocabulary
) -> Merged:
    if vocab.operation_type_column not in new.column_names:
        raise InvalidInput(where=f"column {vocab.operation_type_column}", text="is missing")
    ops = operations(new, vocab.operation_type_column)
    records = new.drop_columns([vocab.operation_type_column]).combine_chunks()
    _check_halves(records, ops, strategy.primary_key)
    ordered, ops = by_key(records, ops, strategy.primary_key)
    return _paired(ordered, ops)


def _check_halves(records: pa.Table, ops: pa.Array, key: Strings) -> None:
    """Return if each key has as many -C as +C; raises `HalfCorrection` naming the first record that is a half."""
    plain = ops.to_numpy(zero_copy_only=False)
    rows = np.flatnonzero(plain >= Operation.CORRECT_FROM)
    if len(rows) == 0:
        return
    distinct, keys = np.unique(key_array(records.take(pa.array(rows)), key), return_inverse=True)
    steps = np.where(plain[rows] == Operation.CORRECT_FROM, 1, -1)
    surplus = np.zeros(len(distinct), np.int64)
    np.add.at(surplus, keys, steps)
    halves = np.flatnonzero(surplus[keys])
    if len(halves) == 0:
        return
    first = halves[0]
    text = "a -C without its +C behind it" if surplus[keys[first]] > 0 else "a +C without its -C before it"
    raise HalfCorrection(
        where=f"record {rows[first] + 1}",
        text=text,
        whole=int(rows[_whole(keys, steps)]),
        may_come=bool((surplus >= 0).all()),
    )


def _whole(keys: npt.NDArray[np.int64], steps: npt.NDArray[np.int64]) -> int:
    """Return how many halves, from the first one on, are the most that make whole corrections."""
    surplus: dict[int, int] = {}
    whole = 0
    for number, (key, step) in enumerate(zip(keys.tolist(), steps.tolist(), strict=True), start=1):
        now = surplus.pop(key, 0) + step
        if now:
            surplus[key] = now
        if not surplus:
            whole = number
    return whole


def _paired(records: pa.Table, ops: pa.Array) -> Merged:
    """Put the +C of each -C behind it, where a key has several of both."""
    plain = ops.to_numpy(zero_copy_only=False)
    froms = np.flatnonzero(plain == Operation.CORRECT_FROM)
    tos = np.flatnonzero(plain == Operation.CORRECT_TO)
    if np.array_equal(froms + 1, tos):
        return Merged(records=records, ops=ops)
    order = np.arange(len(plain))
    order[np.sort(np.concatenate((froms, tos)))] = np.stack((froms, tos), axis=1).ravel()
    places = pa.array(order)
    return Merged(records=records.take(places), ops=ops.take(places))


@operation_faults.register(MergeStrategyChangelogStream)
@operation_faults.register(MergeStrategyUpsertStream)
def _faults(
    strategy: MergeStrategyChangelogStream | MergeStrategyUpsertStream,
    new: pa.Table,
    vocab: DatasetVocabulary,
) -> Mapping[int, str]:
    name = vocab.operation_type_column
    if name not in new.column_names or not pa.types.is_integer(new.column(name).type):
        return {}
    known = pa.array([int(op) for op in Operation]).cast(new.column(name).type)
    wrong = np.flatnonzero(~pc.is_in(new.column(name), value_set=known).to_numpy())
    return {int(row): f"has no operation in {name}" for row in wrong}


def operations(table: pa.Table, name: str) -> pa.Array:
    """Return a column of operations as uint8; raises `InvalidInput` for any that is not one."""
    try:
        ops = table.column(name).combine_chunks().cast(pa.uint8())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidInput(where=f"column {name}", text=f"is no operation: {error}") from error
    highest = pc.max(ops).as_py()
    if ops.null_count or (highest is not None and highest > max(Operation)):
        raise InvalidInput(where=f"column {name}", text="has operations other than 0, 1, 2 and 3")
    return ops
