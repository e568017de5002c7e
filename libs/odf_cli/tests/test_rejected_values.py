"""How `odf rejected list` shows the values of messages in its table."""

import pytest

from odf_cli.commands import rejected
from odf_common.proto.odf.node.v1.ingest_pb2 import RejectedPart


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (b"1,a", "1,a"),
        ("1,Tromsø".encode(), "1,Tromsø"),
        (b"PAR1\0\0", "(binary, 6 bytes)"),
        (b"\xff\xfe1", "(binary, 3 bytes)"),
    ],
)
def test_a_binary_value_is_shown_by_its_size(value: bytes, shown: str) -> None:
    message = RejectedPart.Message(value=value, size=len(value))
    assert rejected._one_line(rejected._row(message)) == shown
