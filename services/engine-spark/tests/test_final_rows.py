"""Final rows come from inputs that never retract; what is refused has another way (docs/adr/0086)."""

from collections.abc import Sequence

import pyarrow as pa
import pytest
from odf_testing.engine import (
    COUNTS,
    FLIGHTS,
    FROM,
    HOUR,
    MINUTE,
    TO,
    VOCAB,
    WEATHER,
    A,
    Block,
    Make,
    R,
    flight,
    reading,
    sql,
)
from odf_testing.engine_kinds import CHANGELOGS, KINDS

from odf_common.adapters.grpc.engine_client import EngineClient
from odf_common.errors import InvalidQuery
from odf_common.metadata.events import DatasetVocabulary
from odf_common.ports.engine import ValidatedQuery
from odf_engine_spark.transform.checkpoint import State, read_state, write_state

CHANGES = COUNTS.replace("SELECT", "SELECT /*+ CHANGES */", 1)
AS_OF = (
    "SELECT f.time_hour AS event_time, w.temp FROM flights f LEFT JOIN weather FOR SYSTEM_TIME AS OF f.time_hour AS w "
    "ON f.origin = w.origin"
)
CORRECTED = (  # results change, although records are never retracted
    "windows that late records correct",
    "sliding windows that late records correct",
    "groups over a union",
    "groups of windows",
)
LOCAL = "from_utc_timestamp(time_hour, 'Europe/Oslo')"
DAY = 24 * HOUR
SUMMER = 1_774_652_400_000  # 2026-03-27T23:00Z, a local midnight; clocks change on the 29th
WINTER = 1_792_792_800_000  # 2026-10-23T22:00Z; they change back on the 25th


def validated(engine: EngineClient, steps: Sequence[tuple[str, str] | str], **why: str) -> ValidatedQuery:
    """Return what the engine says about a query over inputs that retract, each for a reason."""
    schemas = {"flights": FLIGHTS}
    if "weather" in str(steps):
        schemas["weather"] = WEATHER
    vocabs = dict.fromkeys(schemas, VOCAB)
    return engine.validate(sql(*steps), schemas, vocabs, DatasetVocabulary(), retracting=why)


@pytest.mark.parametrize("kind", KINDS)
def test_inputs_that_retract_are_refused_by_waiting_rows_only(engine: EngineClient, kind: str) -> None:
    found = validated(engine, KINDS[kind], flights="merges by UpsertStream")
    is_changelog = kind in CHANGELOGS
    assert found.can_retract == (is_changelog or kind in CORRECTED)
    assert ("flights merges by UpsertStream: " in found.retraction_refusal) != is_changelog
    of_appended = validated(engine, KINDS[kind])
    assert not of_appended.retraction_refusal
    assert of_appended.can_retract == (found.can_retract and kind != "map and filter")


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in CHANGELOGS])
def test_a_retraction_ends_the_request_of_waiting_rows(derive: Make, kind: str) -> None:
    gone = flight(5, 1.0)
    blocks = [Block(rows=[gone, flight(6)], watermark=1), Block(rows=[flight(7), (R, *gone[1:])])]
    weather = {"weather": [Block(rows=[reading(1, 1.0)]), Block()]} if "weather" in str(KINDS[kind]) else {}
    out = derive(sql(*KINDS[kind]), flights=blocks, **weather)
    out.pull(*[1] * len(out.chains))
    before = list(out.folder.iterdir())
    for _ in range(2):  # with nothing but the request, and as often as it is repeated
        with pytest.raises(
            InvalidQuery, match=r"^flights, offset 3 \(-R\) takes back a record, but rows of "
        ) as caught:
            out.pull()
        assert "new dataset" not in str(caught.value), "the remedy is to replace the query"
        assert list(out.folder.iterdir()) == before


