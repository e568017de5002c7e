import random
from collections.abc import Sequence

import pyarrow as pa
import pytest

from odf_ingest.history.indexes import CurrentRows
from odf_ingest.history.keys import key_array

APPEND, RETRACT, FROM, TO = range(4)
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("op", pa.uint8())])


def records(rows: Sequence[tuple[int | None, int, int]]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], SCHEMA)


def held(table: pa.Table) -> dict[int, int]:
    return {row["k"]: row["v"] for row in table.to_pylist()}


@pytest.mark.parametrize("is_compacted", [False, True])
def test_the_last_record_of_each_key_is_kept_until_it_is_retracted(is_compacted: bool) -> None:
    source = random.Random(7)
    rows, expected = CurrentRows(("k",)), dict[int, int]()
    for _ in range(80):
        batch = [
            (source.randrange(300), source.randrange(1000), source.choice([APPEND, TO, TO, RETRACT, FROM]))
            for _ in range(source.choice([0, 1, 10, 60]))
        ]
        rows.add(records(batch), "op")
        for key, value, op in batch:
            expected.pop(key, None)
            if op in (APPEND, TO):
                expected[key] = value
        wanted = sorted(source.sample(range(310), 20))
        keys = key_array(pa.table({"k": wanted}), ["k"])
        assert held(rows.current(keys)) == {key: expected[key] for key in wanted if key in expected}
        if is_compacted:
            assert held(rows.current()) == expected
    assert held(rows.current()) == expected


def test_runs_stay_few_so_that_a_record_is_copied_few_times() -> None:
    rows = CurrentRows(("k",))
    for number in range(2000):
        rows.add(records([(number, 0, APPEND)]), "op")
    assert len(rows.store.runs) <= 28


def test_records_without_a_key_are_left_out() -> None:
    rows = CurrentRows(("k",))
    rows.add(records([(None, 1, APPEND), (1, 2, APPEND)]), "op")
    rows.add(records([(7, 3, APPEND)]).drop_columns(["k"]), "op")
    assert held(rows.current()) == {1: 2}


def test_columns_that_were_added_later_are_null_before() -> None:
    rows = CurrentRows(("k",))
    rows.add(records([(1, 2, APPEND)]).drop_columns(["v"]), "op")
    rows.add(records([(2, 3, APPEND)]), "op")
    assert held(rows.current()) == {1: None, 2: 3}


def test_rows_of_runs_with_the_same_columns_are_taken_together() -> None:
    rows = CurrentRows(("k",))
    rows.add(records([(number, 0, APPEND) for number in range(100)]), "op")
    rows.add(records([(1000, 1, APPEND)]), "op")
    assert len(rows.store.runs) == 2
    (found,) = rows._some(key_array(pa.table({"k": [5, 1000]}), ["k"]))
    assert held(found) == {5: 0, 1000: 1}
