"""`odf search` reports the repositories that were searched, and those that could not be."""

from odf_cli.commands.search import repository_lines
from odf_common.proto.odf.node.v1.sync_pb2 import SearchedRepository


def test_each_repository_is_reported() -> None:
    searched = [
        SearchedRepository(name="shop", datasets=3),
        SearchedRepository(name="lone", datasets=1),
        SearchedRepository(name="disk", problem="no such folder"),
    ]
    assert repository_lines(searched) == [
        "shop: 3 datasets",
        "lone: 1 dataset",
        "disk: not searched: no such folder",
    ]
