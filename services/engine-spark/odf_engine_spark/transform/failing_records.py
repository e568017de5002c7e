"""Finds the records on which a query fails, by running it again over fewer and fewer records of the request.

Spark's message only names an expression. Each run halves the candidates, so the number of runs grows with the logarithm
of the number of records. When the time limit is reached, the result is a range of records.
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
"""Returns the error of the query for these records and this state, None if it succeeds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """Records of one input: new ones, or those in the state. `ends` are the positions at which they may be cut off."""

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
    """Return the error with the records on which the query fails, which are also named in its text.

    They are the first records on which it fails, so the error may differ from that of all records together.
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
    """Return the error with these records: of each, the input and its first and last possible offset.

    The records are also named in the text of the error.
    """
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
    """Return the ends between which the query begins to fail, its error there, and the inputs and state then.

    The first end is -1 if the query is not known to succeed up to any end.
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
    """Yield the new records of each input; they are never cut between the two records of a correction."""
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
    """Yield the records of each input that windows and joins hold in the state; aggregates hold no records."""
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
