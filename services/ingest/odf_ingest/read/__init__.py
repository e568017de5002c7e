"""Readers: bytes in a source's format → a table (spec: ReadStep). One module per format.

`schema` has the expected columns and types; None: they are inferred from the data. Errors are `InvalidInput`. The
result for a record depends only on the record and the schema, never on other records.
"""

from odf_ingest.read import arrow_ipc, geo, parquet
from odf_ingest.read.csv_format import csv
from odf_ingest.read.format import (
    FileRecords,
    infer_batch,
    infer_records,
    read_batch,
    read_file,
    read_inferred,
    read_records,
    split_file,
    suspects,
)
from odf_ingest.read.json_formats import json

__all__ = [
    "FileRecords",
    "arrow_ipc",
    "csv",
    "geo",
    "infer_batch",
    "infer_records",
    "json",
    "ndjson",
    "parquet",
    "read_batch",
    "read_file",
    "read_inferred",
    "read_records",
    "split_file",
    "suspects",
]
