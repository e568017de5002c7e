"""Reads the data of datasets: the last records, and results of ad-hoc SQL."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from odf_common.errors import InvalidQuery
from odf_common.ports.engine import Engine, IsWanted, QueryTable, always
from odf_common.ports.store import DatasetUnknown
from odf_coordinator.catalog.datasets import DatasetHandle, Datasets
from odf_coordinator.definitions.declared_columns import schema_of
from odf_coordinator.operations.projection_files import ProjectionFiles
from odf_coordinator.storage import Slices

CHUNK_BYTES: Final = 1 << 20  # of one message
_COMMENT: Final = re.compile(r"--[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)  # linear without an end, too


class TableUnknown(DatasetUnknown):
    """A query names a table that is neither a dataset nor a projection of this node."""


class NoColumns(InvalidQuery):
    """A query reads a dataset whose columns are unknown, because it has no data yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordReader:
    """Reads datasets."""

    datasets: Datasets
    slices: Slices
    engine: Engine
    projections: ProjectionFiles

    def tail(self, ref: str, records: int) -> pa.Table:
        """Return the last records; if there are none, an empty table with the schema, as far as that is known."""
        handle = self.datasets.open_at(ref)
        table = self.slices.tail(handle, records)
        if table is not None:
            return table
        schema = schema_of(handle.state)
        return pa.table({}) if schema is None else schema.empty_table()

    def query(self, sql: str, is_wanted: IsWanted = always) -> Iterator[bytes]:
        """Return the result of a SQL query over datasets and projections by name, as chunks of an Arrow IPC stream.

        The query is cancelled once `is_wanted` returns False.
        """
        if not _COMMENT.sub("", sql).strip("; \t\r\n"):
            raise InvalidQuery(text="the query is empty")
        names = self.engine.tables_of(sql)
        tables = tuple(self._table(name) for name in names)
        for name in names:
            if "." in name and f"`{name}`" not in sql:
                raise InvalidQuery(text=f"put a name with dots in backticks: `{name}`")
        return self.engine.query_stream(sql, tables, is_wanted)

    def table(self, name: str, handle: DatasetHandle) -> QueryTable:
        """Return a dataset as the table with this name in a query; raises `NoColumns`."""
        schema = schema_of(handle.state)
        if schema is None:
            raise NoColumns(text=f"{handle.alias} has no data yet, so its columns are unknown")
        paths = tuple(str(path) for path in self.slices.paths(handle))
        return QueryTable(name=name, schema=schema, data_paths=paths)

    def _table(self, name: str) -> QueryTable:
        entry = self.datasets.catalog.by_alias(name)
        handle = None if entry is None else self.datasets.open(entry)
        if handle is not None:
            return self.table(name, handle)
        projected = self.projections.table(name)
        if projected is None:
            raise TableUnknown(what=name, nearest=self.datasets.nearest(name))
        return projected


def ipc_chunks(table: pa.Table) -> Iterator[bytes]:
    """Yield a table as one Arrow IPC stream, in chunks of at most 1 MiB."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=1 << 16)
    whole = memoryview(sink.getvalue())
    for start in range(0, len(whole), CHUNK_BYTES):
        yield bytes(whole[start : start + CHUNK_BYTES])
