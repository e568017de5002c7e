"""The results that pandas computes from the same files, and their comparison with the node's."""

from dataclasses import dataclass, field

import pandas as pd
from odf_testing import nycflights as data
from rich.table import Table

LATE = ["event_time", "carrier", "flight", "origin", "dest", "dep_delay"]
HOURLY = ["event_time", "origin", "departures", "delay", "temp"]


def closing_watermark(wanted: list[int]) -> str:
    """Return the hour after the last departure, at which the last window ends."""
    last = pd.to_datetime(data.of_days(data.flights(), wanted)["time_hour"]).max()
    return (last + pd.Timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")


def late(flights: pd.DataFrame) -> pd.DataFrame:
    """Return departures an hour late or more, in the order of the file."""
    return flights[flights["dep_delay"].ge(60).fillna(value=False)].rename(
        columns={"time_hour": "event_time"}
    )[LATE]


def hourly(flights: pd.DataFrame, weather: pd.DataFrame) -> pd.DataFrame:
    """Return departures, delay and temperature per hour and airport."""
    groups = flights.groupby(["time_hour", "origin"], as_index=False)
    counted = groups.agg(
        departures=("id", "size"), delay=("dep_delay", lambda minutes: minutes.sum(min_count=1))
    )
    readings = weather.groupby(["time_hour", "origin"], as_index=False).agg(temp=("temp", "max"))
    joined = counted.merge(readings, how="left", on=["time_hour", "origin"])
    return joined.rename(columns={"time_hour": "event_time"})[HOURLY]


def worst_carrier(late_flights: pd.DataFrame) -> dict[str, object]:
    """Return the carrier with most late departures, the first by name if several are equal."""
    counts = late_flights["carrier"].value_counts()
    carrier = min(counts[counts == counts.max()].index)
    return {"carrier": carrier, "n": int(counts[carrier])}


@dataclass(slots=True)
class Checks:
    """All comparisons: the subject, both values, whether they are equal."""

    rows: list[tuple[str, str, str, bool]] = field(default_factory=list)

    def equal(self, what: str, seen: object, wanted: object) -> None:
        """Compare two values."""
        self.rows.append((what, str(seen), str(wanted), seen == wanted))

    def same_records(self, what: str, seen: pd.DataFrame, wanted: pd.DataFrame) -> None:
        """Compare all fields of all records, whatever their order."""
        left, right = canonical(seen[list(wanted.columns)]), canonical(wanted)
        self.rows.append((what, f"{len(left):,} records", f"{len(right):,} records", left == right))

    @property
    def all_right(self) -> bool:
        """Return whether there were comparisons and none differed."""
        return bool(self.rows) and all(right for *_, right in self.rows)

    def table(self) -> Table:
        """Return the comparisons so far."""
        table = Table("what", "node", "pandas", "equal", title="result", title_justify="left")
        for what, seen, wanted, right in self.rows:
            table.add_row(what, seen, wanted, "[green]yes" if right else "[red]NO")
        return table

    def summary(self) -> str:
        """Return a line with the number of comparisons, and of those that differ."""
        wrong = [what for what, *_, right in self.rows if not right]
        if not self.rows:
            return "[red]nothing was compared"
        if wrong:
            return f"[red]{len(wrong)} of {len(self.rows)} comparisons differ: {', '.join(wrong)}"
        return f"[green]all {len(self.rows)} comparisons equal"


def canonical(table: pd.DataFrame) -> list[tuple[object, ...]]:
    """Return the records as sorted tuples, times as RFC 3339, integers as int, missing values as None."""
    return sorted((tuple(map(_plain, row)) for row in table.itertuples(index=False)), key=repr)


def _plain(value: str | float | None) -> object:
    if pd.isna(value):
        return None
    if isinstance(value, str):
        return value
    number = float(value)
    return int(number) if number.is_integer() else number
