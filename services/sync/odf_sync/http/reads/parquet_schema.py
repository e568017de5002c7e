"""The schema of records in the text form of Parquet's own tools, which the other implementation answers with."""

import re
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

ROOT: Final = "message arrow_schema {"
_FIELD: Final = re.compile(
    r"(?P<indent> *)(?P<repetition>required|optional|repeated) (?P<type>\w+)(?P<length>\(\d+\))? field_id=-?\d+ "
    r"(?P<name>.*?)(?: \((?P<logical>[A-Z][A-Za-z0-9]*)(?:\((?P<details>[^()]*)\))?\))?(?P<end> {|;)"
)
_TYPES: Final = {"binary": "BYTE_ARRAY"}
_UNITS: Final = {"milliseconds": "MILLIS", "microseconds": "MICROS", "nanoseconds": "NANOS"}


def parquet_schema(schema: pa.Schema) -> str:
    """Return the schema of a Parquet file of such records, a line per field."""
    buffer = pa.BufferOutputStream()
    pq.write_table(schema.empty_table(), buffer)
    # Arrow prints the same schema in its own words.
    printed = str(pq.ParquetFile(pa.BufferReader(buffer.getvalue())).schema).splitlines()[2:]
    return "\n".join([ROOT, *map(_line, printed)]) + "\n"


def _line(printed: str) -> str:
    match = _FIELD.fullmatch(printed)
    if match is None:
        return printed
    repetition, kind = match["repetition"].upper(), match["type"]
    kind = kind if kind == "group" else _TYPES.get(kind, kind.upper())
    logical = _logical(match["logical"], match["details"])
    return (
        f"{match['indent']}{repetition} {kind}{match['length'] or ''} {match['name']}{logical}{match['end']}"
    )


def _logical(name: str | None, details: str | None) -> str:
    if name is None:
        return ""
    parameters = dict(re.findall(r"(\w+)=(\w+)", details or ""))
    match name:
        case "Timestamp" | "Time":
            shown = f"{_UNITS[parameters['timeUnit']]},{parameters['isAdjustedToUTC']}"
        case "Int":
            name, shown = "Integer", f"{parameters['bitWidth']},{parameters['isSigned']}"
        case "Decimal":
            shown = f"{parameters['precision']},{parameters['scale']}"
        case _:
            return f" ({name.upper()})"
    return f" ({name.upper()}({shown}))"
