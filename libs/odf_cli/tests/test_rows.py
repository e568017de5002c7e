import datetime as dt

import pyarrow as pa
import pytest

from odf_common.data.json_values import plain, record_rows

FAR = 1 << 40


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([1, FAR >> 10], pa.date32()), [dt.date(1970, 1, 2), "1073741824 date32[day]"]),
        (pa.array([FAR], pa.timestamp("s")), [f"{FAR} timestamp[s]"]),
        (pa.array([1], pa.timestamp("s", "Nowhere/Else")), ["1 timestamp[s, tz=Nowhere/Else]"]),
        (pa.array([FAR * FAR >> 20], pa.duration("s")), [f"{FAR * FAR >> 20} duration[s]"]),
        (
            pa.array([[1, 1 << 30], None], pa.list_(pa.date32())),
            [[dt.date(1970, 1, 2), "1073741824 date32[day]"], None],
        ),
        (pa.array([{"a": 1 << 30}], pa.struct([("a", pa.date32())])), [{"a": "1073741824 date32[day]"}]),
    ],
)
def test_times_that_python_has_no_value_for_are_shown_as_numbers(
    column: pa.Array, expected: list[object]
) -> None:
    rows = list(record_rows(pa.table({"number": range(len(column)), "time": column})))
    assert [row["time"] for row in rows] == expected
    assert [row["number"] for row in rows] == list(range(len(column)))
    plain(rows)
