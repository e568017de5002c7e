"""Rows as they are sent to roots, and DuckDB's results over all of them at once."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Final

import duckdb
import pyarrow as pa

from odf_testing.chains import OFFSET, SYSTEM_TIME, StoredChain
from odf_testing.story import Row

START: Final = datetime(2026, 1, 1, tzinfo=UTC)  # a Thursday, as the epoch's first day


def row(names: str, *values: object) -> Row:
    """Return a row of these columns."""
    return dict(zip(names.split(), values, strict=True))


def at_once(roots: Mapping[str, Sequence[Row]], query: str) -> list[tuple[object, ...]]:
    """Return DuckDB's result over all input; timestamps are milliseconds."""
    with duckdb.connect() as connection:
        for name, rows in roots.items():
            connection.register(name.replace(".", "_"), pa.Table.from_pylist([plain(row) for row in rows]))
        return connection.execute(query).fetchall()


def changes(chain: StoredChain) -> list[tuple[object, ...]]:
    """Return a dataset's records as (op, *values), in the same form."""
    table = chain.table
    assert table is not None, "it has no data"
    return [tuple(plain(row).values()) for row in table.drop_columns([OFFSET, SYSTEM_TIME]).to_pylist()]


def timestamp(**after: float) -> datetime:
    """Return the timestamp that long after the first."""
    return START + timedelta(**after)


def plain(sent: Row) -> Row:
    """Return a row with its timestamps as milliseconds since the epoch."""
    return {
        key: int(one.timestamp() * 1000) if isinstance(one, datetime) else one for key, one in sent.items()
    }


def line(sent: Row) -> bytes:
    """Return a row in the form in which it is sent."""
    return json.dumps(
        sent, default=lambda one: float(one) if isinstance(one, Decimal) else one.isoformat()
    ).encode()
