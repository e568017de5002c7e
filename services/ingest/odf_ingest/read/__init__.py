"""Reading: bytes in a source's format → a table of its columns (spec: ReadStep). One file per format.

`schema` has the columns and types that are wanted; None: they are inferred from the data. Faults are `InvalidInput`.
What becomes of one record depends on that record and the schema alone, never on the records next to it.
"""

from odf_ingest.read import csv, json, ndjson, parquet
from odf_ingest.read.format import (
    infer_batch,
    infer_records,
    read_batch,
    read_file,
    read_inferred,
    read_records,
    suspects,
)

__all__ = [
    "csv",
    "infer_batch",
    "infer_records",
    "json",
    "ndjson",
    "parquet",
    "read_batch",
    "read_file",
    "read_inferred",
    "read_records",
    "suspects",
]
