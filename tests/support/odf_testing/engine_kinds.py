"""A query of every kind, and random inputs for it: out of order, partly late, and for changelogs partly retracted."""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from odf_testing.engine import FROM, HOUR, MINUTE, TO, Block, R, flight, reading

Steps = Sequence[tuple[str, str] | str]
NEAR = "f.origin = w.origin AND w.time_hour BETWEEN f.time_hour - INTERVAL 2 MINUTES AND f.time_hour + INTERVAL 1 MINUTE"
BOTH = (
    "u",
    "SELECT time_hour, origin, dep_delay AS x FROM flights UNION ALL SELECT time_hour, origin, temp FROM weather",
)
SLIDING = "GROUP BY window(time_hour, '30 minutes', '10 minutes'), origin"
KINDS: Final[Mapping[str, Steps]] = {
    "map and filter": ["SELECT time_hour AS event_time, upper(origin) AS o, dep_delay FROM flights WHERE flight > 1"],
    "tumbling windows": [
        (
            "SELECT window.start AS event_time, origin, sum(dep_delay) AS s FROM flights "
            "GROUP BY window(time_hour, '20 minutes'), origin"
        )
    ],
    "sliding windows": [
        f"SELECT window.end AS event_time, origin, count(*) AS n, sum(dep_delay) AS s FROM flights {SLIDING}"
    ],
    "windows that late records correct": [
        (
            "SELECT /*+ LATE('30 minutes') */ window.start AS event_time, origin, sum(dep_delay) AS s, count(*) AS n "
            "FROM flights GROUP BY window(time_hour, '20 minutes'), origin"
        )
    ],
    "sliding windows that late records correct": [
        (
            "SELECT /*+ LATE('15 minutes') */ window.end AS event_time, count(*) AS n, max(flight) AS m FROM flights "
            "GROUP BY window(time_hour, '20 minutes', '5 minutes') HAVING n > 1"
        )
    ],
    "session windows": [
        (
            "SELECT session_window.end AS event_time, session_window.start AS begun, origin, sum(dep_delay) AS s "
            "FROM flights GROUP BY session_window(time_hour, '5 minutes'), origin"
        )
    ],
    "session windows of exploded records": [
        (
            "SELECT session_window.end AS event_time, e, count(*) AS n, sum(dep_delay) AS s FROM flights "
            "LATERAL VIEW explode(array(flight, flight + 1)) AS e WHERE e > 1 GROUP BY session_window(time_hour, '5 minutes'), e"
        )
    ],
    "truncated times": [
        (
            "SELECT date_trunc('hour', time_hour) AS event_time, origin, avg(dep_delay) AS a FROM flights "
            "GROUP BY date_trunc('hour', time_hour), origin"
        )
    ],
    "interval join": [f"SELECT f.time_hour AS event_time, f.origin, flight, temp FROM flights f JOIN weather w ON {NEAR}"],
    "left interval join": [
        f"SELECT f.time_hour AS event_time, f.origin, flight, temp FROM flights f LEFT JOIN weather w ON {NEAR}"
    ],
    "right interval join": [
        f"SELECT w.time_hour AS event_time, w.origin, flight, temp FROM flights f RIGHT JOIN weather w ON {NEAR}"
    ],
    "full interval join": [
        (
            "SELECT coalesce(f.time_hour, w.time_hour) AS event_time, flight, temp FROM flights f "
            f"FULL JOIN weather w ON {NEAR}"
        )
    ],
    "semi join": [f"SELECT time_hour AS event_time, flight FROM flights f LEFT SEMI JOIN weather w ON {NEAR}"],
    "anti join": [f"SELECT time_hour AS event_time, flight FROM flights f LEFT ANTI JOIN weather w ON {NEAR}"],
    "windows over an interval join": [
        ("j", f"SELECT f.time_hour AS t, f.origin, temp, dep_delay FROM flights f JOIN weather w ON {NEAR}"),
        ("SELECT window.start AS event_time, origin, sum(temp * dep_delay) AS s FROM j "
        "GROUP BY window(t, '20 minutes'), origin"),
    ],
    "join without bounds": [
        (
            "SELECT greatest(f.time_hour, w.time_hour) AS event_time, f.origin, flight, temp FROM flights f "
            "JOIN weather w ON f.origin = w.origin WHERE flight < 2 AND temp > 5"
        )
    ],
    "as of": [
        (
            "SELECT f.time_hour AS event_time, f.origin, flight, w.temp FROM flights f "
            "JOIN weather FOR SYSTEM_TIME AS OF f.time_hour AS w ON f.origin = w.origin"
        )
    ],
    "left as of": [
        (
            "SELECT f.time_hour AS event_time, f.origin, flight, weather.temp FROM flights f "
            "LEFT JOIN weather FOR SYSTEM_TIME AS OF f.time_hour ON f.origin = weather.origin"
        )
    ],
    "running": [
        (
            "SELECT time_hour AS event_time, origin, flight, sum(dep_delay) OVER w AS s, count(*) OVER w AS n, "
            "row_number() OVER w AS r FROM flights WINDOW w AS (PARTITION BY origin ORDER BY time_hour)"
        )
    ],
    "running by the hour": [
        (
            "SELECT time_hour AS event_time, origin, sum(dep_delay) OVER (PARTITION BY origin "
            "ORDER BY date_trunc('hour', time_hour)) AS s FROM flights"
        )
    ],
    "running over an interval join": [
        ("j", f"SELECT f.time_hour AS t, f.origin, flight, temp FROM flights f JOIN weather w ON {NEAR}"),
        "SELECT t AS event_time, origin, flight, sum(temp) OVER (PARTITION BY origin ORDER BY t) AS s FROM j",
    ],
    "moving sum over an interval join": [
        ("j", f"SELECT f.time_hour AS t, f.origin, flight, temp FROM flights f LEFT JOIN weather w ON {NEAR}"),
        ("SELECT t AS event_time, origin, flight, sum(temp) OVER (PARTITION BY origin ORDER BY t "
        "RANGE BETWEEN INTERVAL 10 MINUTES PRECEDING AND CURRENT ROW) AS s FROM j"),
    ],
    "windows told by another hour": [
        (
            "SELECT min(date_trunc('hour', time_hour - INTERVAL 90 MINUTES)) AS event_time, count(*) AS n FROM flights "
            "GROUP BY date_trunc('hour', time_hour)"
        )
    ],
    "windows of shifted times": [
        (
            "SELECT window.start AS event_time, origin, sum(dep_delay) AS s FROM flights "
            "GROUP BY window(time_hour + INTERVAL 7 MINUTES, '20 minutes'), origin"
        )
    ],
    "quarters": [
        (
            "SELECT date_trunc('quarter', time_hour - INTERVAL 20 MINUTES) AS event_time, count(*) AS n FROM flights "
            "GROUP BY date_trunc('quarter', time_hour - INTERVAL 20 MINUTES)"
        )
    ],
    "moving average": [
        (
            "SELECT time_hour AS event_time, origin, avg(dep_delay) OVER (PARTITION BY origin ORDER BY time_hour "
            "RANGE BETWEEN INTERVAL 10 MINUTES PRECEDING AND CURRENT ROW) AS a FROM flights"
        )
    ],
    "running, then as of": [
        ("p", "SELECT time_hour AS t, origin, sum(flight) OVER (PARTITION BY origin ORDER BY time_hour) AS held FROM flights"),
        ("SELECT w.time_hour AS event_time, w.origin, temp * held AS worth FROM weather w "
        "LEFT JOIN p FOR SYSTEM_TIME AS OF w.time_hour ON w.origin = p.origin"),
    ],
    "groups": [
        (
            "SELECT max(time_hour) AS event_time, origin, sum(flight) AS n, count(*) * 2 AS c FROM flights "
            "GROUP BY origin HAVING count(*) > 2"
        )
    ],
    "first places": [
        (
            "SELECT * FROM (SELECT time_hour AS event_time, flights.*, row_number() OVER (PARTITION BY origin "
            "ORDER BY flight DESC) AS place FROM flights) WHERE place <= 3"
        )
    ],
    "first places of groups": [
        ("g", "SELECT max(time_hour) AS event_time, origin, sum(flight) AS total FROM flights GROUP BY origin"),
        ("SELECT event_time, origin, total, place FROM "
        "(SELECT *, row_number() OVER (ORDER BY total DESC) AS place FROM g) WHERE place < 3"),
    ],
    "windows of the greatest time": [
        ("g", "SELECT greatest(time_hour, time_hour + INTERVAL 20 MINUTES) AS g, origin FROM flights"),
        "SELECT window.start AS event_time, origin, count(*) AS n FROM g GROUP BY window(g, '10 minutes'), origin",
    ],
    "windows over two joins": [
        (
            "j",
            f"SELECT coalesce(w.time_hour, f.time_hour) AS t, f.origin, f.time_hour AS ft FROM flights f LEFT JOIN weather w ON {NEAR}",
        ),
        (
            "k",
            ("SELECT j.t, j.origin FROM j JOIN flights g ON g.origin = j.origin AND g.time_hour BETWEEN j.ft AND "
            "j.ft + INTERVAL 20 MINUTES"),
        ),
        "SELECT window.start AS event_time, origin, count(*) AS n FROM k GROUP BY window(t, '10 minutes'), origin",
    ],
    "windows that change at once": [
        (
            "SELECT /*+ CHANGES */ window.start AS event_time, origin, sum(dep_delay) AS s, max(flight) AS m FROM flights "
            "GROUP BY window(time_hour, '20 minutes'), origin"
        )
    ],
    "sliding windows that change at once": [
        f"SELECT /*+ CHANGES */ window.end AS event_time, origin, count(*) AS n, avg(dep_delay) AS a FROM flights {SLIDING}"
    ],
    "distinct": ["SELECT DISTINCT time_hour AS event_time, origin FROM flights"],
    "the greatest of windows": [
        ("b", f"SELECT window, origin, count(*) AS n FROM flights {SLIDING}"),
        ("m", "SELECT window, max(n) AS most FROM b GROUP BY window"),
        "SELECT b.window.end AS event_time, origin, n FROM b JOIN m ON b.window = m.window AND n >= most",
    ],
    "rows that reach a window's maximum": [
        ("m", "SELECT max(flight) AS most, window.end AS ends FROM flights GROUP BY window(time_hour, '10 minutes')"),
        ("SELECT f.time_hour AS event_time, origin, flight FROM flights f JOIN m ON flight = most "
        "WHERE f.time_hour BETWEEN ends - INTERVAL 10 MINUTES AND ends"),
    ],
    "places within windows": [
        ("b", "SELECT window.start AS t, origin, count(*) AS n FROM flights GROUP BY window(time_hour, '20 minutes'), origin"),
        ("SELECT t AS event_time, origin, n FROM "
        "(SELECT *, row_number() OVER (PARTITION BY t ORDER BY n DESC) AS place FROM b) WHERE place = 1"),
    ],
    "windows over a union": [
        BOTH,
        "SELECT window.start AS event_time, origin, sum(x) AS s FROM u GROUP BY window(time_hour, '20 minutes'), origin",
    ],
    "sliding windows over a union": [
        BOTH,
        ("SELECT window.start AS event_time, origin, sum(x) AS s, count(DISTINCT x) AS n FROM u "
        "GROUP BY window(time_hour, '20 minutes', '10 minutes'), origin"),
    ],
    "groups over a union": [BOTH, "SELECT max(time_hour) AS event_time, origin, sum(x) AS s FROM u GROUP BY origin"],
    "rows beside running sums": [
        ("SELECT time_hour AS event_time, origin, dep_delay AS x FROM flights UNION ALL SELECT time_hour, origin, "
        "sum(flight) OVER (PARTITION BY origin ORDER BY time_hour) FROM flights"),
    ],
    "groups of windows": [
        ("b", "SELECT window.start AS t, origin, count(*) AS n FROM flights GROUP BY window(time_hour, '20 minutes'), origin"),
        "SELECT max(t) AS event_time, origin, sum(n) AS n FROM b GROUP BY origin",
    ],
}  # fmt: skip
CHANGELOGS: Final = (
    "map and filter",
    "groups",
    "first places",
    "first places of groups",
    "windows that change at once",
    "sliding windows that change at once",
)


