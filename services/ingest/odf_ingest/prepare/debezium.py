"""Debezium's change events as records with operations. Only the envelope is read here; the source reads the rows.

A change is `{"op": …, "before": {…}, "after": {…}, "source": {"ts_ms": …}, "ts_ms": …}`, or the `payload` of such an
object with a `schema`. The source's time is the event time. A -R or -C has the event time of the record it retracts.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa
import structlog

from odf_common.data.columns import Operation
from odf_common.errors import InvalidInput
from odf_common.metadata.events import MergeStrategyChangelogStream
from odf_common.metadata.scalars import Strings
from odf_ingest.merge.strategies import key_columns
from odf_ingest.prepare.batch import BadRecord, MessageBatch, Part
from odf_ingest.prepare.debezium_values import JsonObject, converters, object_of, text_of, with_values
from odf_ingest.prepare.message_values import require_changes
from odf_ingest.prepare.plan import Plan
from odf_ingest.prepare.preparer import PreparedRecords
from odf_ingest.read.message_buffer import MessageBuffer

log = structlog.stdlib.get_logger(__name__)

Prepare = Callable[[Plan, MessageBatch], PreparedRecords]
Row = tuple[Operation, JsonObject]
Place = tuple[int, int]  # partition and offset

_LINES_WITHOUT_CHANGE: Final = 100  # after which a sample is taken to have none
_NOT_ONE: Final = (
    "has no op, before and after of Debezium's envelope; `envelope=none` reads messages that are records themselves, "
    "as those of ExtractNewRecordState"
)
_TRUNCATED: Final = (
    "its table was truncated, which no record says: retract its records, or `odf reset` the dataset and read the topic "
    "again from a new snapshot; then `odf rejected drop`"
)
_NO_BEFORE: Final = (
    "has no before, so the values that it changes are not known: let the table log them (in PostgreSQL "
    "REPLICA IDENTITY FULL), set retractions=complete, or merge as UpsertStream"
)
_NO_KEY: Final = (
    "has no before, so its key is not known: read it from the message's key (`keyColumns=… keyFormat=json`)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """The rows of a change message, and the time of the change at its source in ms since the epoch."""

    rows: Sequence[Row]
    time: int


def unwrap_changes(prepare: Prepare, plan: Plan, batch: MessageBatch) -> PreparedRecords:
    """Return the result of `prepare` for the rows in Debezium's change messages.

    Bad messages are returned with their original bytes. Tombstones, heartbeats, and messages about transactions and
    schemas are left out.
    """
    require_changes(plan)
    operation = plan.vocab.operation_type_column
    if plan.schema is not None and operation not in plan.schema.names:
        plan = replace(plan, schema=plan.schema.append(pa.field(operation, pa.uint8())))
    reader = _Reader(plan)
    changes: dict[Place, _Change] = {}
    faults: dict[Place, str] = {}
    for part in batch.parts:
        for offset, value in zip(part.offsets, part.values, strict=True):
            try:
                change = reader.change(value, is_keyed=bool(part.keys))
            except InvalidInput as error:
                faults[part.partition, offset] = str(error)
            else:
                if change is not None:
                    changes[part.partition, offset] = change
    if reader.skipped:
        log.info("messages of Debezium are no changes", topic=batch.topic, **reader.skipped)
    prepared = _unwrap_all(prepare, plan, batch, changes)
    # Both rows of a change are records, or neither.
    halves = {(row.partition, row.offset): row.reason for row in prepared.bad}
    if any(len(changes[place].rows) > 1 for place in halves):
        faults |= halves
        left = {place: change for place, change in changes.items() if place not in halves}
        prepared = _unwrap_all(prepare, plan, batch, left)
    faults |= {(row.partition, row.offset): row.reason for row in prepared.bad}
    return replace(prepared, bad=tuple(_bad(batch, faults)))


def rows_of_changes(lines: bytes) -> bytes | None:
    """Return the rows in change messages as JSON lines; None if the first lines have no change message.

    The messages are JSON lines too.
    """
    rows: list[bytes] = []
    for number, line in enumerate(lines.splitlines()):
        if not rows and number == _LINES_WITHOUT_CHANGE:
            return None
        try:
            _, message = _without_schema(object_of(line))
        except InvalidInput:
            continue
        row = None if message is None else message.get("after") or message.get("before")
        if message is not None and "op" in message and isinstance(row, dict):
            rows.append(text_of(row).encode())
    return b"\n".join(rows) or None


def _unwrap_all(
    prepare: Prepare, plan: Plan, batch: MessageBatch, changes: Mapping[Place, _Change]
) -> PreparedRecords:
    parts = tuple(part for part in (_rows_of(part, changes) for part in batch.parts) if len(part.values))
    if not parts:
        return PreparedRecords(source=plan.source)
    return prepare(plan, replace(batch, parts=parts))


def _rows_of(part: Part, changes: Mapping[Place, _Change]) -> Part:
    """Return a part with one message per row of its changes."""
    indices: list[int] = []
    values: list[bytes | None] = []
    times: list[int] = []
    for index, offset in enumerate(part.offsets):
        change = changes.get((part.partition, offset))
        for _, row in () if change is None else change.rows:
            assert change is not None
            indices.append(index)
            values.append(text_of(row).encode())
            times.append(change.time)
    keys = [_plain_key(part.keys[index]) for index in indices] if part.keys else ()
    return replace(
        part.only(indices),
        values=MessageBuffer.pack(values),
        timestamps=np.array(times, np.int64),
        keys=keys,
    )


def _plain_key(key: bytes | None) -> bytes | None:
    """Return a key without its schema."""
    if key is None:
        return None
    try:
        message = object_of(key)
        _, plain = _without_schema(message)
    except InvalidInput:
        return key
    return key if plain is None or plain is message else text_of(plain).encode()


def _without_schema(message: JsonObject) -> tuple[object, JsonObject | None]:
    """Return the schema of a message, None if it has none, and its payload, None for a tombstone.

    Raises `InvalidInput`.
    """
    if "payload" not in message or "schema" not in message or "op" in message:
        return None, message
    payload = message["payload"]
    if payload is not None and not isinstance(payload, dict):
        raise InvalidInput(text=_NOT_ONE)
    return message["schema"], payload


def _bad(batch: MessageBatch, faults: Mapping[Place, str]) -> Iterator[BadRecord]:
    for part in batch.parts:
        for row, offset in enumerate(part.offsets):
            why = faults.get((part.partition, offset))
            if why is not None:
                yield BadRecord(partition=part.partition, offset=offset, value=part.values[row], reason=why)


class _Reader:
    """Reads the messages of one source; `skipped` has the number of messages that are not changes, by kind."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._key: Strings = key_columns(plan.source.merge)
        self._is_changelog = isinstance(plan.source.merge, MergeStrategyChangelogStream)
        self._operation = plan.vocab.operation_type_column
        self.skipped: Counter[str] = Counter()

    def change(self, value: bytes | None, *, is_keyed: bool) -> _Change | None:
        """Return the change in a message; None if it is not a change. Raises `InvalidInput`.

        `is_keyed`: columns are read from the key of the message.
        """
        # The dead letter of a tombstone, which is sent again, has an empty value.
        if value is None or not value.strip():
            self.skipped["tombstones"] += 1
            return None
        schema, message = _without_schema(object_of(value))
        if message is None:
            self.skipped["tombstones"] += 1
            return None
        if "op" not in message:
            self.skipped[_kind(message)] += 1
            return None
        if message["op"] == "m":
            self.skipped["messages"] += 1
            return None
        rows = self._rows(message, is_keyed=is_keyed)
        convert = converters(schema, self._plan.schema)
        return _Change(rows=[(op, self._row(op, row, convert)) for op, row in rows], time=_time(message))

    def _rows(self, message: JsonObject, *, is_keyed: bool) -> Sequence[Row]:
        before, after = (_struct(message, name) for name in ("before", "after"))
        match message["op"]:
            case "c" | "r":
                return [(Operation.APPEND, _require_after(after))]
            case "u":
                return self._update(before, _require_after(after))
            case "d":
                return [(Operation.RETRACT, self._deletion_event(before, is_keyed=is_keyed))]
            case "t":
                raise InvalidInput(text=_TRUNCATED)
            case other:
                raise InvalidInput(text=f"op {text_of(other)} is none of c, u, d, r and t; {_NOT_ONE}")

    def _update(self, before: JsonObject | None, after: JsonObject) -> Sequence[Row]:
        is_other_key = before is not None and any(
            name in before and before[name] != after.get(name) for name in self._key
        )
        if before is not None and is_other_key:
            return [(Operation.RETRACT, before), (Operation.APPEND, after)]
        if not self._is_changelog:
            return [(Operation.APPEND, after)]
        if before is None:
            if not self._plan.completes_retractions:
                raise InvalidInput(text=f"an update {_NO_BEFORE}")
            before = {name: after.get(name) for name in self._key}
        return [(Operation.CORRECT_FROM, before), (Operation.CORRECT_TO, after)]

    def _deletion_event(self, before: JsonObject | None, *, is_keyed: bool) -> JsonObject:
        if before is not None:
            return before
        if self._is_changelog and not self._plan.completes_retractions:
            raise InvalidInput(text=f"a deletion {_NO_BEFORE}")
        if not is_keyed:
            raise InvalidInput(text=f"a deletion {_NO_KEY}")
        return {}

    def _row(
        self, op: Operation, row: JsonObject, convert: Mapping[str, Callable[[object], object]]
    ) -> JsonObject:
        if self._operation in row:
            text = (
                "the table has a column of this name; give the operation another one (`operationTypeColumn`)"
            )
            raise InvalidInput(where=f"column {self._operation}", text=text)
        return {**with_values(row, convert), self._operation: int(op)}


