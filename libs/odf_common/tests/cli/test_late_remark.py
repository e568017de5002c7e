from odf_common.cli.suggestions import late_remark
from odf_common.proto.odf.node.v1.ingest_pb2 import LateRecords

LATE = LateRecords(records=2, most="1m", proposed_delay="2m")


def test_the_proposed_command_names_the_source_of_a_dataset_with_several() -> None:
    assert "`odf source set a watermarkDelay=2m` holds" in late_remark(LATE, "a", "")
    assert "`odf source set a watermarkDelay=2m --source till` holds" in late_remark(LATE, "a", "till")