@pytest.mark.parametrize(
    ("query", "step", "instead"),
    [
        (COUNTS, "GROUP BY a window or time", "CHANGES"),
        ("SELECT DISTINCT time_hour AS event_time FROM flights", "DISTINCT with an event time", "CHANGES"),
        (
            "SELECT session_window.end AS event_time, count(*) AS n FROM flights GROUP BY session_window(time_hour, '1 hour')",
            "session_window",
            "windows of a fixed length",
        ),
        (
            "SELECT time_hour AS event_time, sum(flight) OVER (ORDER BY time_hour) AS s FROM flights",
            "OVER in order of time",
            "GROUP BY",
        ),
        (
            "SELECT a.time_hour AS event_time FROM flights a JOIN flights b ON a.time_hour = b.time_hour",
            "JOIN",
            "Append or Ledger",
        ),
        (
            (
                "SELECT time_hour AS event_time FROM flights UNION ALL SELECT time_hour FROM flights WHERE flight > 1 "
                "UNION ALL SELECT window.start FROM flights GROUP BY window(time_hour, '1 hour')"
            ),
            "GROUP BY a window or time",
            "CHANGES",
        ),
        (
            (
                "SELECT time_hour AS event_time FROM flights UNION ALL SELECT window.start FROM weather "
                "GROUP BY window(time_hour, '1 hour')"
            ),
            "UNION ALL with rows that wait",
            "a dataset of its own",
        ),
    ],
)
def test_the_refusal_names_the_step_and_what_to_write(
    engine: EngineClient, query: str, step: str, instead: str
) -> None:
    refusal = validated(engine, [query], flights="merges by Snapshot").retraction_refusal
    assert refusal.startswith(step)
    assert "but flights merges by Snapshot: " in refusal
    assert instead in refusal.partition("merges by Snapshot: ")[2]


@pytest.mark.parametrize("unrelated", [(), (reading(10 * MINUTE + 45, 1.0, "ZZZ"),)])
def test_a_deleted_version_is_refused_whatever_else_came(
    derive: Make, unrelated: Sequence[tuple[object, ...]]
) -> None:
    versions = [reading(9, 10.0), reading(10, 12.0), *unrelated, reading(10, 12.0, op=R)]
    blocks = [Block(rows=[row], watermark=int(str(row[1]))) for row in versions]
    joined = derive(
        sql(AS_OF),
        flights=[Block(rows=[flight(11)], watermark=HOUR)],
        weather=[*blocks, Block(watermark=HOUR)],
    )
    with pytest.raises(InvalidQuery, match=f"weather, offset {len(versions) - 1} .*with a NULL price"):
        joined.pull()


@pytest.mark.parametrize("is_cut", [False, True])
def test_the_end_of_a_version_is_a_record(derive: Make, is_cut: bool) -> None:
    versions = [reading(90, 10.0), reading(100, 12.0), (0, 110, "JFK", None), reading(130, 5.0, "LGA")]
    blocks = (
        [Block(rows=[row], watermark=int(str(row[1]))) for row in versions]
        if is_cut
        else [Block(rows=versions)]
    )
    deals = [flight(95), flight(105), flight(115), flight(130, origin="LGA")]
    joined = derive(
        sql(AS_OF), flights=[Block(rows=deals, watermark=HOUR)], weather=[*blocks, Block(watermark=HOUR)]
    )
    for until in range(1, len(joined.chains[1].blocks) + 1):
        joined.pull(1, until)
    assert joined.rows() == [(A, 95, 10.0), (A, 105, 12.0), (A, 115, None), (A, 130, 5.0)]


def test_with_changes_windows_follow_each_record_and_nothing_is_late(derive: Make) -> None:
    blocks = [
        Block(rows=[flight(1, 1.0), flight(HOUR, 2.0)], watermark=9 * HOUR),
        Block(rows=[flight(2, 4.0)], watermark=10 * HOUR),
        Block(rows=[flight(2, 4.0, FROM), flight(HOUR + 1, 5.0, TO)]),
        Block(rows=[flight(1, 1.0, R)]),
    ]
    hourly = derive(sql(CHANGES), flights=blocks)
    hourly.pull(1)
    assert hourly.rows() == [(A, 0, "JFK", 1, 1.0), (A, HOUR, "JFK", 1, 2.0)]
    hourly.pull(2)
    assert hourly.rows()[2:] == [(FROM, 0, "JFK", 1, 1.0), (TO, 0, "JFK", 2, 5.0)]
    hourly.pull(3)
    assert hourly.rows()[4:] == [
        (FROM, 0, "JFK", 2, 5.0),
        (TO, 0, "JFK", 1, 1.0),
        (FROM, HOUR, "JFK", 1, 2.0),
        (TO, HOUR, "JFK", 2, 7.0),
    ]
    hourly.pull(4)
    assert hourly.rows()[8:] == [(R, 0, "JFK", 1, 1.0)]
    assert hourly.watermark is None