def _kind(message: JsonObject) -> str:
    """Return the kind of a message that is not a change; raises `InvalidInput` if it is not a message of Debezium."""
    if message.get("status") in ("BEGIN", "END") and "id" in message:
        return "transactions"
    if "ddl" in message or "tableChanges" in message:
        return "schema_changes"
    if message.keys() == {"ts_ms"}:
        return "heartbeats"
    raise InvalidInput(text=_NOT_ONE)


def _struct(message: JsonObject, name: str) -> JsonObject | None:
    value = message.get(name)
    if value is None or isinstance(value, dict):
        return value
    raise InvalidInput(where=name, text=f"expected an object, got {text_of(value)}")


def _require_after(after: JsonObject | None) -> JsonObject:
    if after is None:
        raise InvalidInput(text="has no after, which a change that is not a deletion has")
    return after


_UNITS: Final = (("ts_ms", 1), ("ts_us", 1_000), ("ts_ns", 1_000_000))


def _time(message: JsonObject) -> int:
    """Return the time of the change at its source, or else at the connector, in ms since the epoch."""
    source = message.get("source")
    for holder in (source if isinstance(source, dict) else {}, message):
        for name, unit in _UNITS:
            value = holder.get(name)
            if value is not None:
                try:
                    return int(str(value)) // unit
                except ValueError as error:
                    raise InvalidInput(where=name, text=f"expected a number, got {text_of(value)}") from error
    raise InvalidInput(text="has no time: neither source.ts_ms nor ts_ms")
