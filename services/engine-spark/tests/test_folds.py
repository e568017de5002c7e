"""Folds within whole queries."""

from odf_testing.engine import FROM, HOUR, TO, A, Block, Make, R, flight, sql


def test_one_group_without_a_key(derive: Make) -> None:
    total = derive(
        sql("SELECT max(time_hour) AS event_time, count(*) AS n, avg(dep_delay) AS a FROM flights"),
        flights=[
            Block(rows=[flight(1, 1.0), flight(2, 3.0)]),
            Block(rows=[flight(2, 3.0, R)], watermark=HOUR),
        ],
    )
    assert total.pull().new_watermark is None
    one, two = (1, 1, 1.0), (2, 2, 2.0)
    assert total.rows() == [(A, *one), (FROM, *one), (TO, *two), (FROM, *two), (TO, *one)]


def test_peers_of_a_running_sum_are_equal_in_all_that_orders_them(derive: Make) -> None:
    query = (
        "SELECT time_hour AS event_time, flight, sum(dep_delay) OVER w AS s, count(*) OVER w AS n FROM flights "
        "WINDOW w AS (PARTITION BY origin ORDER BY time_hour, flight DESC)"
    )
    rows = [flight(1, 1.0, number=1), flight(1, 2.0, number=2), flight(1, 4.0, number=2), flight(2, 8.0)]
    running = derive(sql(query), flights=[Block(rows=rows, watermark=HOUR)])
    running.pull()
    assert [row[2:] for row in running.rows()] == [(2, 6.0, 2), (2, 6.0, 2), (1, 7.0, 3), (1, 15.0, 4)]
