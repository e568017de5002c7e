"""Temporal joins, `FOR SYSTEM_TIME AS OF`: find the version of a record that was valid at a time."""

import numpy as np
import pyarrow as pa

from odf_engine_spark.values.equality_codes import combine_codes, equality_codes, normalize_keys
from odf_engine_spark.values.operations import Numbers


def as_of(left_keys: pa.Table, left_times: Numbers, right_keys: pa.Table, right_times: Numbers) -> Numbers:
    """Return, for each left row, the position of the latest right row with equal keys and no later time, or -1.

    A null key equals nothing. Of right rows with equal times, the last one is returned.
    """
    rows, matched = len(left_times), np.full(len(left_times), -1, dtype=np.int64)
    keys = [
        normalize_keys(pa.chunked_array([*one.chunks, *other.chunks], one.type))
        for one, other in zip(left_keys.columns, right_keys.columns, strict=True)
    ]
    total = rows + len(right_times)
    is_known = np.ones(total, dtype=bool)
    for key in keys:
        is_known &= np.asarray(key.is_valid())
    times = np.unique(np.concatenate([left_times, right_times]), return_inverse=True)[1]
    codes = equality_codes(keys, total)
    key_times = combine_codes(codes, times)
    right = np.flatnonzero(is_known[rows:])
    order = right[np.argsort(key_times[rows:][right], kind="stable")]
    if not len(order):
        return matched
    left = np.flatnonzero(is_known[:rows])
    before = np.searchsorted(key_times[rows:][order], key_times[:rows][left], side="right") - 1
    matches = order[np.maximum(before, 0)]
    holds = (before >= 0) & (codes[rows:][matches] == codes[:rows][left])
    matched[left[holds]] = matches[holds]
    return matched
