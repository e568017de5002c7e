"""Drafts the manifest of a root dataset from the columns of sample data."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Final

import pyarrow as pa
import pyarrow.types as kind
import yaml

from odf_common.codec.visible_text import is_visible, visible
from odf_common.data.ddl import schema_to_ddl
from odf_common.metadata.events import DatasetVocabulary

READ_KINDS: Final[Mapping[str, str]] = {
    "csv": "Csv",
    "esrishapefile": "EsriShapefile",
    "geojson": "GeoJson",
    "json": "Json",
    "ndgeojson": "NdGeoJson",
    "ndjson": "NdJson",
    "parquet": "Parquet",
}
BOOLEAN_OPTIONS: Final = frozenset({"header"})
LIKELY_TIMES: Final = ("event_time", "timestamp", "datetime", "time", "ts", "date", "at")
_OTHER_MERGES: Final = """\
      merge: {kind: Append}
      # Append keeps every record that is pushed. If pushes overlap, or have changes, use one of these; PRIMARY_KEY
      # names the columns that identify a record:
      # merge: {kind: Ledger, primaryKey: [PRIMARY_KEY]}        # records never change: those seen before are skipped
      # merge: {kind: Snapshot, primaryKey: [PRIMARY_KEY]}      # each push is the whole state: it is compared
      # merge: {kind: UpsertStream, primaryKey: [PRIMARY_KEY]}  # each record replaces the one before
"""


_MERGE_OF_CHANGES: Final = """\
      merge: {{kind: UpsertStream, primaryKey: [{key}]}}
      # UpsertStream keeps the record of each key as it is now. ChangelogStream has each change with the record before
      # it, which the table has to log; it needs the column `op INT`, too.
"""
_UNKNOWN_KEY: Final = (
    "no message has a key of JSON with columns of the table: write its primary key instead of PRIMARY_KEY"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A draft of a manifest in YAML, and remarks for its author."""

    text: str
    remarks: tuple[str, ...]
    event_time: str = ""
    """The column that the draft uses as the event time, empty if there is none."""


def draft(
    name: str,
    input_format: str,
    columns: pa.Schema,
    options: Mapping[str, str],
    *,
    key_of_changes: Sequence[str] | None = None,
) -> Draft:
    """Return a draft for a root dataset with these columns; `options` are options of its read step.

    `key_of_changes` is None unless the messages are changes of a table; it is then the primary key, or empty if that is
    unknown. Such messages have their own event time. Raises `InvalidInput` for a column name that SQL cannot express.
    """
    event_time = _event_time(columns) if key_of_changes is None else None
    columns = pa.schema(
        [_as_event_time(column) if column.name == event_time else column for column in columns]
    )
    renamed = tuple(_renamed_columns(columns, event_time))
    vocabulary = {key: name for key, name, _ in renamed}
    text = "".join(
        (
            "kind: DatasetSnapshot\nversion: 1\ncontent:\n",
            f"  name: {_scalar(name)}\n  kind: Root\n  metadata:\n",
            "    - kind: AddPushSource\n      sourceName: default\n",
            f"      read:\n        kind: {READ_KINDS[input_format]}\n",
            *(
                f"        {key}: {value if key in BOOLEAN_OPTIONS else _scalar(value)}\n"
                for key, value in options.items()
            ),
            "        schema:\n",
            *(f"          - {_scalar(definition)}\n" for definition in schema_to_ddl(columns)),
            _merge(key_of_changes),
            "    - kind: SetVocab\n" if vocabulary else "",
            *(f"      {key}: {_scalar(value)}\n" for key, value in vocabulary.items()),
        )
    )
    remarks = [*_remarks(renamed)]
    if key_of_changes is None:
        remarks.insert(0, _event_time_remark(event_time))
    elif not key_of_changes:
        remarks.insert(0, _UNKNOWN_KEY)
    return Draft(text=text, remarks=tuple(remarks), event_time=event_time or "")


def key_of_changes(keys: Iterable[bytes | None], columns: pa.Schema) -> Sequence[str]:
    """Return the primary key columns in the first message key that is a JSON object, with or without a Connect schema.

    Empty if no key is one, or if the table does not have these columns.
    """
    for key in keys:
        try:
            plain = json.loads(key or b"")
        except ValueError:
            continue
        if isinstance(plain, dict):
            payload = plain.get("payload")
            names = list(payload if "schema" in plain and isinstance(payload, dict) else plain)
            return names if set(names) <= set(columns.names) else ()
    return ()


def _merge(key_of_changes: Sequence[str] | None) -> str:
    if key_of_changes is None:
        return _OTHER_MERGES
    return _MERGE_OF_CHANGES.format(key=", ".join(map(_scalar, key_of_changes)) or "PRIMARY_KEY")


def _event_time(columns: pa.Schema) -> str | None:
    """Return the probable event time column: one with a usual name, else the first timestamp or date column."""
    times = [column.name for column in columns if kind.is_timestamp(column.type)] or [
        column.name for column in columns if kind.is_date(column.type)
    ]
    likely = [name for usual in LIKELY_TIMES for name in times if name.lower() == usual]
    return next(iter([*likely, *times]), None)


def _as_event_time(column: pa.Field) -> pa.Field:
    """Return a timestamp column with milliseconds, the precision of event times; other columns unchanged."""
    return column.with_type(pa.timestamp("ms", "UTC")) if kind.is_timestamp(column.type) else column


def _renamed_columns(columns: pa.Schema, event_time: str | None) -> Iterator[tuple[str, str, str]]:
    """Yield fields of SetVocab: the event time column, and new names for system columns that clash with data columns.

    Each is (field of SetVocab, column name, clashing data column); the last one is empty for the event time.
    """
    names = {name.lower(): name for name in columns.names}
    for field in fields(DatasetVocabulary):
        key = field.name.split("_")[0] + "".join(word.title() for word in field.name.split("_")[1:])
        usual = str(field.default)
        if field.name == "event_time_column" and event_time is not None:
            if event_time != usual:
                yield key, event_time, ""
        elif usual in names:
            yield key, next(name for name in _others(usual) if name not in names), names[usual]


def _others(name: str) -> Iterator[str]:
    other = name
    while True:
        other = f"odf_{other}"
        yield other


def _event_time_remark(event_time: str | None) -> str:
    if event_time is None:
        return "no column has times: the event time of a record is the time at which it is pushed"
    return f"column {event_time} is taken as the event time: change `eventTimeColumn` if it is another"


def _remarks(renamed: Sequence[tuple[str, str, str]]) -> Iterator[str]:
    for key, name, column in renamed:
        if column:
            yield f"column {column} of the data has the name of a system column, which is {name} here ({key})"


def _scalar(text: str) -> str:
    """Return a string as a YAML scalar on one line."""
    if not is_visible(text):
        return visible(json.dumps(text, ensure_ascii=False))
    return yaml.safe_dump([text], width=1_000_000, allow_unicode=True).removeprefix("- ").rstrip("\n")
