"""Records after their window has closed: dropped and counted, or, within a bound, correcting it."""

import pytest
from odf_testing.engine import COUNTS, FROM, HOUR, TO, A, Block, Make, R, flight, ms, sql

from odf_common.errors import InvalidQuery
from odf_engine_spark.spark.progress import Progress

LATE_HINT = COUNTS.replace("SELECT", "SELECT /*+ LATE('2 hours') */", 1)


def test_late_records_correct_a_closed_window_within_the_bound(derive: Make) -> None:
    hourly = derive(
        sql(LATE_HINT),
        flights=[
            Block(rows=[flight(1, 1.0)], watermark=HOUR),
            Block(rows=[flight(2, 2.0), flight(3, 5.0, origin="LGA")]),
            Block(watermark=3 * HOUR),
            Block(rows=[flight(4, 9.0)]),
        ],
    )
    assert ms(hourly.pull(1)) == -HOUR
    assert hourly.rows() == [(A, 0, "JFK", 1, 1.0)]
    hourly.pull(2)
    corrected = [(FROM, 0, "JFK", 1, 1.0), (TO, 0, "JFK", 2, 3.0), (A, 0, "LGA", 1, 5.0)]
    assert hourly.rows()[1:] == corrected
    assert ms(hourly.pull(3)) == HOUR
    hourly.pull(4)
    assert len(hourly.rows()) == 4


def test_corrections_of_rows_without_their_key_are_retractions_and_appends(derive: Make) -> None:
    query = LATE_HINT.replace("AS event_time, origin,", "AS event_time,")
    hourly = derive(
        sql(query), flights=[Block(rows=[flight(1, 1.0)], watermark=HOUR), Block(rows=[flight(2, 2.0)])]
    )
    hourly.pull()
    assert hourly.rows() == [(A, 0, 1, 1.0), (R, 0, 1, 1.0), (A, 0, 2, 3.0)]


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("SELECT /*+ LATE('2 days') */ time_hour AS event_time FROM flights", "for GROUP BY window"),
        (LATE_HINT.replace("2 hours", "soon"), "takes a single interval"),
        (LATE_HINT.replace("2 hours", "1 month"), "takes a single interval"),
        (
            "SELECT /*+ LATE('2 days') */ max(time_hour) AS event_time FROM flights GROUP BY origin",
            "for GROUP BY window",
        ),
    ],
)
def test_what_late_records_cannot_correct_is_refused(derive: Make, query: str, says: str) -> None:
    with pytest.raises(InvalidQuery, match=says):
        derive(sql(query), flights=[Block(rows=[flight(1)])]).pull()


def test_late_records_without_a_bound_are_dropped_and_counted(derive: Make) -> None:
    hourly = derive(
        sql(COUNTS), flights=[Block(rows=[flight(1)], watermark=HOUR), Block(rows=[flight(2), flight(HOUR)])]
    )
    progress = Progress()
    (chain,) = hourly.chains
    request = hourly.request([0], [len(chain.blocks)], hourly.folder / "data", hourly.folder / "checkpoint")
    hourly.transforms.execute(request, progress)  # type: ignore[call-arg]
    assert progress.now.late == 1


def test_rows_that_show_a_part_of_their_key_are_not_distinguished_by_it(derive: Make) -> None:
    query = (
        "SELECT /*+ LATE('2 hours') */ window.start AS event_time, k.a AS a, count(*) AS n FROM "
        "(SELECT time_hour, named_struct('a', origin, 'b', flight) AS k FROM flights) GROUP BY window(time_hour, '1 hour'), k"
    )
    blocks = [
        Block(rows=[flight(1), flight(2, number=2), flight(3, number=2)], watermark=HOUR),
        Block(rows=[flight(4)] * 2),
    ]
    hourly = derive(sql(query), flights=blocks)
    hourly.pull()
    assert hourly.rows() == [(A, 0, "JFK", 1), (A, 0, "JFK", 2), (R, 0, "JFK", 1), (A, 0, "JFK", 3)]
