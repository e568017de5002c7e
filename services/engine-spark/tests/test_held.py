"""The engine counts the records that its checkpoint keeps for results that depend on the watermark."""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace

import pytest
from odf_testing.engine import (
    COUNTS,
    HOUR,
    HOURLY,
    LATE,
    MINUTE,
    Block,
    Derivative,
    Make,
    flight,
    reading,
    sql,
)

from odf_common.metadata.events import TransformSql
from odf_common.ports.engine import EngineProgress
from odf_engine_spark.spark.progress import Progress

FLIGHTS = (Block(rows=[flight(1, 70.0), flight(HOUR + 1, 70.0)], watermark=HOUR),)
SESSIONS = (
    "SELECT session_window.end AS event_time, count(*) AS n FROM flights "
    "GROUP BY session_window(time_hour, '5 minutes')"
)
OUTER = (
    "SELECT f.time_hour AS event_time, temp FROM flights f LEFT JOIN weather w ON f.origin = w.origin "
    "AND w.time_hour BETWEEN f.time_hour AND f.time_hour + INTERVAL 30 MINUTES"
)
READINGS = (Block(rows=[reading(1, 5.0)], watermark=2 * HOUR),)


@pytest.mark.parametrize(
    ("transform", "inputs", "held", "until"),
    [
        (sql(LATE), {"flights": FLIGHTS}, 0, None),
        (
            sql("SELECT max(time_hour) AS event_time, origin, count(*) AS n FROM flights GROUP BY origin"),
            {"flights": FLIGHTS},
            0,
            None,
        ),
        (sql(COUNTS), {"flights": FLIGHTS}, 1, 2 * HOUR),
        (sql(COUNTS), {"flights": (*FLIGHTS, Block(watermark=2 * HOUR))}, 0, None),
        (sql(COUNTS.replace("SELECT", "SELECT /*+ LATE('2 hours') */")), {"flights": FLIGHTS}, 1, 2 * HOUR),
        (sql(SESSIONS), {"flights": FLIGHTS}, 1, HOUR + 5 * MINUTE + 2),
        (sql(*HOURLY), {"flights": FLIGHTS, "weather": ()}, 2, HOUR),
        (sql(*HOURLY), {"flights": FLIGHTS, "weather": READINGS}, 1, 2 * HOUR),
        (sql(OUTER), {"flights": FLIGHTS, "weather": ()}, 2, 30 * MINUTE + 2),
        (sql(OUTER), {"flights": FLIGHTS, "weather": READINGS}, 1, HOUR + 30 * MINUTE + 2),
        (
            sql(OUTER),
            {"flights": (*FLIGHTS, Block(watermark=HOUR + 5 * MINUTE)), "weather": READINGS},
            1,
            HOUR + 30 * MINUTE + 2,
        ),
        (sql(OUTER), {"flights": (*FLIGHTS, Block(watermark=2 * HOUR)), "weather": READINGS}, 0, None),
    ],
)
def test_records_that_wait_for_the_watermark_are_counted(
    derive: Make,
    transform: TransformSql,
    inputs: Mapping[str, Sequence[Block]],
    held: int,
    until: int | None,
) -> None:
    out, progress = derive(transform, **inputs), Progress()
    request = out.request(
        [0] * len(out.chains),
        [len(chain.blocks) for chain in out.chains],
        out.folder / "data",
        out.folder / "checkpoint",
    )

    out.transforms.execute(request, progress)  # type: ignore[call-arg]

    assert (progress.now.held, progress.now.held_until) == (held, until)


RUNNING = "SELECT time_hour AS event_time, count(*) OVER (ORDER BY time_hour) AS n FROM flights"
AS_OF = (
    "SELECT f.time_hour AS event_time, temp FROM flights f LEFT JOIN weather FOR SYSTEM_TIME AS OF f.time_hour AS w "
    "ON f.origin = w.origin"
)


