"""What producers send in the model, and the resulting content of a dataset: the merge strategies in plain Python.

A row is `(operation, id, value)`. A message of a snapshot source is a whole state, of any other source one record.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

APPEND, RETRACT, CORRECT_FROM, CORRECT_TO = range(4)
Row = tuple[int, int | None, int | None]

KEYS: Final = 5  # distinct keys, so that most records meet one of their key
BAD_EVERY: Final = 9  # one of this many messages is not a record


@dataclass(frozen=True)
class Source:
    """A push source: how it is merged, by which key, and the columns that it declares."""

    merge: str
    key: str | None = None
    columns: tuple[str, ...] = ("id", "v")

    @property
    def place(self) -> int:
        """Return where the key stands in a row."""
        return 1 if self.key == "id" else 2


SOURCES: Final[Mapping[str, Source]] = {
    "b.c": Source("Append"),
    "c": Source("Append"),
    "ledger": Source("Ledger", "id"),
    "by_v": Source("Ledger", "v"),
    "no_id": Source("Append", columns=("v",)),
    "upsert": Source("UpsertStream", "id", ("op", "id", "v")),
    "snapshot": Source("Snapshot", "id"),
}
# By the word that chooses it; the first two, with the names of datasets, give topics that would be called the same.
SHAPES: Final[Mapping[str, tuple[str, ...]]] = {
    "b.c": ("b.c",),
    "c": ("c",),
    "ledger": ("ledger",),
    "upsert": ("upsert",),
    "snapshot": ("snapshot",),
    "several": ("ledger", "by_v", "no_id"),
    "mixed": ("upsert", "ledger", "c"),
}


def manifest_of(name: str, sources: Iterable[str]) -> str:
    """Return the manifest of a dataset with these sources."""
    return f"""
kind: DatasetSnapshot
version: 1
content:
  name: {name}
  kind: Root
  metadata:
""" + "".join(map(_declared, sources))


def _declared(name: str) -> str:
    source = SOURCES[name]
    columns = ", ".join(f"{column} {'INT' if column == 'op' else 'BIGINT'}" for column in source.columns)
    key = f", primaryKey: [{source.key}]" if source.key else ""
    return f"""
    - kind: AddPushSource
      sourceName: {name}
      read: {{kind: NdJson, ddlSchema: [event_time TIMESTAMP, {columns}]}}
      merge: {{kind: {source.merge}{key}}}
"""


def messages_of(name: str, numbers: Iterable[int]) -> list[bytes]:
    """Return a message for each number; some are not records."""
    return [
        b"bad %d" % number if number % BAD_EVERY == BAD_EVERY - 1 else file_of(name, [number])
        for number in numbers
    ]


def file_of(name: str, numbers: Sequence[int]) -> bytes:
    """Return one file with records for these numbers; of a snapshot source, one state."""
    source = SOURCES[name]
    rows: list[Row]
    if source.merge == "Snapshot":
        number = numbers[0]
        # Never an empty state: that needs the source's permission.
        rows = [(APPEND, key, (number + key) // 3) for key in range(number % KEYS + 1)]
    else:
        rows = [_row(name, number) for number in numbers]
    return b"\n".join(_line(source, row) for row in rows)


def _row(name: str, number: int) -> Row:
    match name:
        case "ledger":
            return APPEND, number % KEYS, number
        case "by_v":
            return APPEND, number, number % KEYS
        case "upsert":
            operation = RETRACT if number % 4 == 3 else APPEND
            return operation, number % KEYS, number // 4
        case "no_id":
            return APPEND, None, number
        case _:
            return APPEND, number, number


def _line(source: Source, row: Row) -> bytes:
    plain = dict(zip(("op", "id", "v"), row, strict=True))
    chosen = {column: plain[column] for column in source.columns}
    return json.dumps({"event_time": "2020-01-01T00:00:00Z", **chosen}).encode()


def rows_of(message: bytes) -> list[Row] | None:
    """Return the rows of a message or a file, None if it is not a record."""
    if message.startswith(b"bad"):
        return None
    found = map(json.loads, message.splitlines())
    return [(one.get("op", APPEND), one.get("id"), one["v"]) for one in found]


def appended(source: Source, before: Sequence[Row], new: Sequence[Row]) -> list[Row]:
    """Return what a batch of a source appends to a dataset that holds the rows `before`."""
    match source.merge:
        case "Ledger":
            return list(_unseen(source.place, before, new))
        case "UpsertStream":
            return list(_changes(_current(before), {row[1]: row for row in new}))
        case "Snapshot":
            known = _current(before)
            missing = {key: (RETRACT, key, None) for key in known.keys() - {row[1] for row in new}}
            return list(_changes(known, {**missing, **{row[1]: row for row in new}}))
        case _:
            return list(new)


def _unseen(place: int, before: Sequence[Row], new: Sequence[Row]) -> Iterator[Row]:
    seen = {row[place] for row in before}
    for row in new:
        if row[place] not in seen:
            seen.add(row[place])
            yield row


def _current(rows: Sequence[Row]) -> dict[int | None, Row]:
    """Return the last row of each key, unless that retracted the key."""
    last = {row[1]: row for row in rows if row[1] is not None}
    return {key: row for key, row in last.items() if row[0] in {APPEND, CORRECT_TO}}


def _changes(known: Mapping[int | None, Row], new: Mapping[int | None, Row]) -> Iterator[Row]:
    """Yield the changes from the rows `known` to `new`, by key; a new row that retracts removes its key."""
    for key in sorted(new, key=lambda one: one or 0):
        old = known.get(key)
        operation, _, value = new[key]
        if operation == RETRACT:
            if old is not None:
                yield RETRACT, key, old[2]
        elif old is None:
            yield APPEND, key, value
        elif old[2] != value:
            yield CORRECT_FROM, key, old[2]
            yield CORRECT_TO, key, value
