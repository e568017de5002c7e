"""On which records a query fails: found by running it again over fewer and fewer records of the request.

Spark's message names an expression. Each run halves the records that may be to blame, so a search takes a number of
runs that grows with the logarithm of their number; when its time is over, it names a range.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa

from odf_common.data.columns import Operation
from odf_common.errors import StorageUnavailable
from odf_common.metadata.engine_messages import TransformRequestInput
from odf_common.ports.engine import FailingRecord, QueryFailed, QueryOutOfMemory
from odf_engine_spark.spark.error_messages import EngineFault
from odf_engine_spark.transform.checkpoint import State
from odf_engine_spark.transform.inputs import Input

SEARCH_SECONDS: Final = 20.0
KEPT: Final = "on records of earlier blocks, which open windows and joins have kept"

Attempt = Callable[[Sequence[Input], State], QueryFailed | None]
"""Returns how the query fails over these records and this state; None if it does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """Records of one input: new ones, or those that the state keeps; `ends` are the places where they may be cut."""

    source: TransformRequestInput
    records: pa.Table
    offsets: pa.ChunkedArray
    ends: Sequence[int]
    cut: Callable[[Sequence[Input], State, pa.Table], tuple[Sequence[Input], State]]


def locate_failure(
    error: QueryFailed,
    sources: Sequence[TransformRequestInput],
    inputs: Sequence[Input],
    state: State,
    attempt: Attempt,
    *,
    seconds: float = SEARCH_SECONDS,
) -> QueryFailed:
    """Return the failure with the records on which the query fails, in its text, too.

    They are the first ones with which it fails, so its error may be another one than of all records together.
    """
    until = time.monotonic() + seconds
    found: list[tuple[TransformRequestInput, int, int]] = []
    try:
        for parts in (_new_parts(sources, inputs), _kept_parts(sources, inputs, state)):
            for part in parts:
                low, high, error, inputs, state = _halve(part, error, inputs, state, attempt, until=until)
                if high == 0:  # it fails without any of them
                    continue
                first = int(part.offsets[part.ends[max(low, 0)]].as_py())
                last = int(part.offsets[part.ends[high] - 1].as_py())
                found.append((part.source, first, last))
            if found:
                break
    except (EngineFault, QueryOutOfMemory, StorageUnavailable):
        return error  # it says less, but still why the query fails
    if found:
        return failure_on(error, found)
    return error.with_facts(text=f"{error.text}\nIt fails {KEPT}") if state.tables else error


def failure_on(error: QueryFailed, found: Sequence[tuple[TransformRequestInput, int, int]]) -> QueryFailed:
    """Return a failure on these records, in its text, too: the input of each, and the offsets between which it is."""
    names = " and ".join(_record_name(*one) for one in found)
    records = (FailingRecord(dataset=one.dataset_id, first=first, last=last) for one, first, last in found)
    return error.with_facts(text=f"{error.text}\nIt fails on {names}", records=tuple(records))


def _record_name(source: TransformRequestInput, first: int, last: int) -> str:
    if first == last:
        return f"the record of {source.dataset_alias} at offset {first}"
    return f"a record of {source.dataset_alias} between the offsets {first} and {last}"


def _halve(
    part: _Part,
    error: QueryFailed,
    inputs: Sequence[Input],
    state: State,
    attempt: Attempt,
    *,
    until: float,
) -> tuple[int, int, QueryFailed, Sequence[Input], State]:
    """Return between which two of the part's ends the query begins to fail, its error there, and what it read.

    The first is -1 while no end is known where it passes.
    """
    low, high = -1, len(part.ends) - 1
    while high - low > 1 and time.monotonic() < until:
        middle = (low + high) // 2
        fewer = part.cut(inputs, state, part.records.slice(0, part.ends[middle]))
        fault = attempt(*fewer)
        if fault is None:
            low = middle
        else:
            high, error = middle, fault
    return low, high, error, *part.cut(inputs, state, part.records.slice(0, part.ends[high]))


def _new_parts(sources: Sequence[TransformRequestInput], inputs: Sequence[Input]) -> Iterator[_Part]:
    """Yield the new records of each input; no cut separates the halves of a correction."""
    for number, (source, input_) in enumerate(zip(sources, inputs, strict=True)):
        if not len(input_.records):
            continue
        operations = np.asarray(input_.operations).astype(np.int64)
        ends = [0, *(np.flatnonzero(operations[1:] != Operation.CORRECT_TO) + 1).tolist(), len(operations)]

        def cut(
            inputs: Sequence[Input], state: State, records: pa.Table, number: int = number
        ) -> tuple[Sequence[Input], State]:
            fewer = [*inputs]
            fewer[number] = replace(fewer[number], records=records)
            return fewer, state

        offsets = input_.records.column(input_.vocab.offset_column)
        yield _Part(source=source, records=input_.records, offsets=offsets, ends=ends, cut=cut)


def _kept_parts(
    sources: Sequence[TransformRequestInput], inputs: Sequence[Input], state: State
) -> Iterator[_Part]:
    """Yield the records of each input that windows and joins keep in the state; sums of groups have no records."""
    by_name: Mapping[str, tuple[TransformRequestInput, Input]] = {
        input_.name.lower(): (source, input_) for source, input_ in zip(sources, inputs, strict=True)
    }
    for place, table in state.tables.items():
        source, input_ = by_name.get(place.rpartition("/")[2], (None, None))
        if source is None or input_ is None or input_.vocab.offset_column not in table.column_names:
            continue

        def cut(
            inputs: Sequence[Input], state: State, records: pa.Table, place: str = place
        ) -> tuple[Sequence[Input], State]:
            return inputs, replace(state, tables={**state.tables, place: records})

        offsets = table.column(input_.vocab.offset_column)
        yield _Part(source=source, records=table, offsets=offsets, ends=range(len(table) + 1), cut=cut)
