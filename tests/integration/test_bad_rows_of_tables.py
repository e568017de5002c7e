"""Bad rows of Parquet files, of Arrow data over HTTP, and of Arrow messages: left out, shown, and read again."""

import http.client
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from odf_testing.embedded import PATIENCE
from odf_testing.story import APPEND, Row, Sender, Story, root

COLUMNS = ("id BIGINT NOT NULL", "at TIMESTAMP(3)", "price DECIMAL(6, 2)")
AT = datetime(2026, 1, 1, 12, 30, tzinfo=UTC)
FINER = AT.replace(microsecond=1)
TABLE = pa.table(
    {
        "id": [1, 2, None, 4, 5],
        "at": pa.array([AT, FINER, AT, None, AT], pa.timestamp("us", "UTC")),
        "price": [1.25, 1.0, 1.0, 1.0, 1.005],
    }
)
TOO_FINE = "has a finer fraction than its column, and the source has finerTimes=refuse; declare more digits, or STRING"
REASONS = [
    f"row 2: column at: '2026-01-01 12:30:00.000001Z' {TOO_FINE}",
    "row 3: column id: null is not allowed; a value of BIGINT is required",
    "row 4: column at: null is not allowed; a value of TIMESTAMP(3) is required",
    "row 5: column price: 1.005 is not a value of DECIMAL(6, 2); declare more digits, or DOUBLE",
]
ROWS = [
    {"id": 2, "at": "2026-01-01T12:30:00.000001Z", "price": 1.0},
    {"id": None, "at": "2026-01-01T12:30:00Z", "price": 1.0},
    {"id": 4, "at": None, "price": 1.0},
    {"id": 5, "at": "2026-01-01T12:30:00Z", "price": 1.005},
]


def stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def listed(story: Story, name: str, label: str) -> list[Row]:
    """Return the rejected rows, which are those of the table."""
    rows: list[Row] = story.node.run(f"rejected list {name} --output json")
    assert [row["reason"] for row in rows] == [f"{label}, {reason}" for reason in REASONS]
    assert [json.loads(row["value"]) for row in rows] == ROWS
    return rows


def retry(story: Story, name: str) -> None:
    """Retry the rows, of which one fits after a change of the source."""
    assert "cannot be retried" in story.node.fails(f"rejected retry {name} --all")
    story.node.run(f"source set {name} finerTimes=cut")
    answer = story.node.run(f"rejected retry {name} --all --output json")
    assert (answer["retried"], answer["rejectedAgain"], answer["open"]) == (1, 0, 3)
    assert story.chain(name).column("id") == [1, 2]
    assert story.summary(name)["rejected"] == 3
    assert "null is not allowed" in story.node.fails(f"rejected retry {name} --all")
    assert story.node.run(f"rejected drop {name} --all --output json")["open"] == 0


def test_bad_rows_of_a_polled_parquet_file_are_left_out_and_read_again(story: Story, tmp_path: Path) -> None:
    pq.write_table(TABLE, tmp_path / "1.parquet")
    source: dict[str, Any] = {"kind": "SetPollingSource", "fetch": {"kind": "FilesGlob"}}
    source["fetch"]["path"] = f"{tmp_path}/*.parquet"
    source |= {"read": {"kind": "Parquet", "schema": list(COLUMNS)}, "merge": {"kind": "Append"}}
    vocab = {"kind": "SetVocab", "eventTimeColumn": "at"}
    content = {"name": "tables.polled", "kind": "Root", "metadata": [vocab, source]}
    story.add({"kind": "DatasetSnapshot", "version": 1, "content": content})
    story.node.run("source set tables.polled finerTimes=refuse")
    assert f"1.parquet, {REASONS[1]}" in story.node.fails("pull tables.polled")
    story.node.run("source set tables.polled badRecords=dead-letter")
    pulled = story.pull("tables.polled")["tables.polled"]
    assert (pulled["records"], pulled["rejected"]) == (1, 4)
    assert pulled["rejectedReason"] == f"1.parquet, {REASONS[0]}"
    assert story.pull("tables.polled")["tables.polled"]["state"] == "up-to-date"
    assert [row["location"] for row in listed(story, "tables.polled", "1.parquet")] == [
        "0/0",
        "0/1",
        "0/2",
        "0/3",
    ]
    retry(story, "tables.polled")


def test_bad_rows_of_arrow_data_over_http_are_left_out_and_read_again(story: Story) -> None:
    story.add(root("tables.pushed", COLUMNS, merge=APPEND, event_time="at"))
    story.node.run("source set tables.pushed finerTimes=refuse")
    connection = http.client.HTTPConnection(
        str(story.node.node.http).removeprefix("http://"), timeout=PATIENCE
    )
    for _ in range(2):  # a repeated push changes nothing
        headers = {"Content-Type": "application/vnd.apache.arrow.stream", "Idempotency-Key": "1"}
        connection.request("POST", "/tables.pushed/ingest?wait=commit", stream(TABLE), headers)
        answer = connection.getresponse()
        receipt = json.loads(answer.read())
        assert (answer.status, receipt["records"], receipt["rejected"]) == (200, 1, 4)
        assert receipt["rejectedReason"] == REASONS[0]
    connection.close()
    rows = story.node.run("rejected list tables.pushed --output json")
    label = rows[0]["reason"].partition(", row")[0]
    assert [row["location"] for row in listed(story, "tables.pushed", label)] == [
        f"row/{row}" for row in range(4)
    ]
    retry(story, "tables.pushed")


def test_bad_rows_of_arrow_messages_are_left_out_and_read_again(story: Story) -> None:
    name = "tables.sent"
    story.add(root(name, COLUMNS, merge=APPEND, event_time="at"))
    story.node.run(f"source set {name} messageFormat=arrow finerTimes=refuse")
    old = story.node.kill("ingest")  # the next process has the settings from its start
    story.node.eventually(lambda: story.node.pid("ingest") not in {None, old})
    topic = story.topic(name)
    Sender(story.node).send(topic, [stream(TABLE)])
    pulled = story.pull(name)[name]
    assert pulled["rejected"] == 4
    rows = listed(story, name, f"message 0/0 of topic {topic}")
    assert [row["location"] for row in rows] == [f"row/{row}" for row in range(4)]
    retry(story, name)
