import pytest

from odf_common.codec.envelopes import Body, envelope
from odf_common.hashing.physical import physical_hash_of
from odf_common.identity.keys import generate
from odf_common.proto.odf.bus.v1 import bus_pb2 as bus
from odf_coordinator.views.table import DatasetTable

DATASET = generate().dataset_id
HEAD = physical_hash_of(b"head")


def committed(last_offset: int | None, *, number: int = 1) -> bus.Committed:
    return bus.Committed(
        head=HEAD.raw, sequence_number=number, last_offset=last_offset, watermark={}, alias="cities"
    )


def test_a_row_has_what_was_said_last() -> None:
    table = DatasetTable()
    table.committed(str(DATASET), committed(None), now=None)

    table.see(envelope(DATASET, committed(9, number=2)), 100.0)
    table.see(envelope(DATASET, bus.IngestProgress(source_name="a", lag=3)), 100.0)
    told = bus.IngestProgress(source_name="b", lag=4, rejected=2, rejected_reason="is empty")
    table.see(envelope(DATASET, told), 100.0)

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
def test_a_row_has_what_the_engine_does_until_that_ends(end: Body) -> None:
    table = DatasetTable()
    table.committed(str(DATASET), committed(None), now=None)
    table.see(envelope(DATASET, bus.TransformProgress(stage="computing", rows=3, total=5)), 100.0)
    (row,) = table.rows(100.0)
    assert (row["stage"], row["rows"], row["total"]) == ("computing", 3, 5)
    table.see(envelope(DATASET, end), 101.0)
    (row,) = table.rows(101.0)
    assert (row["stage"], row["rows"], row["total"]) == (None, 0, 0)


def test_throughput_is_that_of_the_last_minute() -> None:
    table = DatasetTable()
    table.committed(str(DATASET), committed(599), now=None)
    table.see(envelope(DATASET, committed(1199, number=2)), 100.0)

    assert [row["records_per_second"] for row in table.rows(159.0)] == [10.0]
    assert [row["records_per_second"] for row in table.rows(160.0)] == [0.0]


def test_a_removed_dataset_is_gone() -> None:
    table = DatasetTable()
    table.committed(str(DATASET), committed(1), now=None)

    table.see(envelope(DATASET, bus.DatasetRemoved(alias="cities")), 1.0)

    assert list(table.rows(1.0)) == []
