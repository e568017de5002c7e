"""Operations on their way through queries (RFC-015; design: law 4)."""

from collections import defaultdict
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from odf_common.data.columns import Operation
from odf_common.metadata.vocabulary import DatasetVocabulary

Numbers = npt.NDArray[np.int64]
_CORRECTIONS: Final = (int(Operation.CORRECT_FROM), int(Operation.CORRECT_TO))
_TAKES_AWAY: Final = (int(Operation.RETRACT), int(Operation.CORRECT_FROM))
_ALWAYS: Final = np.iinfo(np.int64).max


def carried_operations(rows: Numbers, operations: Numbers) -> Numbers:
    """Return the operation of each result record, `rows` telling which input record it comes from.

    A correction stays one if exactly one record of either half came through; other halves become retractions and
    appends. Halves stand next to each other in the input.
    """
    result = operations[rows]
    corrections = np.isin(result, _CORRECTIONS)
    if not corrections.any():
        return result
    is_to = result == Operation.CORRECT_TO
    has_from = np.zeros(len(operations), dtype=bool)
    has_from[1:] = operations[:-1] == Operation.CORRECT_FROM
    pair = np.where(is_to & has_from[rows], rows - 1, rows)
    froms = np.bincount(pair[result == Operation.CORRECT_FROM], minlength=len(operations))
    tos = np.bincount(pair[is_to], minlength=len(operations))
    is_whole = (froms[pair] == 1) & (tos[pair] == 1)
    halves = corrections & ~is_whole
    return np.where(halves, np.where(is_to, Operation.APPEND, Operation.RETRACT), result)


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """Hidden columns that say in which windows a record counts: those that end after `late`, and not after `until`.

    `own` are all hidden columns; they are no part of a record.
    """

    late: str
    until: str
    own: tuple[str, ...]


def netted(records: pa.Table, vocab: DatasetVocabulary, thresholds: Thresholds) -> pa.Table:
    """Return the records that still hold: retractions and the earlier record each takes away are gone.

    Records are equal when all but offset, operation and system time is. One that takes away what was never there
    does nothing. Where windows overlap, a record that is taken away stays in those that had ended by then.
    """
    operations = records.column(vocab.operation_type_column)
    takes = pc.is_in(operations, pa.array(_TAKES_AWAY, operations.type))
    if not pc.any(takes, min_count=0).as_py():
        return records
    system = {vocab.offset_column, vocab.operation_type_column, vocab.system_time_column, *thresholds.own}
    data = records.select([name for name in records.column_names if name not in system])
    times = data.column(vocab.event_time_column)
    touched = pc.is_in(times, times.filter(takes).combine_chunks())
    late = np.asarray(records.column(thresholds.late))
    until = np.asarray(records.column(thresholds.until)).copy()
    keeps = np.ones(len(records), dtype=bool)
    standing: dict[str, list[int]] = defaultdict(list)
    for at in np.flatnonzero(np.asarray(touched)):
        key = repr(data.slice(int(at), 1).to_pylist())
        if not takes[at].as_py():
            if until[at] == _ALWAYS:
                standing[key].append(int(at))
            continue
        keeps[at] = False
        if standing[key]:
            taken = standing[key].pop()
            until[taken] = late[at]
            keeps[taken] = late[at] > late[taken]
    place = records.schema.get_field_index(thresholds.until)
    return records.set_column(place, thresholds.until, pa.array(until)).filter(pa.array(keeps))
