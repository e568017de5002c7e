"""ChangelogStream: records carry their own operation; ordered by key, within a key as they arrived.

A +C is moved to directly follow its -C (RFC-015): the first +C of a key belongs to its first -C, and so on. A batch
ends only where every correction is complete, so neither the order of a key's operations nor its final value depends on
where batches are cut. What an operation means for the current record of its key is in `changes.py`.
"""

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from odf_common.data.columns import Operation
from odf_common.errors import InvalidInput
from odf_common.metadata.events import DatasetVocabulary
from odf_common.metadata.steps import MergeStrategyChangelogStream, MergeStrategyUpsertStream, Strings
from odf_ingest.errors import IncompleteCorrection
from odf_ingest.history.keys import first_of_each, key_array
from odf_ingest.merge.changes import Changes
from odf_ingest.merge.difference import alike
from odf_ingest.merge.strategy import (
    DEFAULT,
    History,
    MergeResult,
    key_columns,
    key_order,
    merge,
    operation_faults,
)
from odf_ingest.source_settings import SourceSettings

Indices = npt.NDArray[np.int64]


@key_columns.register(MergeStrategyChangelogStream)
def _key(strategy: MergeStrategyChangelogStream) -> Strings:
    return strategy.primary_key


@merge.register(MergeStrategyChangelogStream)
def _(
    strategy: MergeStrategyChangelogStream,
    new: pa.Table,
    history: History,
    vocab: DatasetVocabulary,
    settings: SourceSettings = DEFAULT,
) -> MergeResult:
    if vocab.operation_type_column not in new.column_names:
        raise InvalidInput(where=f"column {vocab.operation_type_column}", text="is missing")
    ops = operations(new, vocab.operation_type_column)
    records = new.drop_columns([vocab.operation_type_column]).combine_chunks()
    _check_halves(records, ops, strategy.primary_key)
    order = key_order(records, strategy.primary_key).to_numpy()
    rows = order[_pair(ops.to_numpy(zero_copy_only=False)[order])]
    records, ops = records.take(pa.array(rows)), ops.take(pa.array(rows))
    keys, _ = first_of_each(key_array(records, strategy.primary_key))
    changes = Changes.from_tables(
        new=records,
        ops=ops.to_numpy(zero_copy_only=False),
        rows=rows,
        current=alike(history.current(strategy.primary_key, keys), records.schema),
        key=strategy.primary_key,
        event_time=vocab.event_time_column,
    )
    return MergeResult(records=changes.complete(is_whole=settings.completes_retractions), ops=ops)


def _check_halves(records: pa.Table, ops: pa.Array, key: Strings) -> None:
    """Raise `IncompleteCorrection` unless each -C of a key is followed by its +C, and each +C preceded by its -C."""
    plain = ops.to_numpy(zero_copy_only=False)
    rows = np.flatnonzero(plain >= Operation.CORRECT_FROM)
    if len(rows) == 0:
        return
    distinct, keys = np.unique(key_array(records.take(pa.array(rows)), key), return_inverse=True)
    steps = np.where(plain[rows] == Operation.CORRECT_FROM, 1, -1)
    by_key = np.argsort(keys, kind="stable")
    # The number of open -C: it must be zero at the end of each key, and never negative.
    waiting = np.cumsum(steps[by_key])
    ends = np.cumsum(np.bincount(keys, minlength=len(distinct))) - 1
    if waiting.min() >= 0 and not waiting[ends].any():
        return
    half = _first_half(keys, steps)
    raise IncompleteCorrection(
        where=f"record {rows[half.position] + 1}",
        text="a -C without a +C after it" if steps[half.position] > 0 else "a +C without a -C before it",
        whole=int(rows[half.whole]),
        may_come=half.may_come,
    )


class _Half(NamedTuple):
    """The first incomplete correction, as an index among all -C and +C.

    The first `whole` of them are complete corrections; `may_come`: only +C are missing.
    """

    position: int
    whole: int
    may_come: bool


def _first_half(keys: Indices, steps: Indices) -> _Half:
    waiting: dict[int, deque[int]] = {}
    whole = 0
    for index, (key, step) in enumerate(zip(keys.tolist(), steps.tolist(), strict=True)):
        if step > 0:
            waiting.setdefault(key, deque()).append(index)
        elif key not in waiting:
            # An earlier -C may lack its +C too.
            lacking = [indices[0] for key, indices in waiting.items() if steps[keys == key].sum() > 0]
            return _Half(min([index, *lacking]), whole, may_come=False)
        else:
            waiting[key].popleft()
            if not waiting[key]:
                del waiting[key]
        if not waiting:
            whole = index + 1
    return _Half(min(indices[0] for indices in waiting.values()), whole, may_come=True)


def _pair(ops: npt.NDArray[np.uint8]) -> Indices:
    """Return the order of operations, already grouped by key, with each +C moved after its -C."""
    froms = np.flatnonzero(ops == Operation.CORRECT_FROM)
    tos = np.flatnonzero(ops == Operation.CORRECT_TO)
    rank = 2 * np.arange(len(ops))
    # Each key has equally many of both, so the nth -C and the nth +C overall belong together.
    rank[tos] = 2 * froms + 1
    return np.argsort(rank, kind="stable")


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
    codes = pa.array([int(op) for op in Operation]).cast(new.column(name).type)
    wrong = np.flatnonzero(~pc.is_in(new.column(name), value_set=codes).to_numpy())
    return {int(row): _fault(name, new.column(name)[row].as_py()) for row in wrong}


def _fault(name: str, operation: int | None) -> str:
    if operation is None:
        return f"has no operation in {name}"
    return f"column {name}: {operation} is not an operation; 0 is +A, 1 is -R, 2 is -C, 3 is +C"


def operations(table: pa.Table, name: str) -> pa.Array:
    """Return a column of operations as uint8; raises `InvalidInput` for any that is not one."""
    try:
        ops = table.column(name).combine_chunks().cast(pa.uint8())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidInput(where=f"column {name}", text=f"is not an operation: {error}") from error
    highest = pc.max(ops).as_py()
    if ops.null_count or (highest is not None and highest > max(Operation)):
        raise InvalidInput(where=f"column {name}", text="has operations other than 0, 1, 2 and 3")
    return ops
