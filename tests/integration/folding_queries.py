"""Queries that keep a state and emit it at once, their DuckDB equivalents, and the input of their roots."""

import random
from collections.abc import Mapping
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import cast

from odf_testing.engine_nexmark import START as FIRST
from odf_testing.engine_nexmark import nexmark
from odf_testing.story import Row, derivative, row, timestamp

EXAMPLES = Path(__file__).parents[2] / "examples"
MANIFESTS = (
    "shipments/orders", "shipments/shipments", "shipments/orders.daily",
    "leaderboard/match.scores", "leaderboard/leaderboard", "nexmark/bids", "nexmark/q17",
)  # fmt: skip
WEEKLY = """
    SELECT window.start AS event_time, sum(orders) AS n, sum(amount) AS amount FROM daily
    GROUP BY window(event_time, '7 days')
"""
SPENT = """
    SELECT event_time, id, customer, sum(amount) OVER (PARTITION BY customer ORDER BY event_time) AS total FROM orders
"""
PLAYERS = """
    SELECT max(event_time) AS event_time, player_name, count(*) AS places, sum(score) AS score
    FROM leaderboard GROUP BY player_name
"""
DERIVED = (
    derivative("orders.weekly", {"daily": "orders.daily"}, WEEKLY),
    derivative("orders.spent", {"orders": "orders"}, SPENT),
    derivative("players", {"leaderboard": "leaderboard"}, PLAYERS),
)
DAILY = """
    SELECT o.event_time // 86400000 * 86400000 AS event_time, count(*) AS orders, count(s.order_id), sum(amount) AS amount
    FROM orders o LEFT JOIN shipments s
      ON s.order_id = o.id AND s.event_time BETWEEN o.event_time AND o.event_time + 3 * 86400000 GROUP BY ALL
"""
BEST = """
    SELECT match_time AS event_time, row_number() OVER (ORDER BY score DESC, match_id) AS place, player_name, score
    FROM match_scores QUALIFY place <= 2
"""
AT_ONCE: Mapping[str, str] = {
    "orders.daily": DAILY,
    "orders.weekly": f"""
        SELECT event_time // 604800000 * 604800000 AS week, sum(orders), sum(amount) FROM ({DAILY}) GROUP BY week
    """,
    "orders.spent": SPENT,
    "leaderboard": BEST,
    "players": f"SELECT max(event_time), player_name, count(*), sum(score) FROM ({BEST}) GROUP BY player_name",
    "nexmark.q17": (EXAMPLES / "nexmark" / "duckdb" / "q17.sql").read_text(),
}
CHANGING = {"leaderboard", "players", "nexmark.q17"}
DAYS = 28
AFTER = (0, 0.5, 1, 3, 3.01, 9)  # days until an order is shipped
SEED = 20  # of the generated bids


def inputs(source: random.Random) -> dict[str, list[Row]]:
    """Return rows of every root, by event time; some have the same."""
    placed = [timestamp(hours=hour) for hour in sorted(source.choices(range(DAYS * 24), k=480))]
    orders = [
        row("event_time id customer amount", at, id_, source.choice("abcde"), Decimal(id_) / 100)
        for id_, at in enumerate(placed)
    ]
    left = [
        row("event_time order_id carrier", at + timedelta(days=source.choice(AFTER)), id_, "post")
        for id_, at in enumerate(placed)
        if source.random() < 0.8
    ]
    points = [source.randrange(99) for _ in range(160)]
    scores = [
        row("match_time match_id player_name score", timestamp(hours=id_), id_, source.choice("ABCD"), score)
        for id_, score in enumerate(points)
    ]
    bids = [
        row("event_time auction bidder price channel url extra", timestamp(milliseconds=at - FIRST), *values)
        for block in nexmark(4000, seed=SEED, blocks=1).blocks["bids"]
        for _, at, *values in cast("list[tuple[int, ...]]", block.rows)
    ]
    shipments = sorted(left, key=lambda one: str(one["event_time"]))
    return {"orders": orders, "shipments": shipments, "match.scores": scores, "bids": bids}
