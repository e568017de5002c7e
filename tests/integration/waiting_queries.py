"""Queries that wait for the watermark, their DuckDB equivalents, and the input of their roots."""

import random
from collections.abc import Mapping, Sequence
from datetime import datetime
from operator import itemgetter
from pathlib import Path

from odf_testing.story import Row, root, row, timestamp

TRADING = Path(__file__).parents[2] / "examples" / "trading"
CLICKS = root("clicks", ("event_time TIMESTAMP(3)", "id BIGINT", "user STRING", "amount BIGINT"))
DERIVED: Mapping[str, str] = {
    "clicks.monthly": """
        SELECT date_trunc('month', event_time) AS event_time, user, sum(amount) AS amount, count(*) AS n
        FROM clicks GROUP BY date_trunc('month', event_time), user
    """,
    "clicks.weekly": """
        SELECT date_trunc('week', event_time + INTERVAL 36 HOURS) AS event_time, max(amount) AS most, count(*) AS n
        FROM clicks GROUP BY date_trunc('week', event_time + INTERVAL 36 HOURS)
    """,
    "clicks.sessions": """
        SELECT session_window.end AS event_time, user, session_window.start AS begun, sum(amount) AS amount
        FROM clicks GROUP BY session_window(event_time, '630 minutes'), user
    """,
    "clicks.corrected": """
        SELECT /*+ LATE('14 days') */ window.start AS event_time, user, sum(amount) AS amount, count(*) AS n
        FROM clicks GROUP BY window(event_time, '7 days'), user
    """,
}
DAY = 24 * 3600 * 1000  # milliseconds
GAP = 630 * 60 * 1000
WEEK = 7 * DAY
# By derivative: its root with late records, and the condition of those in time; `seen` is the watermark before their block.
IN_TIME: Mapping[str, tuple[str, str]] = {
    "clicks.monthly": ("clicks", "epoch_ms(date_trunc('month', moment) + INTERVAL 1 MONTH) > seen"),
    "clicks.weekly": ("clicks", "epoch_ms(date_trunc('week', moment + INTERVAL 36 HOURS) + INTERVAL 132 HOURS) > seen"),
    "clicks.sessions": ("clicks", "event_time >= seen"),
    "clicks.corrected": ("clicks", f"event_time // {WEEK} * {WEEK} + 3 * {WEEK} > seen"),
    "positions": ("prices", "event_time >= seen"),
}  # fmt: skip
AT_ONCE: Mapping[str, str] = {
    "clicks.monthly": """
        SELECT epoch_ms(date_trunc('month', moment)) AS month, user, sum(amount), count(*) FROM taken GROUP BY ALL
    """,
    "clicks.weekly": """
        SELECT epoch_ms(date_trunc('week', moment + INTERVAL 36 HOURS)) AS week, max(amount), count(*) FROM taken GROUP BY ALL
    """,
    "clicks.sessions": f"""
        SELECT max(event_time) + {GAP}, user, min(event_time), sum(amount) FROM (
            SELECT *, count(*) FILTER (is_first) OVER (PARTITION BY user ORDER BY event_time) AS session FROM (
                SELECT *, event_time - lag(event_time, 1, 0) OVER (PARTITION BY user ORDER BY event_time) > {GAP} AS is_first
                FROM taken))
        GROUP BY user, session
    """,
    "clicks.corrected": f"""
        SELECT event_time // {WEEK} * {WEEK} AS week, user, sum(amount), count(*) FROM taken GROUP BY ALL
    """,
    "positions": """
        SELECT t.event_time, id, t.symbol, quantity, position, price, position * price
        FROM (SELECT *, sum(quantity) OVER (PARTITION BY symbol ORDER BY event_time) AS position FROM trades) AS t
        ASOF JOIN taken AS p ON t.symbol = p.symbol AND t.event_time >= p.event_time
    """,
}
HOURS = 45 * 24  # of a round
ROUNDS = 2
Rounds = Mapping[str, Sequence[Sequence[Row]]]


def of_root(derived: str, *, is_late: bool = False) -> str:
    """Return a query for the records of a derivative's root that it takes, or drops."""
    name, in_time = IN_TIME[derived]
    rows = f"SELECT *, make_timestamp(event_time * 1000) AS moment FROM {name}"
    return f"SELECT * FROM ({rows}) WHERE ({in_time}) IS {not is_late}"


def with_seen(rounds: Sequence[Sequence[Row]]) -> list[Row]:
    """Return all rows, each with the latest event time of the rounds before."""
    rows, seen = [], datetime.fromtimestamp(0, tz=timestamp().tzinfo)
    for each in rounds:
        rows += [{**one, "seen": seen} for one in each]
        seen = max(seen, *(one["event_time"] for one in each))
    return rows


def inputs(source: random.Random) -> Rounds:
    """Return rows of every root by round; some clicks and prices are one round late."""
    clicks: list[list[Row]] = [[] for _ in range(ROUNDS)]
    trades: list[list[Row]] = [[] for _ in range(ROUNDS)]
    for id_ in range(400):
        number, hour = divmod(source.randrange(ROUNDS * HOURS), HOURS)
        at = timestamp(hours=number * HOURS + hour)
        symbol, quantity = source.choice("XY"), source.randrange(-9, 9)
        trades[number].append(row("event_time id symbol quantity", at, id_, symbol, quantity))
        user, amount = source.choice("ab"), source.randrange(99)
        arrived = min(number + (source.random() < 0.15), ROUNDS - 1)
        clicks[arrived].append(row("event_time id user amount", at, id_, user, amount))
    for each in trades:
        each.sort(key=itemgetter("event_time"))
    return {"clicks": clicks, "prices": prices(source), "trades": trades}


def prices(source: random.Random) -> list[list[Row]]:
    """Return prices by round; NULL ends a price, and some come in the next round."""
    rounds: list[list[Row]] = []
    again: list[Row] = []
    for number in range(ROUNDS):
        made, first = again, number * HOURS
        for hour in range(first, first + HOURS - 1, 8):
            made += [_price(symbol, hour, source.choice((None, 7.0, 40.0, 99.0))) for symbol in "XY"]
        last = first + HOURS - 1
        rounds.append([*made, _price("X", last, 50.0)])
        # Exactly at the watermark is in time, before it is not.
        again = [_price("Y", last, 60.0), _price("X", last - 1, 1000.0)]
    return rounds


def _price(symbol: str, hour: int, price: float | None) -> Row:
    return row("event_time symbol price", timestamp(hours=hour), symbol, price)
