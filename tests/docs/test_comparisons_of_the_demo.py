"""The demo compares the node's results with those of pandas: its comparisons notice differences."""

import pandas as pd
import pytest
from nycflights import expected

FLIGHTS = pd.DataFrame(
    {
        "id": [1, 2, 3],
        "time_hour": ["2013-01-01T05:00:00Z", "2013-01-01T05:00:00Z", "2013-01-01T06:00:00Z"],
        "carrier": ["UA", "AA", "AA"],
        "flight": [1, 2, 3],
        "origin": ["JFK", "JFK", "EWR"],
        "dest": ["IAH", "MIA", "BQN"],
        "dep_delay": [60.0, None, 59.0],
    }
)
WEATHER = pd.DataFrame(
    {"time_hour": ["2013-01-01T05:00:00Z"] * 2, "origin": ["JFK", "JFK"], "temp": [37.0, 39.5]}
)


def test_pandas_computes_what_the_queries_of_the_demo_do() -> None:
    late = expected.late(FLIGHTS)
    assert list(late["flight"]) == [1]
    assert expected.worst_carrier(late) == {"carrier": "UA", "n": 1}
    assert expected.canonical(expected.hourly(FLIGHTS, WEATHER)) == [
        ("2013-01-01T05:00:00Z", "JFK", 2, 60, 39.5),
        ("2013-01-01T06:00:00Z", "EWR", 1, 59, None),
    ]


@pytest.mark.parametrize(
    "changed",
    [
        FLIGHTS.assign(dep_delay=pd.Series([60.0, None, 58.0])),
        FLIGHTS.iloc[:2],
        FLIGHTS.assign(dest=pd.Series(["IAH", None, "BQN"])),
    ],
    ids=["a value", "a record", "a null"],
)
def test_a_difference_fails_the_demo(changed: pd.DataFrame) -> None:
    checks = expected.Checks()
    assert not checks.all_right, "nothing was compared"
    checks.same_records("flights", FLIGHTS.iloc[::-1], FLIGHTS)
    assert checks.all_right
    checks.same_records("flights", changed, FLIGHTS)
    assert not checks.all_right
    assert "1 of 2 comparisons differ: flights" in checks.summary()
