"""A table whose changes Debezium publishes, and a derivative that groups it: deletions, tombstones, a changed key.

Once by the setting for its envelope, merged in both ways, and once by a query of the source's own.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from odf_testing.story import Manifest, Sender, Story, derivative, root

START = 1_767_225_600_000  # ms
COLUMNS = ("event_time TIMESTAMP(3)", "id BIGINT", "name STRING", "price DECIMAL(10, 2)")
TABLE = "STRUCT<id: BIGINT, name: STRING, price: STRING>"
RAW = ("op STRING", "ts_ms BIGINT", f"before {TABLE}", f"after {TABLE}")
QUERY = """
SELECT timestamp_millis(ts_ms) AS event_time, IF(op = 'd', 1, 0) AS op, coalesce(after.id, before.id) AS id,
  coalesce(after.name, before.name) AS name, CAST(coalesce(after.price, before.price) AS DECIMAL(10, 2)) AS price
FROM input
"""
TOTALS = (
    "SELECT max(event_time) AS event_time, name, count(*) AS n, sum(price) AS total FROM parts GROUP BY name"
)
Row = Mapping[str, object]


def row(key: int, name: str, price: str) -> Row:
    return {"id": key, "name": name, "price": price}


def change(op: str, before: Row | None, after: Row | None, seconds: int) -> bytes:
    time = START + seconds * 1000
    facts = {"op": op, "ts_ms": time, "source": {"ts_ms": time}}
    return json.dumps({**facts, "before": before, "after": after}).encode()


WASHER, DEARER, SCREW = row(1, "washer", "0.10"), row(1, "washer", "0.15"), row(2, "screw", "0.30")
CHANGES: Sequence[bytes | None] = (
    change("r", None, WASHER, 0),
    change("c", None, SCREW, 1),
    change("u", WASHER, DEARER, 2),
    *(change("d", SCREW, None, 3), None),
    *(change("d", DEARER, None, 4), None),
    change("c", None, row(10, "washer", "0.15"), 4),
)


def by_envelope(name: str, strategy: str) -> Manifest:
    columns = ("op INT", *COLUMNS) if strategy == "ChangelogStream" else COLUMNS
    return root(name, columns, merge={"kind": strategy, "primaryKey": ["id"]})


def by_query(name: str) -> Manifest:
    manifest = root(name, RAW, merge={"kind": "UpsertStream", "primaryKey": ["id"]})
    (source,) = (one for one in manifest["content"]["metadata"] if one["kind"] == "AddPushSource")
    source["preprocess"] = {"kind": "Sql", "engine": "spark", "query": QUERY}
    return manifest


def current(rows: Sequence[Row], *names: str) -> Counter[tuple[object, ...]]:
    """Return the rows that are left, without those that were taken back."""
    left: Counter[tuple[object, ...]] = Counter()
    for one in rows:
        left[tuple(one[name] for name in names)] += 1 if one["op"] in (0, 3) else -1
    assert min(left.values()) >= 0
    return +left


@pytest.mark.parametrize("is_apart", [False, True], ids=["at once", "one by one"])
@pytest.mark.parametrize("how", ["UpsertStream", "ChangelogStream", "query"])
def test_the_dataset_and_its_derivative_have_the_state_of_the_table(
    story: Story, how: str, is_apart: bool
) -> None:
    name = f"table.{how.lower()}.{'apart' if is_apart else 'whole'}"
    totals = f"{name}.totals"
    manifest = by_query(name) if how == "query" else by_envelope(name, how)
    story.add(manifest, derivative(totals, {"parts": name}, TOTALS))
    # A tombstone that counted as a fault would stop the source.
    envelope = "" if how == "query" else " envelope=debezium"
    story.node.run(f"source set {name} badRecords=stop{envelope}")
    story.pull(name)  # from here on the source is read with its settings
    sender = Sender(story.node)
    for messages in batches(is_apart):
        sender.send(story.topic(name), messages)
        story.pull(name)
    story.pull(totals)
    assert current(story.tail(name), "id", "name", "price") == {(10, "washer", "0.15"): 1}
    assert current(story.tail(totals), "name", "n", "total") == {("washer", 1, "0.15"): 1}
    assert story.dead_letters(story.topic(name)) == []


def batches(is_apart: bool) -> Iterator[Sequence[bytes | None]]:
    if is_apart:
        yield from ([one] for one in CHANGES)
    else:
        yield CHANGES


def test_the_manifest_from_a_topic_reads_its_changes_without_editing(story: Story, tmp_path: Path) -> None:
    topic, name, manifest = "table.changes", "table.new", tmp_path / "parts.yaml"
    story.node.topics().create_push_topic(topic, 1)
    story.node.produce(topic, [one for one in CHANGES if one is not None], key=b'{"id": 1}')
    said = story.node.attempt(f"new {name} --from topic:{topic} -o {manifest}").stderr.decode()
    assert "pushed" not in said, "the event time is that of the source"
    assert "kind: UpsertStream, primaryKey: [id]" in manifest.read_text()
    story.node.run(f"add {manifest}")
    (command,) = re.findall(r"`odf (source set [^`]*)`", said)
    story.node.run(command)
    story.pull(name)
    rows = story.tail(name)
    assert current(rows, "id", "name", "price") == {(10, "washer", "0.15"): 1}
    assert str(rows[0]["event_time"]).startswith("2026-01-01T00:00:0")
