"""Times that nanoseconds in 64 bits cannot hold, the usual sentinels, are committed and reported by every process."""

import json
from collections.abc import Callable

import pytest
from odf_testing.coordinator import Coordinator

from odf_common.codec.envelopes import envelope
from odf_common.metadata.scalars import Timestamp
from odf_coordinator.commit.head_publisher import committed_message
from odf_coordinator.views.table import DatasetTable

Odf = Callable[..., int]
SENTINELS = [
    "0001-01-01T00:00:00Z",
    "1677-01-01T00:00:00Z",
    "2263-01-01T00:00:00Z",
    "9999-12-31T23:59:59.999Z",
]


@pytest.mark.parametrize("text", SENTINELS)
def test_a_watermark_at_a_sentinel_is_set_announced_and_shown(
    node: Coordinator, odf: Odf, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    assert odf("pull", "cities", "--set-watermark", text) == 0
    cities = node.find("cities")
    assert cities.state.watermark == Timestamp.parse(text)
    capsys.readouterr()
    assert odf("list", "--output", "json") == 0
    (listed,) = [one for one in json.loads(capsys.readouterr().out) if one["alias"] == "cities"]
    assert listed["watermark"] == text
    board = DatasetTable()
    board.see(envelope(cities.id, committed_message(cities.state, alias="cities")), 0.0)
    (row,) = board.rows(0.0)
    assert row["watermark"] == text


def test_a_derivative_of_a_dataset_at_a_sentinel_is_transformed(node: Coordinator, odf: Odf) -> None:
    node.push("cities", "Oslo")
    node.editor.set_watermark("cities", Timestamp.parse(SENTINELS[-1]))
    node.work()
    assert node.find("cities.copy").state.watermark == Timestamp.parse(SENTINELS[-1])
