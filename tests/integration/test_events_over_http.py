"""A client that follows a dataset's events sees its commits, and its end."""

import json
from typing import Any, BinaryIO
from urllib.request import urlopen

from odf_testing.story import Story, root

NAME = "followed.over.http"


def test_a_stream_sends_the_head_until_the_dataset_is_deleted(story: Story) -> None:
    story.add(root(NAME, ["n BIGINT"]))
    with urlopen(f"{story.node.node.http}/{NAME}/events", timeout=30) as stream:
        assert next_head(stream)["lastOffset"] is None
        story.ingest(NAME, [{"n": 1}, {"n": 2}])
        while (event := next_head(stream))["lastOffset"] is None:
            """The schema may be committed in an event of its own."""
        assert (event["lastOffset"], event["head"]) == (1, story.summary(NAME)["head"])
        story.node.run(f"delete {NAME} --yes")
        assert b"event: gone\n" in stream.readlines()


def next_head(stream: BinaryIO) -> dict[str, Any]:
    """Return the data of the next event, skipping heartbeats."""
    while not (line := stream.readline()).startswith(b"data: "):
        assert line, "the stream ended"
    head: dict[str, Any] = json.loads(line.removeprefix(b"data: "))
    return head
