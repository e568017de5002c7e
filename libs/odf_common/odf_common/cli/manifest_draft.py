"""The manifest of a root dataset for data of which there is a sample."""

import json
from collections.abc import Iterator, Mapping, Sequence
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A manifest as YAML, and what its author should know."""

    text: str
    remarks: tuple[str, ...]
    event_time: str = ""
    """The column that is taken as the event time; empty: none."""


def draft(name: str, input_format: str, columns: pa.Schema, options: Mapping[str, str]) -> Draft:
    """Return the manifest of a root with these columns, and options of its read step.

    Raises `InvalidInput` for a column that SQL cannot name.
    """
    event_time = _event_time(columns)
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
            _OTHER_MERGES,
            "    - kind: SetVocab\n" if vocabulary else "",
            *(f"      {key}: {_scalar(value)}\n" for key, value in vocabulary.items()),
        )
    )
    return Draft(text=text, remarks=tuple(_remarks(event_time, renamed)), event_time=event_time or "")


def _event_time(columns: pa.Schema) -> str | None:
    """Return the likely event time column: one with a usual name, else the first column of times."""
    times = [column.name for column in columns if kind.is_timestamp(column.type)] or [
        column.name for column in columns if kind.is_date(column.type)
    ]
    likely = [name for usual in LIKELY_TIMES for name in times if name.lower() == usual]
    return next(iter([*likely, *times]), None)


def _as_event_time(column: pa.Field) -> pa.Field:
    """Return the column in milliseconds, the precision of event times."""
    return column.with_type(pa.timestamp("ms", "UTC")) if kind.is_timestamp(column.type) else column


def _renamed_columns(columns: pa.Schema, event_time: str | None) -> Iterator[tuple[str, str, str]]:
    """Iterate over fields of SetVocab: the event time, and other names for system columns whose names the data has.

    Each has its name here, and that of the data's column, empty for the event time.
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


def _remarks(event_time: str | None, renamed: Sequence[tuple[str, str, str]]) -> Iterator[str]:
    if event_time is None:
        yield "no column has times: the event time of a record is the time at which it is pushed"
    else:
        yield f"column {event_time} is taken as the event time: change `eventTimeColumn` if it is another"
    for key, name, column in renamed:
        if column:
            yield f"column {column} of the data has the name of a system column, which is {name} here ({key})"


def _scalar(text: str) -> str:
    """Return a string as YAML on one line."""
    if not is_visible(text):
        return visible(json.dumps(text, ensure_ascii=False))
    return yaml.safe_dump([text], width=1_000_000, allow_unicode=True).removeprefix("- ").rstrip("\n")
