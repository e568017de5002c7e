import pytest

from odf_common.codec.envelopes import Body, envelope
from odf_common.hashing.multihash import physical_hash_of
from odf_common.identity.keys import generate
from odf_common.proto.odf.bus.v1 import bus_pb2 as bus
from odf_coordinator.views.table import DatasetTable

DATASET = generate().dataset_id
HEAD = physical_hash_of(b"head")


def committed(last_offset: int | None, *, number: int = 1) -> bus.Committed:
    return bus.Committed(
        head=HEAD.raw, sequence_number=number, last_offset=last_offset, watermark={}, alias="cities"
    )


def test_a_row_shows_the_latest_report() -> None:
    table = DatasetTable()
    table.apply_head(str(DATASET), committed(None), now=None)

    table.see(envelope(DATASET, committed(9, number=2)), 100.0)
    table.see(envelope(DATASET, bus.IngestProgress(source_name="a", lag=3)), 100.0)
    progress = bus.IngestProgress(source_name="b", lag=4, rejected=2, rejected_reason="is empty")
    table.see(envelope(DATASET, progress), 100.0)

    (row,) = table.rows(100.0)
    assert row == {
        "dataset_id": str(DATASET),
        "alias": "cities",
        "head": str(HEAD),
        "last_offset": 9,
        "watermark": "1970-01-01T00:00:00Z",
        "records_per_second": round(10 / 60, 3),
        "lag": 7,
        "rejected": 2,
        "rejected_reason": "is empty",
        "stage": None,
        "rows": 0,
        "total": 0,
    }


@pytest.mark.parametrize("end", [bus.TransformProgress(), committed(9, number=2)])
def test_a_row_shows_the_progress_of_the_engine_until_it_ends(end: Body) -> None:
    table = DatasetTable()
    table.apply_head(str(DATASET), committed(None), now=None)
    table.see(envelope(DATASET, bus.TransformProgress(stage="computing", rows=3, total=5)), 100.0)
    (row,) = table.rows(100.0)
    assert (row["stage"], row["rows"], row["total"]) == ("computing", 3, 5)
    table.see(envelope(DATASET, end), 101.0)
    (row,) = table.rows(101.0)
    assert (row["stage"], row["rows"], row["total"]) == (None, 0, 0)


def test_throughput_is_that_of_the_last_minute() -> None:
    table = DatasetTable()
    table.apply_head(str(DATASET), committed(599), now=None)
    table.see(envelope(DATASET, committed(1199, number=2)), 100.0)

    assert [row["records_per_second"] for row in table.rows(159.0)] == [10.0]
    assert [row["records_per_second"] for row in table.rows(160.0)] == [0.0]


def test_a_table_that_nobody_reads_keeps_a_minute_of_throughput() -> None:
    table = DatasetTable()
    table.apply_head(str(DATASET), committed(999), now=None)
    for second in range(1000, 1400):
        table.see(envelope(DATASET, committed(second, number=second)), float(second))
    assert len(table._datasets[str(DATASET)].growth) == 60
    assert [row["records_per_second"] for row in table.rows(1399.0)] == [1.0]


def test_a_removed_dataset_is_gone() -> None:
    table = DatasetTable()
    table.apply_head(str(DATASET), committed(1), now=None)

    table.see(envelope(DATASET, bus.DatasetRemoved(alias="cities")), 1.0)

    assert list(table.rows(1.0)) == []


def test_only_records_that_arrived_while_watching_count_as_throughput() -> None:
    table = DatasetTable()
    table.see(envelope(DATASET, committed(599)), 100.0)  # may have existed before
    table.see(envelope(DATASET, committed(299, number=2)), 101.0)  # reset
    table.apply_head(str(DATASET), committed(899, number=3), now=None)  # history
    assert [row["records_per_second"] for row in table.rows(102.0)] == [0.0]
    table.see(envelope(DATASET, committed(959, number=4)), 103.0)
    table.see(envelope(DATASET, committed(959, number=5)), 104.0)
    assert [row["records_per_second"] for row in table.rows(104.0)] == [1.0]


def test_the_records_after_the_first_block_count_as_throughput() -> None:
    table = DatasetTable()
    table.see(envelope(DATASET, committed(None, number=0)), 100.0)
    table.see(envelope(DATASET, committed(59)), 101.0)
    assert [row["records_per_second"] for row in table.rows(102.0)] == [1.0]


def test_rows_are_sorted_by_name_and_only_of_datasets_with_a_head() -> None:
    table = DatasetTable()
    others = [generate().dataset_id for _ in range(3)]
    for dataset, alias in zip(others, ("b", "A", "c"), strict=True):
        body = committed(1)
        body.alias = alias
        table.see(envelope(dataset, body), 1.0)
    table.see(envelope(generate().dataset_id, bus.TransformProgress(stage="computing")), 1.0)
    assert [row["alias"] for row in table.rows(1.0)] == ["A", "b", "c"]
    unnamed = committed(2, number=2)
    unnamed.alias = ""
    table.see(envelope(others[0], unnamed), 2.0)
    assert [row["alias"] for row in table.rows(2.0)] == ["A", "b", "c"]
