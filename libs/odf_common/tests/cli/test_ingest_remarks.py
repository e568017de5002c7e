"""What `odf ingest` prints about a committed file in addition to its row in the table."""

import pytest

from odf_common.cli.commands import ingest
from odf_common.proto.odf.node.v1.ingest_pb2 import PushReply


@pytest.mark.parametrize(
    ("file", "count", "line"),
    [
        ("a.csv", 1, "a.csv: 1 row is not a record of orders; the first: line 2: x"),
        ("-", 2, "standard input: 2 rows are not records of orders; the first: line 2: x"),
    ],
)
def test_rejected_rows_are_named_with_their_file(
    capsys: pytest.CaptureFixture[str], file: str, count: int, line: str
) -> None:
    reply = PushReply(rejected=count, rejected_reason="line 2: x")
    ingest._remark_on(ingest._Result(file=file, outcome="committed", reply=reply), "orders", "")
    assert capsys.readouterr().err.splitlines() == [line]
