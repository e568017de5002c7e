import json
from pathlib import Path
from typing import Any

from odf_testing.mqttbroker import serving_mqtt
from odf_testing.story import Story

COUNT = 400
WINDOW = "max_inflight_messages 40"


def source(port: int) -> dict[str, Any]:
    topics = [{"path": "home/#", "qos": "ExactlyOnce"}]
    return {
        "kind": "SetPollingSource",
        "fetch": {"kind": "Mqtt", "host": "127.0.0.1", "port": port, "topics": topics},
        "read": {"kind": "NdJson", "schema": ["id BIGINT"]},
        "merge": {"kind": "Append"},
    }


def test_messages_arrive_exactly_once_though_ingest_is_killed_and_the_broker_stops(
    story: Story, tmp_path: Path
) -> None:
    with serving_mqtt(tmp_path, "allow_anonymous true", WINDOW) as broker:
        content = {"name": "readings", "kind": "Root", "metadata": [source(broker.port)]}
        story.add({"kind": "DatasetSnapshot", "version": 1, "content": content})
        assert story.pull("readings")["readings"]["state"] == "up-to-date"
        broker.send(
            *((f"home/{number}", json.dumps({"id": number}).encode()) for number in range(COUNT)), qos=2
        )
        pull = story.node.start("pull readings")
        story.node.eventually(lambda: story.records("readings")[0] > 0)
        old = story.node.kill("ingest")
        pull.communicate(timeout=60)
        story.node.await_restart("ingest", old)
        broker.stop()
        assert "Connection refused" in story.node.fails("pull readings")
        broker.start()
        story.pull("readings")
    assert [row["id"] for row in story.tail("readings")] == list(range(COUNT))
    assert [one["verdict"] for one in story.verify("readings")] == ["valid"]
    story.node.run(
        "delete readings --yes"
    )  # its broker has ended, and other tests pull all datasets of the node
