"""Temporal joins, `FOR SYSTEM_TIME AS OF`: the version of a record that was valid at a time."""

import numpy as np
import pyarrow as pa

from odf_engine_spark.values.equality_codes import combined, equality_codes, normalized
from odf_engine_spark.values.operations import Numbers


def as_of(left_keys: pa.Table, left_times: Numbers, right_keys: pa.Table, right_times: Numbers) -> Numbers:
    """Return for each left row the last right row with equal keys whose time is not after its own, or -1.

    A null key equals nothing. Of right rows with equal times the later one wins.
    """
    rows, found = len(left_times), np.full(len(left_times), -1, dtype=np.int64)
    keys = [
        normalized(pa.chunked_array([*one.chunks, *other.chunks], one.type))
        for one, other in zip(left_keys.columns, right_keys.columns, strict=True)
    ]
    total = rows + len(right_times)
    is_known = np.ones(total, dtype=bool)
    for key in keys:
        is_known &= np.asarray(key.is_valid())
    times = np.unique(np.concatenate([left_times, right_times]), return_inverse=True)[1]
    codes = equality_codes(keys, total)
    moments = combined(codes, times)
    right = np.flatnonzero(is_known[rows:])
    order = right[np.argsort(moments[rows:][right], kind="stable")]
    if not len(order):
        return found
    left = np.flatnonzero(is_known[:rows])
    before = np.searchsorted(moments[rows:][order], moments[:rows][left], side="right") - 1
    matches = order[np.maximum(before, 0)]
    holds = (before >= 0) & (codes[rows:][matches] == codes[:rows][left])
    found[left[holds]] = matches[holds]
    return found