@pytest.mark.parametrize(
    ("transform", "inputs", "by"),
    [
        (sql(LATE), {"flights": FLIGHTS}, ""),
        (sql(COUNTS), {"flights": FLIGHTS}, "a window"),
        (sql(SESSIONS), {"flights": FLIGHTS}, "a session"),
        (sql(OUTER), {"flights": FLIGHTS, "weather": ()}, "a join"),
        (sql(RUNNING), {"flights": FLIGHTS}, "OVER"),
        (sql(AS_OF), {"flights": FLIGHTS, "weather": ()}, "AS OF"),
    ],
)
def test_the_step_that_keeps_records_is_named(
    derive: Make, transform: TransformSql, inputs: Mapping[str, Sequence[Block]], by: str
) -> None:
    out, progress = derive(transform, **inputs), Progress()
    until = [len(chain.blocks) for chain in out.chains]
    request = out.request([0] * len(out.chains), until, out.folder / "data", out.folder / "checkpoint")
    out.transforms.execute(request, progress)  # type: ignore[call-arg]
    assert progress.now.held_by == by


def test_the_first_of_several_open_sessions_says_until_when(derive: Make) -> None:
    rows = [
        flight(at, origin=origin) for at, origin in ((0, "JFK"), (3 * MINUTE, "EWR"), (20 * MINUTE, "JFK"))
    ]
    sessions = SESSIONS.replace("'5 minutes')", "'5 minutes'), origin")
    out, progress = derive(sql(sessions), flights=[Block(rows=rows)]), Progress()
    request = out.request([0], [1], out.folder / "data", out.folder / "checkpoint")
    out.transforms.execute(request, progress)  # type: ignore[call-arg]
    until = progress.now.held_until
    assert until == 8 * MINUTE + 1
    out.pull()
    assert out.rows() == []
    out.chains[0].add(Block(watermark=until))
    out.pull()
    assert out.rows(), "the watermark that is named ends a session"


BEFORE = OUTER.replace(
    "BETWEEN f.time_hour AND f.time_hour + INTERVAL 30 MINUTES",
    "BETWEEN f.time_hour - INTERVAL 30 MINUTES AND f.time_hour",
)
MONTHS = (
    "SELECT max(time_hour) AS event_time, count(*) AS n FROM flights GROUP BY date_trunc('month', time_hour)"
)
RIGHT = OUTER.replace("SELECT f.", "SELECT w.").replace("LEFT", "RIGHT")
WINDOWED = (
    ("joined", OUTER),
    "SELECT window.end AS event_time, count(*) AS n FROM joined GROUP BY window(event_time, '1 hour')",
)
EARLIER = (Block(rows=[reading(10 * MINUTE, 5.0)]),)  # of the other side: no row of its own comes out
ONE = (Block(rows=[flight(50 * MINUTE, 70.0)]),)


@pytest.mark.parametrize(
    ("transform", "inputs", "until"),
    [
        (sql(COUNTS), {"flights": ONE}, HOUR),
        (sql(MONTHS), {"flights": ONE}, 31 * 24 * HOUR),
        (sql(OUTER), {"flights": ONE, "weather": ()}, HOUR + 20 * MINUTE + 1),
        (sql(OUTER), {"flights": ONE, "weather": EARLIER}, HOUR + 20 * MINUTE + 1),
        (sql(BEFORE), {"flights": ONE, "weather": EARLIER}, 50 * MINUTE + 1),
        (sql(RIGHT), {"flights": (), "weather": EARLIER}, 10 * MINUTE + 1),
        (sql(*WINDOWED), {"flights": ONE, "weather": EARLIER}, None),
        (sql(RUNNING), {"flights": ONE}, 50 * MINUTE + 1),
        (sql(AS_OF), {"flights": ONE, "weather": EARLIER}, 50 * MINUTE + 1),
    ],
)
def test_what_is_held_comes_out_at_the_watermark_that_is_named(
    derive: Make, transform: TransformSql, inputs: Mapping[str, Sequence[Block]], until: int | None
) -> None:
    out = derive(transform, **inputs)
    told = pulled(out).held_until
    assert told is not None
    assert until is None or told == until
    assert out.rows() == []
    for chain in out.chains:
        chain.add(Block(watermark=told - 1))
    if until is not None:
        assert pulled(out).held_until == told, "the same time is named again"
        assert out.rows() == []
    for chain in out.chains:
        chain.add(Block(watermark=told))
    after = pulled(out)
    assert len(out.rows()) == 1
    assert after.held == 0


def pulled(out: Derivative) -> EngineProgress:
    """Process what is new, and return the engine's last report."""
    progress, execute = Progress(), out.transforms.execute
    out.transforms = SimpleNamespace(execute=lambda request: execute(request, progress))  # type: ignore[call-arg]
    out.pull()
    out.transforms = SimpleNamespace(execute=execute)
    return progress.now
