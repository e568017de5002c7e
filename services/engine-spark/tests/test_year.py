"""Flights and weather of the whole year, month by month, compared with DuckDB over everything at once."""

from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa
import pytest
from odf_testing import nycflights
from odf_testing.engine import FLIGHTS, HOURLY, VOCAB, WEATHER, Block, Chain, Derivative, sql

from odf_engine_spark.transform.execute_transform import Transforms

if TYPE_CHECKING:
    import pandas as pd

EXPECTED = """
    WITH f AS (SELECT time_hour, origin, count(*) AS departures, sum(dep_delay) AS delay FROM flights GROUP BY ALL),
         w AS (SELECT time_hour, origin, max(temp) AS temp FROM weather GROUP BY ALL)
    SELECT f.time_hour, f.origin, departures, delay, temp
    FROM f LEFT JOIN w ON f.origin = w.origin AND f.time_hour = w.time_hour
"""
COLUMNS = {"flights": ["carrier", "flight", "origin", "dest", "dep_delay"], "weather": ["origin", "temp"]}


def months(table: "pd.DataFrame", columns: list[str]) -> list[Block]:
    """Return one block per month, whose watermark is its last hour."""
    blocks = []
    for _, month in table.groupby(table["millis"] // (30 * 24 * 3_600_000), sort=True):
        records = pa.Table.from_pandas(month[["millis", *columns]], preserve_index=False).to_pylist()
        rows = [(0, *record.values()) for record in records]
        blocks.append(Block(rows=rows, watermark=int(month["millis"].max())))
    return [*blocks, Block(watermark=2_000_000_000_000)]


def data(name: str) -> "pd.DataFrame":
    table = nycflights.flights() if name == "flights" else nycflights.weather()
    times = table["time_hour"].astype("datetime64[ns, UTC]").astype("int64") // 1_000_000
    return table.assign(millis=times).sort_values("millis", kind="stable")


@pytest.mark.soak
def test_the_result_of_the_year_equals_that_of_duckdb(transforms: Transforms, tmp_path: Path) -> None:
    tables = {name: data(name) for name in COLUMNS}
    chains = []
    for name, schema in (("flights", FLIGHTS), ("weather", WEATHER)):
        chain = Chain(name=name, schema=schema, vocab=VOCAB, folder=tmp_path)
        for block in months(tables[name], COLUMNS[name]):
            chain.add(block)
        chains.append(chain)
    hourly = Derivative(transforms=transforms, transform=sql(*HOURLY), chains=chains, folder=tmp_path)
    flights, weather = chains
    for at in range(1, max(len(flights.blocks), len(weather.blocks)) + 1):
        hourly.pull(min(at, len(flights.blocks)), min(at, len(weather.blocks)))
    with duckdb.connect() as connection:
        for name, table in tables.items():
            plain = pa.Table.from_pandas(table[["millis", *COLUMNS[name]]], preserve_index=False)
            connection.register(name, plain.rename_columns(["time_hour", *COLUMNS[name]]))
        expected = connection.execute(EXPECTED).fetchall()
    assert len(expected) > 19_000
    assert sorted(row[1:] for row in hourly.rows()) == sorted(expected)
