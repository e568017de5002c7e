"""The departures that are ingested: as messages, as a file, and as pyarrow alone reads them."""

from functools import cache
from pathlib import Path

import pyarrow as pa
import pyarrow.json as pj
from odf_testing import nycflights

from odf_common.data.ddl import ddl_to_schema

COLUMNS: tuple[str, ...] = (
    *("id BIGINT", "year INT", "month INT", "day INT", "dep_time INT", "sched_dep_time INT", "dep_delay INT"),
    *(
        "arr_time INT",
        "sched_arr_time INT",
        "arr_delay INT",
        "carrier STRING",
        "flight INT",
        "tailnum STRING",
    ),
    *("origin STRING", "dest STRING", "air_time INT", "distance INT", "hour INT", "minute INT"),
    "time_hour TIMESTAMP(3)",
)
APPEND = "{kind: Append}"
LEDGER = "{kind: Ledger, primaryKey: [id]}"


@cache
def messages() -> list[bytes]:
    """Return one JSON object per departure."""
    return nycflights.as_messages(nycflights.flights())


def write_file(file: Path) -> None:
    """Write all departures as NdJson."""
    file.write_bytes(b"\n".join(messages()) + b"\n")


def parse(raw: bytes) -> pa.Table:
    """Return the records of NdJson as pyarrow reads it, with given types."""
    schema = ddl_to_schema(COLUMNS)
    return pj.read_json(
        pa.BufferReader(raw),
        read_options=pj.ReadOptions(block_size=4 << 20),
        parse_options=pj.ParseOptions(explicit_schema=_parsed(schema), unexpected_field_behavior="ignore"),
    )


def manifest(name: str, merge: str) -> str:
    """Return the manifest of a root dataset of departures."""
    columns = "".join(f"          - {column}\n" for column in COLUMNS)
    return f"""\
kind: DatasetSnapshot
version: 1
content:
  name: {name}
  kind: Root
  metadata:
    - kind: AddPushSource
      sourceName: default
      read:
        kind: NdJson
        schema:
{columns}\
      merge: {merge}
    - kind: SetVocab
      eventTimeColumn: time_hour
"""


def _parsed(schema: pa.Schema) -> pa.Schema:
    """Return the schema with timestamps of a type that the JSON reader supports."""
    return pa.schema(
        [
            field.with_type(pa.timestamp("ms")) if pa.types.is_timestamp(field.type) else field
            for field in schema
        ]
    )
