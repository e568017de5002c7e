import json

import pytest
from odf_testing.story import Row, Story, derivative, root

from odf_common.metadata.events import SetTransform

COLUMNS = ("id BIGINT", "event_time TIMESTAMP(3)")
COUNTED = (
    "SELECT window.start AS event_time, count(*) AS n FROM named GROUP BY window(event_time, '10 minutes')"
)


def record(number: int) -> Row:
    return {"id": number, "event_time": f"2026-01-01T00:{number:02}:00Z"}


@pytest.fixture
def named(story: Story) -> Story:
    """A root, and its records counted by ten minutes."""
    story.add(root("named", COLUMNS), derivative("named.counted", {"named": "named"}, COUNTED))
    return story


def test_the_engine_is_named_and_another_is_refused(named: Story) -> None:
    named.ingest("named", [record(1), record(12), record(25)])
    named.pull("named --set-watermark 2026-01-01T00:30:00Z")
    assert named.pull("named.counted")["named.counted"]["late"] == 0
    assert named.chain("named.counted").column("n") == [1, 1, 1]

    (event,) = [
        block.event
        for _, block in named.chain("named.counted").blocks
        if isinstance(block.event, SetTransform)
    ]
    version = str(event.transform.version)
    assert "+spark" in version
    transform = {"kind": "Sql", "engine": "spark", "version": "0.0.1+spark3.5.0", "query": COUNTED}
    inputs = [{"datasetRef": "named", "alias": "named"}]
    text = json.dumps({"kind": "SetTransform", "inputs": inputs, "transform": transform})
    said = named.node.fails("commit named.counted -", stdin=text.encode())
    assert "0.0.1+spark3.5.0" in said
    assert version in said
    (verdict,) = named.verify("named.counted")
    assert (verdict["verdict"], verdict["problems"]) == ("valid", [])
