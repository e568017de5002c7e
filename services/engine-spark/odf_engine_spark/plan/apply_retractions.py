"""Retractions applied to the records that they remove, for queries that need the remaining ones (RFC-015)."""

from collections import defaultdict
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from odf_common.data.columns import Operation
from odf_common.metadata.events import DatasetVocabulary
from odf_engine_spark.spark.logical_plans import HIDDEN, LATE, UNTIL
from odf_engine_spark.values.equality_codes import equality_codes, normalized

_TAKES_AWAY: Final = (int(Operation.RETRACT), int(Operation.CORRECT_FROM))
_ALWAYS: Final = np.iinfo(np.int64).max


def net_changes(records: pa.Table, vocab: DatasetVocabulary) -> pa.Table:
    """Return the remaining records: retractions, and the earlier record that each removes, are gone.

    Records are equal if all but offset, operation and system time is, compared like Spark's keys: -0.0 equals 0.0. A
    retraction without a matching record does nothing. Where windows overlap, a removed record stays in those that had
    ended by then: its hidden columns say that it counts in windows which end after `LATE` and up to `UNTIL`.
    """
    operations = records.column(vocab.operation_type_column)
    takes = pc.is_in(operations, pa.array(_TAKES_AWAY, operations.type))
    if not pc.any(takes, min_count=0).as_py():
        return records
    system = {vocab.offset_column, vocab.operation_type_column, vocab.system_time_column, *HIDDEN}
    data = records.select([name for name in records.column_names if name not in system])
    times = data.column(vocab.event_time_column)
    # A retraction removes a record that is equal, so of the same event time: all others need not be compared.
    touched = np.flatnonzero(np.asarray(pc.is_in(times, times.filter(takes).combine_chunks())))
    same = equality_codes([normalized(column) for column in data.take(touched).columns], len(touched))
    late = np.asarray(records.column(LATE))
    until = np.asarray(records.column(UNTIL)).copy()
    keeps = np.ones(len(records), dtype=bool)
    standing: dict[int, list[int]] = defaultdict(list)
    for row, key in zip(touched.tolist(), same.tolist(), strict=True):
        if not takes[row].as_py():
            # Otherwise an earlier request has removed it, and it stays for windows that had ended before that.
            if until[row] == _ALWAYS:
                standing[key].append(row)
            continue
        keeps[row] = False
        if standing[key]:
            earlier = standing[key].pop()
            # Windows that had ended when the retraction came keep the record; without such windows it goes altogether.
            until[earlier] = late[row]
            keeps[earlier] = late[row] > late[earlier]
    index = records.schema.get_field_index(UNTIL)
    return records.set_column(index, UNTIL, pa.array(until)).filter(pa.array(keeps))
