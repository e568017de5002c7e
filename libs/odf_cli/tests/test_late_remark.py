from odf_cli.suggestions import future_remark, late_remark
from odf_common.proto.odf.node.v1.ingest_pb2 import FutureRecords, LateRecords

LATE = LateRecords(records=2, most="1m", proposed_delay="2m")


def test_the_proposed_command_names_the_source_of_a_dataset_with_several() -> None:
    assert "`odf source set a watermarkDelay=2m` holds" in late_remark(LATE, "a", "")
    assert "`odf source set a watermarkDelay=2m --source till` holds" in late_remark(LATE, "a", "till")


def test_sources_of_one_watermark_need_the_delay_together() -> None:
    assert "for the dataset's other sources too" in late_remark(LATE, "a", "till")
    assert "other sources" not in late_remark(LATE, "a", "")


def test_a_record_too_far_in_the_future_is_named() -> None:
    records = FutureRecords(records=3, offset=7, time="2999-01-01T00:00:00Z")
    said = future_remark(records, "a", "till")
    assert ": 3, the first at offset 7 with 2999-01-01T00:00:00Z; if such times are meant, " in said
    assert "`odf source set a maxFuture=none --source till` lets" in said
    assert "`odf source set a maxFuture=none` lets" in future_remark(records, "a", "")
