"""`odf search` reports what was searched, the age of the index, and what could not be read."""

import pytest

from odf_common.cli.commands.search import repository_lines
from odf_common.proto.odf.node.v1.sync_pb2 import SearchedRepository

NOW = 1_000_000.0


@pytest.mark.parametrize(
    ("seconds", "age"),
    [(-5, "0 s ago"), (59, "59 s ago"), (60, "1 min ago"), (7199, "1 h ago"), (200_000, "2 d ago")],
)
def test_the_age_of_an_index_is_shown(seconds: int, age: str) -> None:
    searched = SearchedRepository(name="shop", datasets=3, read_at_ms=int(NOW - seconds) * 1000)
    assert repository_lines([searched], NOW) == [f"shop: 3 datasets as of {age}"]


def test_an_unreadable_repository_or_dataset_is_named() -> None:
    away = SearchedRepository(name="shop", datasets=3, read_at_ms=int(NOW) * 1000, problem="refused")
    never = SearchedRepository(name="disk", problem="no such folder")
    one = SearchedRepository(name="lone", datasets=1, read_at_ms=int(NOW) * 1000)
    assert repository_lines([one], NOW) == ["lone: 1 dataset as of 0 s ago"]
    assert repository_lines([away, never], NOW) == [
        "shop: 3 datasets as of 0 s ago; it cannot be read now: refused",
        "disk: not searched; it cannot be read now: no such folder",
    ]
