"""The operations (`odf_common.data.columns.Operation`) of records that pass through a query (RFC-015)."""

from typing import Final

import numpy as np
import numpy.typing as npt

from odf_common.data.columns import Operation

Numbers = npt.NDArray[np.int64]
_CORRECTIONS: Final = (int(Operation.CORRECT_FROM), int(Operation.CORRECT_TO))


def carried_operations(rows: Numbers, operations: Numbers) -> Numbers:
    """Return the operation of each result record; `rows` are the positions of the input records that they come from.

    A correction remains one if each of its two records gives exactly one result record. Otherwise its records become
    retractions and appends. The two records of a correction are adjacent in the input.
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