@pytest.mark.parametrize(
    ("query", "says"),
    [
        (CHANGES.replace("CHANGES", "CHANGES('1 day')"), "takes no parameters"),
        (CHANGES.replace("CHANGES", "CHANGES, LATE('1 day')"), "exclude each other"),
        ("SELECT /*+ CHANGES */ time_hour AS event_time FROM flights", "is for GROUP BY"),
        (
            "SELECT /*+ CHANGES */ session_window.end AS event_time FROM flights GROUP BY session_window(time_hour, '1 hour')",
            "a record may join two sessions",
        ),
        (
            CHANGES.replace("count(*)", "percentile(flight, 0.5)"),
            "without the hint CHANGES allows all others",
        ),
        (
            f"SELECT window.start AS event_time, count(*) AS n FROM flights GROUP BY window({LOCAL}, '1 day')",
            r"GROUP BY to_date\(from_utc_timestamp\(<event time>, 'Europe/Oslo'\)\)",
        ),
    ],
)
def test_what_changes_and_windows_cannot_do_is_refused(derive: Make, query: str, says: str) -> None:
    with pytest.raises(InvalidQuery, match=says):
        derive(sql(query), flights=[Block(rows=[flight(1)])]).pull()


@pytest.mark.parametrize(
    ("first", "hours"), [(SUMMER, [24, 23, 24]), (WINTER, [24, 25, 24])], ids=["summer", "winter"]
)
@pytest.mark.parametrize("day", [f"to_date({LOCAL})", f"date_trunc('day', {LOCAL})"])
def test_local_days_have_23_to_25_hours(derive: Make, day: str, first: int, hours: list[int]) -> None:
    query = f"SELECT max(time_hour) AS event_time, {day} AS day, count(*) AS n FROM flights GROUP BY {day}"
    records = [flight(first + n * HOUR) for n in range(sum(hours))]
    daily = derive(
        sql(query), flights=[Block(rows=records[:30], watermark=first + 2 * DAY), Block(rows=records[30:])]
    )
    daily.pull(1)
    daily.pull(2)
    last: dict[object, object] = {}
    for row in daily.rows():
        if row[0] in (A, TO):
            last[row[2]] = row[3]
    assert list(last.values()) == hours


@pytest.mark.parametrize(
    "query",
    [
        "SELECT max(time_hour) AS event_time, origin, count(*) AS n FROM flights GROUP BY origin",
        (
            "SELECT time_hour AS event_time, place FROM (SELECT *, row_number() OVER (ORDER BY flight) AS place FROM flights) "
            "WHERE place < 3"
        ),
    ],
    ids=["groups", "first places"],
)
def test_a_record_that_takes_back_what_was_not_there_is_named(derive: Make, query: str) -> None:
    blocks = [
        Block(rows=[flight(1)]),
        Block(rows=[flight(2), flight(3, 1.0, FROM, "LGA"), flight(3, 2.0, TO)]),
    ]
    out = derive(sql(query), flights=blocks)
    out.pull(1)
    with pytest.raises(
        InvalidQuery, match=r"^flights, offset 2 \(-C\) takes back a record that was not there"
    ) as caught:
        out.pull(2)
    assert str(caught.value).endswith("or exclude them by WHERE")


def test_checkpoints_with_retracted_records_are_read(derive: Make) -> None:
    sliding = COUNTS.replace("'1 hour'", "'1 hour', '30 minutes'").replace("window.start", "window.end")
    hourly = derive(
        sql(sliding), flights=[Block(rows=[flight(1), flight(2)], watermark=1), Block(watermark=HOUR)]
    )
    hourly.pull(1)
    state = read_state(hourly.checkpoint)
    (name,) = state.tables
    # As written before: until when each record counts; the second was retracted once a window had ended.
    until = pa.array([2**63 - 1, 30 * MINUTE * 1000])
    table = state.tables[name]
    tables = {name: table.set_column(table.schema.get_field_index("__odf_until"), "__odf_until", until)}
    assert hourly.checkpoint is not None
    write_state(State(watermark=state.watermark, inputs=state.inputs, tables=tables), hourly.checkpoint)
    hourly.pull(2)
    assert hourly.rows() == [(A, HOUR // 2, "JFK", 1, 0.0), (A, HOUR, "JFK", 1, 0.0)]