def blocks(
    source: random.Random, make: Callable[[int], Sequence[tuple[object, ...]]], *, back: int
) -> list[Block]:
    """Return blocks of ten minutes each, whose rows may be `back` milliseconds older, some of them late.

    `make` makes a record, or both halves of a correction, of a time.
    """
    made, watermark = [], 0
    for n in range(6):
        times = [source.randrange(max(0, n * 10 * MINUTE - back), (n + 1) * 10 * MINUTE) for _ in range(6)]
        watermark = max(watermark, source.randrange(0, (n + 1) * 10 * MINUTE))
        rows = [row for at in times for row in make(at)]
        made.append(Block(rows=rows, watermark=watermark if n else None))
    return [*made, Block(watermark=3000 * HOUR)]


def chains(kind: str, *, back: int) -> dict[str, list[Block]]:
    """Return the same random inputs for the same query; some records for changelogs are retracted or corrected."""
    steps = KINDS[kind]
    source = random.Random(7)

    def any_flight(at: int) -> tuple[object, ...]:
        delay = source.choice((None, 0.0, -0.0, float("nan"), 1e16, -1e16)) if source.random() < 0.2 else None
        delay = source.uniform(0, 1) if delay is None and source.random() < 0.9 else delay
        return flight(at, delay, origin=source.choice("AB"), number=source.randrange(5))

    def any_reading(at: int) -> tuple[object, ...]:
        return reading(at, float(source.randrange(10)), source.choice("AB"))

    def changing(make: Callable[[int], tuple[object, ...]]) -> Callable[[int], Sequence[tuple[object, ...]]]:
        seen: list[tuple[object, ...]] = []

        def some(at: int) -> Sequence[tuple[object, ...]]:
            if kind not in CHANGELOGS:
                return [make(at)]
            chance = source.random() if seen else 1
            old = seen.pop(source.randrange(len(seen))) if chance < 0.25 else None
            if old is not None and chance < 0.15:
                return [(R, *old[1:])]
            new = make(at)
            seen.append(new)
            return [new] if old is None else [(FROM, *old[1:]), (TO, *new[1:])]

        return some

    inputs = {"flights": blocks(source, changing(any_flight), back=back)}
    if "weather" in str(steps):
        inputs["weather"] = blocks(source, changing(any_reading), back=back)
    return inputs
